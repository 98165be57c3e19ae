"""The heartbeats of one client's sessions on a clock that only a test moves."""

import itertools
import math
import weakref
from collections.abc import Callable
from threading import RLock


class _Beating:
    """One session's heartbeats; `due_ms` is when the next one is due."""

    __slots__ = ("due_ms", "interval_ms", "send")

    def __init__(self, send: Callable[[], bool], interval_ms: int, now_ms: int) -> None:
        self.send = weakref.WeakMethod(send)
        self.interval_ms = interval_ms
        self.due_ms = now_ms + interval_ms


class FakeHeartbeats:
    """`HeartbeatTimer` without a thread: `send_due` sends what is due. Thread-safe."""

    def __init__(self, read_clock: Callable[[], int]) -> None:
        """`read_clock` returns the fake time, ms since the epoch."""
        self._read_clock = read_clock
        self._lock = RLock()
        self._live: dict[int, _Beating] = {}
        self._tokens = itertools.count(1)

    def start_heartbeat(self, send: Callable[[], bool], interval_s: float, key: bytes = b"") -> int:
        """Call `send` every `interval_s` of fake time; return a token for `stop_heartbeat`.

        `send` is a bound method; its object is held weakly. `key` is of no use here.
        """
        with self._lock:
            token = next(self._tokens)
            self._live[token] = _Beating(send, max(1, math.ceil(interval_s * 1_000)), self._read_clock())
            return token

    def stop_heartbeat(self, token: int) -> None:
        """Stop the heartbeats of `token`, if there are any."""
        with self._lock:
            self._live.pop(token, None)

    def close(self, timeout_s: float = 0.0) -> None:
        """Stop all heartbeats; a second call does nothing."""
        with self._lock:
            self._live.clear()

    @property
    def next_due_ms(self) -> int | None:
        """When the next heartbeat is due, ms since the epoch on the fake clock; None if none is."""
        with self._lock:
            return min((beating.due_ms for beating in self._live.values()), default=None)

    def send_due(self, now_ms: int) -> None:
        """Send each heartbeat that is due, in the order in which the sessions began to beat."""
        with self._lock:
            due = [(token, beating) for token, beating in self._live.items() if beating.due_ms <= now_ms]
        for token, beating in due:
            send = beating.send()
            if send is None or not send():
                self.stop_heartbeat(token)
            beating.due_ms = now_ms + beating.interval_ms
