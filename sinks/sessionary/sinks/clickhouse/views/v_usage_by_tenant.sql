CREATE OR REPLACE VIEW {database}.v_usage_by_tenant AS
SELECT * FROM {database}_between.v_usage_by_tenant_between(from = '1970-01-01 00:00:00', to = '2106-01-01 00:00:00');

ALTER TABLE {database}.v_usage_by_tenant
    MODIFY COMMENT 'calls, tokens and cost by tenant',
    COMMENT COLUMN tenant_id 'tenant',
    COMMENT COLUMN calls 'paid calls',
    COMMENT COLUMN tokens_in 'tokens of the calls'' input',
    COMMENT COLUMN tokens_out 'tokens of the calls'' output',
    COMMENT COLUMN model_cost_usd_micros 'cost of models in millionths of a dollar',
    COMMENT COLUMN tool_cost_usd_micros 'cost of tools in millionths of a dollar';
