"""The views number a run's events and a conversation's turns as the judge does."""

from typing import Any

import pytest

from sessionary.schemas.ids import message_key, run_key
from sessionary.schemas.limits import MESSAGE_CHARACTERS_MAX
from sessionary.schemas.records import FinishedRun, MessageState, RunState, SessionState
from sessionary.schemas.settings import ClickHouseSettings
from tests.support.aged_rows import AgedRows
from tests.support.event_factory import EventFactory
from tests.support.judged_rows import JudgedRows

IN_RUN = {"run_id": "r1"}


class SharedRun:
    """The run `r1` and the conversation of a session in which several writers take part."""

    def __init__(self, clickhouse: ClickHouseSettings) -> None:
        self.rows = AgedRows(clickhouse)
        self.log = JudgedRows(self.rows)
        self.first, self.second, self.third = (EventFactory(producer=name) for name in "pqr")
        self.key = self.first.key.encoded()
        self.counted: list[tuple[int, int]] = []  # number in the run, offset
        self.log.start(self.first)

    def append(self, value: bytes, *, replayed: bool = False) -> str:
        """Judge a record; note the place that the judge gives it in the run."""
        before = self._run_seq()
        outcome = self.log.append(self.key, value, replayed=replayed)
        if (seq := self._run_seq()) != before:
            self.counted.append((seq, self.log.judge.next_offset(0) - 1))
        return outcome

    def send(self, agent: EventFactory, event_type: str, envelope: dict[str, Any] | None = None, **fields: Any) -> str:
        return self.append(agent.event_bytes(event_type, envelope, **fields))

    def message(self, agent: EventFactory, name: str, **envelope: Any) -> bytes:
        return agent.event_bytes("message_appended", envelope, role="user", name=name, content="x", artifact_id=None)

    def _run_seq(self) -> int:
        row = self.log.judge.find_child(0, run_key(*self.first.key, "r1"))
        return row.run_seq if isinstance(row, RunState | FinishedRun) else 0

    def turns(self) -> list[tuple[int, str | None]]:
        """Return number and name of each turn, as the judge has them."""
        count = self.log.judge.find_row(0, self.key).turns  # type: ignore[union-attr]
        rows = [self.log.judge.find_child(0, message_key(self.key, turn)) for turn in range(1, count + 1)]
        return [(row.turn, row.name) for row in rows if isinstance(row, MessageState)]

    def ask(self, sql: str) -> list[tuple[Any, ...]]:
        return self.rows.fetch_values(sql)


@pytest.fixture
def shared(tables: ClickHouseSettings) -> SharedRun:
    return SharedRun(tables)


def test_a_run_s_events_have_the_places_that_the_judge_gives_them(shared: SharedRun) -> None:
    """From 1 without gap: three writers, events that no run counts, rejected and repeated ones."""
    first, second, third = shared.first, shared.second, shared.third
    assert shared.send(first, "run_started", IN_RUN, mode="detached") == "applied"
    assert shared.send(second, "run_running", IN_RUN, progress=0.1) == "applied"
    # The session's own events name the run that they are sent in; it counts none of them.
    assert shared.send(first, "state_updated", IN_RUN) == "applied"
    assert shared.send(first, "session_activity", IN_RUN) == "applied"
    step = second.event_bytes("step_started", IN_RUN, name="a", attempt=1)
    assert [shared.append(step), shared.append(step)] == ["applied", "duplicate"]
    # What is delivered again after its rejection is a duplicate: it was judged.
    rejected = second.event_bytes("run_running", IN_RUN, progress=2.0)
    assert [shared.append(rejected), shared.append(rejected)] == ["invalid_value", "duplicate"]
    assert shared.append(rejected, replayed=True) == "duplicate"
    # An event that comes into its gap is applied, but to no run.
    lost = third.event_bytes("usage_recorded", IN_RUN)
    assert shared.append(shared.message(third, "m1", **IN_RUN)) == "applied"
    assert [shared.append(lost), shared.append(lost, replayed=True)] == ["late_filler", "applied"]
    assert shared.send(third, "run_running", {"run_id": "r2"}, progress=0.2) == "unknown_run"
    assert shared.send(first, "run_completed", IN_RUN) == "applied"
    shared.log.land()
    found = shared.ask("SELECT seq, source_offset FROM v_run_events WHERE seq IS NOT NULL ORDER BY seq")
    assert found == shared.counted
    assert [seq for seq, _ in found] == [1, 2, 3, 4, 5]
    assert shared.ask("SELECT event_type FROM v_run_events WHERE run_id = 'r1' AND seq IS NULL ORDER BY 1") == [
        ("session_activity",),
        ("state_updated",),
    ]


def test_turns_have_the_numbers_that_the_judge_gives_them(shared: SharedRun) -> None:
    first, second, third = shared.first, shared.second, shared.third
    for agent, name in ((first, "a"), (second, "b"), (first, "c")):
        assert shared.append(shared.message(agent, name)) == "applied"
    again = shared.message(second, "d")
    assert [shared.append(again), shared.append(again)] == ["applied", "duplicate"]
    rejected = second.event_bytes("message_appended", content="x" * (MESSAGE_CHARACTERS_MAX + 1), name="long")
    assert [shared.append(rejected), shared.append(rejected)] == ["invalid_value", "duplicate"]
    unknown = shared.message(second, "e", run_id="none")
    assert [shared.append(unknown), shared.append(unknown, replayed=True)] == ["unknown_run", "duplicate"]
    # A message that comes into its gap is the next turn.
    lost = shared.message(third, "lost")
    assert shared.append(shared.message(third, "f")) == "applied"
    assert [shared.append(lost), shared.append(lost, replayed=True)] == ["late_filler", "applied"]
    assert shared.append(lost, replayed=True) == "duplicate"
    assert shared.append(shared.message(first, "g")) == "applied"
    shared.log.land()
    found = shared.ask("SELECT turn, name FROM v_messages ORDER BY turn")
    assert found == shared.turns() == list(enumerate(("a", "b", "c", "d", "f", "lost", "g"), 1))
    assert shared.ask("SELECT turns FROM v_sessions") == [(len(found),)]


def test_a_forged_record_of_another_session_hides_no_event(shared: SharedRun) -> None:
    """A record under another session's key names this one, and its client's next number."""
    stranger = EventFactory("other", "evil")
    shared.log.start(stranger)
    ahead = {"producer_seq": shared.first.seq + 1}
    forged = shared.first.event_bytes("message_appended", ahead, content="x", name="forged")
    assert shared.log.append(stranger.key.encoded(), forged) == "foreign_tenant"
    assert shared.append(shared.message(shared.first, "real")) == "applied"
    shared.log.land()
    assert shared.ask("SELECT turn, name FROM v_messages") == [(1, "real")]
    assert shared.ask(f"SELECT turns FROM v_sessions WHERE session_id = '{shared.first.key.session_id}'") == [(1,)]


def test_a_rejected_call_counts_nowhere_also_if_it_is_delivered_again(shared: SharedRun) -> None:
    first, third = shared.first, shared.third
    assert shared.send(first, "usage_recorded", model="large") == "applied"
    too_little = first.event_bytes("usage_recorded", model="large", tokens_in=-1)
    assert [shared.append(too_little), shared.append(too_little)] == ["invalid_value", "duplicate"]
    foreign = first.event_bytes("tool_call_started", {"run_id": "none"})
    assert [shared.append(foreign), shared.append(foreign)] == ["unknown_run", "duplicate"]
    assert shared.send(first, "tool_call_started") == "applied"
    # The number of what came too late is still free: sent again into its gap, it counts.
    lost = third.event_bytes("usage_recorded", model="small")
    assert shared.append(shared.message(third, "m1")) == "applied"
    assert [shared.append(lost), shared.append(lost, replayed=True)] == ["late_filler", "applied"]
    shared.log.land()
    assert shared.ask("SELECT model, calls FROM v_usage_by ORDER BY model") == [("large", 1), ("small", 1)]
    assert shared.ask("SELECT sum(calls) AS n FROM v_usage") == [(2,)]
    assert shared.ask("SELECT sum(calls) AS n FROM v_calls_per_minute") == [(1,)]


def test_a_rejected_update_that_is_delivered_again_is_no_version_of_the_session(shared: SharedRun) -> None:
    first = shared.first
    assert shared.send(first, "state_updated", state_json='{"n":1}') == "applied"
    ahead = first.event_bytes("state_updated", base_version=7, new_version=8, state_json=f'"{"x" * 500}"')
    assert [shared.append(ahead), shared.append(ahead)] == ["version_conflict", "duplicate"]
    row = shared.log.judge.find_row(0, shared.key)
    assert isinstance(row, SessionState)
    shared.log.land()
    assert shared.ask("SELECT version FROM v_sessions") == [(row.version,)] == [(2,)]
    assert shared.ask("SELECT bytes FROM v_stored_bytes WHERE layer = 'state'") == [(len(row.state_json),)]
