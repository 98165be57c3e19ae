-- What became of artifacts that have expired, conversations without their content, checkpoints, and attached runs.

-- Written by `sessionary artifacts sweep`. It is what remains of an artifact when its events have expired, so it is kept as
-- long as the audit trail. A place names no person; what a user wrote is in the body alone.
CREATE TABLE IF NOT EXISTS {database}.artifact_deletions
(
    tenant_id LowCardinality(String) COMMENT 'tenant of the session',
    session_id String CODEC(ZSTD(1)) COMMENT 'id of the session',
    artifact_id String CODEC(ZSTD(1)) COMMENT 'id of the artifact',
    run_id String CODEC(ZSTD(1)) COMMENT 'run of the artifact; empty if it is of none',
    artifact_type LowCardinality(String) COMMENT 'type of the artifact',
    uri String CODEC(ZSTD(1)) COMMENT 'where its body was',
    size_bytes Nullable(Int64) COMMENT 'size of its body; null if it was never complete',
    sha256 Nullable(String) CODEC(ZSTD(1)) COMMENT 'hash of its body; null if it was never complete',
    chunks UInt64 COMMENT 'chunks that were appended',
    created_at DateTime64(3, 'UTC') COMMENT 'log time of its first event',
    completed_at Nullable(DateTime64(3, 'UTC')) COMMENT 'when it was completed',
    deleted_at DateTime64(3, 'UTC') COMMENT 'since when it has been marked, and is not served any more',
    purged_at Nullable(DateTime64(3, 'UTC')) COMMENT 'when its body was removed; null while it is there',
    stage UInt8 COMMENT '1: marked, 2: its body is removed; of two rows the later stage counts'
)
ENGINE = ReplacingMergeTree(stage)
PARTITION BY toYear(deleted_at)
ORDER BY (tenant_id, session_id, artifact_id)
TTL toDateTime(deleted_at) + INTERVAL 2557 DAY
SETTINGS fsync_after_insert = 1, fsync_part_directory = 1
COMMENT 'one row per artifact that has expired: its hash, and when its body was removed';

CREATE OR REPLACE VIEW {database}.v_artifacts AS
SELECT
    max(e.at) AS time, tenant_id, session_id, max(e.run_id) AS run_id, artifact_id,
    argMinIf(e.artifact_type, e.place, e.artifact_type != '') AS artifact_type,
    argMinIf(e.uri, e.place, e.uri != '') AS uri,
    multiIf(purged_at IS NOT NULL, 'purged', deleted_at IS NOT NULL, 'soft_deleted', completed_at IS NOT NULL, 'complete', 'open') AS state,
    argMaxIf(e.size_bytes, e.place, e.size_bytes IS NOT NULL) AS size_bytes,
    argMaxIf(e.sha256, e.place, e.sha256 IS NOT NULL) AS sha256,
    greatest(countIf(e.event_type = 'artifact_chunk_appended'), max(e.chunks)) AS chunks, min(e.created_at) AS created_at,
    max(e.completed_at) AS completed_at, min(e.deleted_at) AS deleted_at, max(e.purged_at) AS purged_at,
    min(e.personal_expires) AS personal_expires
FROM
(
    SELECT
        tenant_id, session_id, run_id, assumeNotNull(artifact_id) AS artifact_id, event_type, source_offset AS place, time AS at,
        if(event_type = 'artifact_created', toString(name), '') AS artifact_type,
        if(event_type = 'artifact_created', JSONExtractString(payload_json, 'uri'), '') AS uri,
        if(event_type = 'artifact_completed', bytes, NULL) AS size_bytes,
        if(event_type = 'artifact_completed', sha256, NULL) AS sha256, toUInt64(0) AS chunks, time AS created_at,
        if(event_type = 'artifact_completed', time, NULL) AS completed_at,
        if(event_type = 'artifact_soft_deleted', time, NULL) AS deleted_at,
        if(event_type = 'artifact_purged', time, NULL) AS purged_at, personal_expires
    FROM {database}.v_run_events AS v
    WHERE subject = 'artifact' AND v.artifact_id IS NOT NULL
    UNION ALL
    SELECT
        tenant_id, session_id, run_id, artifact_id, '', toUInt64(18446744073709551615), ifNull(purged_at, deleted_at),
        toString(artifact_type), uri, size_bytes, sha256, chunks, created_at, completed_at, toNullable(deleted_at), purged_at,
        toDateTime('2106-01-01 00:00:00', 'UTC')
    FROM {database}.artifact_deletions FINAL
) AS e
GROUP BY tenant_id, session_id, artifact_id;
ALTER TABLE {database}.v_artifacts MODIFY COMMENT 'each artifact: state, place, size and hash, also after its body was removed';
ALTER TABLE {database}.v_artifacts
    COMMENT COLUMN time 'log time of its latest event, or when it was marked or its body removed',
    COMMENT COLUMN tenant_id 'tenant of the session',
    COMMENT COLUMN session_id 'id of the session',
    COMMENT COLUMN run_id 'run of the artifact; empty if it is of none',
    COMMENT COLUMN artifact_id 'id of the artifact',
    COMMENT COLUMN artifact_type 'type of the artifact',
    COMMENT COLUMN uri 'where its body is, or was; empty if personal data expired before it was marked',
    COMMENT COLUMN state 'open, complete, soft_deleted (marked) or purged (its body is removed)',
    COMMENT COLUMN size_bytes 'size of its body, once complete',
    COMMENT COLUMN sha256 'hash of its body, once complete',
    COMMENT COLUMN chunks 'chunks that were appended',
    COMMENT COLUMN created_at 'log time of its first event',
    COMMENT COLUMN completed_at 'when it was completed',
    COMMENT COLUMN deleted_at 'when it was marked as deleted, by an event or by the sweep',
    COMMENT COLUMN purged_at 'when its body was removed',
    COMMENT COLUMN personal_expires 'when personal columns are blanked; the end of time if there are none';

-- The content is personal, and stays in history.
CREATE OR REPLACE VIEW {database}.v_messages AS
SELECT
    appended_at AS time, tenant_id, session_id, run_id,
    row_number() OVER (PARTITION BY tenant_id, session_id ORDER BY source_offset) AS turn,
    JSONExtractString(payload_json, 'role') AS role, JSONExtract(payload_json, 'name', 'Nullable(String)') AS name,
    JSONExtract(payload_json, 'artifact_id', 'Nullable(String)') AS artifact_id,
    JSONExtract(payload_json, 'content', 'Nullable(String)') IS NOT NULL AS has_content,
    agent_id, service_id, event_id, personal_expires > now() AS is_role_known, source_partition, source_offset
FROM
(
    SELECT
        *, row_number() OVER (PARTITION BY tenant_id, session_id, producer_id, producer_seq, event_id
            ORDER BY source_offset) AS delivery
    FROM {database}.history FINAL
    WHERE event_type = 'message_appended' AND decode_error = ''
        AND NOT arrayExists(x -> x.1 = 'replayed_from', headers)
        AND (source_partition, source_offset, appended_at) NOT IN
            (SELECT source_partition, source_offset, toDateTime64(appended_at, 3, 'UTC') FROM {database}.rejected)
)
WHERE delivery = 1
SETTINGS do_not_merge_across_partitions_select_final = 1;
ALTER TABLE {database}.v_messages MODIFY COMMENT 'each turn of a conversation, without its content';
ALTER TABLE {database}.v_messages
    COMMENT COLUMN time 'log time of the event',
    COMMENT COLUMN tenant_id 'tenant of the session',
    COMMENT COLUMN session_id 'id of the session',
    COMMENT COLUMN run_id 'run that the event names',
    COMMENT COLUMN turn 'number of the turn among those of its session that are kept, from 1',
    COMMENT COLUMN role 'who speaks; empty once personal data has expired',
    COMMENT COLUMN name 'name of the speaker or tool',
    COMMENT COLUMN artifact_id 'artifact that holds the content, if it is large',
    COMMENT COLUMN has_content 'whether the event has a content; history has it',
    COMMENT COLUMN agent_id 'agent that reported it',
    COMMENT COLUMN service_id 'service that reported it',
    COMMENT COLUMN event_id 'id of the event, given by its client',
    COMMENT COLUMN is_role_known 'whether its personal data has not expired',
    COMMENT COLUMN source_partition 'partition of the events topic',
    COMMENT COLUMN source_offset 'offset in that partition';

CREATE OR REPLACE VIEW {database}.v_checkpoints AS
SELECT
    time, tenant_id, session_id, run_id,
    row_number() OVER (PARTITION BY tenant_id, session_id, run_id ORDER BY source_offset) AS number,
    source_offset = max(source_offset) OVER (PARTITION BY tenant_id, session_id, run_id) AS is_last,
    JSONExtractString(payload_json, 'checkpoint_id') AS checkpoint_id,
    JSONExtractString(payload_json, 'kind') AS kind, name AS operation,
    JSONExtractString(payload_json, 'stage') AS stage, processed_count,
    JSONExtractString(payload_json, 'last_item_id') AS last_item_id, bytes AS bytes_written, step_id, event_id,
    source_partition, source_offset
FROM {database}.v_run_events
WHERE event_type = 'checkpoint_saved' AND run_id != '';
ALTER TABLE {database}.v_checkpoints MODIFY COMMENT 'each checkpoint of a run: how far it was';
ALTER TABLE {database}.v_checkpoints
    COMMENT COLUMN time 'log time of the event',
    COMMENT COLUMN tenant_id 'tenant of the session',
    COMMENT COLUMN session_id 'id of the session',
    COMMENT COLUMN run_id 'run of the checkpoint',
    COMMENT COLUMN number 'number of the checkpoint among those of its run that are kept, from 1',
    COMMENT COLUMN is_last 'whether it is the last one of its run: where it would be continued',
    COMMENT COLUMN checkpoint_id 'id of the checkpoint; empty once personal data has expired, as are kind, stage and last_item_id',
    COMMENT COLUMN kind 'which usual point it is, for example plan_made; empty if none was named',
    COMMENT COLUMN operation 'operation that it is of',
    COMMENT COLUMN stage 'stage of the operation',
    COMMENT COLUMN processed_count 'items done',
    COMMENT COLUMN last_item_id 'last item done',
    COMMENT COLUMN bytes_written 'bytes written',
    COMMENT COLUMN step_id 'step that the event names',
    COMMENT COLUMN event_id 'id of the event, given by its client',
    COMMENT COLUMN source_partition 'partition of the events topic',
    COMMENT COLUMN source_offset 'offset in that partition';

-- Each of them holds a connection of its user until it ends, is paused, or its connection is lost.
CREATE OR REPLACE VIEW {database}.v_attached_runs AS
SELECT
    p.time AS time, p.tenant_id AS tenant_id, p.session_id AS session_id, p.run_id AS run_id, p.user_id AS user_id,
    r.service_id AS service_id, p.task_type AS task_type, p.status AS status, r.reason_code AS reason_code,
    p.status IN ('started', 'running') AS is_connected, r.reason_code = 'connection_lost' AS connection_lost,
    p.created_at AS created_at, p.duration_s AS age_s, p.progress AS progress, p.checkpoint_operation AS checkpoint_operation,
    p.checkpoint_stage AS checkpoint_stage, p.processed_count AS processed_count, p.last_item_id AS last_item_id,
    p.bytes_written AS bytes_written, p.checkpoint_at AS checkpoint_at
FROM {database}.v_run_progress AS p
INNER JOIN {database}.v_runs AS r ON r.tenant_id = p.tenant_id AND r.session_id = p.session_id AND r.run_id = p.run_id
WHERE p.mode = 'attached' AND p.finished_at IS NULL AND r.mode = 'attached' AND r.finished_at IS NULL;
ALTER TABLE {database}.v_attached_runs MODIFY COMMENT 'each attached run that is open: its age, whether its connection is there, and its last checkpoint';
ALTER TABLE {database}.v_attached_runs
    COMMENT COLUMN time 'log time of its latest record',
    COMMENT COLUMN tenant_id 'tenant of the session',
    COMMENT COLUMN session_id 'id of the session',
    COMMENT COLUMN run_id 'id of the run',
    COMMENT COLUMN user_id 'user for whom the run works; null once personal data has expired',
    COMMENT COLUMN service_id 'service that began it',
    COMMENT COLUMN task_type 'type of the task',
    COMMENT COLUMN status 'state of the run',
    COMMENT COLUMN reason_code 'why, if a clock or its session decided; else empty',
    COMMENT COLUMN is_connected 'whether it is at work, and so holds a connection',
    COMMENT COLUMN connection_lost 'whether it is paused because its connection was lost',
    COMMENT COLUMN created_at 'log time of its first event',
    COMMENT COLUMN age_s 'seconds from its first event until now',
    COMMENT COLUMN progress 'progress as last reported, 0 to 1',
    COMMENT COLUMN checkpoint_operation 'operation of the last checkpoint',
    COMMENT COLUMN checkpoint_stage 'stage of the last checkpoint; empty once personal data has expired',
    COMMENT COLUMN processed_count 'items done at the last checkpoint',
    COMMENT COLUMN last_item_id 'last item done at the last checkpoint; empty once personal data has expired',
    COMMENT COLUMN bytes_written 'bytes written at the last checkpoint',
    COMMENT COLUMN checkpoint_at 'log time of the last checkpoint';

-- A checkpoint counts if its event comes before the record with which the loss was noticed.
CREATE OR REPLACE VIEW {database}.v_lost_connections AS
SELECT
    a.at AS time, a.tenant_id AS tenant_id, a.session_id AS session_id, a.run_id AS run_id, a.state AS state, a.reason AS reason,
    c.checkpoint_id AS checkpoint_id, c.kind AS checkpoint_kind, c.operation AS checkpoint_operation,
    c.stage AS checkpoint_stage, c.processed_count AS processed_count, c.last_item_id AS last_item_id,
    c.bytes_written AS bytes_written, nullIf(c.time, toDateTime64(0, 3, 'UTC')) AS checkpoint_at,
    a.source_partition AS source_partition, a.source_offset AS source_offset
FROM
(
    SELECT
        appended_at AS at, tenant_id, session_id, assumeNotNull(run_id) AS run_id, ifNull(to_run_state, '') AS state, reason,
        source_partition, toUInt64(source_offset) AS source_offset
    FROM {database}.audit AS d FINAL
    WHERE kind = 'run' AND reason_code = 'connection_lost' AND d.run_id IS NOT NULL
) AS a
ASOF LEFT JOIN {database}.v_checkpoints AS c
    ON c.tenant_id = a.tenant_id AND c.session_id = a.session_id AND c.run_id = a.run_id AND a.source_offset > c.source_offset
SETTINGS do_not_merge_across_partitions_select_final = 1;
ALTER TABLE {database}.v_lost_connections MODIFY COMMENT 'each time that an attached run lost its connection, with its last checkpoint';
ALTER TABLE {database}.v_lost_connections
    COMMENT COLUMN time 'when it was noticed',
    COMMENT COLUMN tenant_id 'tenant of the session',
    COMMENT COLUMN session_id 'id of the session',
    COMMENT COLUMN run_id 'id of the run',
    COMMENT COLUMN state 'state that it led to: paused or failed',
    COMMENT COLUMN reason 'why, in words',
    COMMENT COLUMN checkpoint_id 'last checkpoint before it; empty if there is none',
    COMMENT COLUMN checkpoint_kind 'which usual point that is; empty if none was named',
    COMMENT COLUMN checkpoint_operation 'operation of that checkpoint',
    COMMENT COLUMN checkpoint_stage 'stage of it; empty once personal data has expired',
    COMMENT COLUMN processed_count 'items done by then',
    COMMENT COLUMN last_item_id 'last item done by then; empty once personal data has expired',
    COMMENT COLUMN bytes_written 'bytes written by then',
    COMMENT COLUMN checkpoint_at 'log time of that checkpoint; null if there is none',
    COMMENT COLUMN source_partition 'partition of the events topic',
    COMMENT COLUMN source_offset 'offset in that partition';
