-- A gap says which events of a producer are missing. A replayed event that fills its place is missing no longer.

CREATE OR REPLACE VIEW {database}.v_sessions AS
SELECT
    a.tenant_id AS tenant_id, a.session_id AS session_id, a.user_id AS user_id, a.agent_id AS agent_id,
    a.owner_service AS service_id, a.first_state AS first_state, a.state AS state, a.reason AS reason,
    a.epoch AS epoch, a.version AS version,
    a.opened_at AS opened_at, a.last_at AS last_at, a.ended_at AS ended_at,
    dateDiff('microsecond', a.opened_at, ifNull(a.ended_at, a.last_at)) / 1e6 AS duration_s,
    a.transitions AS transitions, a.timeouts AS timeouts, a.refusals AS refusals, a.gaps AS gaps,
    a.missing_events AS missing_events,
    a.context_bytes_max AS context_bytes_max, h.events AS events, h.services AS services, h.agents AS agents
FROM
(
    SELECT
        tenant_id, session_id,
        anyLast(user_id) AS user_id, argMin(agent_id, audit_seq) AS agent_id,
        argMax(owner_service, audit_seq) AS owner_service,
        argMinIf(toString(to_state), audit_seq, kind = 'transition') AS first_state,
        argMaxIf(toString(to_state), audit_seq, kind = 'transition') AS state,
        argMaxIf(reason, audit_seq, kind = 'transition') AS reason,
        argMax(epoch, audit_seq) AS epoch, argMax(version, audit_seq) AS version,
        min(appended_at) AS opened_at, max(appended_at) AS last_at,
        minOrNullIf(appended_at, kind = 'transition' AND to_state = 'Terminated') AS ended_at,
        countIf(kind = 'transition') AS transitions,
        countIf(kind = 'transition' AND to_state = 'Timeout') AS timeouts,
        countIf(kind = 'refusal') AS refusals, countIf(kind = 'gap') AS gaps,
        toInt64(sumIf(assumeNotNull(gap_last) - assumeNotNull(gap_first) + 1, kind = 'gap'))
            - toInt64(countIf(kind = 'gap_filled')) AS missing_events,
        max(context_bytes) AS context_bytes_max
    FROM {database}.audit FINAL
    WHERE audit_seq > 0
    GROUP BY tenant_id, session_id
) AS a
LEFT JOIN
(
    SELECT
        tenant_id, session_id, count() AS events,
        arraySort(groupUniqArray(toString(service_id))) AS services, arraySort(groupUniqArray(agent_id)) AS agents
    FROM {database}.history FINAL
    WHERE session_id != '' AND decode_error = ''
    GROUP BY tenant_id, session_id
) AS h ON h.tenant_id = a.tenant_id AND h.session_id = a.session_id;
