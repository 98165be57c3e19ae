"""Connections of the control API that may not stay: slow ones, and too many that wait.

aiohttp bounds none of this: a client that sends a byte now and then keeps its connection, and its
file descriptor, for ever.
"""

import asyncio
from typing import Any, Final

from aiohttp.web import RequestHandler, Server

from sessionary.stream_processors.api.problems import Problem

HEADERS_S: Final = 10.0  # from the connection, or the first byte of a further request
BODY_S: Final = 10.0  # from the end of the headers
IDLE_S: Final = 75.0  # between two requests
CONNECTIONS_MAX: Final = 1_000
_TOO_LATE: Final = (
    b"HTTP/1.1 408 Request Timeout\r\nContent-Type: application/problem+json\r\nConnection: close\r\n"
    b"Content-Length: %d\r\n\r\n%s"
)
_PROBLEM: Final = Problem(408, "request_timeout", "Request Timeout", "the request came too slowly").to_json()


class TimedRequestHandler(RequestHandler):
    """A connection that is closed if a request's headers or its body come too slowly."""

    __slots__ = ("_timer", "_unread")

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._timer: asyncio.TimerHandle | None = None
        self._unread: Any = None  # the body that is still coming

    @property
    def is_waiting(self) -> bool:
        """Whether no request of this connection is worked on."""
        return self._current_request is None and not self._messages

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Begin to wait for the first headers."""
        super().connection_made(transport)
        self._restart_timer(HEADERS_S)
        close_oldest(self._manager, besides=self)

    def connection_lost(self, exc: BaseException | None) -> None:
        """Wait for nothing."""
        self._stop_timer()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Take bytes of headers or of a body, and see which of them are still missing."""
        super().data_received(data)
        if self._messages:
            self._unread = self._messages[-1][1]
            self._stop_timer()
            if not self._unread.is_eof():
                self._restart_timer(BODY_S)
        elif self._unread is not None and not self._unread.is_eof():
            pass  # more of the body: its time runs on
        elif self._current_request is not None:
            self._stop_timer()  # the body is complete
        elif self._timer is None:
            self._restart_timer(HEADERS_S)

    def _restart_timer(self, wait_s: float) -> None:
        self._stop_timer()
        self._timer = self._loop.call_later(wait_s, self._close_late)

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _close_late(self) -> None:
        self._timer = None
        if self.transport is not None and (self.is_waiting or not self._unread.is_eof()):
            self.transport.write(_TOO_LATE % (len(_PROBLEM), _PROBLEM))
            self.transport.close()


def close_oldest(server: Server | None, besides: RequestHandler) -> None:
    """Close the oldest waiting connection if there are too many, so that a new one is served."""
    if server is None or len(server.connections) <= CONNECTIONS_MAX:
        return
    for handler in server.connections:
        waits = isinstance(handler, TimedRequestHandler) and handler.is_waiting
        if waits and handler is not besides and handler.transport is not None and not handler.transport.is_closing():
            handler.transport.abort()
            return
