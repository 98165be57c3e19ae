"""The machine of runs: rows of open runs, and of finished ones until they vanish.

It decides on no event: the session's machine does (`judge`).
"""

from collections.abc import Sequence
from typing import Any, Final, NamedTuple

from sessionary.schemas.codec import encode_record, record_headers
from sessionary.schemas.ids import run_key
from sessionary.schemas.records import FinishedRun, RunContent, RunGravestone, RunState
from sessionary.schemas.types import ClockRepair, ErrorInfo, RunMode, RunStateName
from sessionary.stream_processors.core.dependants.machine import DependantMachine
from sessionary.stream_processors.core.dependants.row_size import content_parts
from sessionary.stream_processors.core.gravestones.chunk_index import DAY_MS
from sessionary.stream_processors.core.machine import Arrival, ForRow, RowKind
from sessionary.stream_processors.core.model import Emitted, Place, Stream
from sessionary.stream_processors.core.run.claims import (
    claim_notice,
    receive_verdict,
    released_claim,
    tell_session,
    with_claim,
)
from sessionary.stream_processors.core.run.clocks import attached_since_ms, repair_run_times, run_deadline, run_due_ms
from sessionary.stream_processors.core.run.effects import apply_run_fact
from sessionary.stream_processors.core.run.facts import (
    CallsCounted,
    CallSettled,
    CallUnresolved,
    ClaimDecided,
    ClaimMoved,
    ReceivedFact,
    RunChanged,
    RunFact,
    RunGivenUp,
    RunHeld,
    RunReleased,
    SessionEnded,
    SessionTimedOut,
)
from sessionary.stream_processors.core.run.transitions import AT_WORK, RunRow

_CONTENT: Final = content_parts(RunContent)
_PAUSED_BY_SILENCE: Final = "connection_lost"
_PAUSED_BY_TIMEOUT: Final = "session_timed_out"
_PAUSED_BY_CALL: Final = "call_unresolved"
_RELEASED_BY_CALL: Final = "call_resolved"
_FAILED_BY_END: Final = "session_ended"
RUN_GRAVESTONE_MS: Final = 1_209_600_000  # 14 days, as a session's gravestone stays


class RunLabel(NamedTuple):
    """By what runs are counted."""

    state: RunStateName
    mode: RunMode


def run_end_ms(row: FinishedRun) -> int:
    """Return when a finished run vanishes but for its gravestone (ms of log time)."""
    return row.entered_at + row.kept_days * DAY_MS


def _bury_run(row: FinishedRun) -> RunGravestone:
    return RunGravestone(run_end_ms(row) + RUN_GRAVESTONE_MS)


def _grave_end_ms(row: RunGravestone) -> int:
    return row.expires_at


def _label_of(row: RunRow) -> RunLabel:
    return RunLabel(row.state, row.mode)


class RunMachine(DependantMachine[RunRow | RunGravestone]):
    """Implements `Machine` for runs; their limits are part of the rules."""

    name = "run"
    row_kinds: Sequence[RowKind] = (
        RowKind(
            RunState,
            live=True,
            prefixes=record_headers(RunState),
            encode=encode_record,
            parts=_CONTENT,
            label=_label_of,
            open_since_ms=attached_since_ms,
        ),
        RowKind(
            FinishedRun,
            live=False,
            prefixes=record_headers(FinishedRun),
            encode=encode_record,
            parts=_CONTENT,
            label=_label_of,
            remains=_bury_run,
        ),
        RowKind(
            RunGravestone,
            live=False,
            prefixes=record_headers(RunGravestone),
            encode=encode_record,
            expiry_ms=_grave_end_ms,
        ),
    )

    streams: frozenset[Stream] = frozenset({"quotas"})
    reported_facts: frozenset[type[Any]] = frozenset({ClaimMoved})

    def row_key(self, arrival: Arrival) -> bytes:
        """Return the key of the run that an event names."""
        run_id = arrival.event.envelope.run_id if arrival.event is not None else None
        return run_key(*arrival.session, run_id or "")

    def evolve(self, row: RunRow | RunGravestone | None, fact: RunFact) -> RunRow | None:
        """Apply a fact. A gravestone counts as no row, so its id may be used again."""
        return apply_run_fact(None if isinstance(row, RunGravestone) else row, fact)

    def receive_fact(self, row: RunRow | RunGravestone | None, fact: ReceivedFact) -> Sequence[RunFact | ForRow]:
        """Return what a fact of the session, of a call or of a quota comes to for a run.

        What happens to the run without an event of its own is told to the session.
        """
        if isinstance(fact, ClaimDecided):
            return receive_verdict(row, fact) if isinstance(row, RunState) else ()
        if isinstance(fact, (CallUnresolved, CallSettled)):
            return _receive_call(row, fact) if isinstance(row, (RunState, FinishedRun)) else ()
        if not isinstance(fact, (SessionTimedOut, SessionEnded)):
            return with_claim(row, fact)
        if not isinstance(row, RunState) or row.mode != "attached":
            return ()
        if isinstance(fact, SessionEnded):
            message = f"The session ended: {fact.reason_code}"
            return _give_up(row, fact.at_ms, ErrorInfo("retryable", _FAILED_BY_END, message))
        if row.state not in AT_WORK:
            return ()
        code = _PAUSED_BY_SILENCE if fact.is_silent else _PAUSED_BY_TIMEOUT
        reason = f"The session timed out: {fact.reason_code}"
        told = RunChanged(row.run_id, fact.at_ms, row.state, "paused", code, reason)
        return RunHeld(fact.at_ms, code), tell_session(row, told)

    def report(
        self,
        key: bytes,
        row: RunRow | RunGravestone | None,
        after: RunRow | RunGravestone | None,
        fact: Any,
        arrival: Arrival | None,
        place: Place,
    ) -> Sequence[Emitted]:
        """Return what the quotas are told; all else the session reports."""
        return (claim_notice(row, fact),) if isinstance(row, (RunState, FinishedRun)) else ()

    def due_ms(self, row: RunRow | RunGravestone, hole_end_ms: int = 0) -> int:
        """Return an open run's deadline, or when what is left of one vanishes (ms of log time)."""
        if isinstance(row, RunState):
            return run_due_ms(row, hole_end_ms)
        return run_end_ms(row) if isinstance(row, FinishedRun) else row.expires_at

    def repair_times(self, row: RunRow | RunGravestone, repairs: Sequence[ClockRepair]) -> RunRow | RunGravestone:
        """Return a row with its times as they are after repairs of the partition's clock."""
        return repair_run_times(row, repairs) if isinstance(row, RunState) else row

    def is_only_postponed(self, row: RunRow | RunGravestone, after: RunRow | RunGravestone) -> bool:
        """Return True if the limit is the same, or if there is none: time only goes forward."""
        return isinstance(row, RunState) and isinstance(after, RunState) and row.due_at == after.due_at

    def fire(self, row: RunRow | RunGravestone, now_ms: int, hole_end_ms: int = 0) -> Sequence[RunFact | ForRow]:
        """Return the failure of a run whose clock is due."""
        assert isinstance(row, RunState)
        due_ms, reason_code, reason = run_deadline(row, hole_end_ms)
        return _give_up(row, now_ms, ErrorInfo("retryable", reason_code, reason), due_ms)


def _receive_call(row: RunRow, fact: CallUnresolved | CallSettled) -> Sequence[RunFact | ForRow]:
    """Return what it is for a run that the outcome of a call is unknown, or known after all."""
    at_ms = fact.at_ms
    if isinstance(fact, CallUnresolved):
        counted = CallsCounted(row.unresolved_calls + 1)
        if not isinstance(row, RunState) or row.state not in AT_WORK:
            return (counted,)
        reason = f"Run paused: the outcome of {fact.tool_name} is unknown"
        told = RunChanged(row.run_id, at_ms, row.state, "paused", _PAUSED_BY_CALL, reason)
        return counted, RunHeld(at_ms, _PAUSED_BY_CALL), tell_session(row, told)
    counted = CallsCounted(max(0, row.unresolved_calls - 1))
    is_held = isinstance(row, RunState) and row.state == "paused" and row.reason_code == _PAUSED_BY_CALL
    may_go_on = fact.is_active or row.mode == "detached"
    if counted.unresolved or not (isinstance(row, RunState) and is_held and may_go_on):
        return (counted,)
    reason = "Run resumed: the outcome of all its calls is known"
    told = RunChanged(row.run_id, at_ms, row.state, "running", _RELEASED_BY_CALL, reason)
    return counted, RunReleased(at_ms, _RELEASED_BY_CALL), tell_session(row, told)


def _give_up(row: RunState, now_ms: int, error: ErrorInfo, due_ms: int | None = None) -> Sequence[RunFact | ForRow]:
    told = RunChanged(row.run_id, now_ms, row.state, "failed", error.code, error.message, due_ms)
    return RunGivenUp(now_ms, error), *released_claim(row), tell_session(row, told)
