CREATE OR REPLACE VIEW {database}.v_audit_write_latency AS
SELECT * FROM {database}_between.v_audit_write_latency_between(from = '1970-01-01 00:00:00', to = '2106-01-01 00:00:00');

ALTER TABLE {database}.v_audit_write_latency
    MODIFY COMMENT 'time from a transaction''s start to its acknowledgement',
    COMMENT COLUMN time 'start of the transaction, by the processor''s clock',
    COMMENT COLUMN partition 'partition of the events topic',
    COMMENT COLUMN number 'number of the transaction in its partition, from 1 without gaps',
    COMMENT COLUMN audited 'number of written audit records',
    COMMENT COLUMN started_at 'the same as time; the next release removes it',
    COMMENT COLUMN acknowledged_at 'time of Kafka''s acknowledgement of the transaction',
    COMMENT COLUMN latency_ms 'milliseconds until the acknowledgement';
