"""One answer in the form of server-sent events. A write waits until the connection has taken it.

So nothing queues here for a reader that is slow: what it has not taken yet is in the sockets.
"""

import asyncio
from collections.abc import Mapping
from typing import Final

from aiohttp.web import Request, StreamResponse

WRITE_S: Final = 20.0  # A reader that takes nothing for this long is cut off
HEADERS: Final[Mapping[str, str]] = {
    "Content-Type": "text/event-stream",
    "Cache-Control": "no-store",
    "X-Accel-Buffering": "no",  # nginx
}


class EventStream:
    """The answer to one request, from its headers on."""

    def __init__(self, request: Request, headers: Mapping[str, str] = HEADERS, status: int = 200) -> None:
        self._request = request
        self.response = StreamResponse(status=status, headers=headers)
        self.response.force_close()  # a stream that ended is over: a proxy must not wait for more

    async def open(self) -> None:
        """Send the headers."""
        if self._request.transport is not None:
            self._request.transport.set_write_buffer_limits(high=0)
        await self.response.prepare(self._request)

    async def write(self, data: bytes) -> None:
        """Send bytes; return once the connection has taken them.

        Raises `ConnectionError` if the reader has left, and `TimeoutError` if it takes nothing. One
        that does not take all is cut off.
        """
        try:
            async with asyncio.timeout(WRITE_S):
                await self.response.write(data)
                await self._request.writer.drain()
        except BaseException:
            if self._request.transport is not None:
                self._request.transport.abort()  # else the end of the answer would wait for the reader too
            raise


__all__ = ["HEADERS", "WRITE_S", "EventStream"]
