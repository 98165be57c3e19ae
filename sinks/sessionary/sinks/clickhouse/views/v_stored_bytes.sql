-- Bytes of a session's records, by layer. 'state' is the content that processors hold until the session is archived.
-- The other layers, 'history', 'audit' and 'rejected', are its records in these tables, with their unpacked bytes in
-- Kafka.
CREATE OR REPLACE VIEW {database}.v_stored_bytes AS
SELECT h.tenant_id AS tenant_id, h.session_id AS session_id, 'state' AS layer, toUInt64(1) AS records, h.bytes AS bytes
FROM
(
    SELECT tenant_id, session_id, argMax(assumeNotNull(state_bytes), source_offset) AS bytes
    FROM {database}.history FINAL
    WHERE state_bytes IS NOT NULL
        AND (source_partition, source_offset, appended_at) NOT IN
            (SELECT source_partition, source_offset, toDateTime64(appended_at, 3, 'UTC') FROM {database}.rejected)
        AND (tenant_id, session_id, event_id) NOT IN
        (
            SELECT toString(tenant_id), toString(session_id), toString(event_id)
            FROM {database}.rejected
            WHERE event_id IS NOT NULL AND reason NOT IN ('undecodable', 'unknown_schema', 'unknown_event_type', 'bad_key', 'key_mismatch',
                'foreign_tenant', 'wrong_partition', 'unknown_session', 'session_archived', 'late_filler',
                'too_many_producers', 'producer_conflict', 'bad_row', 'internal_error', 'skipped')
        )
    GROUP BY tenant_id, session_id
) AS h
LEFT ANTI JOIN
(
    SELECT tenant_id, session_id FROM {database}.audit FINAL WHERE kind = 'transition' AND to_state = 'Archived'
) AS d ON d.tenant_id = h.tenant_id AND d.session_id = h.session_id
UNION ALL
SELECT toString(tenant_id), session_id, 'history', count(), sum(toUInt64(value_size))
FROM {database}.history FINAL WHERE session_id != '' GROUP BY tenant_id, session_id
UNION ALL
SELECT toString(tenant_id), session_id, 'audit', count(), sum(toUInt64(value_size))
FROM {database}.audit FINAL WHERE session_id != '' GROUP BY tenant_id, session_id
UNION ALL
SELECT ifNull(toString(tenant_id), ''), ifNull(session_id, ''), 'rejected', count(), sum(toUInt64(value_size))
FROM {database}.rejected FINAL WHERE session_id != '' AND retain_until > now64(6) GROUP BY tenant_id, session_id;

ALTER TABLE {database}.v_stored_bytes
    MODIFY COMMENT 'bytes of each session by layer',
    COMMENT COLUMN tenant_id 'tenant of the session',
    COMMENT COLUMN session_id 'id of the session',
    COMMENT COLUMN layer 'state, history, audit or rejected',
    COMMENT COLUMN records 'number of records in the layer',
    COMMENT COLUMN bytes 'bytes of the records';
