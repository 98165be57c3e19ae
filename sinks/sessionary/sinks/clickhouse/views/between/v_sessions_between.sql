-- Sessions by the records of a period: if a session began before the period or continues after it, its figures are
-- those of the records within. A rejected update of a session's content that is delivered again changes nothing, so its
-- version and size are not the session's. Such an update is recognised by the event's id, which old rejections lack.
-- Turns and results of tools count for all services. An event that was delivered twice counts once, a rejected event
-- never. Of a payment the first delivery counts, as in v_usage_calls.
--
-- The outcome follows from the reason code of the transition to Terminated; archiving is no end.
CREATE OR REPLACE VIEW {database}_between.v_sessions_between AS
WITH
    arrayMap(x -> toUnixTimestamp64Micro(x.3), a.path) AS entered_us,
    toUnixTimestamp64Micro(ifNull(a.ended_at, greatest(a.recorded_at, h.active_at))) AS until_us,
    arraySlice(arrayPushBack(entered_us, until_us), 2) AS left_us
SELECT
    greatest(a.recorded_at, h.recorded_at) AS time, a.tenant_id AS tenant_id, a.session_id AS session_id,
    h.external_id AS external_id, a.user_id AS user_id, a.agent_id AS agent_id,
    a.owner_service AS service_id, a.first_state AS first_state, a.state AS state,
    if(a.state IN ('Terminated', 'Archived'), transform(a.reason_code, {reason_codes}, {outcomes}, 'unknown'), 'open') AS outcome,
    a.reason_code AS reason_code, a.reason AS reason,
    a.epoch AS epoch, greatest(a.version, ifNull(h.version, 0)) AS version,
    a.opened_at AS opened_at, greatest(a.opened_at, a.active_at, h.active_at) AS last_at, a.ended_at AS ended_at,
    dateDiff('microsecond', opened_at, ifNull(ended_at, greatest(last_at, a.recorded_at))) / 1e6 AS duration_s,
    arraySum((x, entered, left) -> if(x.2 = 'Active', left - entered, 0), a.path, entered_us, left_us) / 1e6 AS active_s,
    arraySum((x, entered, left) -> if(x.2 = 'Paused', left - entered, 0), a.path, entered_us, left_us) / 1e6 AS paused_s,
    a.transitions AS transitions, a.timeouts AS timeouts, a.rejections AS rejections, a.gaps AS gaps,
    a.missing_events AS missing_events,
    a.context_bytes_max AS context_bytes_max, h.events AS events, h.services AS services, h.agents AS agents,
    h.turns AS turns, h.tool_results AS tool_results, length(h.calls) AS calls,
    arraySum(x -> greatest(x.2, 0), h.calls) AS tokens_in, arraySum(x -> greatest(x.3, 0), h.calls) AS tokens_out,
    arraySum(x -> greatest(x.4, 0), h.calls) AS model_cost_usd_nanos,
    arraySum(x -> greatest(x.5, 0), h.calls) AS tool_cost_usd_nanos,
    nullIf(h.last_tool, '') AS last_tool, nullIf(substringUTF8(h.last_result, 1, 256), '') AS last_result
FROM
(
    SELECT
        tenant_id, session_id,
        anyLast(user_id) AS user_id, argMin(agent_id, audit_seq) AS agent_id,
        argMax(owner_service, audit_seq) AS owner_service,
        argMinIf(toString(to_state), audit_seq, kind = 'transition') AS first_state,
        argMaxIf(toString(to_state), audit_seq, kind = 'transition') AS state,
        argMaxIf(reason, audit_seq, kind = 'transition') AS reason,
        argMaxIf(toString(reason_code), audit_seq, kind = 'transition' AND to_state != 'Archived') AS reason_code,
        arraySort(groupArrayIf((audit_seq, toString(to_state), ifNull(fired_at, appended_at)), kind = 'transition')) AS path,
        argMax(epoch, audit_seq) AS epoch, argMax(version, audit_seq) AS version,
        min(appended_at) AS opened_at, max(appended_at) AS recorded_at,
        maxIf(appended_at, kind = 'transition' AND isNull(fired_at)) AS active_at,
        minOrNullIf(appended_at, kind = 'transition' AND to_state = 'Terminated') AS ended_at,
        countIf(kind = 'transition') AS transitions,
        countIf(kind = 'transition' AND to_state = 'Timeout') AS timeouts,
        countIf(kind = 'rejection') AS rejections, countIf(kind = 'gap') AS gaps,
        toInt64(sumIf(assumeNotNull(gap_last) - assumeNotNull(gap_first) + 1, kind = 'gap'))
            - toInt64(countIf(kind = 'gap_filled')) AS missing_events,
        max(context_bytes) AS context_bytes_max
    FROM {database}.audit FINAL
    WHERE audit_seq > 0 AND appended_at >= {from:DateTime('UTC')} AND appended_at < {to:DateTime('UTC')}
    GROUP BY tenant_id, session_id
) AS a
LEFT JOIN
(
    SELECT
        tenant_id, session_id, count() AS events,
        max(time) AS recorded_at, maxIf(time, is_accepted AND event_type != 'resources_released') AS active_at,
        anyIf(external_id, is_accepted AND external_id IS NOT NULL) AS external_id,
        maxIf(state_version, is_accepted AND NOT is_repeated_rejection) AS version,
        arraySort(groupUniqArray(toString(service_id))) AS services, arraySort(groupUniqArray(agent_id)) AS agents,
        uniqExactIf(event_id, is_accepted AND NOT is_repeated_rejection AND event_type = 'message_appended') AS turns,
        uniqExactIf(event_id, is_accepted AND NOT is_repeated_rejection AND event_type = 'tool_call_succeeded') AS tool_results,
        groupUniqArrayIf((event_id, tokens_in, tokens_out, model_cost_usd_nanos, tool_cost_usd_nanos),
            is_accepted AND NOT is_repeated_rejection AND event_type = 'usage_recorded') AS calls,
        argMaxIf(JSONExtractString(payload_json, 'tool_name'), source_offset,
            is_accepted AND NOT is_repeated_rejection AND NOT is_repeated AND event_type = 'tool_call_started') AS last_tool,
        argMaxIf(if(event_type = 'tool_call_failed',
            concat('failed: ', JSONExtractString(payload_json, 'error', 'code'), ': ', JSONExtractString(payload_json, 'error', 'message')),
            JSONExtractString(payload_json, 'result_json')), source_offset,
            is_accepted AND NOT is_repeated_rejection AND NOT is_repeated
                AND event_type IN ('tool_call_succeeded', 'tool_call_failed')) AS last_result
    FROM
    (
        SELECT
            tenant_id, session_id, service_id, agent_id, event_id, event_type, state_version, external_id, source_offset,
            if(event_type IN ('tool_call_started', 'tool_call_succeeded', 'tool_call_failed'), payload_json, '') AS payload_json,
            tokens_in, tokens_out, model_cost_usd_nanos, tool_cost_usd_nanos,
            toDateTime64(appended_at, 6, 'UTC') AS time,
            (source_partition, source_offset, appended_at) NOT IN
            (
                SELECT source_partition, source_offset, toDateTime64(appended_at, 3, 'UTC')
                FROM {database}.rejected
                WHERE appended_at >= {from:DateTime('UTC')} AND appended_at < {to:DateTime('UTC')}
            ) AS is_accepted,
            event_type IN ('state_updated', 'message_appended', 'tool_call_started', 'tool_call_succeeded', 'tool_call_failed',
                'usage_recorded') AND (tenant_id, session_id, event_id) IN
            (
                SELECT toString(tenant_id), toString(session_id), toString(event_id)
                FROM {database}.rejected
                WHERE event_type IN ('state_updated', 'message_appended', 'tool_call_started', 'tool_call_succeeded',
                        'tool_call_failed', 'usage_recorded')
                    AND event_id IS NOT NULL
                    AND appended_at >= {from:DateTime('UTC')} AND appended_at < {to:DateTime('UTC')}
                    AND reason NOT IN ('undecodable', 'unknown_schema', 'unknown_event_type', 'bad_key', 'key_mismatch',
                    'foreign_tenant', 'wrong_partition', 'unknown_session', 'session_archived', 'late_filler',
                    'too_many_producers', 'producer_conflict', 'bad_row', 'internal_error', 'skipped')
            ) AS is_repeated_rejection,
            event_type IN ('tool_call_started', 'tool_call_succeeded', 'tool_call_failed')
                AND (tenant_id, session_id, event_id, source_offset) IN
            (
                SELECT
                    toString(tenant_id), toString(session_id), toString(event_id),
                    arrayJoin(arrayPopFront(arraySort(groupUniqArray(source_offset))))
                FROM {database}.history
                WHERE event_type IN ('tool_call_started', 'tool_call_succeeded', 'tool_call_failed') AND decode_error = ''
                    AND appended_at >= {from:DateTime('UTC')} AND appended_at < {to:DateTime('UTC')}
                    AND (source_partition, source_offset, appended_at) NOT IN
                    (
                        SELECT source_partition, source_offset, toDateTime64(appended_at, 3, 'UTC')
                        FROM {database}.rejected
                        WHERE appended_at >= {from:DateTime('UTC')} AND appended_at < {to:DateTime('UTC')}
                    )
                GROUP BY tenant_id, session_id, event_id
            ) AS is_repeated
        FROM {database}.history FINAL
        WHERE session_id != '' AND decode_error = ''
            AND appended_at >= {from:DateTime('UTC')} AND appended_at < {to:DateTime('UTC')}
    )
    GROUP BY tenant_id, session_id
) AS h ON h.tenant_id = a.tenant_id AND h.session_id = a.session_id
SETTINGS do_not_merge_across_partitions_select_final = 1;

ALTER TABLE {database}_between.v_sessions_between
    MODIFY COMMENT 'v_sessions of a time';
