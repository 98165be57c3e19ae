CREATE OR REPLACE VIEW {database}.v_run_progress AS
SELECT
    r.time AS time, r.tenant_id AS tenant_id, r.session_id AS session_id, r.run_id AS run_id, r.user_id AS user_id,
    r.mode AS mode, r.task_type AS task_type, r.status AS status, r.progress AS progress,
    s.succeeded AS steps_succeeded, s.failed AS steps_failed, s.running AS steps_running, s.skipped AS steps_skipped,
    s.cancelled AS steps_cancelled, s.last_step AS last_step, c.operation AS checkpoint_operation, c.stage AS checkpoint_stage,
    c.processed_count AS processed_count, c.last_item_id AS last_item_id, c.bytes_written AS bytes_written,
    c.checkpoint_at AS checkpoint_at, u.unresolved AS unresolved_calls, r.created_at AS created_at,
    r.finished_at AS finished_at, r.duration_s AS duration_s, c.checkpoints AS checkpoints
FROM {database}.v_runs AS r
LEFT JOIN
(
    SELECT
        tenant_id, session_id, run_id, countIf(last_state = 'succeeded') AS succeeded, countIf(last_state = 'failed') AS failed,
        countIf(last_state = 'running') AS running, countIf(last_state = 'skipped') AS skipped,
        countIf(last_state = 'cancelled') AS cancelled, argMax(name, began_at) AS last_step
    FROM
    (
        SELECT tenant_id, session_id, run_id, name, argMax(state, attempt) AS last_state, max(started_at) AS began_at
        FROM {database}.v_steps
        GROUP BY tenant_id, session_id, run_id, name
    )
    GROUP BY tenant_id, session_id, run_id
) AS s ON s.tenant_id = r.tenant_id AND s.session_id = r.session_id AND s.run_id = r.run_id
LEFT JOIN
(
    SELECT
        tenant_id, session_id, run_id, argMax(name, source_offset) AS operation,
        argMax(JSONExtractString(payload_json, 'stage'), source_offset) AS stage,
        argMax(tuple(processed_count), source_offset).1 AS processed_count,
        argMax(JSONExtractString(payload_json, 'last_item_id'), source_offset) AS last_item_id,
        argMax(tuple(bytes), source_offset).1 AS bytes_written, max(toNullable(time)) AS checkpoint_at, count() AS checkpoints
    FROM {database}.v_run_events
    WHERE event_type = 'checkpoint_saved' AND run_id != ''
    GROUP BY tenant_id, session_id, run_id
) AS c ON c.tenant_id = r.tenant_id AND c.session_id = r.session_id AND c.run_id = r.run_id
LEFT JOIN
(
    SELECT tenant_id, session_id, run_id, count() AS unresolved FROM {database}.v_unresolved_calls
    GROUP BY tenant_id, session_id, run_id
) AS u ON u.tenant_id = r.tenant_id AND u.session_id = r.session_id AND u.run_id = r.run_id;

ALTER TABLE {database}.v_run_progress
    MODIFY COMMENT 'progress of each run: steps by state, last checkpoint, calls that wait for people',
    COMMENT COLUMN time 'log time of the latest record',
    COMMENT COLUMN tenant_id 'tenant of the session',
    COMMENT COLUMN session_id 'id of the session',
    COMMENT COLUMN run_id 'id of the run',
    COMMENT COLUMN user_id 'user for whom the run works; null once personal data has expired',
    COMMENT COLUMN mode 'attached or detached',
    COMMENT COLUMN task_type 'type of the task',
    COMMENT COLUMN status 'state of the run',
    COMMENT COLUMN progress 'progress as last reported, 0 to 1',
    COMMENT COLUMN steps_succeeded 'steps whose latest attempt succeeded',
    COMMENT COLUMN steps_failed 'steps whose latest attempt failed',
    COMMENT COLUMN steps_running 'steps whose latest attempt has no end',
    COMMENT COLUMN steps_skipped 'steps that were skipped before any attempt',
    COMMENT COLUMN steps_cancelled 'steps whose latest attempt was cancelled',
    COMMENT COLUMN last_step 'step that was the last to begin',
    COMMENT COLUMN checkpoint_operation 'operation of the last checkpoint',
    COMMENT COLUMN checkpoint_stage 'stage of the last checkpoint; empty once personal data has expired',
    COMMENT COLUMN processed_count 'items done at the last checkpoint',
    COMMENT COLUMN last_item_id 'last item done at the last checkpoint; empty once personal data has expired',
    COMMENT COLUMN bytes_written 'bytes written at the last checkpoint',
    COMMENT COLUMN checkpoint_at 'log time of the last checkpoint',
    COMMENT COLUMN unresolved_calls 'calls of the run with a side effect and an unknown outcome',
    COMMENT COLUMN created_at 'log time of the first event',
    COMMENT COLUMN finished_at 'time of the end; null while the run is open',
    COMMENT COLUMN duration_s 'seconds from the first event to the end, or until now',
    COMMENT COLUMN checkpoints 'number of checkpoints';
