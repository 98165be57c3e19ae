"""The queries to ClickHouse about the demo's session."""

import json
import os
import sys
import time
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Final, NamedTuple

from sessionary.infra.clickhouse_client import ClickHouseClient, Json, Row
from sessionary.infra.control_api_client import ControlApiClient
from sessionary.infra.demo.wait import PipelineStatus, example_folder, lines_of, wait_for_line, wait_until_done
from sessionary.infra.environment import tenant_tokens
from sessionary.infra.local.errors import StartFailed
from sessionary.infra.local.process import Child, tail
from sessionary.infra.settings import OperatorSettings
from sessionary.schemas.errors import SettingsError, Unavailable
from sessionary.schemas.ids import new_session_id
from sessionary.schemas.settings import ENV_PREFIX, ClickHouseSettings

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
rejections AS
(
    SELECT source_partition, source_offset, reason FROM rejected FINAL {_OF_SESSION}
),
moments AS
(
    SELECT
        h.appended_at AS time, h.source_offset AS place, 0 AS part, h.service_id AS service, h.agent_id AS agent,
        h.event_type AS event_type, h.payload_json AS payload, ifNull(h.actor, '') AS actor, h.epoch AS epoch,
        r.reason AS rejection
    FROM (SELECT * FROM history FINAL {_OF_SESSION} AND event_type NOT IN ('heartbeat', 'tick')) AS h
    LEFT JOIN rejections AS r ON r.source_partition = h.source_partition AND r.source_offset = h.source_offset
    UNION ALL
    SELECT
        appended_at, source_offset, 1 + source_n, 'processor', '', event_type, toJSONString(map('reason', reason)), '',
        epoch, ''
    FROM audit FINAL {_OF_SESSION} AND kind = 'migration' AND migration_step != 'offered'
)
SELECT
    m.time AS time, m.service AS service, m.agent AS agent, m.event_type AS event_type, m.payload AS payload,
    m.actor AS actor, m.epoch AS epoch, m.rejection AS rejection, a.owner AS owner, a.epoch AS owner_epoch,
    b.epoch AS epoch_before
FROM (SELECT *, {{session:String}} AS of FROM moments) AS m
ASOF LEFT JOIN epochs AS a ON a.of = m.of AND m.place >= a.first
ASOF LEFT JOIN epochs AS b ON b.of = m.of AND m.place > b.first
ORDER BY m.place, m.part"""

OWNERS: Final = f"SELECT epoch, service_id, how, since, until FROM v_session_owners {_OF_SESSION} ORDER BY epoch"

MIGRATIONS: Final = f"""
SELECT from_service, to_service, step, reason_code, offered_at, silence_ms, held_ms, epoch, released_at, migration_id
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

# The view shows one owner of an epoch; the records would show a second one.
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
        >= (SELECT uniqExact(source_offset) FROM audit {_OF_SESSION} AND kind = 'rejection') AS rejected,
    (SELECT max(last_offset) FROM batches WHERE partition = partition_of) >= toInt64(last) AS batches"""


# The events of a session in order, and the faults that it must not have; pure.


# The former owner of a session confirms its clean-up in the epoch that it had.
_OF_ANY_EPOCH: Final = ("resources_released",)


_ANSWERS: Final = {True: "approved", False: "denied", None: "resumed"}


def _joined(what: str, why: str | None) -> str:
    return f"{what}: {why}" if why else what


def _task(payload: Mapping[str, Json]) -> str:
    return f"{payload['task']} {'finished' if payload['completed'] else 'begun'}"


_TEXTS: Final[Mapping[str, Callable[[Mapping[str, Json]], str]]] = {
    "agent_registered": lambda payload: f"{payload['role']} {payload['agent_id']} of {payload['service_id']}",
    "agent_task_updated": _task,
    "context_synced": lambda payload: f"{payload['from_agent_id']} to {payload['to_agent_id']}",
    "session_activity": lambda payload: f"{payload['kind']}",
    "session_migration_completed": lambda payload: f"{payload['reason']}",
    "session_migration_offered": lambda payload: _joined(f"to {payload['target_service']}", payload["reason"]),
    "session_migration_prepared": lambda payload: f"{payload['reason']}",
    "session_paused": lambda payload: f"{payload['question'] or payload['reason']}",
    "session_resumed": lambda payload: _joined(_ANSWERS[payload["approved"]], payload["message"]),
    "session_terminated": lambda payload: _joined(payload["reason"], payload["message"]),
    "state_updated": lambda payload: f"version {payload['new_version']}",
}


def tell_trail(rows: Iterable[Row]) -> list[Row]:
    """Return a line for each event and decision, in order; `rows` are those of `TRAIL`.

    A repetition of its service's last line is counted there, in `times`.
    """
    lines: list[Row] = []
    last: dict[str, Row] = {}
    for row in rows:
        describe = _TEXTS.get(row["event_type"])
        line: Row = {
            "service": row["service"],
            "agent": row["agent"],
            "actor": row["actor"],
            "event": row["event_type"],
            "what": describe(json.loads(row["payload"])) if describe else "",
            "rejection": row["rejection"],
            "owner": row["owner"],
            "owner_epoch": row["owner_epoch"],
        }
        before = last.get(row["service"])
        if before is not None and line == {name: before[name] for name in line}:
            before["times"] += 1
            continue
        last[row["service"]] = {"time": row["time"], **line, "times": 1}
        lines.append(last[row["service"]])
    return lines


def describe_line(line: Row) -> str:
    """Return a line of the trail as text for people: the event and its outcome."""
    text = ": ".join(filter(None, (line["event"], line["what"])))
    by = f", by {line['actor']}" if line["actor"] else ""
    return f"{text}{by}" + (f"; rejected: {line['rejection']}" if line["rejection"] else "")


def count_stale_events(rows: Iterable[Row], *, accepted: bool) -> int:
    """Return how many events spoke for an epoch that was over, and were accepted, or were rejected.

    `rows` are those of `TRAIL`.
    """
    return sum(
        row["epoch"] < row["epoch_before"] and accepted == (not row["rejection"])
        for row in rows
        if row["event_type"] not in _OF_ANY_EPOCH
    )


def owners_in_turn(owners: Sequence[Row]) -> list[str]:
    """Return the services that owned a session, in order; one of several epochs in a row once."""
    services = [row["service_id"] for row in owners]
    return [name for number, name in enumerate(services) if number == 0 or services[number - 1] != name]


# The history of a session that moved between services, from the rows in ClickHouse.


RIGHT: Final[Mapping[str, Json]] = {
    "owned_by": ["research", "payments", "shipping"],
    "epochs_with_two_owners": 0,
    "stale_events_accepted": 0,
    "approvals": 1,
    "migrations_completed": 1,
    "take_overs": 1,
    "tasks_done": 3,
    "tasks_done_twice": 0,
    "handovers_made": 2,
    "integrity_findings": 0,
}


class MigrationReport(NamedTuple):
    """The history of the session.

    `trail`: events of all services and decisions, in order. `owners`: the owner of each epoch.
    `migrations`, `waits`, `tasks` and `handovers`: the rows of the views. `integrity`: the rows of
    `v_integrity`. `figures`: numbers that must be right, see `faults`.
    """

    trail: list[Row]
    owners: list[Row]
    migrations: list[Row]
    waits: list[Row]
    tasks: list[Row]
    handovers: list[Row]
    integrity: list[Row]
    figures: dict[str, Json]

    @property
    def faults(self) -> dict[str, Json]:
        """The figures that are not as they must be."""
        return {name: self.figures[name] for name, value in RIGHT.items() if self.figures[name] != value}


def make_report(clickhouse: ClickHouseClient, tenant_id: str, session_id: str) -> MigrationReport:
    """Read the history of the session. Blocks. Raises as `ClickHouseClient` does."""
    moments, owners, migrations, waits, tasks, handovers, shared = (
        clickhouse.fetch_rows(statement, tenant=tenant_id, session=session_id)
        for statement in (
            TRAIL,
            OWNERS,
            MIGRATIONS,
            WAITS,
            TASKS,
            HANDOVERS,
            SHARED_EPOCHS,
        )
    )
    integrity = clickhouse.fetch_rows(INTEGRITY)
    silences = [row["silence_ms"] for row in migrations if row["step"] == "completed"]
    figures: dict[str, Json] = {
        "session_id": session_id,
        "owned_by": owners_in_turn(owners),
        "epochs": len(owners),
        "epochs_with_two_owners": shared[0]["epochs"],
        "stale_events_rejected": count_stale_events(moments, accepted=False),
        "stale_events_accepted": count_stale_events(moments, accepted=True),
        "approvals": sum(row["answer"] == "approved" for row in waits),
        "migrations_completed": len(silences),
        "silence_ms": silences[0] if silences else None,
        "take_overs": sum(row["how"] == "taken_over" for row in owners),
        "claims_rejected": sum(row["rejection"] == "owner_alive" for row in moments),
        "tasks_done": sum(row["times_done"] > 0 for row in tasks),
        "tasks_done_twice": sum(row["times_done"] > 1 for row in tasks),
        "handovers_made": len(handovers),
        "integrity_findings": len(integrity),
    }
    return MigrationReport(tell_trail(moments), owners, migrations, waits, tasks, handovers, integrity, figures)


# Three services own one session in turn: the first offers it, the second is killed.


TENANT: Final = "acme"
# In a kept stack, the group of payments waits for its killed member until Kafka gives that up.
_PATIENCE_S: Final = 180.0
_PAUSE_S: Final = 0.2
_STALL_S: Final = 60.0
_QUESTIONS_MAX: Final = 1_000
_APPROVAL: Final = "cheaper than last year"
Tell = Callable[[str], None]
EXAMPLE: Final = example_folder(Path(__file__), "moving_session")


class Services:
    """The example's processes, with their logs and spools in `folder`."""

    def __init__(self, folder: Path, environ: Mapping[str, str]) -> None:
        """`environ`: the variables of their clients."""
        self._folder = folder
        self._environ = {**os.environ, **environ, "PYTHONUNBUFFERED": "1"}

    @contextmanager
    def running(self, service: str, *arguments: str) -> Iterator[Child]:
        """Run a service inside the context; it is killed at the end if it still runs.

        Raises `StartFailed` if the example is not there.
        """
        program = EXAMPLE / "services.py"
        if not program.is_file():
            raise StartFailed(f"the example of a moving session is not there: {program}")
        argv = [sys.executable, str(program), service, *arguments]
        own = {ENV_PREFIX + "SPOOL_DIR": str(self._folder / f"spool-{service}")}
        child = Child(argv, self._folder / f"{service}.log", {**self._environ, **own})
        try:
            yield child
        finally:
            child.kill()


def play_migration(environ: Mapping[str, str], folder: Path, progress: Tell) -> MigrationReport:
    """Move a session from one service to the next two, and report. Blocks.

    `environ`: the stack's variables. `folder`: for logs and spools.

    Raises `SettingsError` if the stack has no token for the example's tenant, `StartFailed`,
    `Unavailable` if a process or the rows do not come in time, and as `ControlApiClient` and
    `ClickHouseClient` do.
    """
    token = tenant_tokens(environ).get(TENANT)
    if token is None:
        raise SettingsError(f"SESSIONARY_API_TOKENS has no token for {TENANT}")
    own_folder = folder / new_session_id()  # the stack's folder may have been kept
    services = Services(own_folder, {**environ, ENV_PREFIX + "API_TOKEN": token})
    operator = ControlApiClient(OperatorSettings.from_env(environ))
    session_id = _play(services, operator, progress)
    clickhouse = ClickHouseClient(ClickHouseSettings.from_env(environ))
    if not wait_until_done(lambda: _check_landed(clickhouse, session_id), _STALL_S, progress):
        raise Unavailable(f"ClickHouse lacks rows: {_check_landed(clickhouse, session_id).text}", 1.0)
    progress("reading the trail from ClickHouse")
    return make_report(clickhouse, TENANT, session_id)


def _play(services: Services, operator: ControlApiClient, progress: Tell) -> str:
    """Play the parts of the three services; return the session's id."""
    with services.running("payments") as payments:
        _await_line(payments, "accepts sessions")
        with services.running("research") as research:
            session_id = _await_line(research, "session ").removeprefix("session ")
            progress(f"began: research works on session {session_id}")
            question = _await_question(operator, research, session_id)
            progress(f"asked: research waits for a person: {question['question']}")
            answer = {"reason": _APPROVAL, "question_id": question["question_id"]}
            operator.act_on_session(session_id, TENANT, "approve", answer, str(uuid.uuid4()))
            progress("approved: by an operator, as sessionary question approve does")
            progress(f"planned: research {_await_line(research, 'moved to ')}")
            _await_line(payments, "waits for the bank")
            _await_end(research)
        payments.kill()
        progress("killed: payments, the owner, by SIGKILL, while it waited for its bank")
    with services.running("shipping", session_id) as shipping:
        progress("silent: shipping claims the session, until its owner counts as dead")
        progress(f"claimed: shipping {_await_line(shipping, 'claimed ')}")
        _await_end(shipping)
        progress("completed: by shipping")
    return session_id


def _await_line(service: Child, start: str) -> str:
    """Return the first line of a service with this beginning."""
    purpose = f"a line of the service: {start!r}"
    return wait_for_line(service, lambda line: line.startswith(start), purpose, _PATIENCE_S)


def _await_end(service: Child) -> None:
    """Wait until a service has ended by itself. Raises `Unavailable` if it does not end well."""
    if not service.wait(_PATIENCE_S) or service.exit_code != 0:
        raise Unavailable(f"a service did not end well: {lines_of(service)[-3:]}", 1.0)


def _await_question(operator: ControlApiClient, asking: Child, session_id: str) -> Row:
    """Return the open question of the session."""
    deadline = time.monotonic() + _PATIENCE_S
    while asking.exit_code is None and time.monotonic() < deadline:
        waiting, _ = operator.list_waiting(TENANT, _QUESTIONS_MAX)
        for row in waiting:
            if row["session_id"] == session_id:
                return row
        time.sleep(_PAUSE_S)
    raise Unavailable(f"the question to a person did not come; the log ends with: {tail(asking.log, 3)}", 1.0)


def _check_landed(clickhouse: ClickHouseClient, session_id: str) -> PipelineStatus:
    """Check that each table has all rows of the session."""
    row = clickhouse.fetch_one(LANDED, tenant=TENANT, session=session_id)
    missing = [name for name, is_there in row.items() if not is_there]
    return PipelineStatus(not missing, tuple(missing), f"waiting for rows: {', '.join(missing)}")
