CREATE OR REPLACE VIEW {database}.v_usage_calls AS
SELECT * FROM {database}_between.v_usage_calls_between(from = '1970-01-01 00:00:00', to = '2106-01-01 00:00:00');

ALTER TABLE {database}.v_usage_calls
    MODIFY COMMENT 'each paid call: tokens, cost, model',
    COMMENT COLUMN time 'log time of the first delivery',
    COMMENT COLUMN tenant_id 'tenant of the session',
    COMMENT COLUMN session_id 'id of the session',
    COMMENT COLUMN user_id 'user for whom the agent works',
    COMMENT COLUMN agent_id 'agent that the event names',
    COMMENT COLUMN service_id 'service that sent the event',
    COMMENT COLUMN run_id 'run that the event belongs to',
    COMMENT COLUMN step_id 'step that the event belongs to',
    COMMENT COLUMN model 'model that was called',
    COMMENT COLUMN tokens_in 'tokens of the input',
    COMMENT COLUMN tokens_out 'tokens of the output',
    COMMENT COLUMN model_cost_usd_nanos 'cost of the model in billionths of a US dollar',
    COMMENT COLUMN tool_cost_usd_nanos 'cost of tools in billionths of a US dollar',
    COMMENT COLUMN is_timeout_retry 'true if the call repeats one that timed out',
    COMMENT COLUMN cache_read_input_tokens 'tokens of the input that the provider had in its cache; they are in tokens_in too',
    COMMENT COLUMN cache_write_input_tokens 'tokens of the input that the provider wrote into its cache; they are in tokens_in too',
    COMMENT COLUMN reasoning_output_tokens 'tokens of the output that were spent on reasoning; they are in tokens_out too',
    COMMENT COLUMN time_to_first_token_ms 'from the request to the first token of the answer, in milliseconds; null if not reported',
    COMMENT COLUMN retries 'requests that were repeated before the call had its answer',
    COMMENT COLUMN response_id 'id of the answer at the provider; null if not reported, or once personal data has expired';
