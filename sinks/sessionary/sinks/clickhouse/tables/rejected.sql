-- A rejected event stays marked for as long as its row of history can live. Of a rejection, place, time and reason stay, and
-- the rest goes at retain_until. Free text, which may hold personal data, goes with the personal columns. With settings that
-- keep history for longer than 8 years, `sessionary db migrate` keeps the marks for longer too.
CREATE TABLE IF NOT EXISTS {database}.rejected
(
    reason LowCardinality(String) COMMENT 'why, as a fixed name; kept with place and time for as long as a row of history can live',
    detail String CODEC(ZSTD(1)) TTL personal_expires COMMENT 'why, in words; empty after 30 days',
    security Bool COMMENT 'whether the rejection suggests that the sender speaks for someone else',
    tenant_id LowCardinality(Nullable(String)) TTL toDateTime(retain_until) COMMENT 'tenant of the session',
    session_id Nullable(String) CODEC(ZSTD(1)) TTL toDateTime(retain_until) COMMENT 'id of the session',
    event_id Nullable(String) CODEC(ZSTD(1)) TTL toDateTime(retain_until) COMMENT 'id of the event, given by its client',
    event_type LowCardinality(Nullable(String)) TTL toDateTime(retain_until) COMMENT 'type of the event',
    service_id LowCardinality(Nullable(String)) TTL toDateTime(retain_until) COMMENT 'service that sent the event',
    source_topic LowCardinality(String) COMMENT 'topic of the record that it is about',
    source_partition UInt32 COMMENT 'partition of that record in the events topic',
    source_offset UInt64 CODEC(Delta, ZSTD(1)) COMMENT 'offset of that record in the events topic',
    appended_at DateTime64(6, 'UTC') CODEC(Delta, ZSTD(1)) COMMENT 'the log''s time of the record',
    key Nullable(String) CODEC(ZSTD(1)) TTL personal_expires COMMENT 'the record''s key; empty after 30 days',
    value Nullable(String) CODEC(ZSTD(1)) TTL personal_expires COMMENT 'the record''s bytes; empty after 30 days',
    headers Map(String, String) CODEC(ZSTD(1)) TTL personal_expires COMMENT 'headers of the record; empty after 30 days',
    retain_until DateTime64(6, 'UTC') CODEC(Delta, ZSTD(1)) COMMENT 'when all but reason, place and time is emptied',
    personal_expires DateTime('UTC') CODEC(Delta, ZSTD(1)) COMMENT 'when key, value, headers and detail are emptied',
    src_topic LowCardinality(String) COMMENT 'topic that the row was read from',
    topic_id LowCardinality(String) COMMENT 'Kafka''s id of src_topic',
    src_partition UInt32 COMMENT 'partition that the row was read from',
    src_offset UInt64 CODEC(Delta, ZSTD(1)) COMMENT 'offset that the row was read from',
    value_size UInt32 COMMENT 'bytes of the record''s key and value in Kafka',
    landed_at DateTime64(3, 'UTC') DEFAULT now64(3) CODEC(Delta, ZSTD(1)) COMMENT 'when the row was inserted, by ClickHouse''s clock',
    INDEX by_session session_id TYPE bloom_filter(0.01) GRANULARITY 1,
    INDEX by_time appended_at TYPE minmax GRANULARITY 1
)
ENGINE = ReplacingMergeTree
PARTITION BY toYYYYMM(appended_at)
PRIMARY KEY (source_topic, source_partition, source_offset)
ORDER BY (source_topic, source_partition, source_offset, topic_id)
TTL toDateTime(appended_at) + INTERVAL 2923 DAY
SETTINGS fsync_after_insert = 1, fsync_part_directory = 1, non_replicated_deduplication_window = 10000,
    replicated_deduplication_window = 10000, replicated_deduplication_window_seconds = 604800,
    min_bytes_for_wide_part = 268435456, merge_selector_base = 10
COMMENT 'one row per rejected event, with its original bytes; after 365 days reason, place and time of it';
