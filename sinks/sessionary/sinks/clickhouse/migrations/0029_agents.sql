-- The agents of a session: their tasks, what they share, hand-overs, and what each sees, by the roles with which they
-- were registered. An event that was delivered twice counts once, and one that was refused never.

CREATE OR REPLACE VIEW {database}.v_agent_events AS
SELECT
    appended_at AS time, tenant_id, session_id, event_type,
    if(event_type = 'context_synced', JSONExtractString(payload_json, 'to_agent_id'),
        ifNull(JSONExtract(payload_json, 'agent_id', 'Nullable(String)'), toString(sender))) AS agent_id,
    JSONExtract(payload_json, 'role', 'Nullable(String)') AS role,
    ifNull(JSONExtract(payload_json, 'service_id', 'Nullable(String)'), toString(service)) AS service_id,
    JSONExtract(payload_json, 'task', 'Nullable(String)') AS task,
    CAST(JSONExtractBool(payload_json, 'completed'), 'Bool') AS is_completed,
    JSONExtract(payload_json, 'from_snapshot_id', 'Nullable(String)') AS from_snapshot,
    ifNull(JSONExtract(payload_json, 'to_snapshot_id', 'Nullable(String)'), toString(event_id)) AS to_snapshot,
    JSONExtract(payload_json, 'shared_key', 'Nullable(String)') AS shared_key,
    JSONExtract(payload_json, 'result_json', 'Nullable(String)') AS result,
    JSONExtract(payload_json, 'artifact_id', 'Nullable(String)') AS artifact_id,
    JSONExtract(payload_json, 'from_agent_id', 'Nullable(String)') AS from_agent_id,
    JSONExtract(payload_json, 'sync_type', 'Nullable(String)') AS sync_type,
    JSONExtract(payload_json, 'shared_json', 'Nullable(String)') AS context,
    event_id, source_partition, source_offset
FROM
(
    SELECT
        *, agent_id AS sender, service_id AS service,
        (source_partition, source_offset, appended_at) NOT IN
            (SELECT source_partition, source_offset, toDateTime64(appended_at, 3, 'UTC') FROM {database}.rejected) AS is_kept,
        countIf(is_kept OR (source_partition, source_offset, appended_at, tenant_id, session_id) IN
        (
            SELECT
                source_partition, source_offset, toDateTime64(appended_at, 3, 'UTC'), toString(tenant_id),
                toString(session_id)
            FROM {database}.rejected
            WHERE tenant_id IS NOT NULL AND session_id IS NOT NULL AND reason NOT IN ('unknown_session',
                'wrong_partition', 'late_filler', 'producer_conflict', 'too_many_producers', 'session_archived')
        ))
            OVER (PARTITION BY tenant_id, session_id, producer_id, producer_seq ORDER BY source_offset
                ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING) AS deliveries_before
    FROM {database}.history FINAL
    WHERE event_type IN ('agent_registered', 'agent_task_updated', 'context_synced') AND decode_error = ''
)
WHERE is_kept AND deliveries_before = 0
SETTINGS do_not_merge_across_partitions_select_final = 1;
ALTER TABLE {database}.v_agent_events MODIFY COMMENT 'each event about an agent of a session';
ALTER TABLE {database}.v_agent_events
    COMMENT COLUMN time 'log time of the event',
    COMMENT COLUMN tenant_id 'tenant of the session',
    COMMENT COLUMN session_id 'id of the session',
    COMMENT COLUMN event_type 'agent_registered, agent_task_updated or context_synced',
    COMMENT COLUMN agent_id 'agent that it is about; of a hand-over, the taker',
    COMMENT COLUMN role 'of a registration: the role',
    COMMENT COLUMN service_id 'service of a registered agent, or the one that sent the event',
    COMMENT COLUMN task 'task that the event names',
    COMMENT COLUMN is_completed 'whether it completes the task',
    COMMENT COLUMN from_snapshot 'snapshot that it follows, if it says one',
    COMMENT COLUMN to_snapshot 'snapshot that it makes',
    COMMENT COLUMN shared_key 'key under which a result is shared, if it says one',
    COMMENT COLUMN result 'result as JSON; null if it has none, or once personal data has expired',
    COMMENT COLUMN artifact_id 'artifact that has the result',
    COMMENT COLUMN from_agent_id 'of a hand-over: the giver',
    COMMENT COLUMN sync_type 'of a hand-over: why',
    COMMENT COLUMN context 'of a hand-over: what is passed, as JSON',
    COMMENT COLUMN event_id 'id of the event, given by its client',
    COMMENT COLUMN source_partition 'partition of the events topic',
    COMMENT COLUMN source_offset 'offset in that partition';

CREATE OR REPLACE VIEW {database}.v_agent_tasks AS
SELECT
    time, tenant_id, session_id, agent_id, current AS task, is_completed, from_snapshot, to_snapshot, shared_key, result,
    artifact_id, event_id, source_partition, source_offset
FROM
(
    SELECT
        e.time AS time, e.tenant_id AS tenant_id, e.session_id AS session_id, e.agent_id AS agent_id,
        e.is_completed AS is_completed, e.to_snapshot AS to_snapshot, e.result AS result, e.artifact_id AS artifact_id,
        e.event_type AS event_type, e.event_id AS event_id, e.source_partition AS source_partition,
        e.source_offset AS source_offset,
        anyLast(e.task) OVER (
            PARTITION BY e.tenant_id, e.session_id, e.agent_id ORDER BY e.source_offset
            ROWS BETWEEN UNBOUNDED PRECEDING AND CURRENT ROW) AS current,
        ifNull(e.from_snapshot, anyLast(e.to_snapshot) OVER (
            PARTITION BY e.tenant_id, e.session_id, e.agent_id ORDER BY e.source_offset
            ROWS BETWEEN 1 PRECEDING AND 1 PRECEDING)) AS from_snapshot,
        if(e.result IS NULL AND e.artifact_id IS NULL, NULL, ifNull(e.shared_key,
            concat(e.agent_id, '_', ifNull(current, '')))) AS shared_key
    FROM {database}.v_agent_events AS e
    WHERE e.event_type IN ('agent_registered', 'agent_task_updated')
)
WHERE event_type = 'agent_task_updated';
ALTER TABLE {database}.v_agent_tasks MODIFY COMMENT 'each change of an agent: its task, from which snapshot to which, and what it shared';
ALTER TABLE {database}.v_agent_tasks
    COMMENT COLUMN time 'log time of the event',
    COMMENT COLUMN tenant_id 'tenant of the session',
    COMMENT COLUMN session_id 'id of the session',
    COMMENT COLUMN agent_id 'the agent',
    COMMENT COLUMN task 'its task; null once personal data has expired',
    COMMENT COLUMN is_completed 'whether the task is done by that; else it begins or goes on',
    COMMENT COLUMN from_snapshot 'snapshot of its state before',
    COMMENT COLUMN to_snapshot 'snapshot that the change made',
    COMMENT COLUMN shared_key 'key under which a result was shared; null if none was',
    COMMENT COLUMN result 'result as JSON; null if none was shared, or once personal data has expired',
    COMMENT COLUMN artifact_id 'artifact that has the result, if it is large',
    COMMENT COLUMN event_id 'id of the event, given by its client',
    COMMENT COLUMN source_partition 'partition of the events topic',
    COMMENT COLUMN source_offset 'offset in that partition';

CREATE OR REPLACE VIEW {database}.v_handovers AS
SELECT
    h.time AS time, h.tenant_id AS tenant_id, h.session_id AS session_id, ifNull(h.from_agent_id, '') AS from_agent_id,
    h.agent_id AS to_agent_id, h.sync_type AS sync_type, ifNull(h.from_snapshot, s.to_snapshot) AS from_snapshot,
    h.context AS context, h.event_id AS event_id, h.source_partition AS source_partition, h.source_offset AS source_offset
FROM (SELECT *, ifNull(from_agent_id, '') AS giver FROM {database}.v_agent_events WHERE event_type = 'context_synced') AS h
ASOF LEFT JOIN (SELECT * FROM {database}.v_agent_events WHERE event_type != 'context_synced') AS s
    ON h.tenant_id = s.tenant_id AND h.session_id = s.session_id AND h.giver = s.agent_id
        AND h.source_offset >= s.source_offset;
ALTER TABLE {database}.v_handovers MODIFY COMMENT 'each hand-over from an agent of a session to another one';
ALTER TABLE {database}.v_handovers
    COMMENT COLUMN time 'log time of the event',
    COMMENT COLUMN tenant_id 'tenant of the session',
    COMMENT COLUMN session_id 'id of the session',
    COMMENT COLUMN from_agent_id 'the giver',
    COMMENT COLUMN to_agent_id 'the taker',
    COMMENT COLUMN sync_type 'why, for programs',
    COMMENT COLUMN from_snapshot 'snapshot of the giver that the taker got',
    COMMENT COLUMN context 'what was passed beside the shared results, as JSON; null if nothing was, or once personal data has expired',
    COMMENT COLUMN event_id 'id of the event, given by its client',
    COMMENT COLUMN source_partition 'partition of the events topic',
    COMMENT COLUMN source_offset 'offset in that partition';

CREATE OR REPLACE VIEW {database}.v_agents AS
SELECT
    toDateTime64(agents.changed_at, 3, 'UTC') AS time, agents.tenant_id AS tenant_id, agents.session_id AS session_id,
    agents.agent_id AS agent_id, agents.role AS role, agents.service_id AS service_id,
    nullIf(agents.folded.1, '') AS current_task, agents.folded.2 AS completed_tasks,
    arrayFilter(r -> r.1 <= agents.changed_offset, shared.results) AS known,
    CAST(arrayMap(r -> (r.2, r.3), arrayFilter(
        r -> NOT arrayExists(later -> later.2 = r.2 AND later.1 > r.1, known), known)), 'Map(String, String)') AS shared_context,
    agents.snapshot_id AS snapshot_id, toDateTime64(agents.registered_at, 3, 'UTC') AS registered_at
FROM
(
    SELECT
        tenant_id, session_id, agent_id, anyIf(role, is_first) AS role, anyIf(service_id, is_first) AS service_id,
        minIf(time, is_first) AS registered_at, maxIf(time, is_change) AS changed_at,
        maxIf(source_offset, is_change) AS changed_offset, argMaxIf(to_snapshot, source_offset, is_change) AS snapshot_id,
        arrayFold(
            (state, change) -> if(change.3,
                (if(state.1 = change.2, '', state.1), arrayPushBack(state.2, change.2)),
                (change.2, if(state.1 IN ('', change.2), state.2, arrayPushBack(state.2, state.1)))),
            arraySort(groupArrayIf((source_offset, ifNull(current, ''), is_completed), event_type = 'agent_task_updated')),
            ('', CAST([], 'Array(String)'))) AS folded
    FROM
    (
        SELECT
            *, event_type = 'agent_registered' AND row_number() OVER (
                PARTITION BY tenant_id, session_id, agent_id, event_type ORDER BY source_offset) = 1 AS is_first,
            is_first OR event_type = 'agent_task_updated' AS is_change,
            anyLast(task) OVER (PARTITION BY tenant_id, session_id, agent_id ORDER BY source_offset
                ROWS BETWEEN UNBOUNDED PRECEDING AND CURRENT ROW) AS current
        FROM {database}.v_agent_events
        WHERE event_type != 'context_synced'
    )
    GROUP BY tenant_id, session_id, agent_id
) AS agents
LEFT JOIN
(
    SELECT
        tenant_id, session_id,
        arraySort(groupArray((source_offset, ifNull(shared_key, ''), coalesce(result, artifact_id, '')))) AS results
    FROM {database}.v_agent_tasks
    WHERE shared_key IS NOT NULL
    GROUP BY tenant_id, session_id
) AS shared ON shared.tenant_id = agents.tenant_id AND shared.session_id = agents.session_id;
ALTER TABLE {database}.v_agents MODIFY COMMENT 'each agent of a session: its tasks, and what was shared by its last snapshot';
ALTER TABLE {database}.v_agents
    COMMENT COLUMN time 'log time of its last snapshot',
    COMMENT COLUMN tenant_id 'tenant of the session',
    COMMENT COLUMN session_id 'id of the session',
    COMMENT COLUMN agent_id 'the agent; one that only reads has no tasks',
    COMMENT COLUMN role 'what it does, and so what it sees; null once personal data has expired',
    COMMENT COLUMN service_id 'its service, a member of the session',
    COMMENT COLUMN current_task 'task at which it works; null if it has none',
    COMMENT COLUMN completed_tasks 'its tasks that are done, in that order',
    COMMENT COLUMN known 'what all had shared by then: offset, key and result of each',
    COMMENT COLUMN shared_context 'the same by key: the last result of each key, or its artifact',
    COMMENT COLUMN snapshot_id 'last snapshot of its state',
    COMMENT COLUMN registered_at 'log time of its registration';

CREATE OR REPLACE VIEW {database}.v_agent_views AS
SELECT
    r.time AS time, a.tenant_id AS tenant_id, a.session_id AS session_id, a.agent_id AS agent_id, a.role AS role,
    r.agent_id AS author_id, r.author_role AS author_role, r.task AS task, ifNull(r.shared_key, '') AS shared_key,
    r.result AS result, r.artifact_id AS artifact_id, r.source_partition AS source_partition,
    r.source_offset AS source_offset
FROM {database}.v_agents AS a
INNER JOIN
(
    SELECT
        t.time AS time, t.tenant_id AS tenant_id, t.session_id AS session_id, t.agent_id AS agent_id, w.role AS author_role,
        t.task AS task, t.shared_key AS shared_key, t.result AS result, t.artifact_id AS artifact_id,
        t.source_partition AS source_partition, t.source_offset AS source_offset,
        row_number() OVER (PARTITION BY t.tenant_id, t.session_id, t.agent_id, t.shared_key
            ORDER BY t.source_offset DESC) AS from_last
    FROM {database}.v_agent_tasks AS t
    INNER JOIN {database}.v_agents AS w
        ON w.tenant_id = t.tenant_id AND w.session_id = t.session_id AND w.agent_id = t.agent_id
    WHERE t.shared_key IS NOT NULL
) AS r ON r.tenant_id = a.tenant_id AND r.session_id = a.session_id
WHERE r.from_last = 1 AND a.role != 'researcher' AND (a.role != 'analyzer' OR r.author_role = 'researcher');
ALTER TABLE {database}.v_agent_views MODIFY COMMENT 'what each agent of a session sees of the results that are shared, by the roles of both';
ALTER TABLE {database}.v_agent_views
    COMMENT COLUMN time 'log time at which the result was shared',
    COMMENT COLUMN tenant_id 'tenant of the session',
    COMMENT COLUMN session_id 'id of the session',
    COMMENT COLUMN agent_id 'agent that sees it',
    COMMENT COLUMN role 'role of that agent',
    COMMENT COLUMN author_id 'agent that shared it',
    COMMENT COLUMN author_role 'role of the author, which decides',
    COMMENT COLUMN task 'task of the author',
    COMMENT COLUMN shared_key 'key of the result',
    COMMENT COLUMN result 'result as JSON',
    COMMENT COLUMN artifact_id 'artifact that has the result, if it is large',
    COMMENT COLUMN source_partition 'partition of the events topic',
    COMMENT COLUMN source_offset 'offset in that partition';
