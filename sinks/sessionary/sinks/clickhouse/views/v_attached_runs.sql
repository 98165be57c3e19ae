-- Each attached run holds a connection of its user until the run ends or is paused, or the connection is lost.
CREATE OR REPLACE VIEW {database}.v_attached_runs AS
SELECT
    p.time AS time, p.tenant_id AS tenant_id, p.session_id AS session_id, p.run_id AS run_id, p.user_id AS user_id,
    r.service_id AS service_id, p.task_type AS task_type, p.status AS status, r.reason_code AS reason_code,
    p.status IN ('started', 'running') AS is_connected, r.reason_code = 'connection_lost' AS connection_lost,
    p.created_at AS created_at, p.duration_s AS age_s, p.progress AS progress, p.checkpoint_operation AS checkpoint_operation,
    p.checkpoint_stage AS checkpoint_stage, p.processed_count AS processed_count, p.last_item_id AS last_item_id,
    p.bytes_written AS bytes_written, p.checkpoint_at AS checkpoint_at
FROM {database}.v_run_progress AS p
INNER JOIN {database}.v_runs AS r ON r.tenant_id = p.tenant_id AND r.session_id = p.session_id AND r.run_id = p.run_id
WHERE p.mode = 'attached' AND p.finished_at IS NULL AND r.mode = 'attached' AND r.finished_at IS NULL;

ALTER TABLE {database}.v_attached_runs
    MODIFY COMMENT 'each open attached run: its age, its connection, and its last checkpoint',
    COMMENT COLUMN time 'log time of the latest record',
    COMMENT COLUMN tenant_id 'tenant of the session',
    COMMENT COLUMN session_id 'id of the session',
    COMMENT COLUMN run_id 'id of the run',
    COMMENT COLUMN user_id 'user for whom the run works; null once personal data has expired',
    COMMENT COLUMN service_id 'service that began the run',
    COMMENT COLUMN task_type 'type of the task',
    COMMENT COLUMN status 'state of the run',
    COMMENT COLUMN reason_code 'reason of a decision by a clock or the session; else empty',
    COMMENT COLUMN is_connected 'true if the run is at work, and so holds a connection',
    COMMENT COLUMN connection_lost 'true if the run is paused because its connection was lost',
    COMMENT COLUMN created_at 'log time of the first event',
    COMMENT COLUMN age_s 'seconds from the first event until now',
    COMMENT COLUMN progress 'progress as last reported, 0 to 1',
    COMMENT COLUMN checkpoint_operation 'operation of the last checkpoint',
    COMMENT COLUMN checkpoint_stage 'stage of the last checkpoint; empty once personal data has expired',
    COMMENT COLUMN processed_count 'items done at the last checkpoint',
    COMMENT COLUMN last_item_id 'last item done at the last checkpoint; empty once personal data has expired',
    COMMENT COLUMN bytes_written 'bytes written at the last checkpoint',
    COMMENT COLUMN checkpoint_at 'log time of the last checkpoint';
