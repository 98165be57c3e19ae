-- How long the rows of history without a law's class, ticks and heartbeats, transactions and runs are kept are settings:
-- `sessionary db migrate` changes the TTLs to them, and notes the days here. Without a note they are those of the tables.
CREATE TABLE IF NOT EXISTS {database}.retention_days
(
    table_name String COMMENT 'history, idle (ticks and heartbeats of the history) or batches',
    days UInt32 COMMENT 'days for which rows are kept',
    applied_at DateTime64(6, 'UTC') DEFAULT now64(6) COMMENT 'when it was applied'
)
ENGINE = ReplacingMergeTree(applied_at)
ORDER BY table_name
COMMENT 'one row per setting of retention that was changed';
