"""A session as the watch sees it: findings of polls are adopted, unless a verb is at work."""

import weakref
from collections.abc import Callable, Collection, Mapping
from functools import partial

from sessionary.producers.context.scope import EventMetadata
from sessionary.producers.delivery.emitter import Emitter
from sessionary.producers.durable.flow import Do, Flow, Send
from sessionary.producers.errors import (
    ProducerConflict,
    ProducerError,
    SessionEnded,
    SessionHeld,
    SessionLost,
    SessionTimeout,
    Unavailable,
)
from sessionary.producers.ports import ChangedSession, Json, SessionView
from sessionary.producers.session.core import FINAL_ERRORS, SessionCore, SharedServices
from sessionary.producers.session.heartbeat import IsAlive
from sessionary.producers.session.verdicts import Verdicts
from sessionary.producers.session.view import LocalView, canonical_json
from sessionary.producers.verdicts.local_checks import NO_BARS, is_clock_reason
from sessionary.producers.verdicts.notifications import SessionGoesOn
from sessionary.schemas.types import Limits

_PATIENCE_S = 0.05
_MIGRATION = "migration"  # why a session is paused
_HELD_FROM = ("Active", "Error")


class PolledSession:
    """Adopts polls' findings on one session. Its methods take the lock, and never wait for it long.

    They return findings to report, if these are new.
    """

    __slots__ = ("_core", "_view")

    def __init__(self, core: SessionCore) -> None:
        self._core, self._view = core, core.view

    @property
    def lost(self) -> bool:
        """Whether the processor rejects what the session sends."""
        return self._view.lost

    def beat_interval_s(self) -> float | None:
        """Return how often the session beats; None if it does not."""
        return self._core.beats.interval_s()

    def describe_session(self) -> tuple[str, int, str | None, int]:
        """Return state, epoch, the producer id if this client holds the session, and its agents."""
        view, emitter = self._view, self._core.emitter
        holder = emitter.producer_id if view.is_holder else None
        return view.local_state, emitter.epoch, holder, view.agent_count

    def leave_shared_id(self, producer_id: str | None, judged_seq: int) -> ProducerConflict | None:
        """Take a new producer id if more events were judged under ours than this object sent."""
        core = self._core
        if judged_seq <= core.emitter.last_seq or not core.lock.acquire_now():
            return None
        try:
            if producer_id != core.emitter.producer_id or judged_seq <= core.emitter.last_seq:
                return None
            return core.renew_producer()
        finally:
            core.lock.release()

    def adopt_change(self, change: ChangedSession) -> ProducerError | None:
        """Adopt a poll's finding.

        Waits for the lock for a moment only, and only if the epoch was raised: a heartbeat that is
        just being sent must not keep a fenced session from learning of it until the next poll.

        In one epoch a session does not come back from Timeout, and never from its end. So the
        finding holds, whatever was sent since.
        """
        view, emitter = self._view, self._core.emitter
        if change.rejections:  # not reported again, so that it must count although a verb runs
            view.bars = NO_BARS  # the rejected event may have led to the known state
            if view.chain is not None:
                view.chain.hear_rejections(change.rejections, change.snapshot_id)
        is_raised = change.epoch is not None and change.epoch > emitter.epoch
        if not self._core.lock.acquire_within(_PATIENCE_S if is_raised else 0):
            return None  # a verb holds it, or the next poll finds it again
        if change.agents > view.agent_count:  # events sent meanwhile may have been overtaken
            view.agent_count, view.is_update_open = change.agents, True
        try:
            is_own_end = view.local_state == "Terminated" and not view.notified_lost
            if view.pending is not None or view.offered is not None or view.lost or is_own_end:
                return None  # a verb that waits reports it
            known, own_id = emitter.epoch, emitter.producer_id
            epoch = known if change.epoch is None else change.epoch
            if epoch > known and view.is_holder and change.holder not in (None, own_id):
                self._core.lose()
                return self._core.fence(f"{change.holder}", epoch, change.owner_service)
            if epoch == known and change.state == "Paused" and view.is_holder and view.local_state in _HELD_FROM:
                # The hold of a migration is short: the session is another's, or ours again, at
                # once.
                return None if change.reason_code == _MIGRATION else self._adopt_pause(change)
            is_over = change.state in ("Terminated", "Archived")
            return self._adopt_reported_state(change) if epoch == known or is_over else None
        finally:
            self._core.lock.release()

    def forget_judged(self, event_ids: Collection[str]) -> None:
        """Forget what was kept of events until they are judged."""
        if (chain := self._view.chain) is None or not self._core.lock.acquire_now():
            return  # the next poll finds later ones
        try:
            chain.forget_judged(event_ids)
        finally:
            self._core.lock.release()

    def go_on(self, change: ChangedSession) -> SessionGoesOn | None:
        """Adopt the epoch that an operator or a clock has given. Blocks while it asks.

        Without an answer of the control API, the next poll finds the epoch again.
        """
        if not self._may_go_on(change.state, change.epoch, change.holder, change.holder_epoch):
            return None
        core, departures = self._core, self._view.departures
        try:
            view = core.fetch_view()
        except (*FINAL_ERRORS, Unavailable):
            return None
        if not core.lock.acquire_now():  # the next poll finds it again
            return None
        try:
            raised = view.state, view.epoch, view.holder, view.holder_epoch
            if self._view.departures != departures or not self._may_go_on(*raised):
                return None
            core.adopt_view(view)
        finally:
            core.lock.release()
        core.notify_pending()
        return SessionGoesOn(core.session_id, view.epoch, view.reason_code or "UNKNOWN")

    def _may_go_on(self, state: str | None, epoch: int | None, holder: str | None, holder_epoch: int | None) -> bool:
        """Return whether this object keeps a session whose epoch was raised.

        Only the holder does, and only if no client's event has given an epoch since its own. So an
        operator's resume does not fence the holder off, but another process's does.
        """
        view, known = self._view, self._core.emitter.epoch
        return (
            view.is_holder
            and not (view.lost or view.detached or view.pending is not None)
            and view.local_state != "Terminated"  # what was ended here does not come back
            and state == "Active"
            and holder == self._core.emitter.producer_id
            and epoch is not None
            and holder_epoch is not None
            and holder_epoch <= known < epoch
        )

    def _adopt_pause(self, change: ChangedSession) -> SessionHeld:
        view = self._view
        view.snapshot_id = change.snapshot_id or view.snapshot_id  # an operator's pause may have made one
        view.is_held = True
        self._core.set_state("Paused")
        return SessionHeld(view.session_id, change.reason_code or "UNKNOWN")

    def _adopt_reported_state(self, change: ChangedSession) -> ProducerError | None:
        core, view, session_id = self._core, self._view, self._view.session_id
        reason_code = change.reason_code or "UNKNOWN"
        if change.state is None:
            view.lost = True  # still beating: the control API may be another pipeline's
            return SessionLost(f"session {session_id} does not exist: its creation was rejected or lost")
        if change.state == "Timeout" and view.local_state != "Timeout":
            core.set_state("Timeout")
            view.bars = NO_BARS
            return SessionTimeout(session_id, "Timeout", reason_code)
        if change.state not in ("Terminated", "Archived"):
            return None
        core.lose()
        view.notified_lost = True
        core.set_state("Terminated")
        view.bars = NO_BARS
        if change.state == "Terminated" and is_clock_reason(reason_code):
            return SessionTimeout(session_id, change.state, reason_code)
        how = "is archived" if change.state == "Archived" else f"was ended ({reason_code})"
        return SessionEnded(f"session {session_id} {how}: what is sent in it is rejected")


def watch_core(core: SessionCore) -> None:
    """Let the client's watch poll for a session, as long as something refers to its core."""
    held = weakref.ref(core)
    find: Callable[[], PolledSession | None] = lambda: None if (found := held()) is None else PolledSession(found)  # noqa: E731
    core.view.sent_events = core.services.watch.watch_session(find, core.emitter)


# Makes a session's core, and opens a session that exists.


def new_core(
    emitter: Emitter,
    services: SharedServices,
    *,
    limits: Limits | None = None,
    state: Mapping[str, Json] | None = None,
    state_schema_version: int = 1,
    is_alive: IsAlive | None = None,
    watched: bool = True,
) -> SessionCore:
    """Return the core of a session, known to the client's watch if `watched`. Sends nothing.

    `is_alive`: tests the thread or task that the heartbeats end with, if there is one. Raises
    `Invalid` if the state cannot be written as JSON.
    """
    state_json = canonical_json({} if state is None else state)
    view = LocalView(emitter, limits or Limits(), state_json, state_schema_version, quotas=services.quotas)
    core = SessionCore(view, services, is_alive)
    if watched:
        watch_core(core)
    return core


def attach_flow(core: SessionCore, take_over: bool, metadata: EventMetadata) -> Flow[SessionCore]:
    """Read a session that exists, and take it over if asked. Raises as `SessionClient.attach`."""
    verdicts = Verdicts(core)
    try:
        view: SessionView = yield Do(partial(core.sync, core.view.departures, attaches=True))
        if take_over:
            pending = yield Send(partial(verdicts.ask_take_over, metadata))
            yield Do(partial(verdicts.wait_take_over, pending))
        elif view.owner_service != core.emitter.service_id:
            core.detach()
    except BaseException:
        core.abandon()
        raise
    return core
