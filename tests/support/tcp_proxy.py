"""A TCP proxy that disturbs the connections through it: packets are lost, late, or answered by RST.

Bytes are never lost for good: as TCP repeats lost packets, the proxy delivers later what it held.
"""

import asyncio
import contextlib
import socket
import struct
import threading
import time
from collections.abc import Callable
from types import TracebackType

from sessionary.infra.local.ports import LOOPBACK

_CHUNK_BYTES = 1 << 16
_CHUNKS_MAX = 64  # on their way in one direction of a connection
_CALL_S = 60.0
_RST_ON_CLOSE = struct.pack("ii", 1, 0)  # linger for 0 s


class TcpProxy:
    """Forwards `port` to a port of the same machine. A context manager starts and ends it.

    Its methods return once the change is in effect. Any thread may call them.
    """

    def __init__(self, port: int, target_port: int) -> None:
        self.port, self._target_port = port, target_port
        self._delay_s = 0.0
        self._writers: set[asyncio.StreamWriter] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="proxy", daemon=True)

    def __enter__(self) -> "TcpProxy":
        """Listen; the target need not."""
        self._thread.start()
        asyncio.run_coroutine_threadsafe(self._listen(), self._loop).result(_CALL_S)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Close all connections, and the port."""
        asyncio.run_coroutine_threadsafe(self._close(), self._loop).result(_CALL_S)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(_CALL_S)
        self._loop.close()

    def hold_packets(self) -> None:
        """Deliver nothing more, in no direction; connections stay open, and new ones are taken."""
        self._apply(self._passing.clear)

    def delay_packets(self, seconds: float) -> None:
        """Deliver everything so much later, in each direction."""
        self._apply(lambda: setattr(self, "_delay_s", seconds))

    def pass_packets(self) -> None:
        """Deliver what was held, and everything from now on at once."""
        self.delay_packets(0.0)
        self._apply(self._passing.set)

    def reset_connections(self) -> int:
        """Close all connections with RST, on both sides; return how many there were."""
        return asyncio.run_coroutine_threadsafe(self._reset(), self._loop).result(_CALL_S)

    def _apply(self, change: Callable[[], None]) -> None:
        async def apply() -> None:
            change()

        asyncio.run_coroutine_threadsafe(apply(), self._loop).result(_CALL_S)

    async def _listen(self) -> None:
        self._passing = asyncio.Event()
        self._passing.set()
        self._server = await asyncio.start_server(self._serve, LOOPBACK, self.port)

    async def _close(self) -> None:
        self._server.close()
        await self._reset()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _reset(self) -> int:
        connections = len(self._writers) // 2
        for writer in self._writers:
            connection = writer.get_extra_info("socket")
            with contextlib.suppress(OSError):
                connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RST_ON_CLOSE)
            writer.transport.abort()
        return connections

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        try:
            await self._passing.wait()
            onwards, backwards = await asyncio.open_connection(LOOPBACK, self._target_port)
        except OSError:
            writer.transport.abort()
            self._tasks.discard(task)
            return
        ends = {writer, backwards}
        self._writers |= ends
        try:
            async with asyncio.TaskGroup() as both:
                both.create_task(self._forward(reader, backwards))
                both.create_task(self._forward(onwards, writer))
        except* OSError:
            pass  # one side is gone, and with it the other
        finally:
            self._writers -= ends
            for end in ends:
                end.transport.abort()
            self._tasks.discard(task)

    async def _forward(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Forward one direction until it ends, then end the other one too."""
        under_way: asyncio.Queue[tuple[float, bytes]] = asyncio.Queue(_CHUNKS_MAX)

        async def deliver() -> None:
            while True:
                due_s, data = await under_way.get()
                if (early_s := due_s - time.monotonic()) > 0:
                    await asyncio.sleep(early_s)
                await self._passing.wait()
                if not data:
                    raise ConnectionResetError
                writer.write(data)
                await writer.drain()

        async with asyncio.TaskGroup() as steps:
            steps.create_task(deliver())
            data = b"more"
            while data:
                data = await reader.read(_CHUNK_BYTES)
                await under_way.put((time.monotonic() + self._delay_s, data))
