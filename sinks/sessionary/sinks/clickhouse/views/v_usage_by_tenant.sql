CREATE OR REPLACE VIEW {database}.v_usage_by_tenant AS
SELECT * FROM {database}_between.v_usage_by_tenant_between(from = '1970-01-01 00:00:00', to = '2106-01-01 00:00:00');

ALTER TABLE {database}.v_usage_by_tenant
    MODIFY COMMENT 'calls, tokens and cost by tenant',
    COMMENT COLUMN tenant_id 'tenant',
    COMMENT COLUMN calls 'paid calls',
    COMMENT COLUMN tokens_in 'tokens of the calls'' input',
    COMMENT COLUMN tokens_out 'tokens of the calls'' output',
    COMMENT COLUMN model_cost_usd_nanos 'cost of models in billionths of a dollar',
    COMMENT COLUMN tool_cost_usd_nanos 'cost of tools in billionths of a dollar',
    COMMENT COLUMN cache_read_input_tokens 'tokens of the input that the provider had in its cache; they are in tokens_in too',
    COMMENT COLUMN cache_write_input_tokens 'tokens of the input that the provider wrote into its cache; they are in tokens_in too',
    COMMENT COLUMN reasoning_output_tokens 'tokens of the output that were spent on reasoning; they are in tokens_out too',
    COMMENT COLUMN retries 'requests that were repeated before calls had their answers';
