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

ALTER TABLE {database}.v_agents
    MODIFY COMMENT 'each agent of a session: its tasks, and the results shared by its last snapshot',
    COMMENT COLUMN time 'log time of the agent''s last snapshot',
    COMMENT COLUMN tenant_id 'tenant of the session',
    COMMENT COLUMN session_id 'id of the session',
    COMMENT COLUMN agent_id 'the agent; a reading agent has no tasks',
    COMMENT COLUMN role 'role of the agent, which decides its view; null once personal data has expired',
    COMMENT COLUMN service_id 'service of the agent, a member of the session',
    COMMENT COLUMN current_task 'current task; null without one',
    COMMENT COLUMN completed_tasks 'finished tasks, in the order of their end',
    COMMENT COLUMN known 'results that all agents had shared by then: offset, key and result of each',
    COMMENT COLUMN shared_context 'the same by key: the last result of each key, or its artifact',
    COMMENT COLUMN snapshot_id 'last snapshot of the agent''s state',
    COMMENT COLUMN registered_at 'log time of the agent''s registration';
