"""When one session beats, and its heartbeats."""

from sessionary.producers.judgement.session_watch import SessionWatch
from sessionary.producers.ports import HeartbeatTimer
from sessionary.producers.session.heartbeat import IsAlive, heartbeat_interval_s
from sessionary.producers.session.pending_verdict import PendingVerdict
from sessionary.producers.session.view import LocalView


class SessionBeats:
    """The heartbeats of a session.

    While a verb waits for its verdict, the session may be Active in the log: the processor may be
    late, or its answer lost. So the session beats, in the epoch that a granted verb begins. If the
    verb is refused, these heartbeats are refused too, and keep no session alive. A session that was
    left before its verdict beats on until it can be ended: else a clock might end it first.

    Hold the session's lock for what starts and stops heartbeats.
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
        """Send a heartbeat if the session may beat, unless what it waits for is not delivered yet.

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
            elif awaited.is_in_log:
                emitter.emit_heartbeat(epoch=emitter.epoch + 1)
            return True
        finally:
            emitter.lock.release()

    def send_run_beat(self, run_id: str, elapsed_s: float) -> None:
        """Send a heartbeat of an attached run, if one of the session may be sent. Never blocks."""
        if not self._view.lock.acquire_now():
            return
        try:
            if self._view.pending is None and self._view.followed is None and self._may_beat():
                self._view.emitter.emit_heartbeat(run_id, elapsed_s)
        finally:
            self._view.lock.release()

    def _may_beat(self) -> bool:
        """Return whether the session may be Active, and what its heartbeats end with is alive."""
        awaited = self._view.pending or self._view.followed
        may_be_active = self._view.local_state == "Active" if awaited is None else awaited.leads_to_active
        may_be_active = may_be_active or self._view.is_queued
        is_left = self._view.detached and self._view.followed is None
        alive = self._view.emitter.gate.open and (self._is_alive is None or self._is_alive())
        return may_be_active and not is_left and alive

    def bind(self, is_alive: IsAlive | None) -> None:
        """Let the heartbeats end with what `is_alive` tells of; None: with the process."""
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
        """Beat on, although the session was left: a verdict on it is followed."""
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
