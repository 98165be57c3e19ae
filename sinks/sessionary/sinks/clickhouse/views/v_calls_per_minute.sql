CREATE OR REPLACE VIEW {database}.v_calls_per_minute AS
SELECT * FROM {database}.v_calls_per_minute_between(from = '1970-01-01 00:00:00', to = '2106-01-01 00:00:00');

ALTER TABLE {database}.v_calls_per_minute
    MODIFY COMMENT 'how many tool calls began in each minute, by tool, and how many of them were retries',
    COMMENT COLUMN time 'the minute',
    COMMENT COLUMN tenant_id 'tenant of the calls',
    COMMENT COLUMN service_id 'service that made them',
    COMMENT COLUMN tool_name 'name of the tool; empty once personal data has expired',
    COMMENT COLUMN calls 'tries that began',
    COMMENT COLUMN retries 'those of them after the first one of their call',
    COMMENT COLUMN failures 'tries that failed within that minute';
