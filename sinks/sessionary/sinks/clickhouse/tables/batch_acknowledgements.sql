-- The next transaction says when the one before it was acknowledged; a record here says it of the last one before a pause.
-- Such a record may be lost or come twice.
CREATE TABLE IF NOT EXISTS {database}.batch_acknowledgements
(
    partition UInt32 COMMENT 'partition of the events topic',
    number UInt64 CODEC(Delta, ZSTD(1)) COMMENT 'number of the transaction, as in batches',
    acknowledged_at DateTime64(6, 'UTC') CODEC(Delta, ZSTD(1)) COMMENT 'when Kafka acknowledged the transaction',
    instance LowCardinality(String) COMMENT 'worker that wrote it',
    src_topic LowCardinality(String) COMMENT 'topic that the row was read from',
    topic_id LowCardinality(String) COMMENT 'Kafka''s id of src_topic',
    src_partition UInt32 COMMENT 'partition that the row was read from',
    src_offset UInt64 CODEC(Delta, ZSTD(1)) COMMENT 'offset that the row was read from',
    value_size UInt32 COMMENT 'bytes of the record''s key and value in Kafka',
    landed_at DateTime64(3, 'UTC') DEFAULT now64(3) CODEC(Delta, ZSTD(1)) COMMENT 'when the row was inserted, by ClickHouse''s clock'
)
ENGINE = ReplacingMergeTree
PARTITION BY toYYYYMM(acknowledged_at)
PRIMARY KEY (partition, number)
ORDER BY (partition, number, topic_id)
TTL toDateTime(acknowledged_at) + INTERVAL 7 YEAR
SETTINGS fsync_after_insert = 1, fsync_part_directory = 1, non_replicated_deduplication_window = 10000,
    replicated_deduplication_window = 10000, replicated_deduplication_window_seconds = 604800,
    min_bytes_for_wide_part = 268435456, merge_selector_base = 10
COMMENT 'one row per report of the last transaction before a pause';
