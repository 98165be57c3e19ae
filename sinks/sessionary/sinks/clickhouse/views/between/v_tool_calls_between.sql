-- All tool calls, reserved or not: one row per call, with its last try. Each event counts once, as in
-- v_calls_per_minute_between; a rejected event does not count. The tries of a reserved call share its key. A clock finds a
-- call of unknown outcome, so this is in the audit trail; who says later what came of the call is not its agent. The id of
-- a call is in its payload: a call whose personal data has expired is no longer a row.
CREATE OR REPLACE VIEW {database}_between.v_tool_calls_between AS
SELECT
    max(at) AS time, tenant_id, session_id, run_id, argMaxIf(e.step_id, place, is_start) AS step_id,
    argMaxIf(e.user_id, place, is_event) AS user_id, argMaxIf(e.agent_id, (is_start OR is_end, place), is_event) AS agent_id,
    argMaxIf(e.service_id, place, is_event) AS service_id, argMaxIf(e.tool_name, place, is_event) AS tool_name,
    argMaxIf(e.tool_call_id, place, is_event) AS tool_call_id, idem_key, idem_key != '' AS is_reserved,
    argMax(e.state_after, place) AS state, toUInt32(greatest(max(e.try_number), 1)) AS `try`,
    countIf(is_end AND e.state_after = 'failed') AS failed_tries,
    if(countIf(is_end) = 0, NULL, ifNull(argMaxIf(e.took_ms, place, is_end) / 1e3,
        if(countIf(is_start) = 0 OR maxIf(place, is_start) > maxIf(place, is_end), NULL,
        (argMaxIf(e.clock_us, place, is_end) - argMaxIf(e.clock_us, place, is_start)) / 1e6))) AS duration_s,
    if(state = 'failed', argMaxIf(e.error_class_of, place, is_end), '') AS error_class,
    if(state = 'failed', argMaxIf(e.error_code_of, place, is_end), '') AS error_code,
    if(state = 'failed', argMaxIf(e.error_text, place, is_end), '') AS error,
    minOrNullIf(at, is_start) AS started_at, if(state = 'running', NULL, maxOrNullIf(at, NOT is_start)) AS ended_at
FROM
(
    SELECT
        tenant_id, session_id, d.1 AS run_id, if(d.9.2 != d.9.1, d.9.2, '') AS idem_key,
        if(d.9.2 != d.9.1, '', d.9.1) AS call_id, (d.2, 1, 0) AS place, true AS is_event,
        d.3 = 'tool_call_started' AS is_start, d.3 IN ('tool_call_succeeded', 'tool_call_failed') AS is_end, d.4 AS at,
        d.5 AS clock_us, d.6 AS step_id, d.7 AS user_id, d.8 AS agent_id, d.10 AS service_id, d.9.3 AS tool_name,
        d.9.1 AS tool_call_id, d.9.4 AS try_number, d.11 AS took_ms, d.9.6.1 AS error_class_of, d.9.6.2 AS error_code_of,
        d.9.6.3 AS error_text,
        multiIf(d.3 = 'tool_call_resolved', d.9.5, d.3 = 'tool_call_failed' AND d.9.6.2 = 'cancelled', 'cancelled', transform(d.3, ['tool_call_started', 'tool_call_succeeded', 'tool_call_failed'],
            ['running', 'succeeded', 'failed'], '')) AS state_after
    FROM
    (
        SELECT
            tenant_id, session_id,
            argMin(
                (
                    ifNull(run_id, ''), source_offset, toString(event_type), toDateTime64(appended_at, 6, 'UTC'),
                    toUnixTimestamp64Micro(occurred_at), step_id, user_id, agent_id,
                    JSONExtract(payload_json, 'Tuple(tool_call_id String, idem_key String, tool_name String,
                        try_number Int32, outcome String, error Tuple(error_class String, code String, message String))'),
                    toString(service_id), execution_time_ms,
                    (source_partition, source_offset, appended_at) NOT IN
                    (
                        SELECT source_partition, source_offset, toDateTime64(appended_at, 3, 'UTC')
                        FROM {database}.rejected
                        WHERE appended_at >= {from:DateTime('UTC')} AND appended_at < {to:DateTime('UTC')}
                    )
                ), (appended_at, source_offset)) AS d
        FROM {database}.history
        WHERE event_type IN ('tool_call_started', 'tool_call_succeeded', 'tool_call_failed', 'tool_call_resolved')
            AND decode_error = '' AND payload_json != ''
            AND appended_at >= {from:DateTime('UTC')} AND appended_at < {to:DateTime('UTC')}
            AND (source_partition, source_offset, appended_at) NOT IN
            (
                SELECT source_partition, source_offset, toDateTime64(appended_at, 3, 'UTC')
                FROM {database}.rejected
                WHERE appended_at >= {from:DateTime('UTC')} AND appended_at < {to:DateTime('UTC')}
                    AND reason IN ('undecodable', 'unknown_schema', 'unknown_event_type', 'bad_key', 'key_mismatch',
                        'foreign_tenant', 'wrong_partition', 'unknown_session', 'session_archived', 'late_filler',
                        'too_many_producers', 'producer_conflict', 'bad_row', 'internal_error', 'skipped')
            )
        GROUP BY tenant_id, session_id, producer_id, producer_seq, event_id
        HAVING d.12
    )
    UNION ALL
    SELECT
        tenant_id, session_id, ifNull(a.run_id, ''), assumeNotNull(a.idem_key), '', (source_offset, 0, source_n), false, false,
        false, appended_at, 0, NULL, NULL, '', '', '', '', 0, NULL, '', '', '', ifNull(a.to_call_state, '')
    FROM {database}.audit AS a FINAL
    WHERE kind = 'tool_call' AND a.idem_key IS NOT NULL
        AND appended_at >= {from:DateTime('UTC')} AND appended_at < {to:DateTime('UTC')}
) AS e
GROUP BY tenant_id, session_id, run_id, idem_key, call_id
HAVING countIf(is_event) > 0
SETTINGS do_not_merge_across_partitions_select_final = 1;

ALTER TABLE {database}_between.v_tool_calls_between
    MODIFY COMMENT 'v_tool_calls of a time';
