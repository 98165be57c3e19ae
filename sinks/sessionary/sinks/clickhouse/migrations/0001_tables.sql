-- The tables. Every one is a ReplacingMergeTree whose order is the identity of a row, so that a record that arrives
-- twice at two positions collapses too; what arrives twice at one position is caught by insert tokens, for which the
-- windows are set here (their defaults differ between servers and versions).
-- Rows go at `retain_until`, personal columns are blanked at `personal_expires`: per row, hence no ttl_only_drop_parts,
-- which would keep a whole month of rows until the last of them has expired.

CREATE TABLE IF NOT EXISTS {database}.audit
(
    audit_id String CODEC(ZSTD(1)),
    tenant_id LowCardinality(String),
    session_id String CODEC(ZSTD(1)),
    audit_seq UInt64 CODEC(Delta, ZSTD(1)) COMMENT 'per session, from 1, without gaps; 0 where no session is known',
    kind LowCardinality(String),
    transition LowCardinality(Nullable(String)) COMMENT 'T01 to T14',
    event_id Nullable(String) CODEC(ZSTD(1)),
    event_type LowCardinality(String),
    from_state LowCardinality(String),
    to_state LowCardinality(String),
    reason_code LowCardinality(String),
    reason String CODEC(ZSTD(1)),
    security Bool,
    cleanup_id Nullable(String) CODEC(ZSTD(1)),
    cleanup_actions Array(LowCardinality(String)) COMMENT 'requested, never done',
    actions_done Array(LowCardinality(String)),
    actions_failed Array(LowCardinality(String)),
    bytes_released Nullable(Int64),
    host_lost Bool,
    compliance_tags Array(LowCardinality(String)),
    user_id Nullable(String) CODEC(ZSTD(1)) TTL personal_expires,
    agent_id Nullable(String) CODEC(ZSTD(1)),
    agent_role LowCardinality(Nullable(String)),
    service_id LowCardinality(Nullable(String)),
    owner_service LowCardinality(Nullable(String)),
    actor Nullable(String) CODEC(ZSTD(1)),
    epoch Int64,
    version Int64,
    producer_id Nullable(String) CODEC(ZSTD(1)),
    producer_seq Nullable(Int64),
    gap_first Nullable(Int64),
    gap_last Nullable(Int64),
    context_bytes Nullable(Int64),
    occurred_at DateTime64(6, 'UTC') CODEC(Delta, ZSTD(1)) COMMENT 'agent''s clock; of a timeout: its due time',
    appended_at DateTime64(6, 'UTC') CODEC(Delta, ZSTD(1)) COMMENT 'log time of the record that caused it',
    due_at Nullable(DateTime64(6, 'UTC')),
    fired_at Nullable(DateTime64(6, 'UTC')),
    source_partition UInt32,
    source_offset UInt64 CODEC(Delta, ZSTD(1)),
    source_n UInt32,
    batch_number UInt64 CODEC(Delta, ZSTD(1)),
    retention_class LowCardinality(String),
    retain_until DateTime64(6, 'UTC') CODEC(Delta, ZSTD(1)),
    personal_until Nullable(DateTime64(6, 'UTC')),
    personal_expires DateTime('UTC') CODEC(Delta, ZSTD(1)) COMMENT 'personal_until, or the end of time where that is null',
    src_topic LowCardinality(String),
    src_partition UInt32,
    src_offset UInt64 CODEC(Delta, ZSTD(1)),
    value_size UInt32 COMMENT 'bytes of the record''s key and value in Kafka',
    landed_at DateTime64(3, 'UTC') DEFAULT now64(3) CODEC(Delta, ZSTD(1)),
    INDEX by_session session_id TYPE bloom_filter(0.01) GRANULARITY 1,
    INDEX by_user user_id TYPE bloom_filter(0.01) GRANULARITY 1,
    INDEX by_tag compliance_tags TYPE bloom_filter(0.01) GRANULARITY 1,
    INDEX by_time appended_at TYPE minmax GRANULARITY 1
)
ENGINE = ReplacingMergeTree
PARTITION BY (retention_class, toYYYYMM(appended_at))
ORDER BY (tenant_id, session_id, audit_seq, source_partition, source_offset, source_n)
TTL toDateTime(retain_until)
SETTINGS fsync_after_insert = 1, fsync_part_directory = 1, non_replicated_deduplication_window = 10000,
    replicated_deduplication_window = 10000, replicated_deduplication_window_seconds = 604800;

CREATE TABLE IF NOT EXISTS {database}.history
(
    source_partition UInt32,
    source_offset UInt64 CODEC(Delta, ZSTD(1)),
    appended_at DateTime64(3, 'UTC') CODEC(Delta, ZSTD(1)),
    decode_error LowCardinality(String) COMMENT 'why the bytes are no event; empty where they are one',
    event_id String CODEC(ZSTD(1)),
    event_type LowCardinality(String) COMMENT 'tick for ticks, empty where undecodable',
    schema_version Int32,
    tenant_id LowCardinality(String),
    session_id String CODEC(ZSTD(1)),
    user_id Nullable(String) CODEC(ZSTD(1)) TTL personal_expires,
    agent_id String CODEC(ZSTD(1)),
    agent_role LowCardinality(Nullable(String)),
    service_id LowCardinality(String),
    actor Nullable(String) CODEC(ZSTD(1)),
    epoch Int64,
    producer_id String CODEC(ZSTD(1)),
    producer_seq Int64,
    run_id Nullable(String) CODEC(ZSTD(1)),
    run_seq Nullable(Int64),
    step_id Nullable(String) CODEC(ZSTD(1)),
    causation_id Nullable(String) CODEC(ZSTD(1)),
    occurred_at DateTime64(6, 'UTC') CODEC(Delta, ZSTD(1)),
    data_classes Array(LowCardinality(String)),
    context_bytes Nullable(Int64),
    server_version LowCardinality(Nullable(String)),
    protocol_version LowCardinality(Nullable(String)),
    payload_json String CODEC(ZSTD(1)) TTL personal_expires,
    key_bytes Nullable(String) CODEC(ZSTD(1)),
    value_bytes Nullable(String) CODEC(ZSTD(1)) TTL personal_expires,
    headers Array(Tuple(name String, value String)) CODEC(ZSTD(1)),
    retention_class LowCardinality(String),
    retain_until DateTime64(6, 'UTC') CODEC(Delta, ZSTD(1)),
    personal_until Nullable(DateTime64(6, 'UTC')),
    personal_expires DateTime('UTC') CODEC(Delta, ZSTD(1)) COMMENT 'personal_until, or the end of time where that is null',
    src_topic LowCardinality(String),
    src_partition UInt32 ALIAS source_partition,
    src_offset UInt64 ALIAS source_offset,
    value_size UInt32 COMMENT 'bytes of the record''s key and value in Kafka',
    landed_at DateTime64(3, 'UTC') DEFAULT now64(3) CODEC(Delta, ZSTD(1)),
    INDEX by_session session_id TYPE bloom_filter(0.01) GRANULARITY 1,
    INDEX by_user user_id TYPE bloom_filter(0.01) GRANULARITY 1,
    INDEX by_event event_id TYPE bloom_filter(0.01) GRANULARITY 1,
    INDEX by_time appended_at TYPE minmax GRANULARITY 1
)
ENGINE = ReplacingMergeTree
PARTITION BY (retention_class, toYYYYMM(appended_at))
ORDER BY (tenant_id, session_id, source_partition, source_offset)
TTL toDateTime(retain_until)
SETTINGS fsync_after_insert = 1, fsync_part_directory = 1, non_replicated_deduplication_window = 10000,
    replicated_deduplication_window = 10000, replicated_deduplication_window_seconds = 604800;

CREATE TABLE IF NOT EXISTS {database}.rejected
(
    reason LowCardinality(String),
    detail String CODEC(ZSTD(1)) TTL personal_expires,
    security Bool,
    tenant_id LowCardinality(Nullable(String)),
    session_id Nullable(String) CODEC(ZSTD(1)),
    event_id Nullable(String) CODEC(ZSTD(1)),
    event_type LowCardinality(Nullable(String)),
    service_id LowCardinality(Nullable(String)),
    source_topic LowCardinality(String),
    source_partition UInt32,
    source_offset UInt64 CODEC(Delta, ZSTD(1)),
    appended_at DateTime64(6, 'UTC') CODEC(Delta, ZSTD(1)),
    key Nullable(String) CODEC(ZSTD(1)),
    value Nullable(String) CODEC(ZSTD(1)) TTL personal_expires,
    headers Map(String, String) CODEC(ZSTD(1)),
    retain_until DateTime64(6, 'UTC') CODEC(Delta, ZSTD(1)),
    personal_expires DateTime('UTC') CODEC(Delta, ZSTD(1)),
    src_topic LowCardinality(String),
    src_partition UInt32,
    src_offset UInt64 CODEC(Delta, ZSTD(1)),
    value_size UInt32 COMMENT 'bytes of the record''s key and value in Kafka',
    landed_at DateTime64(3, 'UTC') DEFAULT now64(3) CODEC(Delta, ZSTD(1)),
    INDEX by_session session_id TYPE bloom_filter(0.01) GRANULARITY 1,
    INDEX by_time appended_at TYPE minmax GRANULARITY 1
)
ENGINE = ReplacingMergeTree
PARTITION BY toYYYYMM(appended_at)
ORDER BY (source_topic, source_partition, source_offset)
TTL toDateTime(retain_until)
SETTINGS fsync_after_insert = 1, fsync_part_directory = 1, non_replicated_deduplication_window = 10000,
    replicated_deduplication_window = 10000, replicated_deduplication_window_seconds = 604800;

-- Two transactions of one number are a fault that must stay visible: hence the offsets in the order.
CREATE TABLE IF NOT EXISTS {database}.batches
(
    partition UInt32,
    number UInt64 CODEC(Delta, ZSTD(1)),
    first_offset Int64 CODEC(Delta, ZSTD(1)),
    last_offset Int64 CODEC(Delta, ZSTD(1)),
    applied UInt64,
    duplicate UInt64,
    refused UInt64,
    audited UInt64,
    timers UInt64,
    ticks UInt64,
    started_at DateTime64(6, 'UTC') CODEC(Delta, ZSTD(1)),
    previous_acknowledged_at Nullable(DateTime64(6, 'UTC')) CODEC(Delta, ZSTD(1)),
    instance LowCardinality(String),
    src_topic LowCardinality(String),
    src_partition UInt32,
    src_offset UInt64 CODEC(Delta, ZSTD(1)),
    value_size UInt32 COMMENT 'bytes of the record''s key and value in Kafka',
    landed_at DateTime64(3, 'UTC') DEFAULT now64(3) CODEC(Delta, ZSTD(1))
)
ENGINE = ReplacingMergeTree
PARTITION BY toYYYYMM(started_at)
ORDER BY (partition, number, first_offset, last_offset)
TTL toDateTime(started_at) + INTERVAL 7 YEAR
SETTINGS fsync_after_insert = 1, fsync_part_directory = 1, non_replicated_deduplication_window = 10000,
    replicated_deduplication_window = 10000, replicated_deduplication_window_seconds = 604800;

CREATE TABLE IF NOT EXISTS {database}.sink_dead_letters
(
    sink LowCardinality(String),
    reason LowCardinality(String),
    detail String CODEC(ZSTD(1)) TTL personal_expires,
    source_topic LowCardinality(String),
    source_partition UInt32,
    source_offset UInt64,
    appended_at DateTime64(6, 'UTC'),
    key Nullable(String) CODEC(ZSTD(1)),
    value Nullable(String) CODEC(ZSTD(1)) TTL personal_expires,
    headers Map(String, String) CODEC(ZSTD(1)),
    retain_until DateTime64(6, 'UTC'),
    personal_expires DateTime('UTC'),
    src_topic LowCardinality(String) ALIAS source_topic,
    src_partition UInt32 ALIAS source_partition,
    src_offset UInt64 ALIAS source_offset,
    value_size UInt32,
    landed_at DateTime64(3, 'UTC') DEFAULT now64(3)
)
ENGINE = ReplacingMergeTree
PARTITION BY toYYYYMM(appended_at)
ORDER BY (sink, source_topic, source_partition, source_offset)
TTL toDateTime(retain_until)
SETTINGS fsync_after_insert = 1, fsync_part_directory = 1, non_replicated_deduplication_window = 10000,
    replicated_deduplication_window = 10000, replicated_deduplication_window_seconds = 604800;
