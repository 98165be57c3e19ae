-- What analysts read. All over FINAL: a row that two parts hold counts once, merged or not.

CREATE OR REPLACE VIEW {database}.v_sessions AS
SELECT
    a.tenant_id AS tenant_id, a.session_id AS session_id, a.user_id AS user_id, a.agent_id AS agent_id,
    a.owner_service AS service_id, a.first_state AS first_state, a.state AS state, a.reason AS reason,
    a.epoch AS epoch, a.version AS version,
    a.opened_at AS opened_at, a.last_at AS last_at, a.ended_at AS ended_at,
    dateDiff('microsecond', a.opened_at, ifNull(a.ended_at, a.last_at)) / 1e6 AS duration_s,
    a.transitions AS transitions, a.timeouts AS timeouts, a.refusals AS refusals, a.gaps AS gaps,
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

CREATE OR REPLACE VIEW {database}.v_transitions AS
SELECT
    tenant_id, session_id, audit_seq, transition, from_state, to_state, event_type, event_id, reason_code, reason,
    service_id, owner_service, agent_id, actor, epoch, version, cleanup_id, cleanup_actions, compliance_tags,
    occurred_at, appended_at, due_at, fired_at, source_partition, source_offset, source_n, batch_number
FROM {database}.audit FINAL
WHERE kind = 'transition';

-- Deadlines that fired on a session that was meant to go on; archiving (T14) has a due time too, but is no timeout.
CREATE OR REPLACE VIEW {database}.v_timeouts AS
SELECT
    tenant_id, session_id, audit_seq, transition, from_state, to_state, owner_service AS service_id, reason_code, reason,
    assumeNotNull(due_at) AS due_at, assumeNotNull(fired_at) AS fired_at,
    dateDiff('microsecond', assumeNotNull(due_at), assumeNotNull(fired_at)) / 1e6 AS lateness_s
FROM {database}.audit AS a FINAL
-- Of the table by name: an alias above would hide the column, and assumeNotNull is never null.
WHERE kind = 'transition' AND a.due_at IS NOT NULL AND a.fired_at IS NOT NULL AND transition != 'T14';

-- One row per request. `confirmed`: released by a handler, every action done. Host loss is told apart.
CREATE OR REPLACE VIEW {database}.v_cleanups AS
SELECT
    q.tenant_id AS tenant_id, q.session_id AS session_id, q.cleanup_id AS cleanup_id, q.transition AS transition,
    q.service_id AS service_id, q.reason_code AS reason_code, q.requested_at AS requested_at,
    if(r.found, r.released_at, NULL) AS released_at,
    if(r.found, dateDiff('microsecond', q.requested_at, r.released_at) / 1e6, NULL) AS latency_s,
    r.found AS released, r.host_lost AS host_lost,
    r.found AND NOT r.host_lost AND empty(r.actions_failed) AS confirmed,
    q.cleanup_actions AS actions_requested, r.actions_done AS actions_done, r.actions_failed AS actions_failed,
    if(r.found, r.bytes_released, NULL) AS bytes_released, q.context_bytes AS context_bytes
FROM
(
    SELECT
        tenant_id, session_id, assumeNotNull(cleanup_id) AS cleanup_id, transition, owner_service AS service_id,
        reason_code, ifNull(fired_at, appended_at) AS requested_at, cleanup_actions, context_bytes
    FROM {database}.audit AS a FINAL
    WHERE kind = 'transition' AND a.cleanup_id IS NOT NULL
) AS q
LEFT JOIN
(
    SELECT
        tenant_id, session_id, assumeNotNull(cleanup_id) AS cleanup_id, true AS found,
        min(appended_at) AS released_at, argMin(host_lost, appended_at) AS host_lost,
        argMin(actions_done, appended_at) AS actions_done, argMin(actions_failed, appended_at) AS actions_failed,
        argMin(bytes_released, appended_at) AS bytes_released
    FROM {database}.audit AS a FINAL
    WHERE kind = 'release' AND a.cleanup_id IS NOT NULL
    GROUP BY tenant_id, session_id, cleanup_id
) AS r ON r.tenant_id = q.tenant_id AND r.session_id = q.session_id AND r.cleanup_id = q.cleanup_id;

CREATE OR REPLACE VIEW {database}.v_uncleaned AS
SELECT tenant_id, session_id, cleanup_id, transition, service_id, reason_code, requested_at, context_bytes
FROM {database}.v_cleanups
WHERE NOT released;

-- The batch that holds a record tells nothing of its own acknowledgement: the next batch of the partition does.
CREATE OR REPLACE VIEW {database}.v_transition_latency AS
SELECT
    a.tenant_id AS tenant_id, a.session_id AS session_id, a.audit_seq AS audit_seq, a.transition AS transition,
    a.from_state AS from_state, a.to_state AS to_state, a.service_id AS service_id, a.timer AS timer,
    a.began_at AS began_at, b.acknowledged_at AS acknowledged_at,
    dateDiff('microsecond', a.began_at, b.acknowledged_at) / 1e3 AS latency_ms
FROM
(
    SELECT
        tenant_id, session_id, audit_seq, transition, from_state, to_state, owner_service AS service_id,
        source_partition, batch_number, due_at IS NOT NULL AS timer, ifNull(due_at, appended_at) AS began_at
    FROM {database}.audit FINAL
    WHERE kind = 'transition'
) AS a
INNER JOIN
(
    SELECT partition, number - 1 AS acknowledged_number, assumeNotNull(previous_acknowledged_at) AS acknowledged_at
    FROM {database}.batches FINAL
    WHERE previous_acknowledged_at IS NOT NULL
) AS b ON b.partition = a.source_partition AND b.acknowledged_number = a.batch_number;

CREATE OR REPLACE VIEW {database}.v_audit_write_latency AS
SELECT
    a.partition AS partition, a.number AS number, a.audited AS audited, a.started_at AS started_at,
    b.acknowledged_at AS acknowledged_at, dateDiff('microsecond', a.started_at, b.acknowledged_at) / 1e3 AS latency_ms
FROM
(
    SELECT partition, number, audited, started_at
    FROM {database}.batches FINAL
    WHERE audited > 0
) AS a
INNER JOIN
(
    SELECT partition, number - 1 AS acknowledged_number, assumeNotNull(previous_acknowledged_at) AS acknowledged_at
    FROM {database}.batches FINAL
    WHERE previous_acknowledged_at IS NOT NULL
) AS b ON b.partition = a.partition AND b.acknowledged_number = a.number;

CREATE OR REPLACE VIEW {database}.v_rejected AS
SELECT
    appended_at, reason, detail, security, tenant_id, session_id, event_id, event_type, service_id,
    source_topic, source_partition, source_offset, length(value) AS value_bytes
FROM {database}.rejected FINAL;

-- The merged state beside its name in each source machine: the governance text, and machines A and B of the second.
CREATE OR REPLACE VIEW {database}.v_state_names AS
SELECT
    tenant_id, session_id, state,
    transform(state,
        ['Idle', 'Active', 'Paused', 'Timeout', 'Error', 'Terminated', 'Archived'],
        ['(before Active)', 'Active', 'Paused', 'Timeout', 'Active', 'Terminated', 'Archived'], '') AS name_000,
    transform(state,
        ['Idle', 'Active', 'Paused', 'Timeout', 'Error', 'Terminated', 'Archived'],
        ['Initialising', 'Running', 'Paused', 'Paused', 'Running', 'Closed', 'Closed'], '') AS name_001_a,
    transform(state,
        ['Idle', 'Active', 'Paused', 'Timeout', 'Error', 'Terminated', 'Archived'],
        ['Idle', 'Active', 'Paused', 'Paused', 'Error', 'Idle', 'Idle'], '') AS name_001_b
FROM
(
    SELECT tenant_id, session_id, argMax(toString(to_state), audit_seq) AS state
    FROM {database}.audit FINAL
    WHERE kind = 'transition' AND audit_seq > 0
    GROUP BY tenant_id, session_id
);

CREATE OR REPLACE VIEW {database}.v_audit_json AS
SELECT
    tenant_id, session_id, audit_seq,
    toJSONString(CAST(
        (
            session_id,
            (
                toString(from_state), toString(to_state),
                concat(replaceOne(toString(occurred_at), ' ', 'T'), 'Z'),
                reason, arrayMap(x -> toString(x), cleanup_actions)
            ),
            arrayMap(x -> toString(x), compliance_tags)
        ),
        'Tuple(session_id String, state_transition Tuple(`from` String, `to` String, `timestamp` String, reason String, cleanup_actions Array(String)), compliance_tags Array(String))'
    )) AS json
FROM {database}.audit FINAL
WHERE kind = 'transition';

-- One row per fault found; no row = nothing missing, nothing doubled, every chain of states unbroken.
-- Rows expire from a session's beginning on, 30 days at the earliest: an older session may begin above 1.
CREATE OR REPLACE VIEW {database}.v_integrity AS
WITH sessions AS
(
    SELECT
        tenant_id, session_id, count() AS found, uniqExact(audit_seq) AS distinct_found, max(audit_seq) AS last_seq,
        if(min(appended_at) > now() - INTERVAL 29 DAY, 1, min(audit_seq)) AS first_seq
    FROM {database}.audit FINAL
    WHERE audit_seq > 0
    GROUP BY tenant_id, session_id
),
partitions AS
(
    SELECT
        partition, count() AS found, uniqExact(number) AS distinct_found, max(number) AS last_number,
        if(min(started_at) > now() - INTERVAL 6 YEAR, 1, min(number)) AS first_number
    FROM {database}.batches FINAL
    GROUP BY partition
),
chains AS
(
    SELECT
        tenant_id, session_id, toString(from_state) AS from_state,
        lagInFrame(toString(to_state), 1, '') OVER (
            PARTITION BY tenant_id, session_id ORDER BY audit_seq, source_offset, source_n
            ROWS BETWEEN UNBOUNDED PRECEDING AND UNBOUNDED FOLLOWING
        ) AS previous_state
    FROM {database}.audit FINAL
    WHERE kind = 'transition' AND audit_seq > 0
)
SELECT
    'audit_missing' AS fault, toString(tenant_id) AS tenant_id, session_id, NULL::Nullable(UInt32) AS partition,
    toUInt64(last_seq - first_seq + 1 - distinct_found) AS rows
FROM sessions WHERE last_seq - first_seq + 1 > distinct_found
UNION ALL
SELECT 'audit_doubled', toString(tenant_id), session_id, NULL, toUInt64(found - distinct_found)
FROM sessions WHERE found > distinct_found
UNION ALL
SELECT 'batch_missing', '', '', partition, toUInt64(last_number - first_number + 1 - distinct_found)
FROM partitions WHERE last_number - first_number + 1 > distinct_found
UNION ALL
SELECT 'batch_doubled', '', '', partition, toUInt64(found - distinct_found)
FROM partitions WHERE found > distinct_found
UNION ALL
SELECT 'chain_broken', toString(tenant_id), session_id, NULL, toUInt64(countIf(previous_state != '' AND previous_state != from_state))
FROM chains GROUP BY tenant_id, session_id
HAVING countIf(previous_state != '' AND previous_state != from_state) > 0;

-- One row. Clean-up figures are over timed-out sessions (T06); a host that is gone reclaims nothing and is no failure
-- of a handler either: such clean-ups leave the rate's divisor, and are shown beside it. Bytes are those of the topics
-- that sinks read (the changelog is not), so the true share of audit traffic is not above `audit_io_share`.
CREATE OR REPLACE VIEW {database}.v_kpi AS
SELECT
    c.timed_out AS timed_out, c.reclaimed AS reclaimed, c.host_lost AS host_lost,
    c.timed_out - c.reclaimed - c.host_lost AS unreclaimed,
    if(c.timed_out = c.host_lost, NULL, c.reclaimed / (c.timed_out - c.host_lost)) AS reclaim_rate,
    c.latency_avg AS cleanup_latency_avg_s, c.latency_p95 AS cleanup_latency_p95_s, c.latency_p99 AS cleanup_latency_p99_s,
    b.audit AS audit_bytes, b.total AS total_bytes, if(b.total = 0, NULL, b.audit / b.total) AS audit_io_share
FROM
(
    SELECT
        count() AS timed_out, countIf(confirmed) AS reclaimed, countIf(host_lost) AS host_lost,
        avgOrNullIf(assumeNotNull(latency_s), confirmed) AS latency_avg,
        quantileExactOrNullIf(0.95)(assumeNotNull(latency_s), confirmed) AS latency_p95,
        quantileExactOrNullIf(0.99)(assumeNotNull(latency_s), confirmed) AS latency_p99
    FROM {database}.v_cleanups
    WHERE transition = 'T06'
) AS c
CROSS JOIN
(
    SELECT sumIf(bytes, audit) AS audit, sum(bytes) AS total
    FROM
    (
        SELECT sum(toUInt64(value_size)) AS bytes, true AS audit FROM {database}.audit FINAL
        UNION ALL
        SELECT sum(toUInt64(value_size)), false FROM {database}.history FINAL
        UNION ALL
        SELECT sum(toUInt64(value_size)), false FROM {database}.rejected FINAL
        UNION ALL
        SELECT sum(toUInt64(value_size)), false FROM {database}.batches FINAL
    )
) AS b;
