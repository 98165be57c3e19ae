-- A clock finds an attempt that exceeds its limit, so this is in the audit trail. Attempt 0 is work that is only
-- reported as a step. An attempt without an end that was followed by another one was interrupted. A skip adds nothing
-- to a step that was tried.
CREATE OR REPLACE VIEW {database}.v_steps AS
SELECT
    updated_at AS time, step_id, run_id, tenant_id, session_id, name,
    multiIf(ended_in = 'failed' AND error_code = 'cancelled', 'cancelled', ended_in != '', ended_in, attempt < last_attempt, 'interrupted', 'running') AS state, attempt,
    input, output, error, error_class, error_code, started_at, finished_at,
    dateDiff('millisecond', started_at, finished_at) / 1e3 AS duration_s, is_input_known
FROM
(
    SELECT
        tenant_id, session_id, run_id, name, number AS attempt,
        max(number) OVER (PARTITION BY tenant_id, session_id, run_id, name) AS last_attempt,
        argMinIf(e.step_id, source_offset, e.step_id IS NOT NULL) AS step_id,
        argMaxIf(e.state, source_offset, e.state != 'running') AS ended_in,
        argMaxIf(JSONExtract(payload_json, 'input_json', 'Nullable(String)'), source_offset, e.state = 'running') AS input,
        argMaxIf(JSONExtract(payload_json, 'output_json', 'Nullable(String)'), source_offset, e.state = 'succeeded') AS output,
        argMaxIf(e.error, source_offset, e.state = 'failed') AS error,
        argMaxIf(e.error_class, source_offset, e.state = 'failed') AS error_class,
        argMaxIf(e.error_code, source_offset, e.state = 'failed') AS error_code,
        min(e.time) AS started_at, maxOrNullIf(e.time, e.state != 'running') AS finished_at, max(e.time) AS updated_at,
        min(e.personal_expires) > now() AS is_input_known
    FROM
    (
        SELECT
            tenant_id, session_id, run_id, name, number, step_id, state, error_class, error_code, payload_json, time, source_offset,
            personal_expires, JSONExtractString(payload_json, 'error', 'message') AS error, true AS is_event
        FROM {database}.v_run_events
        WHERE subject = 'step' AND run_id != '' AND (number > 0 OR state = 'skipped')
        UNION ALL
        SELECT
            tenant_id, session_id, assumeNotNull(run_id), assumeNotNull(step_name), assumeNotNull(step_attempt), NULL,
            ifNull(to_step_state, ''), 'retryable', reason_code, '', toDateTime64(appended_at, 3, 'UTC'), source_offset,
            toDateTime('2106-01-01 00:00:00', 'UTC'), reason, false
        FROM {database}.audit AS a FINAL
        WHERE kind = 'step' AND a.step_attempt IS NOT NULL
    ) AS e
    GROUP BY tenant_id, session_id, run_id, name, number
    HAVING countIf(is_event) > 0
)
WHERE attempt > 0 OR last_attempt = 0
SETTINGS do_not_merge_across_partitions_select_final = 1;

ALTER TABLE {database}.v_steps
    MODIFY COMMENT 'each attempt at a step of a run: state, input, output, error and times',
    COMMENT COLUMN time 'log time of the latest record',
    COMMENT COLUMN step_id 'id of the attempt, as in its events',
    COMMENT COLUMN run_id 'run of the step',
    COMMENT COLUMN tenant_id 'tenant of the session',
    COMMENT COLUMN session_id 'id of the session',
    COMMENT COLUMN name 'name of the step, unique in its run',
    COMMENT COLUMN state 'running, succeeded, failed, cancelled, skipped, or interrupted if a later attempt began before it ended',
    COMMENT COLUMN attempt 'number of the attempt, from 1; 0 if the step was skipped before any',
    COMMENT COLUMN input 'input as JSON, with text and type of what JSON cannot hold; null once personal data has expired',
    COMMENT COLUMN output 'output as JSON; null once personal data has expired',
    COMMENT COLUMN error 'error in words; empty once personal data has expired',
    COMMENT COLUMN error_class 'retryable or fatal',
    COMMENT COLUMN error_code 'code of the error',
    COMMENT COLUMN started_at 'time of the beginning, or of the skip',
    COMMENT COLUMN finished_at 'time of the end; null if unknown',
    COMMENT COLUMN duration_s 'seconds from the beginning to the end',
    COMMENT COLUMN is_input_known 'true until the personal data expires';
