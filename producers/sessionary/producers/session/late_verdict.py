"""Ends a session although a verdict on it is awaited, and again if that comes later."""

import time
from collections.abc import Callable

from sessionary.producers.errors import Unavailable
from sessionary.producers.ports import SessionView
from sessionary.producers.session.handle import FINAL_ERRORS, SessionHandle
from sessionary.producers.session.pending_verdict import PendingVerdict


class LateVerdicts(SessionHandle):
    """A session that can be ended at any time. Thread-safe."""

    def _end_despite_verdict(self, end: Callable[[], None]) -> None:
        """Call `end`, which ends the session, although a verdict may be awaited. Hold the lock.

        If that verdict comes later and raised the epoch, the processor has refused what `end`
        sent. Then another thread calls it again, in the state and epoch that the verdict led to.
        """
        pending, self._pending = self._pending, None
        self._departures += 1
        try:
            end()
        except BaseException:
            self._pending = pending
            raise
        if pending is not None:
            self._services.follower.follow_verdict(self._follow_verdict(pending, end))
            self._beat_until_followed(pending)

    def _follow_verdict(self, pending: PendingVerdict, end: Callable[[], None]) -> Callable[[float], bool]:
        """Return a step of waiting for the verdict: True once nothing more is to be done."""
        epoch, departures, deadline_s = self.epoch, self._departures, 0.0

        def follow(timeout_s: float) -> bool:
            is_over = True
            try:
                is_over = ask(timeout_s)
            finally:
                if is_over:
                    with self._lock:
                        self._end_following(pending)
            return is_over

        def ask(timeout_s: float) -> bool:
            nonlocal deadline_s
            if not pending.settled:
                return False
            deadline_s = deadline_s or time.monotonic() + self._services.verdict_timeout_s
            try:
                position = pending.wait_position(0.0)
                view = self._services.control.fetch_session(self.session_id, position, timeout_s)
            except Unavailable as error:
                if time.monotonic() < deadline_s:
                    return False
                self._services.on_error(error)
                return True
            except FINAL_ERRORS:
                return True  # it was not granted, or this process may never know: the first end holds
            if view.epoch <= epoch:
                return position is not None or time.monotonic() >= deadline_s
            with self._lock_then_tell():
                if self._departures == departures and self._is_reached(pending.verb, view):
                    self._end_granted(view, end)
            return True

        return follow

    def _end_granted(self, view: SessionView, end: Callable[[], None]) -> None:
        """End the session in the state and epoch of a late verdict. In `_lock_then_tell` only."""
        self._detached = True  # no heartbeat
        self._adopt_view(view)
        if self._local_state in ("Terminated", "Timeout"):
            return
        self._detached = False
        try:
            end()
        finally:
            self._detached = True
            self._stop_heartbeats()


__all__ = ["LateVerdicts"]
