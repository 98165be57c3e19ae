-- Sessions that move between services: their migrations, their owners over time, and who wrote to sessions of others.

ALTER TABLE {database}.audit
    ADD COLUMN IF NOT EXISTS migration_id Nullable(String) COMMENT 'id of the migration, for records of the kind migration' AFTER checkpoint_id,
    ADD COLUMN IF NOT EXISTS from_service LowCardinality(Nullable(String)) COMMENT 'service that owned the session before the migration' AFTER migration_id,
    ADD COLUMN IF NOT EXISTS to_service LowCardinality(Nullable(String)) COMMENT 'service that the session goes to' AFTER from_service,
    ADD COLUMN IF NOT EXISTS migration_step LowCardinality(Nullable(String)) COMMENT 'offered, prepared, completed or aborted' AFTER to_service;

-- The freeze is what an agent's user notices: from the former owner's last event to the target's first one. Steps of the
-- migration and heartbeats are no work, and a refused event did nothing.
CREATE OR REPLACE VIEW {database}.v_migrations AS
SELECT
    m.updated_at AS time, m.tenant_id AS tenant_id, m.session_id AS session_id, m.migration_id AS migration_id,
    m.from_service AS from_service, m.to_service AS to_service, m.step AS step, m.reason_code AS reason_code,
    m.reason AS reason, m.actor AS actor, m.offered_at AS offered_at, m.prepared_at AS prepared_at, m.ended_at AS ended_at,
    if(m.prepared_at IS NULL OR m.ended_at IS NULL, NULL,
        dateDiff('millisecond', m.prepared_at, m.ended_at)) AS held_ms,
    if(m.step != 'completed' OR w.former_at = 0 OR w.target_at = 0, NULL, w.target_at - w.former_at) AS freeze_ms,
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
ALTER TABLE {database}.v_migrations MODIFY COMMENT 'each migration of a session to another service: how far it came, why it ended, how long it held the session';
ALTER TABLE {database}.v_migrations
    COMMENT COLUMN time 'log time of its latest step',
    COMMENT COLUMN tenant_id 'tenant of the session',
    COMMENT COLUMN session_id 'id of the session',
    COMMENT COLUMN migration_id 'id of the migration',
    COMMENT COLUMN from_service 'service that owned the session',
    COMMENT COLUMN to_service 'service that the session was offered to',
    COMMENT COLUMN step 'offered, prepared, completed or aborted',
    COMMENT COLUMN reason_code 'of an aborted one: why, as a fixed name',
    COMMENT COLUMN reason 'its latest step in words; empty once personal data has expired',
    COMMENT COLUMN actor 'operator who asked for it; null if its owner did',
    COMMENT COLUMN offered_at 'when it was offered',
    COMMENT COLUMN prepared_at 'when the session was held, because the target had loaded it',
    COMMENT COLUMN ended_at 'when it was completed or aborted',
    COMMENT COLUMN held_ms 'from prepared_at to ended_at in milliseconds',
    COMMENT COLUMN freeze_ms 'of a completed one: from the former owner''s last event that was not refused to the first one of the target, in milliseconds',
    COMMENT COLUMN epoch 'the session''s epoch after its latest step',
    COMMENT COLUMN released_at 'when the former owner confirmed its clean-up';

-- A call that has begun when its session is held goes on with the former owner: its outcome is taken until the target owns
-- the session. After that the call's own limit makes it unknown, and the new owner has to find out.
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
ALTER TABLE {database}.v_migration_calls MODIFY COMMENT 'each reserved tool call that ran when its session was held for a migration, and what became of it';
ALTER TABLE {database}.v_migration_calls
    COMMENT COLUMN time 'when the session was held, because the target had loaded it',
    COMMENT COLUMN tenant_id 'tenant of the session',
    COMMENT COLUMN session_id 'id of the session',
    COMMENT COLUMN migration_id 'id of the migration',
    COMMENT COLUMN run_id 'run of the call; empty if it is of none',
    COMMENT COLUMN idem_key 'idempotency key of the call',
    COMMENT COLUMN tool_name 'tool that was called',
    COMMENT COLUMN state 'state of the call now: running, succeeded, failed or unknown',
    COMMENT COLUMN started_at 'when the call began',
    COMMENT COLUMN ended_at 'when its outcome was reported, or it became unknown; null if neither is so';

-- The first record of an epoch says who owns the session in it.
CREATE OR REPLACE VIEW {database}.v_session_owners AS
SELECT
    o.since AS time, o.tenant_id AS tenant_id, o.session_id AS session_id, o.epoch AS epoch, o.service_id AS service_id,
    o.how AS how, o.since AS since,
    if(o.next_since = toDateTime64(0, 6, 'UTC'), NULL, o.next_since) AS until
FROM
(
    SELECT
        tenant_id, session_id, epoch, service_id, how, since,
        leadInFrame(since) OVER (PARTITION BY tenant_id, session_id ORDER BY epoch ASC
            ROWS BETWEEN CURRENT ROW AND UNBOUNDED FOLLOWING) AS next_since
    FROM
    (
        SELECT
            tenant_id, session_id, epoch, argMin(assumeNotNull(a.owner_service), audit_seq) AS service_id,
            argMin(multiIf(kind = 'migration', 'migrated', kind = 'take_over', 'taken_over', a.transition = 'T01', 'created',
                a.transition = 'T11', 'recovered', 'resumed'), audit_seq) AS how,
            min(toDateTime64(appended_at, 6, 'UTC')) AS since
        FROM {database}.audit AS a FINAL
        WHERE session_id != '' AND audit_seq > 0 AND a.owner_service IS NOT NULL
        GROUP BY tenant_id, session_id, epoch
    )
) AS o
SETTINGS do_not_merge_across_partitions_select_final = 1;
ALTER TABLE {database}.v_session_owners MODIFY COMMENT 'each epoch of a session: which service owned it, from when to when';
ALTER TABLE {database}.v_session_owners
    COMMENT COLUMN time 'the same as since',
    COMMENT COLUMN tenant_id 'tenant of the session',
    COMMENT COLUMN session_id 'id of the session',
    COMMENT COLUMN epoch 'number of the epoch, from 1',
    COMMENT COLUMN service_id 'service that owned the session',
    COMMENT COLUMN how 'how the epoch began: created, resumed, recovered, taken_over or migrated',
    COMMENT COLUMN since 'log time at which it began',
    COMMENT COLUMN until 'log time at which the next one began; null for the last one';

-- A fenced writer speaks for an epoch that is over, a foreign one for a session that is another service's. Of old refusals
-- the names are gone.
CREATE OR REPLACE VIEW {database}.v_foreign_writers AS
SELECT
    max(appended_at) AS time, ifNull(r.tenant_id, '') AS tenant_id, ifNull(r.session_id, '') AS session_id,
    ifNull(r.service_id, '') AS service_id, r.reason AS reason, count() AS events, min(appended_at) AS first_at,
    max(appended_at) AS last_at
FROM {database}.rejected AS r FINAL
WHERE r.reason IN ('stale_epoch', 'not_owner', 'not_member', 'foreign_tenant', 'key_mismatch', 'producer_conflict')
    AND r.service_id IS NOT NULL
GROUP BY tenant_id, session_id, service_id, reason
SETTINGS do_not_merge_across_partitions_select_final = 1;
ALTER TABLE {database}.v_foreign_writers MODIFY COMMENT 'each service that wrote to a session which it does not own, or no longer: how often, and why it was refused';
ALTER TABLE {database}.v_foreign_writers
    COMMENT COLUMN time 'log time of the latest such event',
    COMMENT COLUMN tenant_id 'tenant of the session, by the record''s key',
    COMMENT COLUMN session_id 'id of the session, by the record''s key',
    COMMENT COLUMN service_id 'service that the event names',
    COMMENT COLUMN reason 'why it was refused: stale_epoch is a fenced writer',
    COMMENT COLUMN events 'number of its refused events; of a fenced client''s heartbeats the first in an epoch counts',
    COMMENT COLUMN first_at 'log time of the first one',
    COMMENT COLUMN last_at 'log time of the latest one';

-- A question without an answer in time ends by a clock too, and so does a migration that takes too long.
CREATE OR REPLACE VIEW {database}.v_deadlines AS
SELECT
    appended_at AS time, tenant_id, session_id, audit_seq,
    multiIf(transition = 'T03', 'initialisation', reason_code = 'migration_aborted', 'migration', transition = 'T05', 'answer', transition = 'T08', 'grace',
        transition = 'T09', 'hold', transition = 'T12', 'recovery', reason_code = 'inactive', 'inactivity',
        toString(reason_code)) AS clock,
    transition, from_state, to_state, owner_service AS service_id, reason_code, reason,
    assumeNotNull(due_at) AS due_at, assumeNotNull(fired_at) AS fired_at,
    dateDiff('microsecond', assumeNotNull(due_at), assumeNotNull(fired_at)) / 1e6 AS lateness_s
FROM {database}.audit AS a FINAL
-- Of the table by name: an alias above would hide the column, and assumeNotNull is never null.
WHERE kind = 'transition' AND a.due_at IS NOT NULL AND a.fired_at IS NOT NULL AND transition != 'T14'
SETTINGS do_not_merge_across_partitions_select_final = 1;
ALTER TABLE {database}.v_deadlines MODIFY COMMENT 'each deadline that fired on a session that was meant to go on, on a question to a person, or on a migration';
ALTER TABLE {database}.v_deadlines
    COMMENT COLUMN time 'the log''s time of the record with which it fired',
    COMMENT COLUMN tenant_id 'tenant of the session',
    COMMENT COLUMN session_id 'id of the session',
    COMMENT COLUMN audit_seq 'number in the session''s audit trail',
    COMMENT COLUMN clock 'clock that fired',
    COMMENT COLUMN transition 'transition that it made',
    COMMENT COLUMN from_state 'state before',
    COMMENT COLUMN to_state 'state after',
    COMMENT COLUMN service_id 'service that owned the session',
    COMMENT COLUMN reason_code 'why, as a fixed name',
    COMMENT COLUMN reason 'why, in words; names the limit',
    COMMENT COLUMN due_at 'when the deadline was',
    COMMENT COLUMN fired_at 'when the processor saw that it had passed, by the log''s clock',
    COMMENT COLUMN lateness_s 'seconds between the two';

