-- Two transactions of one number are a fault that must stay visible: hence the offsets in the order. All records of a
-- transaction are judged by the same rules. The first heartbeat of a fenced client in an epoch leaves a row in rejected.
-- Those after it are only counted: they have rows in history, and none in rejected.
CREATE TABLE IF NOT EXISTS {database}.batches
(
    partition UInt32 COMMENT 'partition of the events topic',
    number UInt64 CODEC(Delta, ZSTD(1)) COMMENT 'number of the transaction in its partition, from 1 without gaps',
    first_offset Int64 CODEC(Delta, ZSTD(1)) COMMENT 'first offset that it judged',
    last_offset Int64 CODEC(Delta, ZSTD(1)) COMMENT 'last offset that it judged',
    applied UInt64 COMMENT 'events that it applied',
    duplicate UInt64 COMMENT 'events that had been applied before',
    rejected UInt64 COMMENT 'events that it rejected',
    audited UInt64 COMMENT 'audit records that it wrote',
    timers UInt64 COMMENT 'deadlines that it fired',
    ticks UInt64 COMMENT 'ticks that it read',
    fenced_beats UInt64 DEFAULT 0 COMMENT 'heartbeats that it rejected without a row in rejected: a fenced client''s after the first in an epoch',
    cleanup Nullable(UInt64) COMMENT 'records that it wrote to the topic cleanup; null if it did not count them',
    tasks Nullable(UInt64) COMMENT 'records that it wrote to the topic tasks; null if it did not count them',
    migrations Nullable(UInt64) COMMENT 'records that it wrote to the topic migrations; null if it did not count them',
    quotas Nullable(UInt64) COMMENT 'records that it wrote to the topic quotas; null if it did not count them',
    started_at DateTime64(6, 'UTC') CODEC(Delta, ZSTD(1)) COMMENT 'when it began, by the processor''s clock',
    previous_acknowledged_at Nullable(DateTime64(6, 'UTC')) CODEC(Delta, ZSTD(1)) COMMENT 'when the transaction before it was acknowledged, if that is known',
    instance LowCardinality(String) COMMENT 'worker that wrote it',
    rules UInt32 DEFAULT 1 COMMENT 'version of the rules that its records were judged by',
    src_topic LowCardinality(String) COMMENT 'topic that the row was read from',
    topic_id LowCardinality(String) COMMENT 'Kafka''s id of src_topic',
    src_partition UInt32 COMMENT 'partition that the row was read from',
    src_offset UInt64 CODEC(Delta, ZSTD(1)) COMMENT 'offset that the row was read from',
    value_size UInt32 COMMENT 'bytes of the record''s key and value in Kafka',
    landed_at DateTime64(3, 'UTC') DEFAULT now64(3) CODEC(Delta, ZSTD(1)) COMMENT 'when the row was inserted, by ClickHouse''s clock'
)
ENGINE = ReplacingMergeTree
PARTITION BY toYYYYMM(started_at)
PRIMARY KEY (partition, number, first_offset, last_offset)
ORDER BY (partition, number, first_offset, last_offset, topic_id)
TTL toDateTime(started_at) + INTERVAL 7 YEAR
SETTINGS fsync_after_insert = 1, fsync_part_directory = 1, non_replicated_deduplication_window = 10000,
    replicated_deduplication_window = 10000, replicated_deduplication_window_seconds = 604800,
    min_bytes_for_wide_part = 268435456, merge_selector_base = 10
COMMENT 'one row per transaction of a processor, with its counts and the version of its rules';
