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

ALTER TABLE {database}.v_agent_views
    MODIFY COMMENT 'the shared results that each agent of a session sees, by the roles of both agents',
    COMMENT COLUMN time 'log time at which the result was shared',
    COMMENT COLUMN tenant_id 'tenant of the session',
    COMMENT COLUMN session_id 'id of the session',
    COMMENT COLUMN agent_id 'agent that sees the result',
    COMMENT COLUMN role 'role of that agent',
    COMMENT COLUMN author_id 'agent that shared the result',
    COMMENT COLUMN author_role 'role of the author, which decides the view',
    COMMENT COLUMN task 'task of the author',
    COMMENT COLUMN shared_key 'key of the result',
    COMMENT COLUMN result 'result as JSON',
    COMMENT COLUMN artifact_id 'artifact that has the result, if it is large',
    COMMENT COLUMN source_partition 'partition of the events topic',
    COMMENT COLUMN source_offset 'offset in that partition';
