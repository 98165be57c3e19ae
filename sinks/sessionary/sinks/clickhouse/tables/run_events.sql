-- One row per event that names a run, is of a reserved tool call, or of an artifact. The states of runs, steps, calls and
-- artifacts are read from these columns, and they have no TTL; contents are personal. Rows are kept for a shorter time than
-- those of history, whatever a law says of the event, because history has the event itself. They are written, merged and
-- packed as those of history are.
CREATE TABLE IF NOT EXISTS {database}.run_events
(
    tenant_id LowCardinality(String) COMMENT 'tenant of the session',
    session_id String CODEC(Default) COMMENT 'id of the session',
    run_id String CODEC(Default) COMMENT 'run that the event names; empty if it names none',
    source_partition UInt32 COMMENT 'partition of the events topic',
    source_offset UInt64 CODEC(Delta, ZSTD(1)) COMMENT 'offset in that partition',
    appended_at DateTime64(3, 'UTC') CODEC(Delta, ZSTD(1)) COMMENT 'log time of the event',
    event_id String CODEC(Default) COMMENT 'id of the event, given by its client',
    event_type LowCardinality(String) COMMENT 'type of the event',
    subject LowCardinality(String) COMMENT 'run, step, tool_call or artifact, if the event can change the state of one; else empty',
    state LowCardinality(String) COMMENT 'state that the event leaves its subject in; empty if it changes none',
    name LowCardinality(String) COMMENT 'name of the step or tool, type of the task or artifact, or operation of the checkpoint',
    number Int32 COMMENT 'attempt of the step, or try of the call',
    idem_key String CODEC(Default) COMMENT 'idempotency key of a reserved call; empty for other events',
    mode LowCardinality(String) COMMENT 'of the beginning of a run: attached or detached',
    side_effect Nullable(Bool) COMMENT 'of the beginning of a call: whether it changes something outside',
    queryable Nullable(Bool) COMMENT 'of the beginning of a call: whether the tool can be asked later what came of it',
    error_class LowCardinality(String) COMMENT 'of a failure: retryable or fatal',
    error_code LowCardinality(String) COMMENT 'of a failure: its code',
    progress Nullable(Float64) COMMENT 'progress of the run as reported, 0 to 1',
    processed_count Nullable(Int64) COMMENT 'of a checkpoint: items done',
    bytes Nullable(Int64) COMMENT 'of a checkpoint or chunk: bytes written; of a complete artifact: its size',
    artifact_id Nullable(String) CODEC(Default) COMMENT 'id of the artifact that the event names',
    sha256 Nullable(String) CODEC(Default) COMMENT 'hash of the artifact or chunk',
    step_id Nullable(String) CODEC(Default) COMMENT 'step that the event names',
    causation_id Nullable(String) CODEC(Default) COMMENT 'event that caused it',
    user_id Nullable(String) CODEC(Default) TTL personal_expires COMMENT 'user for whom the agent works; null once personal data has expired',
    agent_id String CODEC(Default) COMMENT 'agent that the event names',
    service_id LowCardinality(String) COMMENT 'service that sent the event',
    actor Nullable(String) CODEC(Default) COMMENT 'who acted, if it was not the agent itself',
    producer_id String CODEC(Default) COMMENT 'client that sent the event',
    producer_seq Int64 COMMENT 'the event''s number among those of its producer, from 1 without gaps',
    is_replay Bool COMMENT 'whether it was sent again after a rejection; then it changes no run',
    payload_json String CODEC(Default) TTL personal_expires COMMENT 'payload as in history, of events that say what a run did; texts are cut after 1,000 characters, fields named *_json never',
    occurred_at DateTime64(6, 'UTC') CODEC(Delta, ZSTD(1)) COMMENT 'agent''s clock',
    retain_until DateTime64(6, 'UTC') CODEC(Delta, ZSTD(1)) COMMENT 'the row may be deleted then',
    personal_expires DateTime('UTC') CODEC(Delta, ZSTD(1)) COMMENT 'when personal columns are blanked; the end of time if there are none',
    topic_id LowCardinality(String) COMMENT 'Kafka''s id of the topic'
)
ENGINE = ReplacingMergeTree
PARTITION BY toYYYYMM(appended_at)
ORDER BY (tenant_id, session_id, run_id, source_partition, source_offset, appended_at, topic_id)
TTL
    least(toDateTime(retain_until), toDateTime(appended_at) + INTERVAL 30 DAY) DELETE WHERE subject = 'tool_call',
    toDateTime(retain_until) DELETE WHERE subject = 'artifact',
    least(toDateTime(retain_until), toDateTime(appended_at) + INTERVAL 90 DAY) DELETE WHERE subject NOT IN ('tool_call', 'artifact'),
    toDateTime(appended_at) + INTERVAL 1 DAY RECOMPRESS CODEC(ZSTD(1))
SETTINGS fsync_after_insert = 1, fsync_part_directory = 1, non_replicated_deduplication_window = 10000,
    replicated_deduplication_window = 10000, replicated_deduplication_window_seconds = 604800,
    min_bytes_for_wide_part = 268435456, merge_selector_base = 16
COMMENT 'one row per event of a run, a reserved tool call or an artifact, rejected ones too';

-- Sinks insert into history, and this view into the table above. All sinks let it have a block that history knows already,
-- under the block's token: a block whose rows were stored before a crash, and the view's not, is finished by its retry.
-- The view feeds a table, so only a numbered migration changes it.
CREATE MATERIALIZED VIEW IF NOT EXISTS {database}.run_events_of_history TO {database}.run_events AS
WITH JSONExtract(payload_json, 'Tuple(name String, tool_name String, task_type String, artifact_type String, operation String,
    attempt Int32, try_number Int32, tool_call_id String, idem_key String, mode String, outcome String,
    side_effect Nullable(Bool), queryable Nullable(Bool), error Tuple(error_class String, code String),
    progress Nullable(Float64), processed_count Nullable(Int64), bytes_written Nullable(Int64), size_bytes Nullable(Int64),
    length Nullable(Int64), artifact_id Nullable(String), sha256 Nullable(String))') AS p
SELECT
    tenant_id, session_id, ifNull(run_id, '') AS run_id, source_partition, source_offset, appended_at, event_id, event_type,
    multiIf(startsWith(event_type, 'run_') OR startsWith(event_type, 'plan_'), 'run', startsWith(event_type, 'step_'), 'step',
        startsWith(event_type, 'tool_call_'), 'tool_call', startsWith(event_type, 'artifact_'), 'artifact', '') AS subject,
    if(event_type = 'tool_call_resolved', p.outcome, transform(toString(event_type),
        ['run_queued', 'run_started', 'run_running', 'run_paused', 'run_resumed', 'run_completed', 'run_failed',
            'run_cancelled', 'run_rejected', 'step_started', 'step_succeeded', 'step_failed', 'step_skipped',
            'tool_call_started', 'tool_call_succeeded', 'tool_call_failed', 'artifact_created', 'artifact_completed',
            'artifact_soft_deleted', 'artifact_purged'],
        ['queued', 'started', 'running', 'paused', 'running', 'completed', 'failed', 'cancelled', 'rejected', 'running',
            'succeeded', 'failed', 'skipped', 'running', 'succeeded', 'failed', 'open', 'complete', 'deleted', 'purged'],
        '')) AS state,
    arrayFirst(x -> x != '', [p.name, p.tool_name, p.task_type, p.artifact_type, p.operation]) AS name,
    greatest(p.attempt, p.try_number) AS number,
    if(subject = 'tool_call' AND p.idem_key != p.tool_call_id, p.idem_key, '') AS idem_key,
    if(subject = 'run', p.mode, '') AS mode, p.side_effect AS side_effect, p.queryable AS queryable,
    p.error.error_class AS error_class, p.error.code AS error_code, p.progress AS progress,
    p.processed_count AS processed_count,
    multiIf(p.bytes_written IS NOT NULL, p.bytes_written, p.size_bytes IS NOT NULL, p.size_bytes, p.length) AS bytes,
    p.artifact_id AS artifact_id, p.sha256 AS sha256, step_id, causation_id, user_id, agent_id, service_id, actor,
    producer_id, producer_seq, arrayExists(x -> x.1 = 'replayed_from', headers) AS is_replay,
    if(subject != '' OR event_type IN ('checkpoint_saved', 'llm_decision'), payload_json, '') AS payload_json,
    occurred_at, retain_until, personal_expires, topic_id
FROM {database}.history
WHERE decode_error = '' AND session_id != '' AND event_type != 'heartbeat'
    AND (ifNull(run_id, '') != '' OR startsWith(event_type, 'artifact_') OR (startsWith(event_type, 'tool_call_')
        AND JSONExtractString(payload_json, 'idem_key') NOT IN ('', JSONExtractString(payload_json, 'tool_call_id'))));
