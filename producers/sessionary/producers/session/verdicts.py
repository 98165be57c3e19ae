"""Waits for the verdict on a verb, and ends a session although one is awaited.

A session that is left before its verdict is known is ended once more if the verb is granted later.
"""

import time
from collections.abc import Callable

from sessionary.producers.context.scope import EventMetadata, envelope_fields
from sessionary.producers.delivery.emitter import NO_FIELDS, EnvelopeFields
from sessionary.producers.errors import (
    DeliveryFailed,
    Rejected,
    SessionaryError,
    SessionEnded,
    Unavailable,
    VerdictPending,
)
from sessionary.producers.ports import SessionView
from sessionary.producers.session.core import FINAL_ERRORS, SessionCore
from sessionary.producers.session.pending_verdict import TAKES_SESSION, PendingVerdict
from sessionary.producers.session.view import ASKED_REMEDY
from sessionary.producers.verdicts.local_checks import NO_BARS
from sessionary.schemas.events import Payload, SessionTakenOver

_EPOCH_PAUSE_S = 0.1
_HELD, _ASKED = "operator_only", "question_open"


class Verdicts:
    """The verdicts of one session. Thread-safe."""

    __slots__ = ("_core",)

    def __init__(self, core: SessionCore) -> None:
        self._core = core

    def ask(self, verb: str, payloads: list[Payload], fields: EnvelopeFields = NO_FIELDS) -> PendingVerdict:
        """Send `payloads`, unless done before; return the argument of `wait`."""
        core, view = self._core, self._core.view
        with core.lock:
            pending = view.pending
            if pending is not None:
                if pending.verb != verb:
                    raise VerdictPending(pending.verb)
                return pending
            core.services.control.check_configured()
            view.bars = NO_BARS  # the verdict decides, and the state with it
            for payload in payloads[:-1]:
                core.send_event(payload, fields)
            pending = core.new_pending(verb, payloads[-1])
            pending.event_id = core.send_event(payloads[-1], fields, pending.on_receipt)
            view.pending, view.followed = pending, None
            view.changes += 1
            view.detached = False
            core.beats.start()
            return pending

    def wait(self, pending: PendingVerdict) -> SessionView:
        """Wait for a verdict and adopt it, unless the session was left meanwhile."""
        core, known = self._core, self._core.view
        try:
            view = self._wait_view(pending, time.monotonic() + core.services.verdict_timeout_s)
        except FINAL_ERRORS:
            with core.lock:
                if known.pending is pending:
                    known.pending = None
            raise
        is_reached = _is_reached(pending, view)
        with core.lock_then_notify():
            if known.pending is pending:
                known.pending, pending.adopted = None, True
                core.adopt_view(view, pending.producer_id)
                if is_reached and pending.continues_snapshot and view.snapshot_state_json is not None:
                    known.state_json = view.snapshot_state_json
            elif not pending.adopted:
                raise SessionEnded(f"session {core.session_id} was left before the verdict on {pending.verb}()")
        if not is_reached:
            reason = (view.verdict and view.verdict.reason) or "UNKNOWN"
            core.notify_rejected(pending.event_id, pending.event_type, reason)
            raise Rejected(pending.event_type, reason, _why(reason, view))
        return view

    def ask_take_over(self, metadata: EventMetadata) -> PendingVerdict:
        """Begin to take the session over, as `SessionClient.attach` describes it."""
        view = self._core.view
        if view.local_state == "Terminated":
            raise SessionEnded(f"session {view.session_id} has ended; create a new one")
        return self.ask("attach", [SessionTakenOver()], envelope_fields(metadata))

    def wait_take_over(self, pending: PendingVerdict) -> None:
        """Wait for the verdict on a take-over; without a grant the session sends no heartbeat."""
        try:
            self.wait(pending)
        except SessionaryError:
            self._core.detach()
            raise
        with self._core.lock:
            self._core.view.held_as = pending.producer_id

    def end_despite(self, end: Callable[[], None]) -> None:
        """Call `end`, which ends the session, although a verdict may be awaited. Hold the lock.

        If that verdict comes later and raised the epoch, the processor has rejected the event of
        `end`. Then another thread calls `end` again, in the state and epoch that the verdict led
        to.
        """
        core, view = self._core, self._core.view
        pending, view.pending = view.pending, None
        view.departures += 1
        try:
            end()
        except BaseException:
            view.pending = pending
            raise
        if pending is not None:
            core.services.follower.follow_verdict(self._follow(pending, end))
            core.beats.beat_until_followed(pending)

    def end_again(self, sent: PendingVerdict, end: Callable[[], None]) -> None:
        """Let another thread call `end` if an event that ended the session was of an old epoch."""
        self._core.services.follower.follow_verdict(self._follow(sent, end, is_end=True))

    def _wait_view(self, pending: PendingVerdict, deadline: float) -> SessionView:
        """Wait for the processor. Without an offset, only a raised epoch shows that it applied.

        Another thread may adopt that epoch first.
        """
        core = self._core
        position = pending.wait_position(deadline - time.monotonic())
        while True:
            left_s = max(deadline - time.monotonic(), 0.1)
            view = core.services.control.fetch_session(core.session_id, position, left_s)
            if position is not None or view.epoch > pending.epoch:
                return view
            if time.monotonic() + _EPOCH_PAUSE_S >= deadline:
                raise DeliveryFailed(
                    pending.event_id, "its position in the log is unknown, and it did not raise the epoch"
                )
            time.sleep(_EPOCH_PAUSE_S)

    def _follow(
        self, pending: PendingVerdict, end: Callable[[], None], *, is_end: bool = False
    ) -> Callable[[float], bool]:
        """Return a step of waiting for the verdict: True once nothing more is to be done.

        `is_end`: it is the verdict on an end, which a raised epoch did not let happen.
        """
        core, services = self._core, self._core.services
        epoch, departures, deadline_s = core.emitter.epoch, core.view.departures, 0.0

        def follow(timeout_s: float) -> bool:
            is_over = True
            try:
                is_over = ask(timeout_s)
            finally:
                if is_over:
                    with core.lock:
                        core.beats.end_following(pending)
            return is_over

        def ask(timeout_s: float) -> bool:
            nonlocal deadline_s
            if not pending.settled:
                return False
            deadline_s = deadline_s or time.monotonic() + services.verdict_timeout_s
            try:
                position = pending.wait_position(0.0)
                view = services.control.fetch_session(core.session_id, position, timeout_s)
            except Unavailable as error:
                if time.monotonic() < deadline_s:
                    return False
                services.on_error(error)
                return True
            except FINAL_ERRORS:
                return True  # it was not granted, or this process may never know: the first end holds
            if view.epoch <= epoch:
                return position is not None or time.monotonic() >= deadline_s
            with core.lock_then_notify():
                if core.view.departures == departures and (is_end or _is_reached(pending, view)):
                    self._end_granted(view, end)
            return True

        return follow

    def _end_granted(self, view: SessionView, end: Callable[[], None]) -> None:
        """End the session in the state and epoch of a late verdict. In `lock_then_notify` only."""
        core, known = self._core, self._core.view
        known.detached = True  # no heartbeat
        core.adopt_view(view)
        if known.has_ended:
            return
        known.detached = False
        try:
            end()
        finally:
            known.detached = True
            core.beats.stop()


def _is_reached(pending: PendingVerdict, view: SessionView) -> bool:
    """Return True if a verb has led to its goal.

    A worker that took the partition over does not know the decisions of its predecessor. The worker
    knows the session's holder and state, and every verb that takes no session leads to Active.
    """
    if view.verdict is not None and view.verdict.kept:
        return view.verdict.applied
    if pending.verb in TAKES_SESSION:
        return view.holder == pending.producer_id
    return view.verdict is None or view.state == "Active"


def _why(reason: str, view: SessionView) -> str:
    """Return more about a rejection, for people."""
    if reason == _HELD and view.hold is not None:
        return f"{view.hold}"
    if reason == _ASKED and view.question is not None:
        return f"a person is asked {view.question.text!r:.200}: {ASKED_REMEDY}"
    return ""
