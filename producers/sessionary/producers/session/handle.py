"""The local view of one session: what its agent knows, how events are sent and verdicts awaited.

The view is not authoritative: the processor decides. It is used to choose the legal last event,
and to know when heartbeats are due.
"""

import sys
import time
from collections.abc import Mapping, Sequence
from threading import Lock
from typing import TYPE_CHECKING, NamedTuple

from sessionary.producers.context.marks import complete_fields
from sessionary.producers.context.scope import NO_SCOPE, current_scope
from sessionary.producers.context.traceparent import OPENTELEMETRY
from sessionary.producers.delivery.emitter import NO_FIELDS, Emitter, EnvelopeFields
from sessionary.producers.durable.recorder import REAL_WAITS
from sessionary.producers.errors import (
    AuthenticationFailed,
    DeliveryFailed,
    Invalid,
    Refused,
    SessionEnded,
    SessionFenced,
    SessionLost,
    SettingsError,
    Unavailable,
    VerdictPending,
)
from sessionary.producers.judgement.local_checks import NO_BARS
from sessionary.producers.judgement.notices import SessionGoesOn
from sessionary.producers.judgement.session_lock import SessionLock
from sessionary.producers.judgement.session_watch import SessionWatch
from sessionary.producers.ports import (
    AgentMember,
    ChangedSession,
    Control,
    HeartbeatTimer,
    Json,
    OnError,
    OnReceipt,
    SessionView,
)
from sessionary.producers.run_ports import RunReads, Waits
from sessionary.producers.session.heartbeat import BeatingHandle, IsAlive
from sessionary.producers.session.pending_verdict import TAKES_SESSION, PendingVerdict, VerdictFollower
from sessionary.producers.session.state_json import canonical_json, full_snapshot, parsed_state
from sessionary.schemas.events import (
    EVENT_TYPES,
    Payload,
    RunQueued,
    RunStarted,
    SessionPhaseChanged,
    ToolCallResolved,
)
from sessionary.schemas.types import Limits, Phase, RefusalReason, Snapshot

if TYPE_CHECKING:  # most clients have no library
    from sessionary.producers.artifacts.library import ArtifactLibrary

_EPOCH_PAUSE_S = 0.1
_RUN_BEGINS = (RunStarted, RunQueued)
# Waiting longer does not help.
FINAL_ERRORS = (
    AuthenticationFailed,
    DeliveryFailed,
    SessionLost,
    Invalid,
    SettingsError,
)


class SharedServices(NamedTuple):
    """What all sessions of a client share."""

    control: Control
    heartbeats: HeartbeatTimer
    follower: VerdictFollower
    heartbeat_interval_s: float
    verdict_timeout_s: float
    on_error: OnError
    watch: SessionWatch
    task_places: dict[str, tuple[int, int]]  # (partition, offset) of the last tasks that were asked for
    runs: RunReads | None = None  # None: nothing is known of runs
    waits: Waits | None = None  # None: real time
    artifacts: "ArtifactLibrary | None" = None  # keeps what is too large for events
    quotas: bool = False  # whether runs wait for their tenant's quota, as far as the client knows
    quota_wait_s: float = 0.0


class SessionHandle(BeatingHandle):
    """The properties of a session, and what its verbs are made of. Thread-safe."""

    def __init__(
        self,
        emitter: Emitter,
        services: SharedServices,
        *,
        limits: Limits | None = None,
        state: Mapping[str, Json] | None = None,
        state_schema_version: int = 1,
        is_alive: IsAlive | None = None,
    ) -> None:
        """`is_alive`: of the thread or task that the heartbeats end with, if there is one."""
        self._emitter = emitter
        self._lock = SessionLock(emitter)
        self._services = services
        self._limits = limits or Limits()
        self._state_json = canonical_json({} if state is None else state)
        self._schema_version = state_schema_version
        self._local_state: str = "Idle"
        self._phase: str | None = None
        self._quotas = services.quotas
        self._sends_phases = True  # only the owning service may change the phase
        self._is_member = False  # an agent of this service is registered
        self._version = 1
        self._snapshot_id: str | None = None
        self._pending: PendingVerdict | None = None
        self._detached = False
        self._detached_runs: set[str] = set()  # those that were begun here: they may outlive the session
        self._is_holder = False  # this client created the session, or took it over
        self._fenced_by: tuple[str, int] | None = None  # who holds the session, and its epoch
        self._agents: Sequence[AgentMember] = ()  # of the session, as far as this object knows
        self._agent_count = 0  # a poll tells only that
        self._is_update_open = False  # the verdict on the last update did not come
        self._update_lock = Lock()  # with agents, one update waits for the verdict on the other
        self._begin_beating(services.heartbeats, services.heartbeat_interval_s, is_alive)
        self._begin_judgement(emitter, services.watch)
        self._departures = 0  # how often the session was ended, detached or left

    @property
    def local_state(self) -> str:
        """The session's state as far as this object knows it.

        One of Idle, Active, Paused, Timeout, Error and Terminated. `sync` brings it up to date. A
        session that the processor holds for its migration counts as Active.
        """
        return self._local_state

    @property
    def epoch(self) -> int:
        """The ownership epoch: 1, and one more after each resume, recovery and take-over."""
        return self._emitter.epoch

    @property
    def version(self) -> int:
        """The version of `state`, from 1."""
        return self._version

    @property
    def state(self) -> dict[str, Json]:
        """A copy of the session's content as far as this object knows it."""
        return parsed_state(self._state_json)

    @property
    def context_bytes(self) -> int | None:
        """Size of the agent's context in bytes, sent with each further event; None if unknown."""
        return self._emitter.context_bytes

    @context_bytes.setter
    def context_bytes(self, value: int | None) -> None:
        self._emitter.context_bytes = value

    # For verbs

    @property
    def _waits(self) -> Waits:
        return self._services.waits or REAL_WAITS

    def _send_event(
        self, payload: Payload, fields: EnvelopeFields = NO_FIELDS, on_receipt: OnReceipt | None = None
    ) -> str:
        # An agent emits rarely, and a function that was not called lately costs 2 µs: so this calls
        # those only that have something to do.
        emitter = self._emitter
        if emitter.gate.of_parent:  # before its lock
            raise emitter.gate.closed_error()
        if current_scope() is not NO_SCOPE or OPENTELEMETRY in sys.modules:
            fields = complete_fields(emitter.key.session_id, fields)
        with emitter.lock:  # so that nothing follows what another thread ends the session with
            is_plain = self._local_state == "Active" and self._pending is None and self._fenced_by is None
            if not is_plain or type(payload) in self._bars:
                self._require_open(payload, fields)
            event_id = emitter.emit(payload, fields, on_receipt)
        if fields.run_id and isinstance(payload, _RUN_BEGINS) and payload.mode == "detached":
            self._detached_runs.add(fields.run_id)
        if (sent := self._sent_events) is not None:  # a poll may end the watch at any moment
            sent.add_event(event_id, EVENT_TYPES[type(payload)])
        return event_id

    def _require_open(self, payload: Payload, fields: EnvelopeFields) -> None:
        """Raise if an event may not be sent now, or is certain to be refused."""
        if self._pending is not None:
            raise VerdictPending(self._pending.verb)
        if self._fenced_by is not None:
            raise SessionFenced(self.session_id, *self._fenced_by)
        if self._local_state == "Terminated" and not self._told_lost and not self._may_outlive(payload, fields.run_id):
            raise SessionEnded(f"session {self.session_id} has ended; create a new one")
        if (bar := self._bars.get(type(payload))) is not None and not self._may_go_on_alone(payload, fields.run_id):
            self._require_passing(payload, bar)

    def _may_outlive(self, payload: Payload, run_id: str | None) -> bool:
        """Return whether an event may be one of a run that goes on without its session."""
        # What a person found out of a call may be of a detached run that another object began.
        is_known = run_id in self._detached_runs or isinstance(payload, ToolCallResolved)
        return is_known and self._may_go_on_alone(payload, run_id)

    def _send_awaited(self, payload: Payload, fields: EnvelopeFields) -> PendingVerdict:
        """Send an event whose place in the log will be asked for; other verbs need not wait."""
        pending = PendingVerdict("emit", EVENT_TYPES[type(payload)], self._local_state)
        pending.event_id = self._send_event(payload, fields, pending.on_receipt)
        return pending

    def _keep_refusal(self, event_id: str, reason: RefusalReason) -> None:
        """Do not tell `on_refused` of an event: the caller acts on its refusal."""
        if self._sent_events is not None:
            self._sent_events.take_refused(event_id, reason)

    def _send_phases(self, *phases: Phase, fields: EnvelopeFields = NO_FIELDS) -> None:
        for phase in phases:
            self._send_event(SessionPhaseChanged(phase), fields)
            self._phase = phase

    def _ask_verdict(self, verb: str, payloads: list[Payload], fields: EnvelopeFields = NO_FIELDS) -> PendingVerdict:
        """Send `payloads`, unless done before; return what `_await_verdict` takes."""
        with self._lock:
            pending = self._pending
            if pending is not None:
                if pending.verb != verb:
                    raise VerdictPending(pending.verb)
                return pending
            self._services.control.check_configured()
            self._bars = NO_BARS  # the verdict tells, and the state with it
            for payload in payloads[:-1]:
                self._send_event(payload, fields)
            pending = PendingVerdict(verb, EVENT_TYPES[type(payloads[-1])], self._local_state)
            pending.event_id = self._send_event(payloads[-1], fields, pending.on_receipt)
            self._pending, self._followed = pending, None
            self._detached = False
            self._start_heartbeats()
            return pending

    def _await_verdict(self, pending: PendingVerdict) -> SessionView:
        """Wait for a verdict and adopt it, unless the session was left meanwhile."""
        try:
            view = self._wait_verdict(pending, time.monotonic() + self._services.verdict_timeout_s)
        except FINAL_ERRORS:
            with self._lock:
                if self._pending is pending:
                    self._pending = None
            raise
        is_reached = self._is_reached(pending.verb, view)
        with self._lock_then_tell():
            if self._pending is pending:
                self._pending, pending.adopted = None, True
                self._adopt_view(view)
                if is_reached and pending.continues_snapshot and view.snapshot_state_json is not None:
                    self._state_json = view.snapshot_state_json
            elif not pending.adopted:
                raise SessionEnded(f"session {self.session_id} was left before the verdict on {pending.verb}()")
        if not is_reached:
            reason = (view.verdict and view.verdict.reason) or "UNKNOWN"
            self._tell_refused(pending.event_id, pending.event_type, reason)
            raise Refused(pending.event_type, reason)
        return view

    def _is_reached(self, verb: str, view: SessionView) -> bool:
        """Return True if a verb has led where it should.

        A worker that took the partition over does not know what the one before it decided. It knows
        the session's holder and state, and every verb that takes no session leads to Active.
        """
        if view.verdict is not None and view.verdict.kept:
            return view.verdict.applied
        if verb in TAKES_SESSION:
            return view.holder == self._emitter.producer_id
        return view.verdict is None or view.state == "Active"

    def _wait_verdict(self, pending: PendingVerdict, deadline: float) -> SessionView:
        """Wait for the processor. Without an offset, only a raised epoch tells that it applied."""
        position = pending.wait_position(deadline - time.monotonic())
        while True:
            left_s = max(deadline - time.monotonic(), 0.1)
            view = self._services.control.fetch_session(self.session_id, position, left_s)
            if position is not None or view.epoch > self.epoch:
                return view
            if time.monotonic() + _EPOCH_PAUSE_S >= deadline:
                raise DeliveryFailed(
                    pending.event_id, "its place in the log is unknown, and it did not raise the epoch"
                )
            time.sleep(_EPOCH_PAUSE_S)

    def _sync_unless_left(self, departures: int) -> SessionView:
        """Do what `sync` does, but adopt nothing if the session was ended or left meanwhile.

        `departures`: their number when the caller began. A call may go on after its caller gave up.
        """
        self._emitter.check_process()
        control, deadline = self._services.control, time.monotonic() + self._services.verdict_timeout_s
        control.check_configured()
        position = self._emitter.wait_position(self._services.verdict_timeout_s)
        try:
            view = control.fetch_session(self.session_id, position, max(deadline - time.monotonic(), 0.1))
        except SessionLost:
            self._lost = True
            raise
        with self._lock_then_tell():
            if self._departures == departures:
                self._adopt_view(view)
        return view

    def _adopt_view(self, view: SessionView) -> None:
        """Take over what the processor knows. In `_lock_then_tell` only. Raises `SessionFenced`."""
        self._leave_shared_producer(view)
        if self._is_holder and view.holder not in (None, self._emitter.producer_id):
            self._fenced_by, self._detached = (f"{view.holder}", view.epoch), True
            self._stop_heartbeats()
            raise self._note_fenced(*self._fenced_by)
        self._fenced_by = self._followed = None
        self._note_view(view)
        self._emitter.epoch = view.epoch
        self._emitter.add_data_classes(view.data_classes)
        self._version = view.version
        self._phase = view.phase
        self._quotas = self._quotas if view.quotas is None else view.quotas
        self._sends_phases = view.owner_service == self._emitter.service_id
        self._state_json = view.state_json
        self._schema_version = view.state_schema_version
        self._snapshot_id = view.snapshot_id
        self._agents, self._agent_count = tuple(view.agents), len(view.agents)
        self._is_member = any(agent.service_id == self._emitter.service_id for agent in view.agents)
        self._limits = view.limits
        # What is held for its migration is Active again, in the same epoch, if that is aborted.
        known = "Terminated" if view.state == "Archived" else "Active" if view.is_held else view.state
        self._set_state(known, committed=not view.is_held)

    def _go_on(self, change: ChangedSession) -> SessionGoesOn | None:
        if not self._may_go_on(change.state, change.epoch, change.holder, change.holder_epoch):
            return None
        departures = self._departures
        try:
            view = self._services.control.fetch_session(self.session_id, None, self._services.verdict_timeout_s)
        except (*FINAL_ERRORS, Unavailable):
            return None
        if not self._lock.acquire_now():  # the next poll finds it again
            return None
        try:
            raised = view.state, view.epoch, view.holder, view.holder_epoch
            if self._departures != departures or not self._may_go_on(*raised):
                return None
            self._adopt_view(view)
        finally:
            self._lock.release()
        self._tell_untold()
        return SessionGoesOn(self.session_id, view.epoch, view.reason_code or "UNKNOWN")

    def _leave_shared_producer(self, view: SessionView) -> None:
        """Take a new producer id if another process was found to use ours."""
        if view.verdict is None or view.verdict.reason != "producer_conflict":
            return
        self._note_finding(self._renew_producer(), raised=False)

    def _new_snapshot(self) -> Snapshot:
        return full_snapshot(self._state_json, self._schema_version, self._snapshot_id)

    def _set_state(self, state: str, *, committed: bool = False) -> None:
        """Enter a state, which the processor has told if it is `committed`."""
        self._local_state = state
        self._is_held = self._is_held and state == "Paused"
        self._update_bars(committed=committed)
        if state == "Terminated":
            self._departures += 1
            self._emitter.forget_sequence()
        if state != "Active":
            self._stop_heartbeats()
        else:
            self._start_heartbeats()


__all__ = ["FINAL_ERRORS", "SessionHandle", "SharedServices"]
