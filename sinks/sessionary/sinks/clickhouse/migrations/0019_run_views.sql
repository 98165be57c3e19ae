-- Runs, steps, tool calls and artifacts as their events and the audit trail tell them. Events of the last 90 days
-- (of tool calls 30) are there; settings change the former. Only what was judged by rules 2 is judged as a run.

-- What was judged and not refused, each event once. A refusal counts whenever it comes: it is looked up when the view is
-- read. An event that was delivered twice counts at its first place, so that an old one cannot undo what came later.
CREATE OR REPLACE VIEW {database}.v_run_events AS
SELECT
    appended_at AS time, tenant_id, session_id, run_id,
    if(run_id = '', NULL, row_number() OVER (PARTITION BY tenant_id, session_id, run_id ORDER BY source_offset)) AS seq,
    event_id, event_type, subject, state, name, number, idem_key, mode, side_effect, queryable, error_class, error_code,
    progress, processed_count, bytes, artifact_id, sha256, step_id, causation_id, user_id, agent_id, service_id, actor,
    payload_json, occurred_at, personal_expires, source_partition, source_offset
FROM
(
    SELECT
        *, row_number() OVER (PARTITION BY tenant_id, session_id, producer_id, producer_seq, event_id
            ORDER BY source_offset) AS delivery
    FROM {database}.run_events FINAL
    WHERE NOT is_replay AND (source_partition, source_offset, appended_at) NOT IN
        (SELECT source_partition, source_offset, toDateTime64(appended_at, 3, 'UTC') FROM {database}.rejected)
)
WHERE delivery = 1
SETTINGS do_not_merge_across_partitions_select_final = 1;
ALTER TABLE {database}.v_run_events MODIFY COMMENT 'each event of a run, a reserved tool call or an artifact that was not refused, with its number in its run';
ALTER TABLE {database}.v_run_events
    COMMENT COLUMN time 'log time of the event',
    COMMENT COLUMN tenant_id 'tenant of the session',
    COMMENT COLUMN session_id 'id of the session',
    COMMENT COLUMN run_id 'run that the event names; empty if it names none',
    COMMENT COLUMN seq 'number of the event among those of its run that are kept, in the order of the log, from 1; null without a run',
    COMMENT COLUMN event_id 'id of the event, given by its client',
    COMMENT COLUMN event_type 'type of the event',
    COMMENT COLUMN subject 'run, step, tool_call or artifact, if the event can change the state of one; else empty',
    COMMENT COLUMN state 'state that the event leaves its subject in; empty if it changes none',
    COMMENT COLUMN name 'name of the step or tool, type of the task or artifact, or operation of the checkpoint',
    COMMENT COLUMN number 'attempt of the step, or try of the call',
    COMMENT COLUMN idem_key 'idempotency key of a reserved call; empty for other events',
    COMMENT COLUMN mode 'of the beginning of a run: attached or detached',
    COMMENT COLUMN side_effect 'of the beginning of a call: whether it changes something outside',
    COMMENT COLUMN queryable 'of the beginning of a call: whether the tool can be asked later what came of it',
    COMMENT COLUMN error_class 'of a failure: retryable or fatal',
    COMMENT COLUMN error_code 'of a failure: its code',
    COMMENT COLUMN progress 'progress of the run as reported, 0 to 1',
    COMMENT COLUMN processed_count 'of a checkpoint: items done',
    COMMENT COLUMN bytes 'of a checkpoint or chunk: bytes written; of a complete artifact: its size',
    COMMENT COLUMN artifact_id 'id of the artifact that the event names',
    COMMENT COLUMN sha256 'hash of the artifact or chunk',
    COMMENT COLUMN step_id 'step that the event names',
    COMMENT COLUMN causation_id 'event that caused it',
    COMMENT COLUMN user_id 'user for whom the agent works; null once personal data has expired',
    COMMENT COLUMN agent_id 'agent that the event names',
    COMMENT COLUMN service_id 'service that sent the event',
    COMMENT COLUMN actor 'who acted, if it was not the agent itself',
    COMMENT COLUMN payload_json 'payload, of events that say what a run did; empty once personal data has expired',
    COMMENT COLUMN occurred_at 'agent''s clock',
    COMMENT COLUMN personal_expires 'when personal columns are blanked; the end of time if there are none',
    COMMENT COLUMN source_partition 'partition of the events topic',
    COMMENT COLUMN source_offset 'offset in that partition';

-- What a clock or a session did to a run is told by the audit trail. A record of it comes before the event of the same
-- offset: clocks fire before the event is judged.
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
        tenant_id, session_id, assumeNotNull(run_id) AS run_id, NULL, '', '', event_type, (source_offset, 0, source_n), false,
        ifNull(to_run_state, ''), '', '', reason_code, '', if(to_run_state = 'failed', reason, ''), NULL, NULL, NULL, NULL, NULL,
        appended_at
    FROM {database}.audit AS a FINAL
    WHERE kind = 'run' AND a.run_id IS NOT NULL
) AS e
GROUP BY tenant_id, session_id, run_id
HAVING countIf(is_event) > 0
SETTINGS do_not_merge_across_partitions_select_final = 1;
ALTER TABLE {database}.v_runs MODIFY COMMENT 'each run: status, input, plan, result, progress and times';
ALTER TABLE {database}.v_runs
    COMMENT COLUMN time 'log time of its latest record',
    COMMENT COLUMN run_id 'id of the run, unique in its session',
    COMMENT COLUMN tenant_id 'tenant of the session',
    COMMENT COLUMN session_id 'id of the session',
    COMMENT COLUMN user_id 'user for whom the run works; null once personal data has expired',
    COMMENT COLUMN agent_id 'agent that began it',
    COMMENT COLUMN service_id 'service that began it',
    COMMENT COLUMN mode 'attached or detached',
    COMMENT COLUMN task_type 'type of the task',
    COMMENT COLUMN status 'queued, started, running, paused, completed, failed, cancelled or rejected',
    COMMENT COLUMN reason_code 'why, if a clock or its session decided; else empty',
    COMMENT COLUMN error_class 'class of the failure that the agent reported: retryable or fatal',
    COMMENT COLUMN error 'of a failed run: what happened, in words; empty once personal data has expired',
    COMMENT COLUMN input 'input as JSON; null once personal data has expired',
    COMMENT COLUMN plan 'latest plan as JSON; null once personal data has expired',
    COMMENT COLUMN result 'result as JSON; null once personal data has expired',
    COMMENT COLUMN artifact_id 'artifact that holds the result',
    COMMENT COLUMN progress 'progress as last reported, 0 to 1',
    COMMENT COLUMN events 'its events that are kept and were not refused',
    COMMENT COLUMN resumes 'how often it was resumed by an event',
    COMMENT COLUMN created_at 'log time of its first event',
    COMMENT COLUMN updated_at 'log time of its latest record',
    COMMENT COLUMN finished_at 'when it finished; null if it is open',
    COMMENT COLUMN duration_s 'seconds from its first event until it finished, or until now';

-- Attempt 0 is work that is only reported as a step. An attempt without an end after which another one began was interrupted. A skip says nothing new of a step that was tried.
CREATE OR REPLACE VIEW {database}.v_steps AS
SELECT
    updated_at AS time, step_id, run_id, tenant_id, session_id, name,
    multiIf(ended_in != '', ended_in, attempt < last_attempt, 'interrupted', 'running') AS state, attempt,
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
        argMaxIf(JSONExtractString(payload_json, 'error', 'message'), source_offset, e.state = 'failed') AS error,
        argMaxIf(e.error_class, source_offset, e.state = 'failed') AS error_class,
        argMaxIf(e.error_code, source_offset, e.state = 'failed') AS error_code,
        min(e.time) AS started_at, maxOrNullIf(e.time, e.state != 'running') AS finished_at, max(e.time) AS updated_at,
        min(e.personal_expires) > now() AS is_input_known
    FROM {database}.v_run_events AS e
    WHERE subject = 'step' AND run_id != '' AND (number > 0 OR state = 'skipped')
    GROUP BY tenant_id, session_id, run_id, name, number
)
WHERE attempt > 0 OR last_attempt = 0;
ALTER TABLE {database}.v_steps MODIFY COMMENT 'each attempt at a step of a run: state, input, output, error and times';
ALTER TABLE {database}.v_steps
    COMMENT COLUMN time 'log time of its latest record',
    COMMENT COLUMN step_id 'id of the attempt, as its events name it',
    COMMENT COLUMN run_id 'run of the step',
    COMMENT COLUMN tenant_id 'tenant of the session',
    COMMENT COLUMN session_id 'id of the session',
    COMMENT COLUMN name 'name of the step, unique in its run',
    COMMENT COLUMN state 'running, succeeded, failed, skipped, or interrupted if a later attempt began before it ended',
    COMMENT COLUMN attempt 'number of the attempt, from 1; 0 if the step was skipped before any',
    COMMENT COLUMN input 'input as JSON; null once personal data has expired',
    COMMENT COLUMN output 'output as JSON; null once personal data has expired',
    COMMENT COLUMN error 'what happened, in words; empty once personal data has expired',
    COMMENT COLUMN error_class 'retryable or fatal',
    COMMENT COLUMN error_code 'code of the error',
    COMMENT COLUMN started_at 'when it began, or was skipped',
    COMMENT COLUMN finished_at 'when it ended; null if no end is known',
    COMMENT COLUMN duration_s 'seconds from its beginning to its end',
    COMMENT COLUMN is_input_known 'whether its personal data has not expired';

-- That a call's outcome is unknown is found by a clock, so the audit trail tells it.
CREATE OR REPLACE VIEW {database}.v_tool_calls AS
SELECT
    updated_at AS time, idem_key, run_id, tenant_id, session_id,
    argMaxIf(e.step_id, place, e.event_type = 'tool_call_started') AS step_id,
    argMaxIf(e.user_id, place, e.event_type = 'tool_call_started') AS user_id,
    argMaxIf(e.service_id, place, e.event_type = 'tool_call_started') AS service_id,
    argMaxIf(e.tool_name, place, e.tool_name != '') AS tool_name,
    argMaxIf(e.tool_call_id, place, e.event_type = 'tool_call_started') AS tool_call_id,
    argMaxIf(e.args, place, e.event_type = 'tool_call_started') AS args,
    if(state = 'succeeded', argMaxIf(e.result, place, e.state = 'succeeded'), NULL) AS result,
    if(state = 'succeeded', argMaxIf(e.artifact_id, place, e.state = 'succeeded'), NULL) AS artifact_id,
    argMaxIf(e.state, place, e.state != '') AS state, toUInt32(max(e.number)) AS `try`,
    argMaxIf(assumeNotNull(e.side_effect), place, e.side_effect IS NOT NULL) AS side_effect,
    argMaxIf(assumeNotNull(e.queryable), place, e.queryable IS NOT NULL) AS queryable,
    if(state = 'failed', argMaxIf(e.error, place, e.state = 'failed'), '') AS error,
    if(state = 'failed', argMaxIf(e.error_class, place, e.state = 'failed'), '') AS error_class,
    argMaxIf(e.resolved_by, place, e.state != '') AS resolved_by,
    countIf(e.event_type = 'tool_call_succeeded' OR (e.event_type = 'tool_call_resolved' AND e.state = 'succeeded')) AS effects,
    toDateTime64(min(e.at), 3, 'UTC') AS created_at, toDateTime64(max(e.at), 3, 'UTC') AS updated_at,
    toDateTime64(argMaxIf(e.at, place, e.state != ''), 3, 'UTC') AS entered_at
FROM
(
    SELECT
        tenant_id, session_id, run_id, idem_key, (source_offset, 1, 0) AS place, true AS is_event, event_type, step_id, user_id,
        service_id, name AS tool_name, state, number, side_effect, queryable, error_class, artifact_id,
        JSONExtract(payload_json, 'args_json', 'Nullable(String)') AS args,
        JSONExtract(payload_json, 'result_json', 'Nullable(String)') AS result,
        JSONExtractString(payload_json, 'error', 'message') AS error,
        JSONExtractString(payload_json, 'resolved_by') AS resolved_by,
        JSONExtractString(payload_json, 'tool_call_id') AS tool_call_id, toDateTime64(time, 6, 'UTC') AS at
    FROM {database}.v_run_events
    WHERE subject = 'tool_call' AND idem_key != ''
    UNION ALL
    SELECT
        tenant_id, session_id, ifNull(run_id, ''), assumeNotNull(idem_key), (source_offset, 0, source_n), false, event_type, NULL,
        NULL, '', '', ifNull(to_call_state, ''), 0, NULL, NULL, '', NULL, NULL, NULL, '', '', '', appended_at
    FROM {database}.audit AS a FINAL
    WHERE kind = 'tool_call' AND a.idem_key IS NOT NULL
) AS e
GROUP BY tenant_id, session_id, run_id, idem_key
HAVING countIf(is_event) > 0
SETTINGS do_not_merge_across_partitions_select_final = 1;
ALTER TABLE {database}.v_tool_calls MODIFY COMMENT 'each reserved tool call: state, arguments, result and times';
ALTER TABLE {database}.v_tool_calls
    COMMENT COLUMN time 'log time of its latest record',
    COMMENT COLUMN idem_key 'idempotency key, unique in its run, or in its session if it is of no run',
    COMMENT COLUMN run_id 'run of the call; empty if it belongs to its session',
    COMMENT COLUMN tenant_id 'tenant of the session',
    COMMENT COLUMN session_id 'id of the session',
    COMMENT COLUMN step_id 'attempt at a step that made it',
    COMMENT COLUMN user_id 'user for whom the agent works; null once personal data has expired',
    COMMENT COLUMN service_id 'service that made it',
    COMMENT COLUMN tool_name 'name of the tool',
    COMMENT COLUMN tool_call_id 'id of the call in its events; empty once personal data has expired',
    COMMENT COLUMN args 'arguments as JSON; null once personal data has expired',
    COMMENT COLUMN result 'whole result as JSON, if it succeeded; null once personal data has expired',
    COMMENT COLUMN artifact_id 'artifact that holds the result',
    COMMENT COLUMN state 'running, succeeded, failed or unknown',
    COMMENT COLUMN `try` 'number of the latest try, from 1',
    COMMENT COLUMN side_effect 'whether it changes something outside',
    COMMENT COLUMN queryable 'whether the tool can be asked later what came of it',
    COMMENT COLUMN error 'of a failed call: what happened, in words; empty once personal data has expired',
    COMMENT COLUMN error_class 'of a failed call: retryable or fatal',
    COMMENT COLUMN resolved_by 'who found out the outcome, if it was unknown',
    COMMENT COLUMN effects 'how often it succeeded by its events; more than once is a fault',
    COMMENT COLUMN created_at 'when its first try began',
    COMMENT COLUMN updated_at 'log time of its latest record',
    COMMENT COLUMN entered_at 'since when it has been in its state';

CREATE OR REPLACE VIEW {database}.v_unresolved_calls AS
SELECT
    entered_at AS time, tenant_id, session_id, run_id, step_id, tool_name, idem_key, args, `try`, queryable, service_id, user_id,
    entered_at AS since, dateDiff('millisecond', since, now64(3, 'UTC')) / 1e3 AS waiting_s
FROM {database}.v_tool_calls
WHERE state = 'unknown' AND side_effect;
ALTER TABLE {database}.v_unresolved_calls MODIFY COMMENT 'each tool call with a side effect whose outcome is unknown: what people have to find out';
ALTER TABLE {database}.v_unresolved_calls
    COMMENT COLUMN time 'since when its outcome has been unknown',
    COMMENT COLUMN tenant_id 'tenant of the session',
    COMMENT COLUMN session_id 'id of the session',
    COMMENT COLUMN run_id 'run of the call; empty if it belongs to its session',
    COMMENT COLUMN step_id 'attempt at a step that made it',
    COMMENT COLUMN tool_name 'name of the tool',
    COMMENT COLUMN idem_key 'idempotency key of the call',
    COMMENT COLUMN args 'arguments as JSON; null once personal data has expired',
    COMMENT COLUMN `try` 'number of the latest try, from 1',
    COMMENT COLUMN queryable 'whether the tool can be asked what came of it',
    COMMENT COLUMN service_id 'service that made it',
    COMMENT COLUMN user_id 'user for whom the agent works; null once personal data has expired',
    COMMENT COLUMN since 'since when its outcome has been unknown',
    COMMENT COLUMN waiting_s 'seconds since then';

-- Whether a run was begun is asked of history, which is kept for longer than the run's own rows.
CREATE OR REPLACE VIEW {database}.v_orphan_steps AS
WITH refusals AS
(
    SELECT source_partition, source_offset, toDateTime64(appended_at, 3, 'UTC') AS at, reason FROM {database}.rejected
)
SELECT
    appended_at AS time, tenant_id, session_id, run_id, event_type, name, number, step_id, nullIf(idem_key, '') AS idem_key,
    event_id, service_id, is_refused, source_partition, source_offset
FROM
(
    SELECT *, (source_partition, source_offset, appended_at) IN (SELECT source_partition, source_offset, at FROM refusals) AS is_refused
    FROM {database}.run_events FINAL
    WHERE subject IN ('step', 'tool_call') AND run_id != ''
)
WHERE if(is_refused,
    (source_partition, source_offset, appended_at) IN
        (SELECT source_partition, source_offset, at FROM refusals WHERE reason = 'unknown_run'),
    (tenant_id, session_id, run_id) NOT IN
    (
        SELECT tenant_id, session_id, assumeNotNull(run_id) FROM {database}.history
        WHERE event_type IN ('run_queued', 'run_started') AND run_id IS NOT NULL
            AND (source_partition, source_offset, appended_at) NOT IN (SELECT source_partition, source_offset, at FROM refusals)
    ))
SETTINGS do_not_merge_across_partitions_select_final = 1;
ALTER TABLE {database}.v_orphan_steps MODIFY COMMENT 'each event of a step or a tool call that names a run which was never begun';
ALTER TABLE {database}.v_orphan_steps
    COMMENT COLUMN time 'log time of the event',
    COMMENT COLUMN tenant_id 'tenant of the session',
    COMMENT COLUMN session_id 'id of the session',
    COMMENT COLUMN run_id 'run that the event names',
    COMMENT COLUMN event_type 'type of the event',
    COMMENT COLUMN name 'name of the step or tool',
    COMMENT COLUMN number 'attempt of the step, or try of the call',
    COMMENT COLUMN step_id 'step that the event names',
    COMMENT COLUMN idem_key 'idempotency key of a reserved call',
    COMMENT COLUMN event_id 'id of the event, given by its client',
    COMMENT COLUMN service_id 'service that sent the event',
    COMMENT COLUMN is_refused 'whether the event was refused, because its run is unknown',
    COMMENT COLUMN source_partition 'partition of the events topic',
    COMMENT COLUMN source_offset 'offset in that partition';

CREATE OR REPLACE VIEW {database}.v_run_progress AS
SELECT
    r.time AS time, r.tenant_id AS tenant_id, r.session_id AS session_id, r.run_id AS run_id, r.user_id AS user_id,
    r.mode AS mode, r.task_type AS task_type, r.status AS status, r.progress AS progress,
    s.succeeded AS steps_succeeded, s.failed AS steps_failed, s.running AS steps_running, s.skipped AS steps_skipped,
    s.last_step AS last_step, c.operation AS checkpoint_operation, c.stage AS checkpoint_stage,
    c.processed_count AS processed_count, c.last_item_id AS last_item_id, c.bytes_written AS bytes_written,
    c.checkpoint_at AS checkpoint_at, u.unresolved AS unresolved_calls, r.created_at AS created_at,
    r.finished_at AS finished_at, r.duration_s AS duration_s
FROM {database}.v_runs AS r
LEFT JOIN
(
    SELECT
        tenant_id, session_id, run_id, countIf(last_state = 'succeeded') AS succeeded, countIf(last_state = 'failed') AS failed,
        countIf(last_state = 'running') AS running, countIf(last_state = 'skipped') AS skipped, argMax(name, began_at) AS last_step
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
        argMax(tuple(bytes), source_offset).1 AS bytes_written, max(toNullable(time)) AS checkpoint_at
    FROM {database}.v_run_events
    WHERE event_type = 'checkpoint_saved' AND run_id != ''
    GROUP BY tenant_id, session_id, run_id
) AS c ON c.tenant_id = r.tenant_id AND c.session_id = r.session_id AND c.run_id = r.run_id
LEFT JOIN
(
    SELECT tenant_id, session_id, run_id, count() AS unresolved FROM {database}.v_unresolved_calls
    GROUP BY tenant_id, session_id, run_id
) AS u ON u.tenant_id = r.tenant_id AND u.session_id = r.session_id AND u.run_id = r.run_id;
ALTER TABLE {database}.v_run_progress MODIFY COMMENT 'how far each run is: steps by state, last checkpoint, calls that wait for people';
ALTER TABLE {database}.v_run_progress
    COMMENT COLUMN time 'log time of its latest record',
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
    COMMENT COLUMN last_step 'step that began last',
    COMMENT COLUMN checkpoint_operation 'operation of the last checkpoint',
    COMMENT COLUMN checkpoint_stage 'stage of the last checkpoint; empty once personal data has expired',
    COMMENT COLUMN processed_count 'items done at the last checkpoint',
    COMMENT COLUMN last_item_id 'last item done at the last checkpoint; empty once personal data has expired',
    COMMENT COLUMN bytes_written 'bytes written at the last checkpoint',
    COMMENT COLUMN checkpoint_at 'log time of the last checkpoint',
    COMMENT COLUMN unresolved_calls 'its calls with a side effect whose outcome is unknown',
    COMMENT COLUMN created_at 'log time of its first event',
    COMMENT COLUMN finished_at 'when it finished; null if it is open',
    COMMENT COLUMN duration_s 'seconds from its first event until it finished, or until now';

CREATE OR REPLACE VIEW {database}.v_artifacts AS
SELECT
    max(e.time) AS time, tenant_id, session_id, anyLast(e.run_id) AS run_id, assumeNotNull(artifact_id) AS artifact_id,
    argMinIf(e.name, source_offset, e.event_type = 'artifact_created') AS artifact_type,
    argMinIf(JSONExtractString(payload_json, 'uri'), source_offset, e.event_type = 'artifact_created') AS uri,
    argMaxIf(e.state, source_offset, e.state != '') AS state,
    argMaxIf(e.bytes, source_offset, e.event_type = 'artifact_completed') AS size_bytes,
    argMaxIf(e.sha256, source_offset, e.event_type = 'artifact_completed') AS sha256,
    countIf(e.event_type = 'artifact_chunk_appended') AS chunks, min(e.time) AS created_at,
    maxOrNullIf(e.time, e.event_type = 'artifact_completed') AS completed_at,
    maxOrNullIf(e.time, e.event_type = 'artifact_soft_deleted') AS deleted_at,
    maxOrNullIf(e.time, e.event_type = 'artifact_purged') AS purged_at
FROM {database}.v_run_events AS e
WHERE subject = 'artifact' AND artifact_id IS NOT NULL
GROUP BY tenant_id, session_id, artifact_id;
ALTER TABLE {database}.v_artifacts MODIFY COMMENT 'each artifact: state, place, size and hash';
ALTER TABLE {database}.v_artifacts
    COMMENT COLUMN time 'log time of its latest record',
    COMMENT COLUMN tenant_id 'tenant of the session',
    COMMENT COLUMN session_id 'id of the session',
    COMMENT COLUMN run_id 'run of the artifact; empty if it is of none',
    COMMENT COLUMN artifact_id 'id of the artifact',
    COMMENT COLUMN artifact_type 'type of the artifact',
    COMMENT COLUMN uri 'where its body is; empty once personal data has expired',
    COMMENT COLUMN state 'open, complete, deleted (marked) or purged (its body is removed)',
    COMMENT COLUMN size_bytes 'size of its body, once complete',
    COMMENT COLUMN sha256 'hash of its body, once complete',
    COMMENT COLUMN chunks 'chunks that were appended',
    COMMENT COLUMN created_at 'log time of its first event',
    COMMENT COLUMN completed_at 'when it was completed',
    COMMENT COLUMN deleted_at 'when it was marked as deleted',
    COMMENT COLUMN purged_at 'when its body was removed';

-- All tool calls, reserved ones or not. Each event counts once, however often it was delivered, and not if it was refused.
CREATE OR REPLACE VIEW {database}.v_calls_per_minute_between AS
SELECT
    toStartOfMinute(at) AS time, tenant_id, service_id, tool_name, countIf(NOT is_failure) AS calls,
    countIf(NOT is_failure AND try_number > 1) AS retries, countIf(is_failure) AS failures
FROM
(
    SELECT
        tenant_id, any(service_id) AS service_id, min(appended_at) AS at, any(event_type = 'tool_call_failed') AS is_failure,
        any(JSONExtractString(payload_json, 'tool_name')) AS tool_name,
        any(JSONExtractInt(payload_json, 'try_number')) AS try_number
    FROM {database}.history
    WHERE event_type IN ('tool_call_started', 'tool_call_failed')
        AND appended_at >= {from:DateTime('UTC')} AND appended_at < {to:DateTime('UTC')}
        AND (source_partition, source_offset, appended_at) NOT IN
        (
            SELECT source_partition, source_offset, toDateTime64(appended_at, 3, 'UTC')
            FROM {database}.rejected
            WHERE appended_at >= {from:DateTime('UTC')} AND appended_at < {to:DateTime('UTC')}
        )
    GROUP BY tenant_id, session_id, producer_id, producer_seq, event_id
)
GROUP BY time, tenant_id, service_id, tool_name;
ALTER TABLE {database}.v_calls_per_minute_between MODIFY COMMENT 'v_calls_per_minute of a time';

CREATE OR REPLACE VIEW {database}.v_calls_per_minute AS
SELECT * FROM {database}.v_calls_per_minute_between(from = '1970-01-01 00:00:00', to = '2106-01-01 00:00:00');
ALTER TABLE {database}.v_calls_per_minute MODIFY COMMENT 'how many tool calls began in each minute, by tool, and how many of them were retries';
ALTER TABLE {database}.v_calls_per_minute
    COMMENT COLUMN time 'the minute',
    COMMENT COLUMN tenant_id 'tenant of the calls',
    COMMENT COLUMN service_id 'service that made them',
    COMMENT COLUMN tool_name 'name of the tool; empty once personal data has expired',
    COMMENT COLUMN calls 'tries that began',
    COMMENT COLUMN retries 'those of them after the first one of their call',
    COMMENT COLUMN failures 'tries that failed within that minute';

CREATE OR REPLACE VIEW {database}.v_usage_by_tenant_between AS
SELECT
    tenant_id, sum(u.calls) AS calls, sum(u.tokens_in) AS tokens_in, sum(u.tokens_out) AS tokens_out,
    sum(u.model_cost_usd_micros) AS model_cost_usd_micros, sum(u.tool_cost_usd_micros) AS tool_cost_usd_micros
FROM {database}.v_usage_between(from = {from:DateTime('UTC')}, to = {to:DateTime('UTC')}) AS u
GROUP BY tenant_id;
ALTER TABLE {database}.v_usage_by_tenant_between MODIFY COMMENT 'v_usage_by_tenant of a time';

CREATE OR REPLACE VIEW {database}.v_usage_by_tenant AS
SELECT * FROM {database}.v_usage_by_tenant_between(from = '1970-01-01 00:00:00', to = '2106-01-01 00:00:00');
ALTER TABLE {database}.v_usage_by_tenant MODIFY COMMENT 'calls, tokens and cost by tenant';
ALTER TABLE {database}.v_usage_by_tenant
    COMMENT COLUMN tenant_id 'tenant',
    COMMENT COLUMN calls 'calls that were paid for',
    COMMENT COLUMN tokens_in 'tokens of their input',
    COMMENT COLUMN tokens_out 'tokens of their output',
    COMMENT COLUMN model_cost_usd_micros 'cost of models in millionths of a dollar',
    COMMENT COLUMN tool_cost_usd_micros 'cost of tools in millionths of a dollar';

-- The cause of an event is the event that it names; of a decision, the deadline that fired or the event that it judged.
CREATE OR REPLACE VIEW {database}.v_causes AS
SELECT
    d.time AS time, d.tenant_id AS tenant_id, d.session_id AS session_id, d.run_id AS run_id, d.event_type AS event_type,
    d.name AS name, d.number AS number, d.state AS state, d.actor AS actor, d.reason AS reason,
    multiIf(d.fired_at IS NOT NULL, 'deadline', c.type != '', c.type, '') AS cause, d.cause_id AS cause_id, c.payload AS cause_inputs,
    d.inputs AS inputs, d.source_partition AS source_partition, d.source_offset AS source_offset
FROM
(
    SELECT
        toDateTime64(time, 6, 'UTC') AS time, tenant_id, session_id, run_id, event_type, toString(name) AS name, number,
        toString(state) AS state, ifNull(actor, agent_id) AS actor, JSONExtractString(payload_json, 'reason') AS reason,
        ifNull(causation_id, '') AS cause_id, CAST(NULL, 'Nullable(DateTime64(6, \'UTC\'))') AS fired_at, payload_json AS inputs,
        source_partition, source_offset
    FROM {database}.v_run_events
    UNION ALL
    SELECT
        appended_at, tenant_id, session_id, ifNull(run_id, ''), event_type, ifNull(tool_name, ''), 0,
        toString(multiIf(kind = 'run', ifNull(to_run_state, ''), kind = 'tool_call', ifNull(to_call_state, ''), to_state)),
        if(fired_at IS NULL AND kind = 'transition', coalesce(actor, agent_id, 'processor'), 'processor'), reason, ifNull(event_id, ''), fired_at,
        toJSONString(map('reason_code', toString(reason_code), 'due_at', ifNull(toString(due_at), ''),
            'idem_key', ifNull(idem_key, ''))), source_partition, source_offset
    FROM {database}.audit FINAL
    WHERE kind IN ('transition', 'run', 'tool_call')
) AS d
LEFT JOIN
(
    SELECT
        tenant_id, session_id, event_id, any(toString(event_type)) AS type, any(payload_json) AS payload
    FROM {database}.history
    WHERE event_id != '' AND event_type != 'heartbeat'
    GROUP BY tenant_id, session_id, event_id
) AS c ON c.tenant_id = d.tenant_id AND c.session_id = d.session_id AND c.event_id = d.cause_id
SETTINGS do_not_merge_across_partitions_select_final = 1;
ALTER TABLE {database}.v_causes MODIFY COMMENT 'why something was done: each event of a run, and each decision of a processor, with its cause, actor and inputs';
ALTER TABLE {database}.v_causes
    COMMENT COLUMN time 'log time of the event, or of the record with which the decision was made',
    COMMENT COLUMN tenant_id 'tenant of the session',
    COMMENT COLUMN session_id 'id of the session',
    COMMENT COLUMN run_id 'run; empty if it is of none',
    COMMENT COLUMN event_type 'what was done',
    COMMENT COLUMN name 'name of the step or tool',
    COMMENT COLUMN number 'attempt of the step, or try of the call',
    COMMENT COLUMN state 'state that it led to',
    COMMENT COLUMN actor 'who did it: a person or an agent, or processor for a clock',
    COMMENT COLUMN reason 'why, in words',
    COMMENT COLUMN cause 'type of the event that caused it, or deadline for a clock; empty if none is known',
    COMMENT COLUMN cause_id 'id of the event that caused it',
    COMMENT COLUMN cause_inputs 'payload of that event',
    COMMENT COLUMN inputs 'payload of the event; of a decision: its fixed reason, its due time and its call',
    COMMENT COLUMN source_partition 'partition of the events topic',
    COMMENT COLUMN source_offset 'offset in that partition';

-- Without runs, steps and calls whose personal data has expired: what they lack may have been there.
CREATE OR REPLACE VIEW {database}.v_run_faults AS
SELECT 'run_without_owner' AS fault, tenant_id, count() AS rows
FROM {database}.v_run_events
WHERE event_type IN ('run_queued', 'run_started') AND personal_expires > now()
    AND (run_id = '' OR tenant_id = '' OR ifNull(user_id, '') = '')
GROUP BY tenant_id
UNION ALL
SELECT 'step_without_input_or_output', tenant_id, count()
FROM {database}.v_steps
WHERE state = 'succeeded' AND is_input_known AND (input IS NULL OR output IS NULL)
GROUP BY tenant_id
UNION ALL
SELECT 'call_without_key', tenant_id, count()
FROM {database}.v_run_events
WHERE event_type = 'tool_call_started' AND side_effect AND idem_key = ''
GROUP BY tenant_id
UNION ALL
SELECT 'key_with_two_effects', tenant_id, count()
FROM {database}.v_tool_calls
WHERE side_effect AND effects > 1
GROUP BY tenant_id
UNION ALL
SELECT 'failure_without_class', tenant_id, count()
FROM {database}.v_run_events
WHERE state = 'failed' AND event_type != 'tool_call_resolved' AND error_class NOT IN ('retryable', 'fatal')
GROUP BY tenant_id
UNION ALL
SELECT 'too_many_attempts', tenant_id, count()
FROM {database}.v_run_events
WHERE event_type IN ('step_started', 'tool_call_started') AND number > 6
GROUP BY tenant_id;
ALTER TABLE {database}.v_run_faults MODIFY COMMENT 'what runs should never have, counted by tenant; empty if all is well';
ALTER TABLE {database}.v_run_faults
    COMMENT COLUMN fault 'what is wrong: run_without_owner, step_without_input_or_output, call_without_key, key_with_two_effects, failure_without_class or too_many_attempts (more than six)',
    COMMENT COLUMN tenant_id 'tenant',
    COMMENT COLUMN rows 'how many';
