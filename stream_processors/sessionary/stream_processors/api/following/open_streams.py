"""The streams of followers that a worker serves: how many there are, and the end of all of them."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from typing import Final, Literal

from sessionary.stream_processors.api.problems import Problem, not_ready
from sessionary.stream_processors.metrics import Metrics

_RETRY_AFTER_S: Final = "5"


class OpenStreams:
    """Bounds the streams of one worker. Belongs to the event loop."""

    def __init__(self, followers_max: int, metrics: Metrics) -> None:
        self._followers_max = followers_max
        self._gauge = metrics.followers
        self._lives: set[asyncio.Timeout] = set()
        self._is_closed = False

    @asynccontextmanager
    async def open_stream(self, source: Literal["own", "passed_on"]) -> AsyncIterator[None]:
        """Count a stream until the block ends, which `close` does at once; so does `TimeoutError`.

        Raises `Problem` 503 if there are too many, or none is to begin any more.
        """
        if self._is_closed:
            raise not_ready("the worker is ending")
        if len(self._lives) >= self._followers_max:
            detail = f"this worker serves {self._followers_max} followers already (SESSIONARY_API_FOLLOWERS_MAX)"
            raise Problem(503, "too_many_followers", "Too many followers", detail, {"Retry-After": _RETRY_AFTER_S})
        with suppress(TimeoutError):
            async with asyncio.timeout(None) as life:
                self._lives.add(life)
                self._gauge.labels(source).inc()
                try:
                    yield
                finally:
                    self._lives.discard(life)
                    self._gauge.labels(source).dec()

    def close(self) -> None:
        """End all streams, and let none begin."""
        self._is_closed = True
        for life in self._lives:
            if not life.expired():
                life.reschedule(0.0)
