-- A snapshot of an event that was delivered twice counts once; one that was rejected or left out does not count. Those
-- that the processor makes, for an operator's pause or a migration, are known by the audit trail. Of an event whose
-- personal data has expired no snapshot is shown, not even that it had one.
CREATE OR REPLACE VIEW {database}.v_snapshots AS
SELECT
    time, tenant_id, session_id,
    row_number() OVER chain AS number, snapshot_id,
    if(is_of_processor, ifNull(head_before, ''), parent_id) AS parent_snapshot_id,
    ifNull(head_before, '') = parent_snapshot_id AS is_linked,
    event_type, turn, total_tokens, tool_name, tool_call_id,
    if(tool_name IS NULL, '', ifNull(status, 'before')) AS side,
    encoding, compression, content_bytes, stored_bytes,
    if(content_bytes = 0, NULL, content_bytes / stored_bytes) AS compression_ratio,
    resources, server_version, protocol_version, event_id, source_partition, source_offset
FROM
(
    SELECT *, lagInFrame(toNullable(snapshot_id)) OVER (PARTITION BY tenant_id, session_id ORDER BY source_offset
        ROWS BETWEEN UNBOUNDED PRECEDING AND UNBOUNDED FOLLOWING) AS head_before
    FROM
    (
        SELECT
            time, tenant_id, session_id, JSONExtractString(snapshot, 'snapshot_id') AS snapshot_id,
            JSONExtractString(snapshot, 'parent_snapshot_id') AS parent_id, false AS is_of_processor, event_type,
            JSONExtract(snapshot, 'turn', 'Nullable(Int64)') AS turn,
            JSONExtract(snapshot, 'total_tokens', 'Nullable(Int64)') AS total_tokens,
            JSONExtract(snapshot, 'tool', 'tool_name', 'Nullable(String)') AS tool_name,
            JSONExtract(snapshot, 'tool', 'tool_call_id', 'Nullable(String)') AS tool_call_id,
            JSONExtract(snapshot, 'tool', 'status', 'Nullable(String)') AS status,
            JSONExtractString(snapshot, 'encoding') AS encoding, JSONExtractString(snapshot, 'compression') AS compression,
            JSONExtractUInt(snapshot, 'content_bytes') AS content_bytes, stored_bytes,
            JSONExtract(snapshot, 'resources', 'Array(Tuple(uri String, accessed_at Int64, operation String))') AS resources,
            ifNull(JSONExtract(snapshot, 'metadata', 'server_version', 'Nullable(String)'), toString(envelope_server))
                AS server_version,
            ifNull(JSONExtract(snapshot, 'metadata', 'protocol_version', 'Nullable(String)'), toString(envelope_protocol))
                AS protocol_version,
            event_id, source_partition, source_offset
        FROM
        (
            SELECT
                appended_at AS time, tenant_id, session_id, event_type, event_id, source_partition, source_offset,
                value_size AS stored_bytes, ifNull(server_version, '') AS envelope_server,
                ifNull(protocol_version, '') AS envelope_protocol,
                JSONExtractRaw(payload_json, 'snapshot') AS snapshot,
                {is_first_judged} AS is_judged
            FROM {database}.history FINAL
            WHERE event_type IN ('session_created', 'snapshot_created', 'session_paused', 'session_terminated')
                AND decode_error = ''
        )
        WHERE is_judged AND snapshot NOT IN ('', 'null')
            AND (event_type NOT IN ('session_paused', 'session_terminated')
                OR (tenant_id, session_id, JSONExtractString(snapshot, 'snapshot_id')) IN
                    (SELECT toString(tenant_id), session_id, assumeNotNull(snapshot_id)
                        FROM {database}.audit WHERE snapshot_id IS NOT NULL))
        UNION ALL
        SELECT
            toDateTime64(ifNull(fired_at, appended_at), 3, 'UTC') AS time, tenant_id, session_id,
            made_id AS snapshot_id, '' AS parent_id, true AS is_of_processor, event_type,
            NULL AS turn, NULL AS total_tokens, NULL AS tool_name, NULL AS tool_call_id, NULL AS status,
            'full' AS encoding, 'none' AS compression, 0 AS content_bytes, 0 AS stored_bytes,
            CAST([], 'Array(Tuple(uri String, accessed_at Int64, operation String))') AS resources,
            '' AS server_version, '' AS protocol_version, ifNull(event_id, '') AS event_id, source_partition, source_offset
        FROM
        (
            SELECT *, assumeNotNull(snapshot_id) AS made_id FROM {database}.audit FINAL
            WHERE kind = 'transition' AND snapshot_id IS NOT NULL
        )
        WHERE (tenant_id, session_id, made_id) NOT IN
            (SELECT toString(tenant_id), session_id, JSONExtractString(payload_json, 'snapshot', 'snapshot_id')
                FROM {database}.history
                WHERE event_type IN ('session_created', 'snapshot_created', 'session_paused', 'session_terminated'))
            AND (source_partition, source_offset) NOT IN
                (SELECT source_partition, source_offset FROM {database}.history
                    WHERE payload_json = '' AND decode_error = '' AND event_type NOT IN ('', 'tick'))
    )
)
WINDOW chain AS (PARTITION BY tenant_id, session_id ORDER BY source_offset)
SETTINGS do_not_merge_across_partitions_select_final = 1;

ALTER TABLE {database}.v_snapshots
    MODIFY COMMENT 'each snapshot of a session, in the order of the chain; none of events whose personal data has expired',
    COMMENT COLUMN time 'log time of the event',
    COMMENT COLUMN tenant_id 'tenant of the session',
    COMMENT COLUMN session_id 'id of the session',
    COMMENT COLUMN number 'number of the snapshot in its session, from 1',
    COMMENT COLUMN snapshot_id 'id of the snapshot, unique in its session',
    COMMENT COLUMN parent_snapshot_id 'snapshot before it; empty for the first',
    COMMENT COLUMN is_linked 'true if the snapshot before it in the log is its parent',
    COMMENT COLUMN event_type 'event that brought it',
    COMMENT COLUMN turn 'turn of the conversation; null outside of turns',
    COMMENT COLUMN total_tokens 'tokens of the model''s context, as reported',
    COMMENT COLUMN tool_name 'tool of the call that it was taken before or after; null for others',
    COMMENT COLUMN tool_call_id 'id of that call',
    COMMENT COLUMN side 'before, succeeded or failed; empty without a call',
    COMMENT COLUMN encoding 'full, or delta against the parent',
    COMMENT COLUMN compression 'none or gzip',
    COMMENT COLUMN content_bytes 'size of state, context and messages in bytes; 0 if it was not counted',
    COMMENT COLUMN stored_bytes 'bytes of the event''s key and value in Kafka; 0 for a snapshot that the processor made',
    COMMENT COLUMN compression_ratio 'content_bytes by stored_bytes; null if the content was not counted',
    COMMENT COLUMN resources 'resources accessed since the snapshot before',
    COMMENT COLUMN server_version 'version of the agent''s server; empty if it was not reported',
    COMMENT COLUMN protocol_version 'version of its protocol; empty if it was not reported',
    COMMENT COLUMN event_id 'id of the event, given by its client',
    COMMENT COLUMN source_partition 'partition of the events topic',
    COMMENT COLUMN source_offset 'offset in that partition';
