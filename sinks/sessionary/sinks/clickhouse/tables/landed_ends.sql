-- Where the sinks stand: what each has written, and what Kafka has around it. A table cannot tell that its end was lost, so
-- the sinks tell it, every two minutes.
CREATE TABLE IF NOT EXISTS {database}.landed_ends
(
    sink LowCardinality(String) COMMENT 'audit, history, rejected or batches',
    consumer_group LowCardinality(String) COMMENT 'its group in Kafka',
    partition UInt32 COMMENT 'partition of its topic',
    topic_id LowCardinality(String) COMMENT 'Kafka''s id of its topic; empty if the broker has none',
    committed UInt64 COMMENT 'offset below which it has written all records',
    log_start UInt64 COMMENT 'offset of the first record that Kafka still has',
    log_end UInt64 COMMENT 'offset of the next record that Kafka gets',
    last_offset Nullable(UInt64) COMMENT 'offset of the last record below committed; null if there is none of the last 22 days',
    reported_at DateTime64(3, 'UTC') DEFAULT now64(3) COMMENT 'when the sink reported it'
)
ENGINE = ReplacingMergeTree(reported_at)
ORDER BY (sink, consumer_group, partition)
TTL toDateTime(reported_at) + INTERVAL 30 DAY
COMMENT 'one row per sink and partition: where it stood when it reported it last';
