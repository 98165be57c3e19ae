"""Heartbeats of an attached run while it is silent, with its duration so far."""

import threading
from collections.abc import Callable
from typing import Final

from sessionary.producers.ports import HeartbeatTimer

BEAT_S: Final = 5.0  # transports between an agent and its user end silent connections after 30 s


class RunBeats:
    """Beats from `start` to `stop`: each `BEAT_S` in which the session sent no event. Thread-safe.

    Each object is used once: after `stop` it never begins. `stop` waits for a beat that is being
    sent, never for the next one. So no beat follows an event that is sent after `stop` returned.
    """

    def __init__(
        self,
        timer: HeartbeatTimer,
        send: Callable[[str, float], None],
        last_number: Callable[[], int],
        now_s: Callable[[], float],
    ) -> None:
        """Take the parts that send beats.

        Args:
            timer: Says when a beat is due.
            send: Sends one; takes the run's id and the seconds since its beginning. Never blocks.
            last_number: Returns the number of the session's last event.
            now_s: The clock, in seconds; only differences count.
        """
        self._timer = timer
        self._send = send
        self._last_number = last_number
        self._now_s = now_s
        self._lock = threading.Lock()
        self._token: int | None = None
        self._is_over = False
        self._run_id = ""
        self._began_s = 0.0
        self._heard = 0

    @property
    def elapsed_s(self) -> float:
        """The time since `start`, in seconds."""
        return self._now_s() - self._began_s

    def start(self, run_id: str, *, is_attached: bool) -> None:
        """Take the time of a run from now on, and let it beat if it is attached."""
        self._began_s = self._now_s()
        if is_attached:
            with self._lock:
                if self._is_over:
                    return
                self._run_id, self._heard = run_id, self._last_number()
                self._token = self._timer.start_heartbeat(self._send_beat, BEAT_S)

    def stop(self) -> None:
        """End the beats; a second call does nothing."""
        with self._lock:
            self._is_over = True
            token, self._token = self._token, None
        if token is not None:
            self._timer.stop_heartbeat(token)

    def _send_beat(self) -> bool:
        with self._lock:
            if self._token is None:
                return False
            heard, self._heard = self._heard, self._last_number()
            if heard == self._heard:
                self._send(self._run_id, round(self.elapsed_s, 1))
            return True
