CREATE OR REPLACE VIEW {database}_between.v_usage_by_between AS
SELECT
    toStartOfDay(c.time) AS time, toDate(time) AS day, tenant_id, service_id, model, session_id, user_id, agent_id,
    count() AS calls, sum(c.tokens_in) AS tokens_in, sum(c.tokens_out) AS tokens_out,
    sum(c.model_cost_usd_micros) AS model_cost_usd_micros, sum(c.tool_cost_usd_micros) AS tool_cost_usd_micros,
    countIf(is_timeout_retry) AS timeout_retries,
    sumIf(c.model_cost_usd_micros + c.tool_cost_usd_micros, is_timeout_retry) AS timeout_retry_cost_usd_micros
FROM {database}_between.v_usage_calls_between(from = {from:DateTime('UTC')}, to = {to:DateTime('UTC')}) AS c
GROUP BY time, tenant_id, service_id, model, session_id, user_id, agent_id;

ALTER TABLE {database}_between.v_usage_by_between
    MODIFY COMMENT 'v_usage_by of a time';
