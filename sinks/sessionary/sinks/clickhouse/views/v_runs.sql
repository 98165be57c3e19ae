-- The audit trail has the effects of clocks and sessions on a run. Such a record precedes the event of the same offset,
-- because clocks fire before the event is judged. A run that waits for its tenant's quota is queued, independent of the
-- event that began it: the verdict on a claim to a quota follows that event.
--
-- Events of artifacts are kept for longer than those of their run. A run without other events is not known any more.
CREATE OR REPLACE VIEW {database}.v_runs AS
SELECT
    updated_at AS time, run_id, tenant_id, session_id,
    anyIf(e.user_id, e.user_id IS NOT NULL) AS user_id, argMin(e.agent_id, place) AS agent_id,
    argMin(e.service_id, place) AS service_id,
    argMaxIf(e.mode, place, e.mode != '') AS mode, argMaxIf(e.name, place, e.mode != '') AS task_type,
    argMaxIf(e.state, place, e.state != '') AS status,
    argMaxIf(e.reason_code, place, e.state != '') AS reason_code,
    argMaxIf(e.error_class, place, e.state != '') AS error_class, argMaxIf(e.error, place, e.state != '') AS error,
    argMaxIf(e.input, place, e.input IS NOT NULL) AS input, argMaxIf(e.plan, place, e.plan IS NOT NULL) AS plan,
    argMaxIf(e.result, place, e.result IS NOT NULL) AS result,
    argMaxIf(e.artifact_id, place, e.artifact_id IS NOT NULL) AS artifact_id,
    argMaxIf(e.progress, place, e.progress IS NOT NULL) AS progress,
    countIf(is_event) AS events, countIf(e.event_type = 'run_resumed') AS resumes,
    toDateTime64(min(e.at), 3, 'UTC') AS created_at, toDateTime64(max(e.at), 3, 'UTC') AS updated_at,
    if(status IN ('completed', 'failed', 'cancelled', 'rejected'),
        toDateTime64(argMaxIf(e.at, place, e.state != ''), 3, 'UTC'), NULL) AS finished_at,
    dateDiff('millisecond', created_at, ifNull(finished_at, now64(3, 'UTC'))) / 1e3 AS duration_s
FROM
(
    SELECT
        tenant_id, session_id, run_id, user_id, agent_id, service_id, event_type, (source_offset, 1, 0) AS place, true AS is_event,
        if(subject = 'run', state, '') AS state, mode, name, '' AS reason_code, error_class,
        if(event_type = 'run_failed', JSONExtractString(payload_json, 'error', 'message'), '') AS error,
        if(event_type IN ('run_queued', 'run_started'), JSONExtract(payload_json, 'input_json', 'Nullable(String)'), NULL) AS input,
        if(event_type IN ('run_started', 'plan_recorded', 'plan_replaced'),
            JSONExtract(payload_json, 'plan_json', 'Nullable(String)'), NULL) AS plan,
        if(event_type = 'run_completed', JSONExtract(payload_json, 'result_json', 'Nullable(String)'), NULL) AS result,
        if(event_type = 'run_completed', artifact_id, NULL) AS artifact_id, progress, toDateTime64(time, 6, 'UTC') AS at
    FROM {database}.v_run_events
    WHERE run_id != ''
    UNION ALL
    SELECT
        tenant_id, session_id, assumeNotNull(run_id) AS run_id, NULL, '', '', event_type, (source_offset, if(reason_code = 'quota_requested', 2, 0), source_n), false,
        ifNull(to_run_state, ''), '', '', reason_code, '', if(to_run_state = 'failed', reason, ''), NULL, NULL, NULL, NULL, NULL,
        appended_at
    FROM {database}.audit AS a FINAL
    WHERE kind = 'run' AND a.run_id IS NOT NULL
) AS e
GROUP BY tenant_id, session_id, run_id
HAVING countIf(is_event AND NOT startsWith(e.event_type, 'artifact_')) > 0
SETTINGS do_not_merge_across_partitions_select_final = 1;

ALTER TABLE {database}.v_runs
    MODIFY COMMENT 'each run: status, input, plan, result, progress and times',
    COMMENT COLUMN time 'log time of the latest record',
    COMMENT COLUMN run_id 'id of the run, unique in its session',
    COMMENT COLUMN tenant_id 'tenant of the session',
    COMMENT COLUMN session_id 'id of the session',
    COMMENT COLUMN user_id 'user for whom the run works; null once personal data has expired',
    COMMENT COLUMN agent_id 'agent that began the run',
    COMMENT COLUMN service_id 'service that began the run',
    COMMENT COLUMN mode 'attached or detached',
    COMMENT COLUMN task_type 'type of the task',
    COMMENT COLUMN status 'queued, started, running, paused, completed, failed, cancelled or rejected',
    COMMENT COLUMN reason_code 'reason of a decision by a clock or the session; else empty',
    COMMENT COLUMN error_class 'class of the failure that the agent reported: retryable or fatal',
    COMMENT COLUMN error 'error of a failed run, in words; empty once personal data has expired',
    COMMENT COLUMN input 'input as JSON; null once personal data has expired',
    COMMENT COLUMN plan 'latest plan as JSON; null once personal data has expired',
    COMMENT COLUMN result 'result as JSON; null once personal data has expired',
    COMMENT COLUMN artifact_id 'artifact that holds the result',
    COMMENT COLUMN progress 'progress as last reported, 0 to 1',
    COMMENT COLUMN events 'number of accepted events that are kept',
    COMMENT COLUMN resumes 'number of times that an event resumed the run',
    COMMENT COLUMN created_at 'log time of the first event',
    COMMENT COLUMN updated_at 'log time of the latest record',
    COMMENT COLUMN finished_at 'time of the end; null while the run is open',
    COMMENT COLUMN duration_s 'seconds from the first event to the end, or until now';
