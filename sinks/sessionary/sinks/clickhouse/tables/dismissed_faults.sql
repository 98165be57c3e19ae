-- Written by `sessionary integrity dismiss`, with what v_integrity said of the fault then. A fault that has more rows, or
-- lies outside of these offsets, is another one. Kept as long as the audit trail.
CREATE TABLE IF NOT EXISTS {database}.dismissed_faults
(
    fault LowCardinality(String) COMMENT 'kind of the fault',
    tenant_id LowCardinality(String) COMMENT 'its tenant; empty if the fault concerns no session',
    session_id String CODEC(ZSTD(1)) COMMENT 'its session; empty if the fault concerns none',
    partition Nullable(UInt32) COMMENT 'its partition, if the fault concerns one',
    rows UInt64 COMMENT 'number of rows',
    first_offset Nullable(UInt64) COMMENT 'first offset',
    last_offset Nullable(UInt64) COMMENT 'last offset',
    reason String CODEC(ZSTD(1)) COMMENT 'why it is dismissed, by the person who did it',
    dismissed_by String COMMENT 'who dismissed it, as they said',
    clickhouse_user LowCardinality(String) DEFAULT currentUser() COMMENT 'ClickHouse user of the command',
    dismissed_at DateTime64(3, 'UTC') DEFAULT now64(3) COMMENT 'when it was dismissed, by ClickHouse''s clock'
)
ENGINE = MergeTree
PARTITION BY toYear(dismissed_at)
ORDER BY (fault, tenant_id, session_id, dismissed_at)
TTL toDateTime(dismissed_at) + INTERVAL 2557 DAY
SETTINGS fsync_after_insert = 1, fsync_part_directory = 1
COMMENT 'one row per fault of v_integrity that a person dismissed, with the reason';
