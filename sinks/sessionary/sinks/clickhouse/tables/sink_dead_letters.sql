CREATE TABLE IF NOT EXISTS {database}.sink_dead_letters
(
    sink LowCardinality(String) COMMENT 'sink that could not store the record',
    reason LowCardinality(String) COMMENT 'why, as a fixed name',
    detail String CODEC(ZSTD(1)) TTL personal_expires COMMENT 'why, in words; empty after 30 days',
    source_topic LowCardinality(String) COMMENT 'topic of the record that it is about',
    topic_id LowCardinality(String) COMMENT 'Kafka''s id of source_topic',
    source_partition UInt32 COMMENT 'partition of that record',
    source_offset UInt64 COMMENT 'offset of that record',
    appended_at DateTime64(6, 'UTC') COMMENT 'the log''s time of the record',
    key Nullable(String) CODEC(ZSTD(1)) TTL personal_expires COMMENT 'the record''s key; empty after 30 days',
    value Nullable(String) CODEC(ZSTD(1)) TTL personal_expires COMMENT 'the record''s bytes; empty after 30 days',
    headers Map(String, String) CODEC(ZSTD(1)) TTL personal_expires COMMENT 'headers of the record; empty after 30 days',
    retain_until DateTime64(6, 'UTC') COMMENT 'when the row may be deleted',
    personal_expires DateTime('UTC') COMMENT 'personal_until, or the end of time if that is null',
    src_topic LowCardinality(String) ALIAS source_topic COMMENT 'the same as source_topic',
    src_partition UInt32 ALIAS source_partition COMMENT 'the same as source_partition',
    src_offset UInt64 ALIAS source_offset COMMENT 'the same as source_offset',
    value_size UInt32 COMMENT 'bytes of the record''s key and value in Kafka',
    landed_at DateTime64(3, 'UTC') DEFAULT now64(3) COMMENT 'when the row was inserted, by ClickHouse''s clock'
)
ENGINE = ReplacingMergeTree
PARTITION BY toYYYYMM(appended_at)
PRIMARY KEY (sink, source_topic, source_partition, source_offset)
ORDER BY (sink, source_topic, source_partition, source_offset, topic_id)
TTL toDateTime(retain_until)
SETTINGS fsync_after_insert = 1, fsync_part_directory = 1, non_replicated_deduplication_window = 10000,
    replicated_deduplication_window = 10000, replicated_deduplication_window_seconds = 604800,
    min_bytes_for_wide_part = 268435456, merge_selector_base = 10
COMMENT 'one row per record that a sink could not store';
