-- Costs are billionths of a US dollar. `timeout_retry_share`: the share of retries after a timeout in the cost.
CREATE OR REPLACE VIEW {database}.v_usage AS
SELECT * FROM {database}_between.v_usage_between(from = '1970-01-01 00:00:00', to = '2106-01-01 00:00:00');

ALTER TABLE {database}.v_usage
    MODIFY COMMENT 'calls, tokens and cost by tenant and service; the share of retries after a timeout',
    COMMENT COLUMN tenant_id 'tenant of the session',
    COMMENT COLUMN service_id 'service that sent the event',
    COMMENT COLUMN calls 'calls, each counted once',
    COMMENT COLUMN tokens_in 'tokens of the input',
    COMMENT COLUMN tokens_out 'tokens of the output',
    COMMENT COLUMN model_cost_usd_nanos 'cost of the model in billionths of a US dollar',
    COMMENT COLUMN tool_cost_usd_nanos 'cost of tools in billionths of a US dollar',
    COMMENT COLUMN timeout_retries 'number of calls that repeat one that timed out',
    COMMENT COLUMN timeout_retry_cost_usd_nanos 'cost of these retries in billionths of a US dollar',
    COMMENT COLUMN timeout_retry_share 'share of these retries in the cost; null without cost',
    COMMENT COLUMN cache_read_input_tokens 'tokens of the input that the provider had in its cache; they are in tokens_in too',
    COMMENT COLUMN cache_write_input_tokens 'tokens of the input that the provider wrote into its cache; they are in tokens_in too',
    COMMENT COLUMN reasoning_output_tokens 'tokens of the output that were spent on reasoning; they are in tokens_out too',
    COMMENT COLUMN retries 'requests that were repeated before calls had their answers',
    COMMENT COLUMN mean_time_to_first_token_ms 'mean time to the first token of the answer, in milliseconds; null if not reported';
