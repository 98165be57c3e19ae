"""One timer thread beats for all sessions of a client.

It holds sessions weakly and asks each before every beat, so a session that ended, was forgotten by the agent, or whose
agent thread died is not kept alive by us.
"""

import heapq
import itertools
import time
import weakref
from collections.abc import Callable
from threading import Condition, Thread
from typing import Protocol

from sessionary.schemas.limits import inactivity_budget_ms, with_defaults
from sessionary.schemas.types import Limits

BEATS_PER_BUDGET = 6


def heartbeat_interval_s(limits: Limits, wanted_s: float) -> float:
    """Return `wanted_s`, but never more than a sixth of the session's inactivity budget."""
    return min(wanted_s, inactivity_budget_ms(with_defaults(limits)) / 1000 / BEATS_PER_BUDGET)


class Beating(Protocol):
    """What beats."""

    def beat(self) -> bool:
        """Send one heartbeat if it is due to; False ends the beating. Never blocks."""
        ...


class Heartbeats:
    """The timer. The thread starts with the first session. Thread-safe."""

    def __init__(self, on_error: Callable[[Exception], None]) -> None:
        self._on_error = on_error
        self._wake = Condition()
        self._due: list[tuple[float, int]] = []  # (monotonic time, token)
        self._live: dict[int, tuple[weakref.ref[Beating], float]] = {}
        self._tokens = itertools.count(1)
        self._thread: Thread | None = None
        self._closed = False

    def add(self, session: Beating, interval_s: float) -> int:
        """Beat for `session` every `interval_s` from now on; return a token for `remove`."""
        with self._wake:
            token = next(self._tokens)
            self._live[token] = (weakref.ref(session), interval_s)
            heapq.heappush(self._due, (time.monotonic() + interval_s, token))
            if self._thread is None and not self._closed:
                self._thread = Thread(target=self._run, name="sessionary-heartbeat", daemon=True)
                self._thread.start()
            self._wake.notify()
            return token

    def remove(self, token: int) -> None:
        """Stop beating; harmless for a token that is gone."""
        with self._wake:
            self._live.pop(token, None)

    def close(self) -> None:
        """Stop the thread; may be called twice."""
        with self._wake:
            self._closed = True
            self._live.clear()
            self._wake.notify()
        if self._thread is not None:
            self._thread.join()

    def _next(self) -> tuple[int, Beating, float] | None:
        """Wait for the next due session; None once closed."""
        with self._wake:
            while not self._closed:
                now = time.monotonic()
                if self._due and self._due[0][0] <= now:
                    _, token = heapq.heappop(self._due)
                    reference, interval_s = self._live.get(token, (None, 0.0))
                    session = reference() if reference is not None else None
                    if session is not None:
                        return token, session, interval_s
                    self._live.pop(token, None)
                else:
                    self._wake.wait(self._due[0][0] - now if self._due else None)
        return None

    def _run(self) -> None:
        while (entry := self._next()) is not None:
            token, session, interval_s = entry
            try:
                goes_on = session.beat()
            except Exception as error:  # noqa: BLE001 - one session's trouble must not end the beating of the others
                self._on_error(error)
                goes_on = True
            del session, entry  # the timer must not be what keeps it alive
            with self._wake:
                if not goes_on:
                    self._live.pop(token, None)
                elif token in self._live:
                    heapq.heappush(self._due, (time.monotonic() + interval_s, token))


__all__ = ["BEATS_PER_BUDGET", "Beating", "Heartbeats", "heartbeat_interval_s"]
