CREATE OR REPLACE VIEW {database}_between.v_usage_by_tenant_between AS
SELECT
    tenant_id, sum(u.calls) AS calls, sum(u.tokens_in) AS tokens_in, sum(u.tokens_out) AS tokens_out,
    sum(u.model_cost_usd_nanos) AS model_cost_usd_nanos, sum(u.tool_cost_usd_nanos) AS tool_cost_usd_nanos,
    sum(u.cache_read_input_tokens) AS cache_read_input_tokens, sum(u.cache_write_input_tokens) AS cache_write_input_tokens,
    sum(u.reasoning_output_tokens) AS reasoning_output_tokens, sum(u.retries) AS retries
FROM {database}_between.v_usage_between(from = {from:DateTime('UTC')}, to = {to:DateTime('UTC')}) AS u
GROUP BY tenant_id;

ALTER TABLE {database}_between.v_usage_by_tenant_between
    MODIFY COMMENT 'v_usage_by_tenant of a time';
