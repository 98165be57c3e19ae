"""How a batch takes rows that begin, change their kind and go, with a scripted judge."""

from collections.abc import Sequence
from typing import NamedTuple

from sessionary.schemas.codec import Decoder
from sessionary.schemas.types import ClockRepair, RuleSet
from sessionary.stream_processors.core.committed import PartitionSettings
from sessionary.stream_processors.core.families import SESSION_JUDGE
from sessionary.stream_processors.core.judge import Arrival
from sessionary.stream_processors.core.model import (
    BatchResult,
    Decision,
    Emitted,
    EventLog,
    LogRecord,
    OutputCause,
    RowLookup,
    Stream,
)
from sessionary.stream_processors.core.partition import PartitionState
from sessionary.stream_processors.core.rows import AnyRows, RowKind
from tests.support.event_factory import TICK, EventFactory

START_MS = 1_700_000_000_000
DUE_MS = START_MS + 100


class LiveRow(NamedTuple):
    """A row that fires when it is due."""

    tenant_id: str
    session_id: str
    due_at: int


class RestingRow(NamedTuple):
    """A row that vanishes when it is due."""

    tenant_id: str
    session_id: str
    due_at: int


ScriptedRow = LiveRow | RestingRow


class RowSet(NamedTuple):
    """The row is replaced; None removes it."""

    row: ScriptedRow | None


def encode_row(row: ScriptedRow, _rules: int) -> bytes:
    return repr(row).encode()


class ScriptedJudge:
    """Implements `Judge` and `Rows`: an event sets the next row; a live row that fires goes."""

    def __init__(self, script: Sequence[ScriptedRow | None]) -> None:
        self.script = list(script)
        self.kinds = (
            RowKind(LiveRow, live=True, prefixes=frozenset({b"LiveRow"}), encode=encode_row),
            RowKind(RestingRow, live=False, prefixes=frozenset({b"RestingRow"}), encode=encode_row),
        )
        self.families: Sequence[AnyRows] = (self,)
        self.streams: frozenset[Stream] = frozenset()
        self.reported_facts: frozenset[type[object]] = frozenset()

    def read(
        self,
        record: LogRecord,
        row: object,
        decoder: Decoder,
        log: EventLog,
        now_ms: int,
        rules: RuleSet,
        outage_end_ms: int = 0,
    ) -> Arrival | None:
        return SESSION_JUDGE.read(record, None, decoder, log, now_ms, rules, outage_end_ms)

    def decode(self, value: bytes) -> ScriptedRow:
        raise NotImplementedError("these tests read no changelog")

    def decide(self, row: ScriptedRow | None, arrival: Arrival, rows: RowLookup) -> Decision:
        return Decision((RowSet(self.script.pop(0)),))

    def evolve(self, row: ScriptedRow | None, fact: RowSet) -> ScriptedRow | None:
        return fact.row

    def report(
        self,
        key: bytes,
        row: ScriptedRow | None,
        after: ScriptedRow | None,
        fact: RowSet,
        arrival: Arrival | None,
        cause: OutputCause,
    ) -> Sequence[Emitted]:
        raise NotImplementedError("no fact is reported")

    def estimate_bytes(self, row: ScriptedRow) -> int:
        return 100

    def due_ms(self, row: ScriptedRow, outage_end_ms: int = 0) -> int:
        return row.due_at

    def repair_times(self, row: ScriptedRow, repairs: Sequence[ClockRepair]) -> ScriptedRow:
        return row

    def is_only_postponed(self, row: ScriptedRow, after: ScriptedRow) -> bool:
        return False

    def fire(self, key: bytes, row: ScriptedRow, rows: RowLookup, now_ms: int, outage_end_ms: int = 0) -> Decision:
        return Decision((RowSet(None),))


AGENT = EventFactory()
KEY = AGENT.key.encoded()
LIVE, RESTING = LiveRow(*AGENT.key, DUE_MS), RestingRow(*AGENT.key, DUE_MS)


def fold_script(*script: ScriptedRow | None) -> PartitionState:
    """Return the state after one event for each row of the script, each in a batch of its own."""
    state = PartitionState(0, PartitionSettings("t", 1), Decoder(), ScriptedJudge(script))
    state.finish_loading()
    for n in range(len(script)):
        fold_record(state, LogRecord(n, START_MS, KEY, AGENT.event_bytes("heartbeat")))
    return state


def fold_record(state: PartitionState, record: LogRecord) -> BatchResult:
    uncommitted = state.begin()
    assert uncommitted.apply(record)
    outcome = uncommitted.finish()
    state.merge(uncommitted)
    return outcome


def pass_deadline(state: PartitionState) -> BatchResult:
    return fold_record(state, LogRecord(state.position.next_offset, DUE_MS, None, TICK))


def test_a_row_may_begin_at_rest_and_vanishes_when_it_is_due() -> None:
    state = fold_script(RESTING)
    assert (state.live, state.next_deadline_ms) == (0, None)
    assert pass_deadline(state).rows == {KEY: None}
    assert not state.rows


def test_a_row_at_rest_is_noted_once_however_often_it_changes() -> None:
    state = fold_script(RESTING, RESTING._replace(due_at=DUE_MS), RESTING._replace(due_at=DUE_MS))
    assert (state.expiries, state.unpacked_expiries) == ([], [(DUE_MS, KEY)])  # its kind is never packed


def test_a_live_row_that_an_event_removes_is_gone_at_once_and_fires_no_more() -> None:
    state = fold_script(LIVE, None)
    assert (dict(state.rows), state.live, state.unpacked_expiries) == ({}, 0, [])
    assert pass_deadline(state).counts.timers == 0


def test_a_row_at_rest_that_an_event_removes_is_gone_before_it_is_due() -> None:
    state = fold_script(RESTING, None)
    assert not state.rows
    assert not pass_deadline(state).rows


def test_a_row_that_lives_again_fires_and_does_not_vanish() -> None:
    state = fold_script(RESTING, LIVE)
    assert state.live == 1
    outcome = pass_deadline(state)
    assert (outcome.counts.timers, outcome.rows) == (1, {KEY: None})
    assert state.live == 0


def test_a_live_row_that_comes_to_rest_vanishes_when_it_is_due() -> None:
    state = fold_script(LIVE, RESTING)
    assert (state.live, state.unpacked_expiries) == (0, [(DUE_MS, KEY)])
    assert pass_deadline(state).counts.timers == 0
    assert not state.rows
