-- The session stands still while it is held. Its silence is longer: from the former owner's last event to the target's
-- first one, idle times of both included. Steps of the migration, heartbeats and rejected events do not count.
CREATE OR REPLACE VIEW {database}.v_migrations AS
SELECT
    m.updated_at AS time, m.tenant_id AS tenant_id, m.session_id AS session_id, m.migration_id AS migration_id,
    m.from_service AS from_service, m.to_service AS to_service, m.step AS step, m.reason_code AS reason_code,
    m.reason AS reason, m.actor AS actor, m.offered_at AS offered_at, m.prepared_at AS prepared_at, m.ended_at AS ended_at,
    if(m.prepared_at IS NULL OR m.ended_at IS NULL, NULL,
        dateDiff('millisecond', m.prepared_at, m.ended_at)) AS held_ms,
    if(m.step != 'completed' OR w.former_at = 0 OR w.target_at = 0, NULL, w.target_at - w.former_at) AS silence_ms,
    m.epoch AS epoch, w.released_at AS released_at
FROM
(
    SELECT
        tenant_id, session_id, assumeNotNull(a.migration_id) AS migration_id,
        any(assumeNotNull(a.from_service)) AS from_service, any(assumeNotNull(a.to_service)) AS to_service,
        argMax(assumeNotNull(a.migration_step), audit_seq) AS step, argMax(a.reason_code, audit_seq) AS reason_code,
        argMax(a.reason, audit_seq) AS reason, argMinIf(a.actor, audit_seq, a.actor IS NOT NULL) AS actor,
        minIf(appended_at, a.migration_step = 'offered') AS offered_at,
        if(countIf(a.migration_step = 'prepared') = 0, NULL, minIf(appended_at, a.migration_step = 'prepared')) AS prepared_at,
        if(countIf(a.migration_step IN ('completed', 'aborted')) = 0, NULL,
            maxIf(appended_at, a.migration_step IN ('completed', 'aborted'))) AS ended_at,
        maxIf(source_offset, a.migration_step = 'completed') AS completed_offset, max(appended_at) AS updated_at,
        argMax(a.epoch, audit_seq) AS epoch, anyIf(a.cleanup_id, a.cleanup_id IS NOT NULL) AS cleanup_id
    FROM {database}.audit AS a FINAL
    WHERE kind = 'migration' AND a.migration_id IS NOT NULL
    GROUP BY tenant_id, session_id, migration_id
) AS m
LEFT JOIN
(
    SELECT
        c.tenant_id AS tenant_id, c.session_id AS session_id, c.migration_id AS migration_id,
        maxIf(e.at_ms, e.kind = 'event' AND e.service_id = c.from_service AND e.place < c.completed_offset) AS former_at,
        minIf(e.at_ms, e.kind = 'event' AND e.service_id = c.to_service AND e.place > c.completed_offset) AS target_at,
        if(countIf(e.kind = 'release' AND e.cleanup_id = c.cleanup_id) = 0, NULL,
            fromUnixTimestamp64Milli(minIf(e.at_ms, e.kind = 'release' AND e.cleanup_id = c.cleanup_id), 'UTC')) AS released_at
    FROM
    (
        SELECT
            tenant_id, session_id, assumeNotNull(a.migration_id) AS migration_id, assumeNotNull(a.from_service) AS from_service,
            assumeNotNull(a.to_service) AS to_service, source_offset AS completed_offset, ifNull(a.cleanup_id, '') AS cleanup_id
        FROM {database}.audit AS a FINAL
        WHERE kind = 'migration' AND a.migration_step = 'completed'
    ) AS c
    INNER JOIN
    (
        SELECT
            tenant_id, session_id, 'event' AS kind, service_id, source_offset AS place,
            toUnixTimestamp64Milli(appended_at) AS at_ms, '' AS cleanup_id
        FROM {database}.history FINAL
        WHERE decode_error = '' AND event_type NOT IN ('heartbeat', 'tick', 'resources_released')
            AND NOT startsWith(event_type, 'session_migration_')
            AND (tenant_id, session_id) IN (SELECT tenant_id, session_id FROM {database}.audit WHERE kind = 'migration')
            AND (source_partition, source_offset) NOT IN
            (
                SELECT source_partition, source_offset FROM {database}.rejected
                WHERE ifNull(session_id, '') IN (SELECT session_id FROM {database}.audit WHERE kind = 'migration')
            )
        UNION ALL
        SELECT
            tenant_id, session_id, 'release', ifNull(service_id, ''), source_offset,
            toUnixTimestamp64Milli(toDateTime64(appended_at, 3, 'UTC')), ifNull(a.cleanup_id, '')
        FROM {database}.audit AS a FINAL
        WHERE kind = 'release'
    ) AS e ON e.tenant_id = c.tenant_id AND e.session_id = c.session_id
    GROUP BY c.tenant_id, c.session_id, c.migration_id
) AS w ON w.tenant_id = m.tenant_id AND w.session_id = m.session_id AND w.migration_id = m.migration_id
SETTINGS do_not_merge_across_partitions_select_final = 1;

ALTER TABLE {database}.v_migrations
    MODIFY COMMENT 'each migration of a session to another service: last step, reason of its end, length of the hold',
    COMMENT COLUMN time 'log time of the latest step',
    COMMENT COLUMN tenant_id 'tenant of the session',
    COMMENT COLUMN session_id 'id of the session',
    COMMENT COLUMN migration_id 'id of the migration',
    COMMENT COLUMN from_service 'service that owned the session',
    COMMENT COLUMN to_service 'target service',
    COMMENT COLUMN step 'offered, prepared, completed or aborted',
    COMMENT COLUMN reason_code 'reason code of an abort',
    COMMENT COLUMN reason 'latest step in words; empty once personal data has expired',
    COMMENT COLUMN actor 'operator that requested the migration; null if the owner did',
    COMMENT COLUMN offered_at 'time of the offer',
    COMMENT COLUMN prepared_at 'time at which the session was held, after the target had loaded it',
    COMMENT COLUMN ended_at 'time of the completion or abort',
    COMMENT COLUMN held_ms 'the standstill: from prepared_at to ended_at in milliseconds',
    COMMENT COLUMN silence_ms 'milliseconds from the former owner''s last accepted event to the target''s first one, idle times of both included; null unless completed',
    COMMENT COLUMN epoch 'the session''s epoch after the latest step',
    COMMENT COLUMN released_at 'time at which the former owner confirmed its clean-up';
