-- Written by `sessionary artifact sweep`. It is what remains of an artifact when its events have expired, so it is kept as
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
