-- Written by `sessionary db migrate`. Migration 1 is all of tables/.
CREATE TABLE IF NOT EXISTS {database}.schema_migrations
(
    version UInt32 COMMENT 'number of the migration',
    name String COMMENT 'name of the migration',
    checksum String COMMENT 'SHA-256 of the file, hex',
    applied_at DateTime64(3, 'UTC') DEFAULT now64(3) COMMENT 'when it was applied'
)
ENGINE = ReplacingMergeTree
ORDER BY version
COMMENT 'one row per applied migration';
