"""What the processor decides, as one session knows it: checks before, news afterwards."""

from collections.abc import Iterator
from contextlib import contextmanager

from sessionary.producers.delivery.emitter import Emitter
from sessionary.producers.errors import (
    EventRefused,
    NotAllowed,
    ProducerConflict,
    ProducerError,
    SessionEnded,
    SessionFenced,
    SessionHeld,
    SessionLost,
    SessionTimedOut,
)
from sessionary.producers.judgement.local_checks import (
    NO_BARS,
    Bar,
    Bars,
    barred_events,
    events_within_runs,
    find_objection,
    is_clock_reason,
)
from sessionary.producers.judgement.notices import SessionGoesOn
from sessionary.producers.judgement.session_lock import SessionLock
from sessionary.producers.judgement.session_watch import SessionWatch
from sessionary.producers.ports import ChangedSession, SessionView
from sessionary.schemas.events import EVENT_TYPES, Payload
from sessionary.schemas.types import RefusalReason

_PATIENCE_S = 0.05
_MIGRATION = "migration"  # why a session is paused
_HELD_FROM = ("Active", "Error")
_HELD_REMEDY = "it goes on once they resume it, or by resume()"


class JudgedHandle:
    """The part of a session that knows of verdicts.

    Hold the lock for the methods, but not for `_adopt_change`, `_tell_refused`, `_lock_then_tell`
    and the public properties.
    """

    _emitter: Emitter
    _lock: SessionLock
    _local_state: str
    _sends_phases: bool
    _is_member: bool
    _agent_count: int
    _is_update_open: bool
    _pending: object | None
    _is_holder: bool
    _detached: bool
    _snapshot_id: str | None

    @property
    def lost(self) -> bool:
        """True if the processor refuses what this object sends, as far as this object knows.

        It was timed out for good, ended or taken over by others, or its creation was refused. Verbs
        go on as before: what they send is kept on the rejected topic. If the setting `control_url`
        is set, this is known within some seconds (`poll_interval_s`), else after a `sync`.
        """
        return self._lost

    @property
    def session_id(self) -> str:
        """The session's UUID."""
        return self._emitter.key.session_id

    def _begin_judgement(self, emitter: Emitter, watch: SessionWatch) -> None:
        """Begin to watch the session."""
        self._watch = watch
        self._bars: Bars = NO_BARS  # events that the processor is certain to refuse in this state
        self._lost_before = 0  # events that were lost before the state was last certain
        self._offered: str | None = None  # the migration whose end a verb waits for
        self._lost = self._told_lost = False  # told: by a poll, which makes no verb raise
        self._is_held = False  # others paused it, as a poll has told
        self._untold: list[tuple[ProducerError, bool]] = []  # findings, and whether a verb raises them
        self._sent_events = watch.watch_session(self, emitter)

    def _set_state(self, state: str, *, committed: bool = False) -> None:
        """Enter a state, which the processor has told if it is `committed`."""
        raise NotImplementedError

    def _stop_heartbeats(self) -> None:
        raise NotImplementedError

    def _beat_interval_s(self) -> float | None:
        """Return how often the session beats; None if it does not."""
        raise NotImplementedError

    def _update_bars(self, *, committed: bool) -> None:
        """Find out what is certain to be refused in a state that was entered."""
        if committed:
            self._lost_before = self._emitter.lost_events
        # In a shared session, another process may keep it from the state that we asked for.
        if committed or self._is_holder:
            self._bars = barred_events(self._local_state, is_owner=self._sends_phases, is_member=self._is_member)
        else:
            self._bars = NO_BARS

    def _may_go_on_alone(self, payload: Payload, run_id: str | None) -> bool:
        """Return whether an event may be one of a detached run.

        The state of its session then bars it not.
        """
        return bool(run_id) and type(payload) in events_within_runs()

    def _require_passing(self, payload: Payload, bar: Bar) -> None:
        """Raise `NotAllowed` if the processor is certain to refuse an event."""
        objection = find_objection(payload, bar, self._local_state, self._emitter.service_id)
        # If an event was lost, the session may not be in the state that it led to.
        if objection is not None and self._emitter.lost_events == self._lost_before:
            if self._is_held and self._local_state == "Paused":
                detail = f"{EVENT_TYPES[type(payload)]} is not possible while others hold the session: {_HELD_REMEDY}"
                raise NotAllowed(objection.reason, detail, objection.state, objection.event_type)
            raise objection

    # After an answer

    @contextmanager
    def _lock_then_tell(self) -> Iterator[None]:
        """Hold the lock; call the callbacks of what was found meanwhile once it is released.

        A callback may wait for another thread, and that thread for this session.
        """
        try:
            with self._lock:
                yield
        finally:
            self._tell_untold()

    def _tell_untold(self) -> None:
        """Call the callbacks of what was found; do not hold the lock."""
        with self._lock:
            untold, self._untold = self._untold, []
        for finding, raised in untold:
            self._watch.notices.tell(finding, raised=raised)

    def _note_finding(self, finding: ProducerError, *, raised: bool) -> None:
        """Let `_lock_then_tell` tell a finding. If it is `raised` by a verb, not to `on_error`."""
        self._untold.append((finding, raised))

    def _note_fenced(self, holder: str, epoch: int) -> SessionFenced:
        """Let `on_fenced` be told, unless that was done; return what a verb is to raise."""
        fenced = SessionFenced(self.session_id, holder, epoch)
        if not self._lost:
            self._note_finding(fenced, raised=True)
        self._lost = True
        return fenced

    def _note_view(self, view: SessionView) -> None:
        """Let the callbacks be told what is new in an answer to a verb, before it is adopted."""
        before = self._local_state
        if self._sent_events is not None:
            for refused in self._sent_events.match_refusals(view.refusals):
                self._note_finding(refused, raised=True)
        is_over = view.state in ("Terminated", "Archived")
        is_clocks = view.state == "Terminated" and is_clock_reason(view.reason_code or "UNKNOWN")
        is_news = view.state != before and before in ("Active", "Paused", "Error", "Timeout")
        if is_news and (view.state == "Timeout" or is_clocks):
            timed_out = SessionTimedOut(self.session_id, view.state, view.reason_code or "UNKNOWN")
            self._note_finding(timed_out, raised=True)
        self._lost = is_over and (before != "Terminated" or self._lost)
        self._told_lost = False

    def _tell_refused(self, event_id: str, event_type: str, reason: RefusalReason) -> None:
        """Tell `on_refused` of an event whose verdict a verb waited for, unless that was done."""
        refused: EventRefused | None = EventRefused(self.session_id, event_id, event_type, reason)
        if self._sent_events is not None:
            refused = self._sent_events.take_refused(event_id, reason)
        if refused is not None:
            self._watch.notices.tell(refused, raised=True)

    # For the watch

    def _describe_session(self) -> tuple[str, int, str | None, int]:
        """Return state, epoch, the producer id if this client holds the session, and its agents."""
        holder = self._emitter.producer_id if self._is_holder else None
        return self._local_state, self._emitter.epoch, holder, self._agent_count

    def _leave_shared_id(self, producer_id: str | None, judged_seq: int) -> ProducerConflict | None:
        """Take a new producer id if more was judged under ours than this object has sent.

        Returns what is to be told. Never blocks.
        """
        if judged_seq <= self._emitter.last_seq or not self._lock.acquire_now():
            return None
        try:
            if producer_id != self._emitter.producer_id or judged_seq <= self._emitter.last_seq:
                return None
            return self._renew_producer()
        finally:
            self._lock.release()

    def _renew_producer(self) -> ProducerConflict:
        """Go on with a producer id of our own; return what is to be told."""
        shared = self._emitter.producer_id
        self._emitter.renew_producer()
        self._is_holder = False  # which of the two holds the session cannot be told
        return ProducerConflict(self.session_id, shared)

    def _adopt_change(self, change: ChangedSession) -> ProducerError | None:
        """Take what a poll found; return what is to be told, if it is news.

        Waits for the lock for a moment only, and only if the epoch was raised: a heartbeat that is
        just being sent must not keep a fenced session from learning of it until the next poll.

        In one epoch a session does not come back from Timeout, and never from its end, so that this
        holds whatever was sent since.
        """
        if change.refusals:  # not told again, so that it must count although a verb runs
            self._bars = NO_BARS  # what was refused may be what led to the known state
        is_raised = change.epoch is not None and change.epoch > self._emitter.epoch
        if not self._lock.acquire_within(_PATIENCE_S if is_raised else 0):
            return None  # a verb holds it, or the next poll finds it again
        if change.agents > self._agent_count:  # what was sent meanwhile may have been overtaken
            self._agent_count, self._is_update_open = change.agents, True
        try:
            is_own_end = self._local_state == "Terminated" and not self._told_lost
            if self._pending is not None or self._offered is not None or self._lost or is_own_end:
                return None  # a verb that waits tells it
            known, own_id = self._emitter.epoch, self._emitter.producer_id
            epoch = known if change.epoch is None else change.epoch
            if epoch > known and self._is_holder and change.holder not in (None, own_id):
                self._lose_session()
                return SessionFenced(self.session_id, f"{change.holder}", epoch)
            if epoch == known and change.state == "Paused" and self._is_holder and self._local_state in _HELD_FROM:
                # That of a migration is short: the session is another's, or ours again, at once.
                return None if change.reason_code == _MIGRATION else self._adopt_pause(change)
            is_over = change.state in ("Terminated", "Archived")
            return self._adopt_told_state(change) if epoch == known or is_over else None
        finally:
            self._lock.release()

    def _adopt_pause(self, change: ChangedSession) -> SessionHeld:
        self._snapshot_id = change.snapshot_id or self._snapshot_id  # an operator's pause may have made one
        self._is_held = True
        self._set_state("Paused")
        return SessionHeld(self.session_id, change.reason_code or "UNKNOWN")

    def _may_go_on(self, state: str | None, epoch: int | None, holder: str | None, holder_epoch: int | None) -> bool:
        """Return whether this object goes on in a session whose epoch was raised.

        Only the holder does, and only if no client's event has given an epoch since its own: so an
        operator's resume does not fence it off, and another process's does.
        """
        known = self._emitter.epoch
        return (
            self._is_holder
            and not (self._lost or self._detached or self._pending is not None)
            and state == "Active"
            and holder == self._emitter.producer_id
            and epoch is not None
            and holder_epoch is not None
            and holder_epoch <= known < epoch
        )

    def _go_on(self, change: ChangedSession) -> SessionGoesOn | None:
        """Adopt the epoch that an operator or a clock has given; return what is to be told. Blocks.

        Without an answer of the control API, the next poll finds it again.
        """
        return None

    def _adopt_told_state(self, change: ChangedSession) -> ProducerError | None:
        reason_code = change.reason_code or "UNKNOWN"
        if change.state is None:
            self._lost = True  # still beating: the control API may be another pipeline's
            return SessionLost(f"session {self.session_id} does not exist: its creation was refused or lost")
        if change.state == "Timeout" and self._local_state != "Timeout":
            self._set_state("Timeout")
            self._bars = NO_BARS
            return SessionTimedOut(self.session_id, "Timeout", reason_code)
        if change.state not in ("Terminated", "Archived"):
            return None
        self._lose_session()
        self._told_lost = True
        self._set_state("Terminated")
        self._bars = NO_BARS
        if change.state == "Terminated" and is_clock_reason(reason_code):
            return SessionTimedOut(self.session_id, change.state, reason_code)
        how = "is archived" if change.state == "Archived" else f"was ended ({reason_code})"
        return SessionEnded(f"session {self.session_id} {how}: what is sent in it is refused")

    def _lose_session(self) -> None:
        self._lost = self._detached = True
        self._sent_events = None
        self._stop_heartbeats()


__all__ = ["JudgedHandle"]
