"""The core of one session: its view, its heartbeats, how it sends events and adopts answers.

All other work of a session uses the core: the collaborators in this folder hold one, and `Session`
and `AsyncSession` hold only a core. It is one class because all of it is guarded by one lock.
"""

import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from datetime import datetime
from itertools import count
from threading import Lock
from types import MappingProxyType
from typing import TYPE_CHECKING, NamedTuple, TypeVar, Unpack

from sessionary.producers.context.call_counts import SessionCalls, number_of
from sessionary.producers.context.scope import (
    NO_SCOPE,
    OPENTELEMETRY,
    CallAnswers,
    CallReporter,
    EventMetadata,
    complete_fields,
    current_scope,
    envelope_fields,
    epoch_us,
)
from sessionary.producers.delivery.emitter import NO_FIELDS, EnvelopeFields
from sessionary.producers.durable.flow import Flow, run_flow
from sessionary.producers.durable.large_values import StoredText, store_value
from sessionary.producers.durable.recorder import REAL_WAITS, Recorder
from sessionary.producers.errors import (
    AuthenticationFailed,
    DeliveryFailed,
    EventRejected,
    Invalid,
    ProducerConflict,
    ProducerError,
    SessionaryError,
    SessionFenced,
    SessionLost,
    SessionTimeout,
    SettingsError,
)
from sessionary.producers.ports import Control, HeartbeatTimer, Json, OnError, OnReceipt, SessionView
from sessionary.producers.run_ports import LOG_END, LogPosition, RunReads, Waits
from sessionary.producers.session.heartbeat import IsAlive, heartbeat_interval_s
from sessionary.producers.session.pending_verdict import PendingVerdict, VerdictFollower
from sessionary.producers.session.view import WAITING, LocalView
from sessionary.producers.verdicts.begun_work import COUNTED, BegunWork
from sessionary.producers.verdicts.local_checks import is_clock_reason
from sessionary.producers.verdicts.session_watch import SessionWatch
from sessionary.schemas.events import EVENT_TYPES, Payload, RunQueued, RunStarted, SessionActivity, SessionPhaseChanged
from sessionary.schemas.limits import with_defaults
from sessionary.schemas.types import Phase, RejectionReason, Snapshot, ToolExecution

if TYPE_CHECKING:
    from sessionary.producers.artifacts.library import ArtifactLibrary
    from sessionary.producers.session.snapshots import SnapshotCache


# The heartbeats of one session, and their times.


class SessionBeats:
    """The heartbeats of a session.

    While a verb waits for its verdict, the session may be Active in the log: the processor may be
    late, or its answer lost. So the session sends heartbeats, in the epoch that a granted verb
    begins. If the verb is rejected, these heartbeats are rejected too, and keep no session alive. A
    session that was left before its verdict sends heartbeats until it can be ended: else a clock
    might end it first.

    Hold the session's lock to start and stop heartbeats.
    """

    __slots__ = ("__weakref__", "_is_alive", "_timer", "_token", "_view", "_wanted_s", "_watch")

    def __init__(
        self, view: LocalView, timer: HeartbeatTimer, watch: SessionWatch, wanted_s: float, is_alive: IsAlive | None
    ) -> None:
        """Take the interval that the client wants; no heartbeat is due yet."""
        self._view = view
        self._timer, self._watch, self._wanted_s = timer, watch, wanted_s
        self._is_alive = is_alive
        self._token: int | None = None

    def send_heartbeat(self) -> bool:
        """Send a heartbeat if the session may beat, unless an awaited event is not delivered yet.

        Return False if no further heartbeat is due. Never blocks.
        """
        # Never wait for a busy session: its events are signs of life themselves.
        emitter = self._view.emitter
        if not emitter.lock.acquire(blocking=False):
            return True
        try:
            if not self._may_beat():
                self._token = None
                return False
            awaited = self._view.pending or self._view.followed
            if awaited is None:
                emitter.emit_heartbeat()
            elif awaited.is_in_log:  # another thread may have adopted the verdict's epoch already
                emitter.emit_heartbeat(epoch=max(awaited.epoch + 1, emitter.epoch))
            return True
        finally:
            emitter.lock.release()

    def send_run_beat(self, run_id: str, elapsed_s: float) -> None:
        """Send a heartbeat of an attached run, if one of the session may be sent. Never blocks."""
        if not self._view.lock.acquire_now():
            return
        try:
            if self._view.pending is None and self._view.followed is None and self._is_working():
                self._view.emitter.emit_heartbeat(run_id, elapsed_s)
        finally:
            self._view.lock.release()

    def _may_beat(self) -> bool:
        """Return whether the session needs heartbeats: not while it waits for its user."""
        awaited = self._view.pending or self._view.followed
        return self._is_working() and (awaited is not None or self._view.phase != WAITING)

    def _is_working(self) -> bool:
        """Return whether the session may be Active, and its thread or task is alive."""
        awaited = self._view.pending or self._view.followed
        may_be_active = self._view.local_state == "Active" if awaited is None else awaited.leads_to_active
        may_be_active = may_be_active or self._view.is_queued
        is_left = self._view.detached and self._view.followed is None
        alive = self._view.emitter.gate.open and (self._is_alive is None or self._is_alive())
        return may_be_active and not is_left and alive

    def bind(self, is_alive: IsAlive | None) -> None:
        """Let the heartbeats end once `is_alive` returns False; None: with the process."""
        self._is_alive = is_alive

    def start(self) -> None:
        """Begin to beat, unless that was done or the session was detached."""
        if self._token is not None or (self._view.detached and self._view.followed is None):
            return
        interval_s = heartbeat_interval_s(self._view.limits, self._wanted_s)
        self._token = self._timer.start_heartbeat(self.send_heartbeat, interval_s, self._view.emitter.key_bytes)
        if self._view.sent_events is not None:
            self._watch.note_beats(interval_s)

    def interval_s(self) -> float | None:
        """Return how often the session beats; None if it does not. Takes no lock."""
        return None if self._token is None else heartbeat_interval_s(self._view.limits, self._wanted_s)

    def beat_until_followed(self, pending: PendingVerdict) -> None:
        """Keep beating although the session was left: a verdict on it is followed."""
        self._view.followed = pending
        self.start()

    def end_following(self, pending: PendingVerdict) -> None:
        """Beat no more for a verdict that was followed."""
        if self._view.followed is pending:
            self.stop()

    def leave(self) -> None:
        """Stop the heartbeats of a session that was left, unless a verdict on it is followed."""
        if self._view.followed is None:
            self.stop()

    def stop(self) -> None:
        """Beat no more."""
        self._view.followed = None
        if self._token is not None:
            self._timer.stop_heartbeat(self._token)
            self._token = None


T = TypeVar("T")
V = TypeVar("V")
_RUN_BEGINS = (RunStarted, RunQueued)
_READS_MAX = 10  # of a session that other threads keep changing
# Waiting longer does not help.
FINAL_ERRORS = (
    AuthenticationFailed,
    DeliveryFailed,
    SessionLost,
    Invalid,
    SettingsError,
)


class SharedServices(NamedTuple):
    """The services that all sessions of a client share."""

    control: Control
    heartbeats: HeartbeatTimer
    follower: VerdictFollower
    heartbeat_interval_s: float
    verdict_timeout_s: float
    on_error: OnError
    watch: SessionWatch
    task_positions: dict[str, tuple[int, int]]  # (partition, offset) of the last tasks that were asked for
    calls: SessionCalls  # those outside of runs
    runs: RunReads | None = None  # None: nothing is known of runs
    waits: Waits | None = None  # None: real time
    artifacts: "ArtifactLibrary | None" = None  # keeps values that are too large for events
    quotas: bool = False  # whether runs wait for their tenant's quota, as far as the client knows
    quota_wait_s: float = 0.0
    model_limit_s: float = 600.0
    snapshot_cache: "Callable[[], SnapshotCache] | None" = None  # None: the client is turned off
    versions: Mapping[str, str] = MappingProxyType({})  # of the agent's server and protocol, for snapshots
    answers: CallAnswers | None = None  # of the session that is replayed; None: calls are made


class Read(NamedTuple):
    """A question about a session: its number, and the session's changes and producer id then."""

    number: int
    changes: int
    producer_id: str


class SessionCore:
    """One session as its collaborators use it. Thread-safe.

    Attributes:
        view: This process's view of the session.
        emitter: Sends its events.
        beats: Its heartbeats.
        services: The services that it shares with the client's other sessions.
        lock: Guards the view.
        update_lock: With agents, one update waits for the verdict on the other.
    """

    __slots__ = (
        "__weakref__",
        "_adopted_read",
        "_pending_findings",
        "_reads",
        "beats",
        "emitter",
        "lock",
        "services",
        "update_lock",
        "view",
    )

    def __init__(self, view: LocalView, services: SharedServices, is_alive: IsAlive | None = None) -> None:
        """`is_alive`: of the thread or task that the heartbeats end with, if there is one."""
        self.view = view
        self.emitter, self.lock = view.emitter, view.lock
        self.services = services
        self.beats = SessionBeats(view, services.heartbeats, services.watch, services.heartbeat_interval_s, is_alive)
        self.update_lock = Lock()
        self._pending_findings: list[tuple[ProducerError, bool]] = []  # findings, and whether a verb raises them
        self._reads, self._adopted_read = count(1), 0

    @property
    def session_id(self) -> str:
        """The session's UUID."""
        return self.emitter.key.session_id

    def describe(self) -> str:
        """Return id, state, epoch and version, as far as they are known, in one line."""
        return f"{self.session_id} {self.view.local_state}, epoch={self.emitter.epoch}, version={self.view.version}"

    @property
    def waits(self) -> Waits:
        """The clock of waits between tries."""
        return self.services.waits or REAL_WAITS

    # Events

    def send_event(
        self,
        payload: Payload,
        fields: EnvelopeFields = NO_FIELDS,
        on_receipt: OnReceipt | None = None,
        event_id: str | None = None,
    ) -> str:
        """Send an event unless it is certain to be rejected; return its id. Raises as `emit`.

        `event_id`: instead of a new one.
        """
        # An agent emits rarely, and a function that was not called lately costs 2 µs: so only
        # necessary functions are called.
        emitter, view = self.emitter, self.view
        if emitter.gate.of_parent:  # before its lock
            raise emitter.gate.closed_error()
        if current_scope() is not NO_SCOPE or OPENTELEMETRY in sys.modules:
            fields = complete_fields(emitter.key.session_id, fields)
        with emitter.lock:  # so that nothing follows another thread's last event of the session
            is_plain = view.local_state == "Active" and view.pending is None and view.fenced_by is None
            if not is_plain or type(payload) in view.bars:
                view.require_open(payload, fields)
            is_counted = type(payload) in COUNTED
            if is_counted:
                view.begun.check(payload, fields.run_id)
            event_id = emitter.emit(payload, fields, on_receipt, event_id)
            if is_counted:
                view.begun.note(payload, fields.run_id)
        if fields.run_id and isinstance(payload, _RUN_BEGINS) and payload.mode == "detached":
            view.detached_runs.add(fields.run_id)
        if (sent := view.sent_events) is not None:  # a poll may end the watch at any moment
            sent.add_event(event_id, EVENT_TYPES[type(payload)])
        return event_id

    def send_access(self, uri: str, operation: str, fields: EnvelopeFields = NO_FIELDS) -> str:
        """Send an access of a resource, which the next snapshot names. Raises as `send_event`."""
        emitter = self.emitter
        if emitter.gate.of_parent:  # before its lock
            raise emitter.gate.closed_error()
        with emitter.lock:
            event_id = self.send_event(SessionActivity(operation, None, uri), fields)
            accessed_us = emitter.last_us
        if (chain := self.view.chain) is not None:
            with self.lock:
                chain.note_access(uri, operation, accessed_us)
        return event_id

    def emit(self, payload: Payload, *, occurred_at: datetime | None = None, **metadata: Unpack[EventMetadata]) -> str:
        """Send an event as `Session.emit` does."""
        at_us = None if occurred_at is None else epoch_us(occurred_at)
        return self.send_event(payload, envelope_fields(metadata, at_us))

    def send_awaited(
        self, payload: Payload, fields: EnvelopeFields = NO_FIELDS, event_id: str | None = None
    ) -> PendingVerdict:
        """Send an event whose position in the log will be asked for; other verbs need not wait."""
        pending = self.new_pending("emit", payload)
        pending.event_id = self.send_event(payload, fields, pending.on_receipt, event_id)
        return pending

    def new_pending(self, verb: str, payload: Payload) -> PendingVerdict:
        """Return what takes the receipt of an event that is about to be sent."""
        emitter = self.emitter
        event_type = EVENT_TYPES[type(payload)]
        return PendingVerdict(verb, event_type, self.view.local_state, emitter.producer_id, emitter.epoch)

    def send_phases(self, *phases: Phase, fields: EnvelopeFields = NO_FIELDS) -> None:
        """Enter phases, one after the other."""
        for phase in phases:
            self.send_event(SessionPhaseChanged(phase), fields)
            self.view.phase = phase
            self.view.changes += 1

    def keep_rejection(self, event_id: str, reason: RejectionReason) -> None:
        """Do not notify `on_rejected` of an event: the caller acts on its rejection."""
        if self.view.sent_events is not None:
            self.view.sent_events.take_rejected(event_id, reason)

    def set_state(self, state: str, *, committed: bool = False) -> None:
        """Enter a state, which the processor has reported if it is `committed`. Hold the lock.

        Heartbeats begin in Active, unless the phase says that the session waits for its user.
        """
        view = self.view
        view.local_state = state
        view.changes += 1
        view.is_held = view.is_held and state == "Paused"
        view.question = view.question if state == "Paused" else None
        view.update_bars(committed=committed)
        if state == "Terminated":
            view.departures += 1
            self.emitter.forget_sequence()
            self.services.calls.forget(self.session_id)
            if view.chain is not None:
                view.chain.forget_base()
        if state != "Active" or view.phase == WAITING:
            self.beats.stop()
        else:
            self.beats.start()

    def detach(self) -> None:
        """Stop the heartbeats without ending the session, as `Session.lifecycle.detach` does."""
        with self.lock:
            self.view.detached = True
            self.view.departures += 1
            self.view.changes += 1
            self.beats.stop()

    def abandon(self) -> None:
        """Leave the session without ending it: the call that opens it failed.

        A verdict that comes later changes nothing.
        """
        with self.lock:
            self.view.pending = None
            self.detach()

    # Time and chance that a replay has again

    def now_us(self) -> int:
        """Return the time of this object's last event, in µs since the epoch.

        Before the first one, an activity is sent. Raises as `send_event` does.
        """
        if not self.emitter.last_us:
            self.send_event(SessionActivity("clock"))
        answers = self.services.answers
        return self.emitter.last_us if answers is None else answers.now_us()

    def draw(self) -> float:
        """Return a number from 0 to 1, 1 excluded, that follows from the place in the work."""
        answers, place = self.services.answers, current_scope().place_in(self.session_id)
        if place is None:
            calls, run_id, path = self.recorder().calls(), "", ""
        else:
            calls, run_id, path = place.calls, place.run_id, place.find_path() or ""
        ids = [self.session_id, run_id]
        if answers is not None:
            ids = [answers.recorded_id(each) for each in ids]
        return number_of(" ".join((self.emitter.key.tenant_id, *ids, path, f"{calls.turn} {calls.draw()}")))

    # Questions to the processor

    def fetch_view(self, after: LogPosition | None = None) -> SessionView:
        """Return the session as the processor has it, once it has judged the record at `after`."""
        return self.services.control.fetch_session(self.session_id, after, self.services.verdict_timeout_s)

    def fetch_judged(self, fetch: Callable[[str, LogPosition | None, float], V]) -> V:
        """Return the result of `fetch` once all sent events are judged. Raises as `sync` does."""
        self.view.require_held()
        return self._fetch_judged(fetch)

    def _fetch_judged(self, fetch: Callable[[str, LogPosition | None, float], V], *, attaches: bool = False) -> V:
        self.emitter.check_process()
        services = self.services
        services.control.check_configured()
        deadline = time.monotonic() + services.verdict_timeout_s
        if attaches:
            self.emitter.wait_taken_over(services.verdict_timeout_s)
        position = self.emitter.wait_position(max(deadline - time.monotonic(), 0.1))
        if attaches and position is None:
            position = LOG_END
        return fetch(self.session_id, position, max(deadline - time.monotonic(), 0.1))

    def read_judged(self, read: Callable[[RunReads, LogPosition | None, float], V], nothing: V) -> V:
        """Return the result of a read once all sent events are judged; `nothing` without one."""
        runs = self.services.runs
        if runs is None:
            return nothing
        return self.fetch_judged(lambda session_id, after, timeout_s: read(runs, after, timeout_s))

    def sync(self, departures: int, *, attaches: bool = False) -> SessionView:
        """Do what `Session.sync` does, but adopt nothing if the session was left meanwhile.

        `departures`: their number when the caller began. A call may continue after its caller gave
        up. `attaches`: a process that has sent nothing yet waits for what others have sent: one
        that died may have left events in the spool, or in the log. Asks again if another thread
        changed the session meanwhile, as the answer may be older than that; at last it adopts none.
        """
        known = self.view
        deadline_s = time.monotonic() + self.services.verdict_timeout_s
        for _ in range(_READS_MAX):
            read = self.begin_read()
            try:
                view = self._fetch_judged(self.services.control.fetch_session, attaches=attaches)
            except SessionLost:
                known.lost = True
                raise
            with self.lock_then_notify():
                is_left = known.departures != departures
                if is_left or self.adopt_read(view, read) or time.monotonic() >= deadline_s:
                    break
        return view

    def begin_read(self) -> Read:
        """Note that a question is about to be asked, whose answer may be adopted."""
        return Read(next(self._reads), self.view.changes, self.emitter.producer_id)

    def adopt_read(self, view: SessionView, read: Read) -> bool:
        """Adopt an answer, unless one to a later question was adopted: that was no older.

        Returns False, and adopts nothing, if the session was changed here since the question. In
        `lock_then_notify` only. Raises as `adopt_view`.
        """
        known = self.view
        if known.changes != read.changes:
            return False
        if read.number > self._adopted_read:
            self.adopt_view(view, read.producer_id)
            known.changes, self._adopted_read = read.changes, read.number  # nothing was changed here
        return True

    def adopt_view(self, view: SessionView, sender: str | None = None) -> None:
        """Adopt the processor's record. In `lock_then_notify` only. Raises `SessionFenced`.

        `sender`: the producer id of the event whose verdict the record has; None: today's.
        """
        known, emitter = self.view, self.emitter
        if known.fenced_by is not None and view.epoch < known.fenced_by[1]:
            known.require_held()  # a poll has found a later holder meanwhile
        is_conflict = view.verdict is not None and view.verdict.reason == "producer_conflict"
        # Another process was found to use our id, or one that we had before a poll found it too.
        if is_conflict and emitter.last_seq and sender in (None, emitter.producer_id):
            self.note_finding(self.renew_producer(), raised=False)
        if known.is_holder and view.holder not in (None, emitter.producer_id):
            known.detached = True
            self.beats.stop()
            raise self._note_fenced(f"{view.holder}", view.epoch, view.owner_service)
        known.followed = None
        known.unfence()
        self._note_view(view)
        emitter.epoch = view.epoch
        emitter.add_data_classes(view.data_classes)
        known.version = view.version
        known.phase = view.phase
        known.quotas = known.quotas if view.quotas is None else view.quotas
        known.sends_phases = view.owner_service == emitter.service_id
        known.state_json = view.state_json
        known.schema_version = view.state_schema_version
        known.snapshot_id = view.snapshot_id
        known.head_messages, known.head_tool = view.head_messages, view.head_tool
        if known.chain is not None:
            known.chain.adopt_head(view)
        known.agents, known.agent_count = tuple(view.agents), len(view.agents)
        known.is_member = any(agent.service_id == emitter.service_id for agent in view.agents)
        known.limits = view.limits
        known.is_held = known.is_held or view.hold is not None
        known.question = view.question
        known.answers = view.answers
        known.new_answer = view.answers[-1] if view.is_answer_new else None
        # A session held for its migration is Active again, in the same epoch, if that is aborted.
        state = "Terminated" if view.state == "Archived" else "Active" if view.is_held else view.state
        self.set_state(state, committed=not view.is_held)

    def renew_producer(self) -> ProducerConflict:
        """Continue with a separate producer id; return the finding. Hold the lock."""
        shared = self.emitter.producer_id
        self.emitter.renew_producer()
        return ProducerConflict(self.session_id, shared)

    def lose(self) -> None:
        """Note that the session is another's, or over. Hold the lock."""
        view = self.view
        view.lost = view.detached = True
        view.sent_events = None
        self.beats.stop()

    # Findings

    @contextmanager
    def lock_then_notify(self) -> Iterator[None]:
        """Hold the lock; once it is released, call the callbacks for new findings.

        A callback may wait for another thread, and that thread for this session.
        """
        try:
            with self.lock:
                yield
        finally:
            self.notify_pending()

    def notify_pending(self) -> None:
        """Call the callbacks for new findings; do not hold the lock."""
        with self.lock:
            pending, self._pending_findings = self._pending_findings, []
        for finding, raised in pending:
            self.services.watch.notifications.notify(finding, raised=raised)

    def note_finding(self, finding: ProducerError, *, raised: bool) -> None:
        """Let `lock_then_notify` report a finding; not to `on_error` if a verb has `raised` it."""
        self._pending_findings.append((finding, raised))

    def notify_rejected(self, event_id: str, event_type: str, reason: RejectionReason) -> None:
        """Notify `on_rejected` of an event whose verdict a verb waited for, unless that was
        done.
        """
        rejected: EventRejected | None = EventRejected(self.session_id, event_id, event_type, reason)
        if self.view.sent_events is not None:
            rejected = self.view.sent_events.take_rejected(event_id, reason)
        if rejected is not None:
            self.services.watch.notifications.notify(rejected, raised=True)

    def fence(self, holder: str, epoch: int, owner_service: str | None) -> SessionFenced:
        """Let all verbs raise from now on; return what they raise. Hold the lock."""
        moved_to = None if owner_service == self.emitter.service_id else owner_service
        self.view.fenced_by = holder, epoch, moved_to
        self.view.changes += 1
        return SessionFenced(self.session_id, *self.view.fenced_by)

    def _note_fenced(self, holder: str, epoch: int, owner_service: str) -> SessionFenced:
        """Let `on_fenced` be notified, unless that was done; return the error for a verb."""
        fenced = self.fence(holder, epoch, owner_service)
        if not self.view.lost:
            self.note_finding(fenced, raised=True)
        self.view.lost = True
        return fenced

    def _note_view(self, view: SessionView) -> None:
        """Let the callbacks be notified what is new in an answer to a verb, before it is
        adopted.
        """
        known = self.view
        before = known.local_state
        if known.sent_events is not None:
            for rejected in known.sent_events.match_rejections(view.rejections):
                self.note_finding(rejected, raised=True)
        is_over = view.state in ("Terminated", "Archived")
        is_clocks = view.state == "Terminated" and is_clock_reason(view.reason_code or "UNKNOWN")
        is_new = view.state != before and before in ("Active", "Paused", "Error", "Timeout")
        if is_new and (view.state == "Timeout" or is_clocks):
            timed_out = SessionTimeout(self.session_id, view.state, view.reason_code or "UNKNOWN")
            self.note_finding(timed_out, raised=True)
        known.lost = is_over and (before != "Terminated" or known.lost)
        known.notified_lost = False

    # For `context` and `durable`

    def call_reporter(self) -> CallReporter:
        """Return the reporter of calls of models and tools in this session."""
        return CallReporter(
            self.session_id,
            self.emitter.may_block,
            self.is_active,
            self.send_event,
            self.services.on_error,
            self.waits,
            lambda: with_defaults(self.view.limits).model_ms,
            self.services.model_limit_s,
            self.services.answers,
        )

    def recorder(self) -> Recorder:
        """Return the recorder of work in this session."""
        services, view = self.services, self.view
        return Recorder(
            self.emitter.key,
            self.send_awaited,
            self.emitter.wait_position,
            self.keep_rejection,
            self.is_active,
            services.control,
            services.runs,
            services.verdict_timeout_s,
            self.waits,
            services.on_error,
            lambda: with_defaults(view.limits),
            lambda: services.calls.of_session(self.session_id, has_past=not view.created_id),
            services.artifacts,
            lambda: view.quotas,
            self._change_begun,
            lambda: view.question is not None,
            snapshots=view.snapshots,
            snapshot_call=self._snapshot_call,
            open_snapshot_call=self._open_snapshot_call,
            answers=services.answers,
        )

    def keep_value(self, value: Json, what: str, artifact_type: str, fields: EnvelopeFields) -> StoredText:
        """Return a value as an event of this session has it; blocks and raises as `store_value`."""
        return store_value(self.recorder(), value, what, artifact_type, fields)

    def note_access(self, uri: str, operation: str) -> None:
        """Report an access of a resource if the session is Active; raise nothing.

        Errors go to the client's `on_error`: what was accessed is there.
        """
        if self.is_active() and not self.emitter.gate.of_parent:
            try:
                self.send_access(uri, operation)
            except SessionaryError as error:
                self.services.on_error(error)

    def next_snapshot(self) -> Snapshot:
        """Return a snapshot of the content that follows the head. Hold the lock.

        Those that were rejected for their place in the log are taken again before it.
        """
        if self.view.chain is not None:
            self.view.chain.take_again()
        return self.view.new_snapshot()

    def _snapshot_call(self, tool: ToolExecution, fields: EnvelopeFields) -> None:
        from sessionary.producers.session.snapshots import snapshot_call  # few sessions have such snapshots

        snapshot_call(self, tool, fields)

    def _open_snapshot_call(self) -> str | None:
        from sessionary.producers.session.snapshots import open_call

        return open_call(self)

    def _change_begun(self, change: Callable[[BegunWork], None]) -> None:
        if not self.emitter.gate.of_parent:  # in a forked child the parent counts
            with self.lock:
                change(self.view.begun)

    def is_active(self) -> bool:
        """Return whether the session is Active, as far as the client knows."""
        return self.view.local_state == "Active"


def run_session_flow(core: SessionCore, flow: Flow[T]) -> T:
    """Run a flow of a session in this thread. Raises what the flow raises."""
    return run_flow(flow, core.waits.pause)
