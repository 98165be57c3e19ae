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
    COMMENT COLUMN model_cost_usd_micros 'cost of the model in millionths of a US dollar',
    COMMENT COLUMN tool_cost_usd_micros 'cost of tools in millionths of a US dollar',
    COMMENT COLUMN timeout_retries 'number of calls that repeat one that timed out',
    COMMENT COLUMN timeout_retry_cost_usd_micros 'cost of these retries in millionths of a US dollar';
