CREATE OR REPLACE VIEW {database}.v_checkpoints AS
SELECT
    time, tenant_id, session_id, run_id,
    row_number() OVER (PARTITION BY tenant_id, session_id, run_id ORDER BY source_offset) AS number,
    source_offset = max(source_offset) OVER (PARTITION BY tenant_id, session_id, run_id) AS is_last,
    JSONExtractString(payload_json, 'checkpoint_id') AS checkpoint_id,
    JSONExtractString(payload_json, 'kind') AS kind, name AS operation,
    JSONExtractString(payload_json, 'stage') AS stage, processed_count,
    JSONExtractString(payload_json, 'last_item_id') AS last_item_id, bytes AS bytes_written,
    JSONExtract(payload_json, 'data_json', 'Nullable(String)') AS data, step_id, event_id,
    source_partition, source_offset
FROM {database}.v_run_events
WHERE event_type = 'checkpoint_saved' AND run_id != '';

ALTER TABLE {database}.v_checkpoints
    MODIFY COMMENT 'each checkpoint of a run, with its progress',
    COMMENT COLUMN time 'log time of the event',
    COMMENT COLUMN tenant_id 'tenant of the session',
    COMMENT COLUMN session_id 'id of the session',
    COMMENT COLUMN run_id 'run of the checkpoint',
    COMMENT COLUMN number 'number of the checkpoint among the kept ones of its run, from 1',
    COMMENT COLUMN is_last 'true for the last checkpoint of its run, from which the run would continue',
    COMMENT COLUMN checkpoint_id 'id of the checkpoint; empty once personal data has expired, as are kind, stage and last_item_id',
    COMMENT COLUMN kind 'usual point, for example plan_made; empty without one',
    COMMENT COLUMN operation 'operation of the checkpoint',
    COMMENT COLUMN stage 'stage of the operation',
    COMMENT COLUMN processed_count 'items done',
    COMMENT COLUMN last_item_id 'last item done',
    COMMENT COLUMN bytes_written 'bytes written',
    COMMENT COLUMN data 'whole further data as JSON; null without any, or once personal data has expired',
    COMMENT COLUMN step_id 'step that the event names',
    COMMENT COLUMN event_id 'id of the event, given by its client',
    COMMENT COLUMN source_partition 'partition of the events topic',
    COMMENT COLUMN source_offset 'offset in that partition';
