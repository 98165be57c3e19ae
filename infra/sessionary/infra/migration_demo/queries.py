"""What ClickHouse is asked of the demo's session."""

from typing import Final

_OF_SESSION: Final = "WHERE tenant_id = {tenant:String} AND session_id = {session:String}"

# Each event but heartbeats, and each decision of the processor about a migration. `owner` and
# `owner_epoch` are those after it, `epoch_before` is the session's before it.
TRAIL: Final = f"""
WITH
epochs AS
(
    SELECT
        session_id AS of, epoch, argMin(assumeNotNull(owner_service), audit_seq) AS owner, min(source_offset) AS first
    FROM audit FINAL {_OF_SESSION} AND audit_seq > 0 AND owner_service IS NOT NULL
    GROUP BY tenant_id, session_id, epoch
),
refusals AS
(
    SELECT source_partition, source_offset, reason FROM rejected FINAL {_OF_SESSION}
),
moments AS
(
    SELECT
        h.appended_at AS time, h.source_offset AS place, 0 AS part, h.service_id AS service, h.agent_id AS agent,
        h.event_type AS event_type, h.payload_json AS payload, ifNull(h.actor, '') AS actor, h.epoch AS epoch,
        r.reason AS refusal
    FROM (SELECT * FROM history FINAL {_OF_SESSION} AND event_type NOT IN ('heartbeat', 'tick')) AS h
    LEFT JOIN refusals AS r ON r.source_partition = h.source_partition AND r.source_offset = h.source_offset
    UNION ALL
    SELECT
        appended_at, source_offset, 1 + source_n, 'processor', '', event_type, toJSONString(map('reason', reason)), '',
        epoch, ''
    FROM audit FINAL {_OF_SESSION} AND kind = 'migration' AND migration_step != 'offered'
)
SELECT
    m.time AS time, m.service AS service, m.agent AS agent, m.event_type AS event_type, m.payload AS payload,
    m.actor AS actor, m.epoch AS epoch, m.refusal AS refusal, a.owner AS owner, a.epoch AS owner_epoch,
    b.epoch AS epoch_before
FROM (SELECT *, {{session:String}} AS of FROM moments) AS m
ASOF LEFT JOIN epochs AS a ON a.of = m.of AND m.place >= a.first
ASOF LEFT JOIN epochs AS b ON b.of = m.of AND m.place > b.first
ORDER BY m.place, m.part"""

OWNERS: Final = f"SELECT epoch, service_id, how, since, until FROM v_session_owners {_OF_SESSION} ORDER BY epoch"

MIGRATIONS: Final = f"""
SELECT from_service, to_service, step, reason_code, offered_at, freeze_ms, held_ms, epoch, released_at, migration_id
FROM v_migrations {_OF_SESSION} ORDER BY offered_at"""

WAITS: Final = f"""
SELECT question, answer, answered_by, said, wait_s, agent_id, asked_at, answered_at
FROM v_waits_for_people {_OF_SESSION} ORDER BY asked_at"""

TASKS: Final = f"""
SELECT t.agent_id AS agent_id, g.role AS role, g.service_id AS service_id, t.task AS task,
    countIf(t.is_completed) AS times_done, min(t.time) AS begun_at, max(t.time) AS done_at, anyLast(t.result) AS result
FROM (SELECT * FROM v_agent_tasks {_OF_SESSION} ORDER BY source_offset) AS t
LEFT JOIN (SELECT * FROM v_agents {_OF_SESSION}) AS g ON g.agent_id = t.agent_id
GROUP BY agent_id, role, service_id, task ORDER BY begun_at"""

HANDOVERS: Final = f"""
SELECT time, from_agent_id, to_agent_id, sync_type, from_snapshot
FROM v_handovers {_OF_SESSION} ORDER BY source_offset"""

# The view shows one owner of an epoch; the records would tell of a second one.
SHARED_EPOCHS: Final = f"""
SELECT count() AS epochs FROM
(
    SELECT epoch FROM audit FINAL {_OF_SESSION} AND audit_seq > 0 AND owner_service IS NOT NULL
    GROUP BY tenant_id, session_id, epoch HAVING uniqExact(owner_service) > 1
)"""

INTEGRITY: Final = "SELECT * FROM v_integrity ORDER BY fault, partition, first_offset"

# Sinks write in the log's order: with its end and both clean-ups, all of the session is there.
LANDED: Final = f"""
WITH
    (SELECT max(source_partition) FROM history {_OF_SESSION}) AS partition_of,
    (SELECT max(source_offset) FROM history {_OF_SESSION} AND event_type = 'resources_released') AS last
SELECT
    (SELECT uniqExact(source_offset) FROM history {_OF_SESSION}
        AND event_type IN ('session_terminated', 'resources_released')) = 3 AS history,
    (SELECT uniqExact(source_offset) FROM audit {_OF_SESSION}
        AND (kind = 'release' OR transition = 'T13')) = 3 AS audit,
    (SELECT uniqExact(source_offset) FROM rejected {_OF_SESSION})
        >= (SELECT uniqExact(source_offset) FROM audit {_OF_SESSION} AND kind = 'refusal') AS rejected,
    (SELECT max(last_offset) FROM batches WHERE partition = partition_of) >= toInt64(last) AS batches"""
