"""What analysts see of sessions that move between services."""

import time
from typing import Any

import pytest

from sessionary.infra.cli.commands.operators.moves import _await_ends
from sessionary.infra.clickhouse_client import ClickHouseClient
from sessionary.schemas.ids import content_hash
from sessionary.schemas.settings import ClickHouseSettings
from tests.core.fold_rig import FoldRig
from tests.support.aged_rows import AgedRows
from tests.support.clickhouse_rows import insert_block
from tests.support.event_factory import EventFactory

TARGET = "shipping"
TABLES = {"sessionary.audit": "audit", "sessionary.rejected": "rejected"}


class JudgedRows:
    """Judges events, and inserts them with all that the judge writes; one second apart."""

    def __init__(self, clickhouse: ClickHouseSettings) -> None:
        self.rows, self.rig = AgedRows(clickhouse), FoldRig()
        self.rig.at = self.rows.at_us(1) // 1_000
        self.owner = EventFactory(service="billing")
        self.target = EventFactory(service=TARGET, producer="q")
        self.records: dict[Any, list[tuple[int, int, bytes]]] = {"history": [], "audit": [], "rejected": []}
        begin: tuple[tuple[str, dict[str, Any]], ...] = (
            ("session_created", {}),
            ("session_phase_changed", {"phase": "validating"}),
            ("session_phase_changed", {"phase": "connecting"}),
            ("session_started", {}),
        )
        for event_type, fields in begin:
            self.send(self.owner, event_type, **fields)

    def send(self, agent: EventFactory, event_type: str, envelope: dict[str, Any] | None = None, **fields: Any) -> str:
        """Judge an event; its agent knows the epoch of the session unless `envelope` says one."""
        row = self.rig.fold.rows.get(self.owner.key.encoded())
        if row is not None:
            agent.epoch, agent.head = row.epoch, row.snapshot.snapshot_id
        self.rig.at += 1_000
        offset, value = self.rig.offset, agent.event_bytes(event_type, envelope, **fields)
        outcome = self.rig.append(agent.key.encoded(), value)
        self.records["history"].append((self.rig.at * 1_000, offset, value))
        for topic, _, written, _ in self.rig.written:
            if topic in TABLES and written is not None:
                found = self.records[TABLES[topic]]
                found.append((self.rig.at * 1_000, len(found), written))
        return outcome

    def migrate(self, name: str = "m1") -> None:
        for agent, step in ((self.owner, "offered"), (self.target, "loaded")):
            assert self.send(agent, f"session_migration_{step}", migration_id=name) == "applied"
        row = self.rig.row_of(self.owner)
        same = {"version": row.version, "content_hash": content_hash(row.state_json)}
        fields: dict[str, Any] = {"migration_id": name, "target_service": TARGET, **same}
        assert self.send(self.target, "session_migration_accepted", **fields) == "applied"

    def insert(self, token: str = "judged") -> None:
        for kind in ("history", "audit", "rejected"):
            insert_block(self.rows.clickhouse, kind, self.records[kind], f"{token} {kind}")

    def ask(self, sql: str) -> list[tuple[Any, ...]]:
        return self.rows.fetch_values(sql)


@pytest.fixture
def judged(tables: ClickHouseSettings) -> JudgedRows:
    return JudgedRows(tables)


def test_a_migration_is_one_row_with_its_freeze_and_its_clean_up(judged: JudgedRows) -> None:
    assert judged.send(judged.owner, "session_activity") == "applied"
    judged.migrate()
    assert judged.send(judged.owner, "session_activity", {"epoch": 1}) == "rejected stale_epoch"
    assert judged.send(judged.target, "session_activity") == "applied"
    cleanup = judged.rig.row_of(judged.owner).cleanups[-1].cleanup_id
    assert judged.send(judged.owner, "resources_released", cleanup_id=cleanup) == "applied"
    judged.insert()
    columns = "from_service, to_service, step, reason_code, epoch, held_ms, silence_ms"
    # Activity, three steps, a rejected event, activity: a second between each two.
    assert judged.ask(f"SELECT {columns} FROM v_migrations") == [
        ("billing", TARGET, "completed", "migrated", 2, 1_000, 5_000)
    ]
    times = "dateDiff('second', offered_at, prepared_at), dateDiff('second', prepared_at, ended_at)"
    assert judged.ask(f"SELECT {times}, dateDiff('second', ended_at, released_at) FROM v_migrations") == [(1, 1, 3)]
    for view in ("v_uncleaned", "v_cleanups", "v_timeouts"):  # no clock asked for this clean-up
        assert judged.ask(f"SELECT count() FROM {view}") == [(0,)], view
    assert judged.ask("SELECT timed_out, reclaimed, reclaim_rate FROM v_kpi") == [(0, 0, None)]


def test_a_command_that_waits_finds_the_ends_of_its_migrations(judged: JudgedRows) -> None:
    assert judged.send(judged.owner, "session_migration_offered", migration_id="m0") == "applied"
    assert judged.send(judged.owner, "session_migration_aborted", migration_id="m0") == "applied"
    judged.migrate("m1")
    judged.send(judged.target, "session_migration_offered", migration_id="m2", target_service="billing")
    judged.insert()
    judged.insert("again")  # a row that is stored twice is one
    reported: list[int] = []
    two_days_ago_s = time.monotonic() - 2 * 86_400
    source = ClickHouseClient(judged.rows.clickhouse)
    found = _await_ends(source, TARGET, ["m1", "m0"], two_days_ago_s, 0.0, reported.append)
    assert [(row["migration_id"], row["step"], row["reason_code"]) for row in found] == [
        ("m1", "completed", "migrated"),
        ("m0", "aborted", "called_off"),
    ]
    assert reported == []


def test_owners_follow_each_other_without_a_gap(judged: JudgedRows) -> None:
    judged.migrate()
    assert judged.send(judged.target, "session_taken_over") == "applied"
    judged.insert()
    found = judged.ask("SELECT epoch, service_id, how, until IS NULL FROM v_session_owners ORDER BY epoch")
    assert found == [
        (1, "billing", "created", 0),
        (2, TARGET, "migrated", 0),
        (3, TARGET, "taken_over", 1),
    ]
    gaps = (
        "SELECT count() FROM v_session_owners AS a JOIN v_session_owners AS b ON b.epoch = a.epoch + 1 "
        "WHERE a.until != b.since"
    )
    assert judged.ask(gaps) == [(0,)]


def test_a_migration_whose_time_is_over_is_aborted_and_a_deadline(judged: JudgedRows) -> None:
    for agent, step in ((judged.owner, "offered"), (judged.target, "loaded")):
        fields: dict[str, Any] = {"ttl_ms": 3_000} if step == "offered" else {}
        assert judged.send(agent, f"session_migration_{step}", **fields) == "applied"
    for _ in range(3):
        judged.send(judged.owner, "heartbeat")
    judged.insert()
    assert judged.ask("SELECT step, reason_code, silence_ms FROM v_migrations") == [("aborted", "expired", None)]
    assert judged.ask("SELECT clock, transition, to_state FROM v_deadlines") == [("migration", "T05", "Active")]


def test_who_wrote_to_a_session_of_another_service(judged: JudgedRows) -> None:
    judged.migrate()
    for _ in range(2):
        assert judged.send(judged.owner, "session_activity", {"epoch": 1}) == "rejected stale_epoch"
    assert judged.send(judged.owner, "session_paused") == "rejected not_owner"
    judged.insert()
    found = judged.ask("SELECT service_id, reason, events FROM v_foreign_writers ORDER BY reason")
    assert found == [("billing", "not_owner", 1), ("billing", "stale_epoch", 2)]


def test_calls_that_ran_when_their_session_was_held(judged: JudgedRows) -> None:
    def call(name: str, event_type: str, **fields: Any) -> str:
        marks = {"tool_call_id": f"id-{name}", "idem_key": name, "tool_name": "book", "try_number": 1, **fields}
        return judged.send(judged.owner, event_type, **marks)

    for name, limit_ms in (("early", 60_000), ("during", 60_000), ("lost", 6_000)):
        assert call(name, "tool_call_started", limit_ms=limit_ms) == "applied"
    assert call("early", "tool_call_succeeded") == "applied"
    for agent, step in ((judged.owner, "offered"), (judged.target, "loaded")):
        assert judged.send(agent, f"session_migration_{step}", migration_id="m1") == "applied"
    assert call("during", "tool_call_succeeded") == "applied"
    assert call("late", "tool_call_started") == "rejected illegal_transition"
    row = judged.rig.row_of(judged.owner)
    same = {"version": row.version, "content_hash": content_hash(row.state_json)}
    accepted: dict[str, Any] = {"migration_id": "m1", "target_service": TARGET, **same}
    assert judged.send(judged.target, "session_migration_accepted", **accepted) == "applied"
    for _ in range(3):
        assert judged.send(judged.target, "session_activity") == "applied"
    judged.insert()
    columns = "migration_id, idem_key, tool_name, state, ended_at IS NULL, dateDiff('second', started_at, time)"
    assert judged.ask(f"SELECT {columns} FROM v_migration_calls ORDER BY idem_key") == [
        ("m1", "during", "book", "succeeded", 0, 4),
        ("m1", "lost", "book", "unknown", 0, 3),
    ]
