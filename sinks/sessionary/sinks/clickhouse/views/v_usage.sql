-- Costs are millionths of a US dollar. `timeout_retry_share`: the share of retries after a timeout in the cost.
CREATE OR REPLACE VIEW {database}.v_usage AS
SELECT * FROM {database}_between.v_usage_between(from = '1970-01-01 00:00:00', to = '2106-01-01 00:00:00');

ALTER TABLE {database}.v_usage
    MODIFY COMMENT 'calls, tokens and cost by tenant and service; the share of retries after a timeout',
    COMMENT COLUMN tenant_id 'tenant of the session',
    COMMENT COLUMN service_id 'service that sent the event',
    COMMENT COLUMN calls 'calls, each counted once',
    COMMENT COLUMN tokens_in 'tokens of the input',
    COMMENT COLUMN tokens_out 'tokens of the output',
    COMMENT COLUMN model_cost_usd_micros 'cost of the model in millionths of a US dollar',
    COMMENT COLUMN tool_cost_usd_micros 'cost of tools in millionths of a US dollar',
    COMMENT COLUMN timeout_retries 'number of calls that repeat one that timed out',
    COMMENT COLUMN timeout_retry_cost_usd_micros 'cost of these retries in millionths of a US dollar',
    COMMENT COLUMN timeout_retry_share 'share of these retries in the cost; null without cost';
