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

ALTER TABLE {database}.v_agent_tasks
    MODIFY COMMENT 'each change of an agent: its task, the snapshots before and after, and the shared result',
    COMMENT COLUMN time 'log time of the event',
    COMMENT COLUMN tenant_id 'tenant of the session',
    COMMENT COLUMN session_id 'id of the session',
    COMMENT COLUMN agent_id 'the agent',
    COMMENT COLUMN task 'the agent''s task; null once personal data has expired',
    COMMENT COLUMN is_completed 'true if the task is done; else it begins or continues',
    COMMENT COLUMN from_snapshot 'snapshot of the agent''s state before',
    COMMENT COLUMN to_snapshot 'snapshot that the change made',
    COMMENT COLUMN shared_key 'key of a shared result; null without one',
    COMMENT COLUMN result 'shared result as JSON; null without one, or once personal data has expired',
    COMMENT COLUMN artifact_id 'artifact that has the result, if it is large',
    COMMENT COLUMN event_id 'id of the event, given by its client',
    COMMENT COLUMN source_partition 'partition of the events topic',
    COMMENT COLUMN source_offset 'offset in that partition';
