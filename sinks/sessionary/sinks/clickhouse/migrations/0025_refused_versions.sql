-- A refused update of a session's content that is delivered again changes nothing, so its version and size are not the
-- session's: as in 0024, but by the event's id, which the mark of an old refusal has no more.

CREATE OR REPLACE VIEW {database}.v_sessions_between AS
SELECT
    greatest(a.recorded_at, h.recorded_at) AS time, a.tenant_id AS tenant_id, a.session_id AS session_id, a.user_id AS user_id, a.agent_id AS agent_id,
    a.owner_service AS service_id, a.first_state AS first_state, a.state AS state, a.reason AS reason,
    a.epoch AS epoch, greatest(a.version, ifNull(h.version, 0)) AS version,
    a.opened_at AS opened_at, greatest(a.opened_at, a.active_at, h.active_at) AS last_at, a.ended_at AS ended_at,
    dateDiff('microsecond', opened_at, ifNull(ended_at, greatest(last_at, a.recorded_at))) / 1e6 AS duration_s,
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
        min(appended_at) AS opened_at, max(appended_at) AS recorded_at,
        maxIf(appended_at, kind = 'transition' AND isNull(fired_at)) AS active_at,
        minOrNullIf(appended_at, kind = 'transition' AND to_state = 'Terminated') AS ended_at,
        countIf(kind = 'transition') AS transitions,
        countIf(kind = 'transition' AND to_state = 'Timeout') AS timeouts,
        countIf(kind = 'refusal') AS refusals, countIf(kind = 'gap') AS gaps,
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
        maxIf(state_version, is_accepted AND NOT is_repeated_refusal) AS version,
        arraySort(groupUniqArray(toString(service_id))) AS services, arraySort(groupUniqArray(agent_id)) AS agents
    FROM
    (
        SELECT
            tenant_id, session_id, service_id, agent_id, event_type, state_version,
            toDateTime64(appended_at, 6, 'UTC') AS time,
            (source_partition, source_offset, appended_at) NOT IN
            (
                SELECT source_partition, source_offset, toDateTime64(appended_at, 3, 'UTC')
                FROM {database}.rejected
                WHERE appended_at >= {from:DateTime('UTC')} AND appended_at < {to:DateTime('UTC')}
            ) AS is_accepted,
            event_type = 'state_updated' AND (tenant_id, session_id, event_id) IN
            (
                SELECT toString(tenant_id), toString(session_id), toString(event_id)
                FROM {database}.rejected
                WHERE event_type = 'state_updated' AND event_id IS NOT NULL
                    AND appended_at >= {from:DateTime('UTC')} AND appended_at < {to:DateTime('UTC')}
                    AND reason NOT IN ('undecodable', 'unknown_schema', 'unknown_event_type', 'bad_key', 'key_mismatch',
                    'foreign_tenant', 'wrong_partition', 'unknown_session', 'session_archived', 'late_filler',
                    'too_many_producers', 'producer_conflict', 'bad_row', 'internal_error', 'skipped')
            ) AS is_repeated_refusal
        FROM {database}.history FINAL
        WHERE session_id != '' AND decode_error = ''
            AND appended_at >= {from:DateTime('UTC')} AND appended_at < {to:DateTime('UTC')}
    )
    GROUP BY tenant_id, session_id
) AS h ON h.tenant_id = a.tenant_id AND h.session_id = a.session_id
SETTINGS do_not_merge_across_partitions_select_final = 1;
ALTER TABLE {database}.v_sessions_between MODIFY COMMENT 'v_sessions of a time';

CREATE OR REPLACE VIEW {database}.v_stored_bytes AS
SELECT h.tenant_id AS tenant_id, h.session_id AS session_id, 'state' AS layer, toUInt64(1) AS records, h.bytes AS bytes
FROM
(
    SELECT tenant_id, session_id, argMax(assumeNotNull(state_bytes), source_offset) AS bytes
    FROM {database}.history FINAL
    WHERE state_bytes IS NOT NULL
        AND (source_partition, source_offset, appended_at) NOT IN
            (SELECT source_partition, source_offset, toDateTime64(appended_at, 3, 'UTC') FROM {database}.rejected)
        AND (tenant_id, session_id, event_id) NOT IN
        (
            SELECT toString(tenant_id), toString(session_id), toString(event_id)
            FROM {database}.rejected
            WHERE event_id IS NOT NULL AND reason NOT IN ('undecodable', 'unknown_schema', 'unknown_event_type', 'bad_key', 'key_mismatch',
                'foreign_tenant', 'wrong_partition', 'unknown_session', 'session_archived', 'late_filler',
                'too_many_producers', 'producer_conflict', 'bad_row', 'internal_error', 'skipped')
        )
    GROUP BY tenant_id, session_id
) AS h
LEFT ANTI JOIN
(
    SELECT tenant_id, session_id FROM {database}.audit FINAL WHERE kind = 'transition' AND to_state = 'Archived'
) AS d ON d.tenant_id = h.tenant_id AND d.session_id = h.session_id
UNION ALL
SELECT toString(tenant_id), session_id, 'history', count(), sum(toUInt64(value_size))
FROM {database}.history FINAL WHERE session_id != '' GROUP BY tenant_id, session_id
UNION ALL
SELECT toString(tenant_id), session_id, 'audit', count(), sum(toUInt64(value_size))
FROM {database}.audit FINAL WHERE session_id != '' GROUP BY tenant_id, session_id
UNION ALL
SELECT ifNull(toString(tenant_id), ''), ifNull(session_id, ''), 'rejected', count(), sum(toUInt64(value_size))
FROM {database}.rejected FINAL WHERE session_id != '' AND retain_until > now64(6) GROUP BY tenant_id, session_id;
ALTER TABLE {database}.v_stored_bytes MODIFY COMMENT 'bytes of each session by layer';
ALTER TABLE {database}.v_stored_bytes
    COMMENT COLUMN tenant_id 'tenant of the session',
    COMMENT COLUMN session_id 'id of the session',
    COMMENT COLUMN layer 'state, history, audit or rejected',
    COMMENT COLUMN records 'records that it has there',
    COMMENT COLUMN bytes 'their bytes';
