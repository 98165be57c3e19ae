CREATE OR REPLACE VIEW {database}_between.v_usage_by_between AS
SELECT
    toStartOfDay(c.time) AS time, toDate(time) AS day, tenant_id, service_id, model, session_id, user_id, agent_id,
    count() AS calls, sum(c.tokens_in) AS tokens_in, sum(c.tokens_out) AS tokens_out,
    sum(c.model_cost_usd_nanos) AS model_cost_usd_nanos, sum(c.tool_cost_usd_nanos) AS tool_cost_usd_nanos,
    countIf(is_timeout_retry) AS timeout_retries,
    sumIf(c.model_cost_usd_nanos + c.tool_cost_usd_nanos, is_timeout_retry) AS timeout_retry_cost_usd_nanos,
    sum(c.cache_read_input_tokens) AS cache_read_input_tokens, sum(c.cache_write_input_tokens) AS cache_write_input_tokens,
    sum(c.reasoning_output_tokens) AS reasoning_output_tokens, sum(c.retries) AS retries,
    avg(c.time_to_first_token_ms) AS mean_time_to_first_token_ms
FROM {database}_between.v_usage_calls_between(from = {from:DateTime('UTC')}, to = {to:DateTime('UTC')}) AS c
GROUP BY time, tenant_id, service_id, model, session_id, user_id, agent_id;

ALTER TABLE {database}_between.v_usage_by_between
    MODIFY COMMENT 'v_usage_by of a time';
