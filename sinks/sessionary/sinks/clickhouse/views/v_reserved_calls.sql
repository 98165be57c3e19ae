-- A clock finds a call of unknown outcome, so this is in the audit trail.
CREATE OR REPLACE VIEW {database}.v_reserved_calls AS
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
        service_id, name AS tool_name,
        if(r.state = 'failed' AND error_code = 'cancelled', 'cancelled', r.state) AS state, number, side_effect, queryable, error_class, artifact_id,
        JSONExtract(payload_json, 'args_json', 'Nullable(String)') AS args,
        JSONExtract(payload_json, 'result_json', 'Nullable(String)') AS result,
        JSONExtractString(payload_json, 'error', 'message') AS error,
        JSONExtractString(payload_json, 'resolved_by') AS resolved_by,
        JSONExtractString(payload_json, 'tool_call_id') AS tool_call_id, toDateTime64(time, 6, 'UTC') AS at
    FROM {database}.v_run_events AS r
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

ALTER TABLE {database}.v_reserved_calls
    MODIFY COMMENT 'each reserved tool call (those of @tool): state, arguments, result and times; v_tool_calls has all calls',
    COMMENT COLUMN time 'log time of the latest record',
    COMMENT COLUMN idem_key 'idempotency key, unique in its run, or in its session without a run',
    COMMENT COLUMN run_id 'run of the call; empty for a call of the session',
    COMMENT COLUMN tenant_id 'tenant of the session',
    COMMENT COLUMN session_id 'id of the session',
    COMMENT COLUMN step_id 'attempt at a step that made the call',
    COMMENT COLUMN user_id 'user for whom the agent works; null once personal data has expired',
    COMMENT COLUMN service_id 'service that made the call',
    COMMENT COLUMN tool_name 'name of the tool',
    COMMENT COLUMN tool_call_id 'id of the call in its events; empty once personal data has expired',
    COMMENT COLUMN args 'arguments as JSON; null once personal data has expired',
    COMMENT COLUMN result 'whole result as JSON, if it succeeded; null once personal data has expired',
    COMMENT COLUMN artifact_id 'artifact that holds the result',
    COMMENT COLUMN state 'running, succeeded, failed, cancelled or unknown',
    COMMENT COLUMN `try` 'number of the latest try, from 1',
    COMMENT COLUMN side_effect 'true if the call has a side effect',
    COMMENT COLUMN queryable 'true if the tool can be asked for the outcome later',
    COMMENT COLUMN error 'error of a failed call, in words; empty once personal data has expired',
    COMMENT COLUMN error_class 'retryable or fatal, for a failed call',
    COMMENT COLUMN resolved_by 'principal that resolved an unknown outcome',
    COMMENT COLUMN effects 'number of successes by its events; more than one is a fault',
    COMMENT COLUMN created_at 'beginning of the first try',
    COMMENT COLUMN updated_at 'log time of the latest record',
    COMMENT COLUMN entered_at 'time at which the present state began';
