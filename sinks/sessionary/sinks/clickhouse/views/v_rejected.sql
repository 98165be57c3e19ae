-- A rejection that has only place, time and reason left has no row here.
CREATE OR REPLACE VIEW {database}.v_rejected AS
SELECT
    appended_at AS time, appended_at, reason, detail, security, tenant_id, session_id, event_id, event_type, service_id,
    source_topic, source_partition, source_offset, length(value) AS value_bytes
FROM {database}.rejected FINAL
WHERE retain_until > now64(6)
SETTINGS do_not_merge_across_partitions_select_final = 1;

ALTER TABLE {database}.v_rejected
    MODIFY COMMENT 'each rejected event, without its bytes',
    COMMENT COLUMN time 'log time of the record: a condition on this column reads only the partitions of that time',
    COMMENT COLUMN appended_at 'the same as time; the next release removes it',
    COMMENT COLUMN reason 'reason code',
    COMMENT COLUMN detail 'reason in words; null or empty after 30 days',
    COMMENT COLUMN security 'true if the rejection suggests that the sender impersonates another one',
    COMMENT COLUMN tenant_id 'tenant of the session',
    COMMENT COLUMN session_id 'id of the session',
    COMMENT COLUMN event_id 'id of the event, given by its client',
    COMMENT COLUMN event_type 'type of the event',
    COMMENT COLUMN service_id 'service that sent the event',
    COMMENT COLUMN source_topic 'topic of the rejected record',
    COMMENT COLUMN source_partition 'partition of that record in the events topic',
    COMMENT COLUMN source_offset 'offset of that record in the events topic',
    COMMENT COLUMN value_bytes 'size of the record in bytes; 0 after 30 days';
