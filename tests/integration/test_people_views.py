"""What analysts see of pauses and of waits for people."""

import time
from typing import Any

from sessionary.infra.clickhouse_client import ClickHouseClient
from sessionary.schemas.codec import encode_record
from sessionary.schemas.records import AuditRecord
from sessionary.schemas.settings import ClickHouseSettings
from sessionary.schemas.types import Limits
from tests.core.oracle_rig import OracleRig
from tests.support.clickhouse_rows import insert_block
from tests.support.event_factory import EventFactory

HOUR_MS = 3_600_000


class Story:
    """Sessions of a rig, an hour of log time ago, and their audit trail in ClickHouse."""

    def __init__(self) -> None:
        self.rig = OracleRig()
        self.rig.at = int(time.time()) * 1_000 - 24 * HOUR_MS
        self.hands = 0

    def start(self, name: str) -> EventFactory:
        agent = EventFactory(name, producer=name)
        self.rig.start(agent, limits=Limits(hold_ms=HOUR_MS))
        return agent

    def send(self, agent: EventFactory, event_type: str, **fields: Any) -> None:
        row = self.rig.row_of(agent)
        agent.epoch, agent.head = row.epoch, row.snapshot.snapshot_id
        assert self.rig.send(agent, event_type, **fields) == "applied"

    def act(self, agent: EventFactory, event_type: str, **fields: Any) -> None:
        self.hands += 1
        hand = EventFactory(service="control-api", producer=f"hand-{self.hands}")
        hand.key, hand.epoch = agent.key, self.rig.row_of(agent).epoch
        sent = self.rig.send(hand, event_type, {"actor": "alice"}, as_operator=True, **fields)
        assert sent == "applied"

    def store(self, clickhouse: ClickHouseSettings) -> None:
        lines = [line for outcome in self.rig.outcomes for _, line in outcome.records_on("audit")]
        assert all(isinstance(line, AuditRecord) for line in lines)
        records = [(line.appended_at, n, encode_record(line)) for n, line in enumerate(lines)]
        insert_block(clickhouse, "audit", records, "people")


def test_pauses_and_waits_have_their_length_snapshot_and_person(tables: ClickHouseSettings) -> None:
    client = ClickHouseClient(tables)
    story = Story()
    held, asked, late, open_ = (story.start(name) for name in ("held", "asked", "late", "open"))
    story.act(held, "session_paused", snapshot=None, reason="look at it")
    snapshot_id = story.rig.row_of(held).snapshot.snapshot_id
    story.send(asked, "session_paused", kind="review", reason="Deploy?", question="Deploy?")
    story.send(late, "session_paused", kind="review", reason="Pay?", question="Pay?", answer_ms=5_000)
    story.send(open_, "session_paused", kind="review", reason="And now?", question="And now?")
    locked = story.start("locked")
    story.send(locked, "session_paused", kind="review", reason="Sell?", question="Sell?", answer_ms=50_000)
    story.rig.advance(30_000)
    story.act(locked, "session_paused", snapshot=None, reason="wait")
    story.rig.advance(30_000)
    story.act(locked, "session_resumed", approved=False, message="not today")
    story.act(held, "session_resumed", message="go on")
    story.act(asked, "session_resumed", approved=True, message="fine")
    story.store(tables)
    names = "session_id, reason_code, actor, snapshot_id, ended_state, ended_reason_code, ended_by, length_s"
    pauses = {row["session_id"]: row for row in client.fetch_rows(f"SELECT {names} FROM v_pauses")}
    assert pauses[held.key.session_id] == {
        "session_id": held.key.session_id,
        "reason_code": "manual",
        "actor": "alice",
        "snapshot_id": snapshot_id,
        "ended_state": "Active",
        "ended_reason_code": "resumed",
        "ended_by": "alice",
        "length_s": 60.0,
    }
    assert pauses[open_.key.session_id]["ended_state"] == ""
    assert pauses[open_.key.session_id]["length_s"] > 3_600
    of_locked = f"SELECT {names} FROM v_pauses WHERE session_id = '{locked.key.session_id}' ORDER BY audit_seq"
    assert [[*row.values()][1:3] + [*row.values()][4:] for row in client.fetch_rows(of_locked)] == [
        ["review", None, "Active", "denied", "alice", 60.0],
        ["manual", "alice", "Active", "denied", "alice", 30.0],
    ]
    names = "session_id, question, answer, answered_by, said, wait_s"
    waits = {row["session_id"]: row for row in client.fetch_rows(f"SELECT {names} FROM v_waits_for_people")}
    assert waits.keys() == {each.key.session_id for each in (asked, late, open_, locked)}
    reported = {
        name: [*waits[agent.key.session_id].values()][1:]
        for name, agent in (("asked", asked), ("late", late), ("locked", locked))
    }
    assert reported == {
        "asked": ["Deploy?", "approved", "alice", "fine", 60.0],
        "late": ["Pay?", "expired", None, "Not answered within 5s: denied", 5.0],
        "locked": ["Sell?", "denied", "alice", "not today", 60.0],
    }
    assert waits[open_.key.session_id]["answer"] == "open"
    clocks = client.fetch_rows("SELECT clock, transition FROM v_deadlines WHERE transition = 'T05'")
    assert [[*row.values()] for row in clocks] == [["answer", "T05"]]
