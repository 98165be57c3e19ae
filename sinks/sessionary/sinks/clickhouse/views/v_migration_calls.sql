-- A call that has begun when its session is held continues at the former owner: its outcome is accepted until the
-- target owns the session. Afterwards the call becomes unknown at its own limit, and the new owner must resolve it.
CREATE OR REPLACE VIEW {database}.v_migration_calls AS
SELECT
    max(m.prepared_at) AS time, m.tenant_id AS tenant_id, m.session_id AS session_id, m.migration_id AS migration_id,
    c.run_id AS run_id, c.idem_key AS idem_key, argMaxIf(c.tool_name, c.place, c.tool_name != '') AS tool_name,
    argMax(c.state, c.place) AS state, maxIf(c.at, c.is_start AND c.place < m.prepared_place) AS started_at,
    if(countIf(c.place > m.prepared_place) = 0, NULL, minIf(c.at, c.place > m.prepared_place)) AS ended_at
FROM
(
    SELECT
        tenant_id, session_id, assumeNotNull(a.migration_id) AS migration_id, toDateTime64(appended_at, 6, 'UTC') AS prepared_at,
        (source_offset, 1, 0) AS prepared_place
    FROM {database}.audit AS a FINAL
    WHERE kind = 'migration' AND a.migration_step = 'prepared' AND a.migration_id IS NOT NULL
) AS m
INNER JOIN
(
    SELECT
        tenant_id, session_id, run_id, idem_key, name AS tool_name, state, event_type = 'tool_call_started' AS is_start,
        (source_offset, 1, 0) AS place, toDateTime64(time, 6, 'UTC') AS at
    FROM {database}.v_run_events
    WHERE subject = 'tool_call' AND idem_key != '' AND state != ''
        AND (tenant_id, session_id) IN (SELECT tenant_id, session_id FROM {database}.audit WHERE kind = 'migration')
    UNION ALL
    SELECT
        tenant_id, session_id, ifNull(run_id, ''), assumeNotNull(idem_key), '', ifNull(to_call_state, ''), false,
        (source_offset, 0, source_n), toDateTime64(appended_at, 6, 'UTC')
    FROM {database}.audit AS a FINAL
    WHERE kind = 'tool_call' AND a.idem_key IS NOT NULL
        AND (tenant_id, session_id) IN (SELECT tenant_id, session_id FROM {database}.audit WHERE kind = 'migration')
) AS c ON c.tenant_id = m.tenant_id AND c.session_id = m.session_id
GROUP BY m.tenant_id, m.session_id, m.migration_id, c.run_id, c.idem_key
HAVING argMaxIf(c.state, c.place, c.place < m.prepared_place) = 'running'
SETTINGS do_not_merge_across_partitions_select_final = 1;

ALTER TABLE {database}.v_migration_calls
    MODIFY COMMENT 'each reserved tool call that ran when its session was held for a migration, with its outcome',
    COMMENT COLUMN time 'time at which the session was held, after the target had loaded it',
    COMMENT COLUMN tenant_id 'tenant of the session',
    COMMENT COLUMN session_id 'id of the session',
    COMMENT COLUMN migration_id 'id of the migration',
    COMMENT COLUMN run_id 'run of the call; empty without one',
    COMMENT COLUMN idem_key 'idempotency key of the call',
    COMMENT COLUMN tool_name 'tool that was called',
    COMMENT COLUMN state 'present state of the call: running, succeeded, failed or unknown',
    COMMENT COLUMN started_at 'time of the call''s beginning',
    COMMENT COLUMN ended_at 'time at which the outcome was reported, or became unknown; null while the call runs';
