"""Which event moves which clock of a session: asked of the judge itself, in every state."""

from collections.abc import Mapping, Sequence
from contextlib import suppress
from enum import Enum
from functools import cache
from typing import NamedTuple

from sessionary.producers import Limits, Rejected, Session
from sessionary.producers.session.view import full_snapshot
from sessionary.producers.testing import memory_client
from sessionary.schemas.events import (
    Payload,
    RequestsRepeated,
    ResourcesReleased,
    SessionActivity,
    SessionCreated,
    SessionErrored,
    SessionPaused,
    SessionPhaseChanged,
    SessionRecovered,
    SessionResumed,
    SessionStarted,
    SessionStartFailed,
    SessionTakenOver,
    SessionTerminated,
    SnapshotCreated,
    StateUpdated,
    UsageRecorded,
)
from sessionary.schemas.records import SessionState
from sessionary.schemas.types import CleanupAction, ErrorInfo, Phase, TerminationReason
from sessionary.stream_processors.core.session import clocks
from sessionary.stream_processors.core.session.clocks import SessionClock
from sessionary.stream_processors.core.session.transitions import COMPLETIONS, CONTENT, TRANSACTIONS, TRANSITIONS, WORK


class ClockEffect(Enum):
    """The effect of an event on a clock."""

    STARTS = "starts"
    RESTARTS = "begins again"
    PAUSES = "stops until it is resumed"
    CONTINUES = "continues with the remaining time"
    ENDS = "ends"
    LEAVES = "keeps running"
    REJECTED = "the event is rejected"


class ClockColumn(NamedTuple):
    """A clock, and the state in which it fires."""

    state: str
    clock: SessionClock


class EventRow(NamedTuple):
    """Events that do the same to every clock."""

    name: str
    event_types: tuple[str, ...]


_STATES = ("Idle", "Active", "Paused", "Timeout", "Error", "Terminated")
# `ANSWER` measures what its question says; two run while the session waits for a quota: they have
# no limit of the session's own. `USER_IDLE` runs between turns, when no other clock of Active does.
_OTHERS = (clocks.ANSWER, clocks.QUOTA_WAIT, clocks.QUOTA_SILENCE, clocks.USER_IDLE)
CLOCKS = tuple(
    ClockColumn(state, clock)
    for state in _STATES
    for transition in TRANSITIONS
    if transition.source == state
    for clock in transition.clocks
    if clock not in _OTHERS
)
ROWS = (
    EventRow("session_created", ("session_created",)),
    EventRow("session_started", ("session_started",)),
    EventRow("session_start_failed", ("session_start_failed",)),
    EventRow("heartbeat", ("heartbeat",)),
    EventRow("work", tuple(sorted(WORK - COMPLETIONS))),
    EventRow("completions", tuple(sorted(COMPLETIONS))),
    EventRow("state_updated", ("state_updated", "session_rolled_back", *sorted(TRANSACTIONS))),
    EventRow("snapshots", tuple(sorted(CONTENT))),
    EventRow("session_phase_changed", ("session_phase_changed",)),
    EventRow("session_paused", ("session_paused",)),
    EventRow("session_timed_out", ("session_timed_out",)),
    EventRow("session_resumed", ("session_resumed",)),
    EventRow("session_errored", ("session_errored",)),
    EventRow("session_recovered", ("session_recovered",)),
    EventRow("session_taken_over", ("session_taken_over",)),
    EventRow("requests_repeated", ("requests_repeated",)),
    EventRow("resources_released", ("resources_released",)),
    EventRow("session_terminated", ("session_terminated",)),
    EventRow("session_archived", ("session_archived",)),
)
# How the processor's own events come about: the clock that runs out, by the event's type.
_FIRED = {"session_timed_out": ("Active", clocks.INACTIVITY), "session_archived": ("Terminated", clocks.ARCHIVE)}
_STARTING: tuple[Payload, ...] = (
    SessionPhaseChanged("validating"),
    SessionPhaseChanged("connecting"),
    SessionStarted(),
)
_NEXT_PHASE: Mapping[str, Phase] = {
    "Idle": "validating",
    "Active": "updating",
    "Error": "recovery",
    "Terminated": "clearing",
}
_LEGAL_END: Mapping[str, TerminationReason] = {"Paused": "cancelled", "Error": "forced"}


class _Scene:
    """One session in memory, brought to a state."""

    def __init__(self, state: str, *, cleans_up: bool = False) -> None:
        """`cleans_up`: it was timed out and resumed before, so that a clean-up is not confirmed."""
        self.client, self.memory = memory_client()
        self.session: Session = self.client.create(user_id="u", limits=Limits())
        self.memory.silence(self.session)
        self.state = state
        if state != "Idle":
            self.send(*_STARTING)
        if cleans_up and state in ("Active", "Paused", "Error"):
            self.memory.advance(60)
            self.send(SessionResumed(None))
        match state:
            case "Paused":
                self.send(SessionPaused("manual", None, full_snapshot("{}", 1, self.head)))
            case "Timeout":
                self.memory.advance(60)
            case "Error":
                self.send(SessionErrored(ErrorInfo("retryable", "boom", "it broke")))
            case "Terminated":
                self.send(SessionTerminated("closed"))
        assert self.row().state == state
        self.memory.advance(1)

    @property
    def head(self) -> str:
        return self.row().snapshot.snapshot_id

    def row(self) -> SessionState:
        return self.memory.find_row(self.session.session_id)

    def send(self, *payloads: Payload) -> bool:
        """Send events past the client's own checks; return whether the last one was applied."""
        self.session.core.emitter.epoch = self.row().epoch
        for payload in payloads:
            if isinstance(payload, RequestsRepeated):  # an operator's: no client sends it
                with suppress(Rejected):
                    self.memory.operator.ask_again(self.session)
            else:
                self.session.core.emitter.emit(payload)
        return self.memory.verdicts()[-1].outcome == "applied"

    def send_heartbeat(self) -> bool:
        self.memory.silence(self.session, silent=False)
        rejected = len(self.memory.rejected_records())
        self.session.core.emitter.emit_heartbeat()
        return len(self.memory.rejected_records()) == rejected

    def payloads(self, name: str) -> Sequence[Payload]:
        """Return an event of a row, after those that it needs before it in this state."""
        head = self.head
        cleanups = [request.cleanup_id for request in self.memory.cleanups()] or ["none"]
        made: dict[str, Sequence[Payload]] = {
            "session_created": [SessionCreated(Limits(), full_snapshot("{}", 1, None))],
            "session_started": _STARTING,
            "session_start_failed": [SessionStartFailed("invalid_config")],
            "work": [SessionActivity("llm")],
            "completions": [UsageRecorded("large", 1, 1, 1, 1, is_timeout_retry=False)],
            "state_updated": [StateUpdated(1, 2, "{}")],
            "snapshots": [SnapshotCreated(full_snapshot("{}", 1, head))],
            "session_phase_changed": [SessionPhaseChanged(_NEXT_PHASE.get(self.state, "updating"))],
            "session_paused": [SessionPaused("manual", None, full_snapshot("{}", 1, head))],
            "session_resumed": [SessionResumed(None)],
            "session_errored": [SessionErrored(ErrorInfo("retryable", "boom", "it broke"))],
            "session_recovered": [SessionPhaseChanged("recovery"), SessionRecovered()],
            "session_taken_over": [SessionTakenOver()],
            "requests_repeated": [RequestsRepeated()],
            "resources_released": [
                ResourcesReleased(cleanups[-1], [CleanupAction("close_connection", done=True, at=1)], None, False)  # noqa: FBT003
            ],
            "session_terminated": [SessionTerminated(_LEGAL_END.get(self.state, "closed"))],
        }
        return made[name]


class _Change(NamedTuple):
    """A session before and after an event; `after` is None once it is archived."""

    before: SessionState
    after: SessionState | None
    is_applied: bool


@cache
def _changes(name: str) -> Mapping[str, _Change]:
    """Return what a row's event does to a session in each state."""
    found = {}
    for state in _STATES:
        if name in _FIRED and _FIRED[name][0] != state:
            continue
        scene = _Scene(state, cleans_up=name == "resources_released")
        before = scene.row()
        if name in _FIRED:
            due_ms = _FIRED[name][1].due_ms(before) or 0
            scene.memory.advance((due_ms - scene.memory.now_ms) / 1_000)
            is_applied = True
        elif name == "heartbeat":
            is_applied = scene.send_heartbeat()
        else:
            is_applied = scene.send(*scene.payloads(name))
        is_gone = name == "session_archived"
        found[state] = _Change(before, None if is_gone else scene.row(), is_applied)
    return found


def _effect_on(column: ClockColumn, changes: Mapping[str, _Change]) -> ClockEffect:
    for state, (before, after, is_applied) in changes.items():
        if is_applied and state != column.state and after is not None and after.state == column.state:
            if column.clock is not clocks.MAX_DURATION or before.max_due_at is None:
                return ClockEffect.STARTS
            return ClockEffect.LEAVES if after.max_due_at == before.max_due_at else ClockEffect.CONTINUES
    change = changes.get(column.state)
    if change is None or not change.is_applied:
        return ClockEffect.REJECTED
    before, after, _ = change
    if after is not None and after.state == column.state:
        is_same = column.clock.due_ms(after) == column.clock.due_ms(before)
        return ClockEffect.LEAVES if is_same else ClockEffect.RESTARTS
    if column.clock is not clocks.MAX_DURATION or after is None or after.state == "Terminated":
        return ClockEffect.ENDS
    return ClockEffect.PAUSES if after.state == "Paused" else ClockEffect.LEAVES


def effects_of(row: EventRow) -> dict[ClockColumn, ClockEffect]:
    """Return what a row's events do to each clock, by the newest rules."""
    if row.name == "session_created":  # before it there is no session
        return {
            column: ClockEffect.STARTS if column.clock is clocks.INITIALISATION else ClockEffect.REJECTED
            for column in CLOCKS
        }
    changes = _changes(row.name)
    return {column: _effect_on(column, changes) for column in CLOCKS}
