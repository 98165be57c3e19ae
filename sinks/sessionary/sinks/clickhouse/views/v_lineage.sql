-- From the first sessions of each line downwards, so that a cycle of forged parents, which has no first one, ends. Its
-- sessions have no root and no depth. A session without its first event in history is in no line. ClickHouse fails a
-- recursion of more than 1,000 steps, so a line's further sessions have no root and no depth either.
CREATE OR REPLACE VIEW {database}.v_lineage AS
WITH RECURSIVE
created AS
(
    SELECT
        tenant_id, session_id, argMin(appended_at, source_offset) AS created_at,
        nullIf(argMin(ifNull(parent_session_id, ''), source_offset), '') AS parent_id,
        nullIf(argMin(ifNull(restored_from_snapshot_id, ''), source_offset), '') AS snapshot_id
    FROM {database}.history FINAL
    WHERE event_type = 'session_created' AND decode_error = ''
        AND (source_partition, source_offset, appended_at) NOT IN
            (SELECT source_partition, source_offset, toDateTime64(appended_at, 3, 'UTC') FROM {database}.rejected)
    GROUP BY tenant_id, session_id
),
line AS
(
    SELECT tenant_id, session_id, session_id AS root_id, toUInt32(0) AS depth
    FROM created
    WHERE parent_id IS NULL OR (tenant_id, assumeNotNull(parent_id)) NOT IN (SELECT tenant_id, session_id FROM created)
    UNION ALL
    SELECT c.tenant_id AS tenant_id, c.session_id AS session_id, l.root_id AS root_id, l.depth + 1 AS depth
    FROM line AS l
    INNER JOIN created AS c ON c.tenant_id = l.tenant_id AND c.parent_id = l.session_id
    WHERE l.depth < 999
)
SELECT
    c.created_at AS time, c.tenant_id AS tenant_id, c.session_id AS session_id, c.parent_id AS parent_session_id,
    c.snapshot_id AS snapshot_id, nullIf(l.root_id, '') AS root_session_id, if(l.root_id = '', NULL, l.depth) AS depth
FROM created AS c
LEFT JOIN line AS l ON l.tenant_id = c.tenant_id AND l.session_id = c.session_id
SETTINGS do_not_merge_across_partitions_select_final = 1;

ALTER TABLE {database}.v_lineage
    MODIFY COMMENT 'line of descent of each session: its parent, the snapshot that it started from, root and depth',
    COMMENT COLUMN time 'log time of the session''s first event',
    COMMENT COLUMN tenant_id 'tenant of the session',
    COMMENT COLUMN session_id 'id of the session',
    COMMENT COLUMN parent_session_id 'session that it belongs to or continues; null for the first of a line',
    COMMENT COLUMN snapshot_id 'snapshot whose content it started with; null if it started anew',
    COMMENT COLUMN root_session_id 'first session of the line that history still has; null within a cycle, and after 1,000 sessions',
    COMMENT COLUMN depth 'sessions from there to this one; 0 for the first, null within a cycle, and after 1,000 sessions';
