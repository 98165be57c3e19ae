"""A session that asks for its tenant's quota, and waits until it is admitted."""

from functools import partial
from typing import Final

from sessionary.producers.durable.errors import QuotaExceeded
from sessionary.producers.durable.flow import Do, Flow, Wait
from sessionary.producers.errors import SessionEnded, SessionLost, Unavailable
from sessionary.producers.ports import SessionView
from sessionary.producers.session.collaboration.migration import MigratingSession
from sessionary.schemas.events import SessionStartFailed

LIMIT: Final = "live_sessions"
_REASON: Final = "quota_exceeded"
_PAUSE_S, _PAUSE_S_MAX = 0.05, 1.0


class AdmittedSession(MigratingSession):
    """The part of a session that waits before it starts. Thread-safe."""

    _created_id = ""  # of the event that created it, if this object did

    def _wait_admitted(self, wait_s: float | None) -> Flow[None]:
        """Wait until the tenant's quota admits the session, if the client knows of quotas.

        Meanwhile it beats, so that the processor knows that it is wanted. `wait_s`: at most; None:
        the client's setting. Raises what `Session.start` says; then the session has ended.
        """
        if not self._services.quotas:
            return
        wait_s = self._services.quota_wait_s if wait_s is None else wait_s
        try:
            admitted = yield from self._poll_admission(wait_s)
        except (QuotaExceeded, SessionEnded):
            raise
        except BaseException:
            yield Do(partial(self._stop_waiting, "its client stopped waiting for the quota"))
            raise
        finally:
            self._beat_in_queue(on=False)
        if not admitted:
            yield Do(partial(self._stop_waiting, f"it waited {wait_s:g} s for the quota"))
            raise QuotaExceeded(None, LIMIT, self._emitter.key.tenant_id, wait_s, session_id=self.session_id)

    def _poll_admission(self, wait_s: float) -> Flow[bool]:
        """Return True once the session is admitted, False after `wait_s`."""
        waits, pause_s = self._waits, _PAUSE_S
        timeout_s, fetch = self._services.verdict_timeout_s, self._services.control.fetch_session
        deadline_s = waits.now_s() + wait_s
        place: tuple[int, int] | None = None  # of the event that created it
        while True:
            try:
                if place is None:
                    place = yield Do(partial(self._emitter.wait_position, timeout_s))
                view: SessionView = yield Do(partial(fetch, self.session_id, place, timeout_s))
            except Unavailable:
                if waits.now_s() >= deadline_s:
                    raise
            except SessionLost:  # if the broker did not tell the place, the creation may not be judged yet
                if place is not None or waits.now_s() >= deadline_s:
                    raise
            else:
                if view.state in ("Terminated", "Archived"):
                    self._leave_rejected(view)
                if not view.awaits_quota:
                    return True
            self._beat_in_queue(on=True)
            left_s = deadline_s - waits.now_s()
            if left_s <= 0:
                return False
            yield Wait(min(pause_s, left_s))
            pause_s = min(1.5 * pause_s, _PAUSE_S_MAX)

    def _leave_rejected(self, view: SessionView) -> None:
        """Raise why the session has ended before it started."""
        with self._lock:
            self._set_state("Terminated")
            if view.reason_code != _REASON:
                raise SessionEnded(f"session {self.session_id} has ended before it started: {view.reason_code}")
            self._keep_refusal(self._created_id, _REASON)
        raise QuotaExceeded(None, LIMIT, self._emitter.key.tenant_id, session_id=self.session_id)

    def _beat_in_queue(self, *, on: bool) -> None:
        with self._lock:
            if self._is_queued == on:
                return
            self._is_queued = on
            if on:
                self._start_heartbeats()
            elif self._local_state != "Active":
                self._stop_heartbeats()

    def _stop_waiting(self, why: str) -> None:
        with self._lock:
            if self._local_state == "Idle" and not self._detached:
                self._send_event(SessionStartFailed("connection_failed", why))
                self._set_state("Terminated")


__all__ = ["LIMIT", "AdmittedSession"]
