-- Rows go at retain_until, personal columns are blanked at personal_expires: per row, hence no ttl_only_drop_parts, which
-- would keep a whole month of rows until the last of them has expired.
--
-- This table and the five others that sinks write (history, rejected, batches, batch_acknowledgements, sink_dead_letters)
-- have in common:
-- - Each is a ReplacingMergeTree whose order is the identity of a row, so that a record that arrives twice at two positions
--   collapses too. Insert tokens catch what arrives twice at one position; the windows of the tokens are set here, because
--   their defaults differ between servers and versions.
-- - Offsets of a topic that was deleted and made again begin at 0. The topic's id ends the order, so that the new topic's
--   rows replace none of the former one's.
-- - The cost of an insert is mostly its files: a part is one file for all columns until it is large. Ten parts of a size
--   become one, not five: a row is merged fewer times.
CREATE TABLE IF NOT EXISTS {database}.audit
(
    audit_id String CODEC(ZSTD(1)) COMMENT 'id of the audit record, the same at each replay',
    tenant_id LowCardinality(String) COMMENT 'tenant of the session',
    session_id String CODEC(ZSTD(1)) COMMENT 'id of the session',
    audit_seq UInt64 CODEC(Delta, ZSTD(1)) COMMENT 'number in the session''s audit trail, from 1 without gaps; 0 if no session is known',
    kind LowCardinality(String) COMMENT 'transition, rejection, gap, gap_filled, release, limit, take_over, run, tool_call or decision',
    transition LowCardinality(Nullable(String)) COMMENT 'transition of the state machine, T01 to T14',
    event_id Nullable(String) CODEC(ZSTD(1)) COMMENT 'id of the event, given by its client',
    event_type LowCardinality(String) COMMENT 'type of the event that caused it, or name of the decision',
    from_state LowCardinality(String) COMMENT 'state before',
    to_state LowCardinality(String) COMMENT 'state after',
    reason_code LowCardinality(String) COMMENT 'why, as a fixed name',
    reason String CODEC(ZSTD(1)) TTL personal_expires COMMENT 'why, in words of the agent or the processor; empty once personal data has expired',
    security Bool COMMENT 'whether the rejection suggests that the sender speaks for someone else',
    cleanup_id Nullable(String) CODEC(ZSTD(1)) COMMENT 'id of the request for a clean-up',
    cleanup_actions Array(LowCardinality(String)) COMMENT 'actions that the clean-up asks for, not what was done',
    actions_done Array(LowCardinality(String)) COMMENT 'actions that a handler reports as done',
    actions_failed Array(LowCardinality(String)) COMMENT 'actions that a handler reports as failed',
    bytes_released Nullable(Int64) COMMENT 'bytes of the context, if the handler did every action',
    host_lost Bool COMMENT 'whether the host is gone, so that no handler could run',
    compliance_tags Array(LowCardinality(String)) COMMENT 'tags of the laws that its classes of data fall under',
    user_id Nullable(String) CODEC(ZSTD(1)) TTL personal_expires COMMENT 'user for whom the agent works; null once personal data has expired',
    agent_id Nullable(String) CODEC(ZSTD(1)) COMMENT 'agent that the event names',
    agent_role LowCardinality(Nullable(String)) COMMENT 'role of that agent in the session',
    service_id LowCardinality(Nullable(String)) COMMENT 'service that sent the event that caused it',
    owner_service LowCardinality(Nullable(String)) COMMENT 'service that owned the session',
    actor Nullable(String) CODEC(ZSTD(1)) COMMENT 'who acted, if it was not the agent itself',
    epoch Int64 COMMENT 'number of the session''s owner: each one that takes over raises it',
    version Int64 COMMENT 'version of the session''s state',
    producer_id Nullable(String) CODEC(ZSTD(1)) COMMENT 'client that sent the event',
    producer_seq Nullable(Int64) COMMENT 'the event''s number among those of its producer, from 1 without gaps',
    gap_first Nullable(Int64) COMMENT 'first of a range: numbers of a producer''s events, or offsets that were skipped',
    gap_last Nullable(Int64) COMMENT 'last of that range',
    context_bytes Nullable(Int64) COMMENT 'size of the agent''s context in bytes, as reported',
    occurred_at DateTime64(6, 'UTC') CODEC(Delta, ZSTD(1)) COMMENT 'agent''s clock; of a timeout: its due time',
    occurred_at_text String COMMENT 'agent''s clock as it was reported, if that is before 1900 or after 2299; else empty',
    appended_at DateTime64(6, 'UTC') CODEC(Delta, ZSTD(1)) COMMENT 'log time of the record that caused it',
    due_at Nullable(DateTime64(6, 'UTC')) COMMENT 'when the deadline was',
    fired_at Nullable(DateTime64(6, 'UTC')) COMMENT 'when the processor saw that it had passed, by the log''s clock',
    source_partition UInt32 COMMENT 'partition of that record in the events topic',
    source_offset UInt64 CODEC(Delta, ZSTD(1)) COMMENT 'offset of that record in the events topic',
    source_n UInt32 COMMENT 'number among the outcomes of one record, from 0',
    batch_number UInt64 CODEC(Delta, ZSTD(1)) COMMENT 'number of the processor''s transaction in its partition',
    retention_class LowCardinality(String) COMMENT 'the law''s tag with the longest period, default, or idle for ticks and heartbeats',
    retain_until DateTime64(6, 'UTC') CODEC(Delta, ZSTD(1)) COMMENT 'when the row may be deleted',
    personal_until Nullable(DateTime64(6, 'UTC')) COMMENT 'when personal columns are emptied; null without personal data',
    run_id Nullable(String) COMMENT 'run that changed, for records of the kind run; run of the call or step, for those of the kinds tool_call and step',
    from_run_state LowCardinality(Nullable(String)) COMMENT 'state of the run before',
    to_run_state LowCardinality(Nullable(String)) COMMENT 'state of the run after',
    tool_name LowCardinality(Nullable(String)) COMMENT 'tool of the call, for records of the kind tool_call',
    idem_key Nullable(String) COMMENT 'idempotency key of the call',
    from_call_state LowCardinality(Nullable(String)) COMMENT 'state of the call before',
    to_call_state LowCardinality(Nullable(String)) COMMENT 'state of the call after',
    step_name Nullable(String) COMMENT 'step that changed, for records of the kind step',
    step_attempt Nullable(Int32) COMMENT 'number of the attempt at the step, from 1',
    from_step_state LowCardinality(Nullable(String)) COMMENT 'state of the step before',
    to_step_state LowCardinality(Nullable(String)) COMMENT 'state of the step after',
    checkpoint_id Nullable(String) COMMENT 'last checkpoint of the run, for records of the kind run',
    migration_id Nullable(String) COMMENT 'id of the migration, for records of the kind migration',
    from_service LowCardinality(Nullable(String)) COMMENT 'service that owned the session before the migration',
    to_service LowCardinality(Nullable(String)) COMMENT 'service that the session goes to',
    migration_step LowCardinality(Nullable(String)) COMMENT 'offered, prepared, completed or aborted',
    snapshot_id Nullable(String) COMMENT 'snapshot that a pause or an end left, for records of transitions; snapshot that a rollback restored',
    row_hash Nullable(String) COMMENT 'hash of the session''s row after this, for records of transitions and of the kind state_hash',
    outage_end_at Nullable(DateTime64(6, 'UTC')) COMMENT 'end of the partition''s last outage, for a session''s first record',
    transaction_id Nullable(String) COMMENT 'transaction, for records of the kind transaction',
    personal_expires DateTime('UTC') CODEC(Delta, ZSTD(1)) COMMENT 'personal_until, or the end of time if that is null',
    src_topic LowCardinality(String) COMMENT 'topic that the row was read from',
    topic_id LowCardinality(String) COMMENT 'Kafka''s id of src_topic',
    src_partition UInt32 COMMENT 'partition that the row was read from',
    src_offset UInt64 CODEC(Delta, ZSTD(1)) COMMENT 'offset that the row was read from',
    value_size UInt32 COMMENT 'bytes of the record''s key and value in Kafka',
    landed_at DateTime64(3, 'UTC') DEFAULT now64(3) CODEC(Delta, ZSTD(1)) COMMENT 'when the row was inserted, by ClickHouse''s clock',
    INDEX by_session session_id TYPE bloom_filter(0.01) GRANULARITY 1,
    INDEX by_user user_id TYPE bloom_filter(0.01) GRANULARITY 1,
    INDEX by_tag compliance_tags TYPE bloom_filter(0.01) GRANULARITY 1,
    INDEX by_time appended_at TYPE minmax GRANULARITY 1
)
ENGINE = ReplacingMergeTree
PARTITION BY (retention_class, toYYYYMM(appended_at))
PRIMARY KEY (tenant_id, session_id, audit_seq, source_partition, source_offset, source_n)
ORDER BY (tenant_id, session_id, audit_seq, source_partition, source_offset, source_n, topic_id)
TTL toDateTime(retain_until)
SETTINGS fsync_after_insert = 1, fsync_part_directory = 1, non_replicated_deduplication_window = 10000,
    replicated_deduplication_window = 10000, replicated_deduplication_window_seconds = 604800,
    min_bytes_for_wide_part = 268435456, merge_selector_base = 10
COMMENT 'one row per transition, rejection, gap, release, exceeded limit or decision of an operator';
