"""One timer thread sends the heartbeats of all sessions of a client.

It holds sessions weakly and asks each before every heartbeat. So it keeps no session alive that
has ended, that its agent dropped, or whose agent thread died.
"""

import heapq
import itertools
import time
import weakref
from collections.abc import Callable
from threading import Condition, Thread

from sessionary.producers.process.guards import LATE_JOIN_S, join_thread
from sessionary.schemas.limits import HEARTBEATS_PER_BUDGET, inactivity_budget_ms, with_defaults
from sessionary.schemas.types import Limits


def heartbeat_interval_s(limits: Limits, wanted_s: float) -> float:
    """Return `wanted_s`, but at most a sixth of the session's inactivity budget."""
    budget_ms = inactivity_budget_ms(with_defaults(limits))
    return min(wanted_s, budget_ms / 1000 / HEARTBEATS_PER_BUDGET)


# Sends one heartbeat; False if the session needs no more. Never blocks.
SendHeartbeat = Callable[[], bool]


class Heartbeats:
    """The timer; its thread starts with the first session. Thread-safe."""

    def __init__(self, on_error: Callable[[Exception], None]) -> None:
        self._on_error = on_error
        self._wake = Condition()
        self._due: list[tuple[float, int]] = []  # (monotonic time, token)
        self._live: dict[int, tuple[weakref.WeakMethod[SendHeartbeat], float]] = {}
        self._tokens = itertools.count(1)
        self._thread: Thread | None = None
        self._closed = False

    def start_heartbeat(self, send: SendHeartbeat, interval_s: float) -> int:
        """Call `send` every `interval_s` from now on; return a token for `stop_heartbeat`.

        `send` is a bound method; its object is held weakly.
        """
        with self._wake:
            token = next(self._tokens)
            if self._closed:
                return token
            self._live[token] = (weakref.WeakMethod(send), interval_s)
            heapq.heappush(self._due, (time.monotonic() + interval_s, token))
            if self._thread is None:
                self._thread = Thread(target=self._run_timer, name="sessionary-heartbeat", daemon=True)
                self._thread.start()
            self._wake.notify()
            return token

    def stop_heartbeat(self, token: int) -> None:
        """Stop the heartbeats of `token`, if there are any."""
        with self._wake:
            self._live.pop(token, None)

    def close(self) -> None:
        """Stop the thread; a second call does nothing."""
        with self._wake:
            self._closed = True
            self._live.clear()
            self._wake.notify()
        join_thread(self._thread, LATE_JOIN_S)

    def _next_due(self) -> tuple[int, SendHeartbeat, float] | None:
        """Wait for the next due heartbeat; None once closed."""
        with self._wake:
            while not self._closed:
                now = time.monotonic()
                if self._due and self._due[0][0] <= now:
                    _, token = heapq.heappop(self._due)
                    reference, interval_s = self._live.get(token, (None, 0.0))
                    send = reference() if reference is not None else None
                    if send is not None:
                        return token, send, interval_s
                    self._live.pop(token, None)
                else:
                    self._wake.wait(self._due[0][0] - now if self._due else None)
        return None

    def _run_timer(self) -> None:
        while (entry := self._next_due()) is not None:
            token, send, interval_s = entry
            try:
                goes_on = send()
            except Exception as error:  # noqa: BLE001 - one session's error must not end the heartbeats of the others
                self._on_error(error)
                goes_on = True
            del send, entry  # the timer must not keep the session alive
            with self._wake:
                if not goes_on:
                    self._live.pop(token, None)
                elif token in self._live:
                    heapq.heappush(self._due, (time.monotonic() + interval_s, token))


__all__ = ["Heartbeats", "SendHeartbeat", "heartbeat_interval_s"]
