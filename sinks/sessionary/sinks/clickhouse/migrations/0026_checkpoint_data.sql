-- What a checkpoint keeps, whole, the cause of a step that failed by its limit, and runs that are still known.

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
ALTER TABLE {database}.v_checkpoints MODIFY COMMENT 'each checkpoint of a run: how far it was';
ALTER TABLE {database}.v_checkpoints
    COMMENT COLUMN time 'log time of the event',
    COMMENT COLUMN tenant_id 'tenant of the session',
    COMMENT COLUMN session_id 'id of the session',
    COMMENT COLUMN run_id 'run of the checkpoint',
    COMMENT COLUMN number 'number of the checkpoint among those of its run that are kept, from 1',
    COMMENT COLUMN is_last 'whether it is the last one of its run: where it would be continued',
    COMMENT COLUMN checkpoint_id 'id of the checkpoint; empty once personal data has expired, as are kind, stage and last_item_id',
    COMMENT COLUMN kind 'which usual point it is, for example plan_made; empty if none was named',
    COMMENT COLUMN operation 'operation that it is of',
    COMMENT COLUMN stage 'stage of the operation',
    COMMENT COLUMN processed_count 'items done',
    COMMENT COLUMN last_item_id 'last item done',
    COMMENT COLUMN bytes_written 'bytes written',
    COMMENT COLUMN data 'what else it keeps, whole, as JSON; null if it keeps nothing, or once personal data has expired',
    COMMENT COLUMN step_id 'step that the event names',
    COMMENT COLUMN event_id 'id of the event, given by its client',
    COMMENT COLUMN source_partition 'partition of the events topic',
    COMMENT COLUMN source_offset 'offset in that partition';

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
        appended_at, tenant_id, session_id, ifNull(run_id, ''), event_type, toString(coalesce(tool_name, step_name, '')),
        ifNull(step_attempt, 0),
        toString(multiIf(kind = 'run', ifNull(to_run_state, ''), kind = 'tool_call', ifNull(to_call_state, ''),
            kind = 'step', ifNull(to_step_state, ''), to_state)),
        if(fired_at IS NULL AND kind = 'transition', coalesce(actor, agent_id, 'processor'), 'processor'), reason, ifNull(event_id, ''), fired_at,
        toJSONString(map('reason_code', toString(reason_code), 'due_at', ifNull(toString(due_at), ''),
            'idem_key', ifNull(idem_key, ''))), source_partition, source_offset
    FROM {database}.audit FINAL
    WHERE kind IN ('transition', 'run', 'tool_call', 'step')
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

-- Events of artifacts are kept for longer than those of their run. Of a run that has no others, nothing is known any more.
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
HAVING countIf(is_event AND NOT startsWith(e.event_type, 'artifact_')) > 0
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
