CREATE OR REPLACE VIEW {database}.v_calls_per_minute AS
SELECT * FROM {database}_between.v_calls_per_minute_between(from = '1970-01-01 00:00:00', to = '2106-01-01 00:00:00');

ALTER TABLE {database}.v_calls_per_minute
    MODIFY COMMENT 'numbers of tool calls that began in each minute, by tool, and of the retries among them',
    COMMENT COLUMN time 'the minute',
    COMMENT COLUMN tenant_id 'tenant of the calls',
    COMMENT COLUMN service_id 'service that made the calls',
    COMMENT COLUMN tool_name 'name of the tool; empty once personal data has expired',
    COMMENT COLUMN calls 'number of tries that began',
    COMMENT COLUMN retries 'number of tries after the first one of their call',
    COMMENT COLUMN failures 'number of tries that failed within the minute; the cancelled ones are none';
