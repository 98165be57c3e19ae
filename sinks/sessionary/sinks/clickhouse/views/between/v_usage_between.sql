CREATE OR REPLACE VIEW {database}_between.v_usage_between AS
SELECT
    tenant_id, service_id, count() AS calls, sum(c.tokens_in) AS tokens_in, sum(c.tokens_out) AS tokens_out,
    sum(c.model_cost_usd_micros) AS model_cost_usd_micros, sum(c.tool_cost_usd_micros) AS tool_cost_usd_micros,
    countIf(is_timeout_retry) AS timeout_retries,
    sumIf(c.model_cost_usd_micros + c.tool_cost_usd_micros, is_timeout_retry) AS timeout_retry_cost_usd_micros,
    if(model_cost_usd_micros + tool_cost_usd_micros = 0, NULL,
        timeout_retry_cost_usd_micros / (model_cost_usd_micros + tool_cost_usd_micros)) AS timeout_retry_share
FROM {database}_between.v_usage_calls_between(from = {from:DateTime('UTC')}, to = {to:DateTime('UTC')}) AS c
GROUP BY tenant_id, service_id;

ALTER TABLE {database}_between.v_usage_between
    MODIFY COMMENT 'v_usage of a time';
