-- A checkpoint counts if its event precedes the record at which the loss was noticed.
CREATE OR REPLACE VIEW {database}.v_lost_connections AS
SELECT
    a.at AS time, a.tenant_id AS tenant_id, a.session_id AS session_id, a.run_id AS run_id, a.state AS state, a.reason AS reason,
    c.checkpoint_id AS checkpoint_id, c.kind AS checkpoint_kind, c.operation AS checkpoint_operation,
    c.stage AS checkpoint_stage, c.processed_count AS processed_count, c.last_item_id AS last_item_id,
    c.bytes_written AS bytes_written, nullIf(c.time, toDateTime64(0, 3, 'UTC')) AS checkpoint_at,
    a.source_partition AS source_partition, a.source_offset AS source_offset
FROM
(
    SELECT
        appended_at AS at, tenant_id, session_id, assumeNotNull(run_id) AS run_id, ifNull(to_run_state, '') AS state, reason,
        source_partition, toUInt64(source_offset) AS source_offset
    FROM {database}.audit AS d FINAL
    WHERE kind = 'run' AND reason_code = 'connection_lost' AND d.run_id IS NOT NULL
) AS a
ASOF LEFT JOIN {database}.v_checkpoints AS c
    ON c.tenant_id = a.tenant_id AND c.session_id = a.session_id AND c.run_id = a.run_id AND a.source_offset > c.source_offset
SETTINGS do_not_merge_across_partitions_select_final = 1;

ALTER TABLE {database}.v_lost_connections
    MODIFY COMMENT 'each loss of an attached run''s connection, with the last checkpoint',
    COMMENT COLUMN time 'time at which the loss was noticed',
    COMMENT COLUMN tenant_id 'tenant of the session',
    COMMENT COLUMN session_id 'id of the session',
    COMMENT COLUMN run_id 'id of the run',
    COMMENT COLUMN state 'state after the loss: paused or failed',
    COMMENT COLUMN reason 'reason in words',
    COMMENT COLUMN checkpoint_id 'last checkpoint before the loss; empty without one',
    COMMENT COLUMN checkpoint_kind 'usual point of the checkpoint; empty without one',
    COMMENT COLUMN checkpoint_operation 'operation of that checkpoint',
    COMMENT COLUMN checkpoint_stage 'stage of the checkpoint; empty once personal data has expired',
    COMMENT COLUMN processed_count 'items done at the checkpoint',
    COMMENT COLUMN last_item_id 'last item done at the checkpoint; empty once personal data has expired',
    COMMENT COLUMN bytes_written 'bytes written at the checkpoint',
    COMMENT COLUMN checkpoint_at 'log time of the checkpoint; null without one',
    COMMENT COLUMN source_partition 'partition of the events topic',
    COMMENT COLUMN source_offset 'offset in that partition';
