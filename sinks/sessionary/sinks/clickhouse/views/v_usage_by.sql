CREATE OR REPLACE VIEW {database}.v_usage_by AS
SELECT * FROM {database}_between.v_usage_by_between(from = '1970-01-01 00:00:00', to = '2106-01-01 00:00:00');

ALTER TABLE {database}.v_usage_by
    MODIFY COMMENT 'calls, tokens and cost by day, tenant, service, model, session, user and agent',
    COMMENT COLUMN time 'start of the day',
    COMMENT COLUMN day 'day of the calls, UTC',
    COMMENT COLUMN tenant_id 'tenant of the session',
    COMMENT COLUMN service_id 'service that sent the event',
    COMMENT COLUMN model 'model that was called',
    COMMENT COLUMN session_id 'id of the session',
    COMMENT COLUMN user_id 'user for whom the agent works',
    COMMENT COLUMN agent_id 'agent that the event names',
    COMMENT COLUMN calls 'calls, each counted once',
    COMMENT COLUMN tokens_in 'tokens of the input',
    COMMENT COLUMN tokens_out 'tokens of the output',
    COMMENT COLUMN model_cost_usd_nanos 'cost of the model in billionths of a US dollar',
    COMMENT COLUMN tool_cost_usd_nanos 'cost of tools in billionths of a US dollar',
    COMMENT COLUMN timeout_retries 'number of calls that repeat one that timed out',
    COMMENT COLUMN timeout_retry_cost_usd_nanos 'cost of these retries in billionths of a US dollar',
    COMMENT COLUMN cache_read_input_tokens 'tokens of the input that the provider had in its cache; they are in tokens_in too',
    COMMENT COLUMN cache_write_input_tokens 'tokens of the input that the provider wrote into its cache; they are in tokens_in too',
    COMMENT COLUMN reasoning_output_tokens 'tokens of the output that were spent on reasoning; they are in tokens_out too',
    COMMENT COLUMN retries 'requests that were repeated before calls had their answers',
    COMMENT COLUMN mean_time_to_first_token_ms 'mean time to the first token of the answer, in milliseconds; null if not reported';
