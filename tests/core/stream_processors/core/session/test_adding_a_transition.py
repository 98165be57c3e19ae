"""A transition is one value in one table: a copy of the table with one more changes nothing else.

The new one: a session that is paused can fail. Its owner says so, or nothing is decided for 6 s.
"""

from typing import Any

import pytest

from docs.build.transition_diagram import state_diagram, transition_table
from sessionary.schemas.codec import Decoder
from sessionary.schemas.events import SessionErrored
from sessionary.schemas.records import AuditRecord, SessionState
from sessionary.schemas.types import ErrorInfo
from sessionary.stream_processors.core.committed import PartitionSettings
from sessionary.stream_processors.core.families import CHILDREN
from sessionary.stream_processors.core.model import BatchResult, LogRecord
from sessionary.stream_processors.core.partition import PartitionState
from sessionary.stream_processors.core.session.clocks import SessionClock
from sessionary.stream_processors.core.session.judge import SessionJudge
from sessionary.stream_processors.core.session.transitions import (
    TRANSITIONS,
    CleanupPlan,
    Grounds,
    Objection,
    Transition,
    clock_reasons,
    processor_only,
)
from tests.support.event_factory import TICK, EventFactory

STALL_MS = 6_000
START_MS = 1_700_000_000_000
RETRYABLE, FATAL = ErrorInfo("retryable", "host_lost", "gone"), ErrorInfo("fatal", "host_lost", "gone")


def _stall_due(state: SessionState) -> int:
    return state.entered_at + STALL_MS


def _stall_limit(state: SessionState) -> int:
    return STALL_MS


def _fail_paused(state: SessionState, payload: SessionErrored, now_ms: int) -> Grounds | Objection:
    if payload.error.error_class != "retryable":
        return Objection("not_retryable", "a paused session fails with a retryable error")
    return Grounds(payload.error.code, payload.error.message, error_class=payload.error.error_class)


def _restart_duration(state: SessionState, now_ms: int) -> SessionState:
    """While a session is paused, `max_due_at` is what remains of its duration."""
    return state._replace(max_due_at=now_ms + (state.max_due_at or 0), epoch=state.epoch + 1)


STALL = SessionClock("hold", _stall_due, _stall_limit, "stalled", "Nothing was decided within {limit}")
FAILURE = Transition(
    "T15",
    "Paused",
    "session_errored",
    "Error",
    "logging",
    "either",
    guard=_fail_paused,
    effect=_restart_duration,
    clocks=(STALL,),
    cleanup=CleanupPlan(("exception_cleanup", "mark_closed"), {"stalled": ("memory_cleanup",)}),
)
TABLE = (*TRANSITIONS, FAILURE)


class PausedSession:
    """A partition whose only session is paused, folded with a table of transitions."""

    def __init__(self, transitions: tuple[Transition, ...]) -> None:
        judge = SessionJudge(CHILDREN, transitions)
        self.state = PartitionState(0, PartitionSettings("sessionary.events", 1), Decoder(), judge)
        self.state.finish_loading()
        self.agent = EventFactory()
        self.at_ms, self.offset = START_MS, 0
        self.send("session_created")
        self.send("session_phase_changed", phase="validating")
        self.send("session_phase_changed", phase="connecting")
        self.send("session_started")
        assert self.send("session_paused").counts.applied == 1
        self.remaining_ms = self.row.max_due_at or 0

    @property
    def row(self) -> SessionState:
        row = self.state.rows[self.agent.key.encoded()]
        assert isinstance(row, SessionState)
        return row

    def send(self, event_type: str, **fields: Any) -> BatchResult:
        outcome = self._append(self.agent.key.encoded(), self.agent.event_bytes(event_type, **fields))
        self.agent.head = self.row.snapshot.snapshot_id
        return outcome

    def wait_ms(self, ms: int) -> BatchResult:
        """Let a time pass that is no outage, with a tick at its end."""
        self.at_ms += ms
        return self._append(None, TICK)

    def _append(self, key: bytes | None, value: bytes) -> BatchResult:
        batch = self.state.begin()
        assert batch.apply(LogRecord(self.offset, self.at_ms, key, value))
        outcome = batch.finish()
        self.state.merge(batch)
        self.offset += 1
        return outcome


def only_audit(outcome: BatchResult) -> AuditRecord:
    ((_, record),) = outcome.records_on("audit")
    assert isinstance(record, AuditRecord)
    return record


def test_without_the_new_value_the_event_is_illegal_and_no_clock_fires() -> None:
    session = PausedSession(TRANSITIONS)
    outcome = session.send("session_errored", error=RETRYABLE)
    assert list(outcome.rejections) == ["illegal_transition"]
    session.wait_ms(4_000)
    assert session.wait_ms(4_000).counts.timers == 0
    assert session.row.state == "Paused"


def test_its_guard_rejects_and_says_why() -> None:
    session = PausedSession(TABLE)
    outcome = session.send("session_errored", error=FATAL)
    assert list(outcome.rejections) == ["not_retryable"]
    record = only_audit(outcome)
    assert (record.kind, record.reason) == ("rejection", "a paused session fails with a retryable error")
    assert session.row.state == "Paused"


def test_its_event_moves_the_session_and_leaves_its_trail() -> None:
    session = PausedSession(TABLE)
    number = session.row.audit_seq
    outcome = session.send("session_errored", error=RETRYABLE)
    row, record = session.row, only_audit(outcome)
    assert outcome.counts.applied == 1
    assert (row.state, row.phase, row.reason_code, row.error_class) == ("Error", "logging", "host_lost", "retryable")
    assert (row.epoch, row.max_due_at) == (2, session.at_ms + session.remaining_ms)  # its effect
    assert (record.kind, record.transition, record.event_type) == ("transition", "T15", "session_errored")
    assert (record.from_state, record.to_state) == ("Paused", "Error")
    assert (record.reason_code, record.reason, record.due_at) == ("host_lost", "gone", None)
    assert record.audit_seq == number + 1
    ((key, request),) = outcome.records_on("cleanup")
    assert (key, request.reason_code, request.epoch) == (session.agent.key.encoded(), "host_lost", 2)
    assert request.actions == record.cleanup_actions == ("exception_cleanup", "mark_closed")
    assert request.cleanup_id == record.cleanup_id == row.cleanups[-1].cleanup_id


def test_its_clock_fires_it_with_the_clock_s_reason_and_clean_up() -> None:
    session = PausedSession(TABLE)
    due_ms = session.at_ms + STALL_MS
    assert session.state.next_deadline_ms == due_ms
    assert session.wait_ms(STALL_MS - 2_000).counts.timers == 0
    outcome = session.wait_ms(2_000)
    record = only_audit(outcome)
    assert outcome.counts.timers == 1
    assert (record.transition, record.reason_code) == ("T15", "stalled")
    assert record.reason == "Nothing was decided within 6s"
    assert (record.due_at, record.fired_at) == (due_ms * 1000, session.at_ms * 1000)
    assert (session.row.state, session.row.epoch) == ("Error", 2)
    ((_, request),) = outcome.records_on("cleanup")
    assert request.actions == ("memory_cleanup",)


def test_the_states_after_it_go_on_as_before() -> None:
    session = PausedSession(TABLE)
    session.send("session_errored", error=RETRYABLE)
    session.agent.epoch = 2
    session.send("session_phase_changed", phase="recovery")
    record = only_audit(session.send("session_recovered"))
    assert (record.transition, record.to_state, record.epoch) == ("T11", "Active", 3)


def test_a_client_may_send_it_and_no_other_rule_of_senders_changes() -> None:
    assert processor_only(TABLE) == processor_only(TRANSITIONS)
    assert clock_reasons(TABLE) == clock_reasons(TRANSITIONS) | {"session_errored": frozenset({"stalled"})}


def test_the_diagram_and_the_table_draw_it() -> None:
    arrow = "    Paused --> Error: T15 session_errored (or by a clock)"
    diagram = state_diagram(TABLE).splitlines()
    assert arrow in diagram
    assert [line for line in diagram if line != arrow] == state_diagram().splitlines()
    *before, row = transition_table(TABLE).splitlines()
    assert before == transition_table().splitlines()
    cells = [cell.strip() for cell in row.strip("|").split("|")]
    assert cells == [
        "T15",
        "Paused",
        "`session_errored`",
        "Error (logging)",
        "client or processor",
        "-",
        "hold (`stalled`)",
        "exception_cleanup, mark_closed; after `stalled`: memory_cleanup",
    ]


@pytest.mark.parametrize("transitions", [TRANSITIONS[1:], (*TRANSITIONS, TRANSITIONS[0])])
def test_a_table_creates_a_session_in_exactly_one_way(transitions: tuple[Transition, ...]) -> None:
    with pytest.raises(ValueError, match="values to unpack"):
        SessionJudge(CHILDREN, transitions)
