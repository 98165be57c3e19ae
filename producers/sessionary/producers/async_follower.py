"""A session that a client follows, for asyncio.

A dedicated thread waits for states: one of asyncio's threads for short calls would be occupied for
as long as the session is followed. The thread hands each state over. Of several unread states, only
the newest is kept.
"""

import asyncio
import threading
from types import TracebackType
from typing import Literal, Self

from sessionary.producers.follower import SessionFollower
from sessionary.producers.process.guards import start_thread
from sessionary.producers.run_ports import SessionView


class AsyncSessionFollower:
    """The states of one session, oldest first: `async for` over it. Also a context manager.

    Belongs to the event loop in which the first state is awaited; one task at a time may wait.

    Attributes:
        session_id: The session.
    """

    def __init__(self, follower: SessionFollower, timeout_s: float | None = None) -> None:
        """Ask nothing yet. `timeout_s`: how long an iteration waits for each state."""
        self.session_id = follower.session_id
        self._follower = follower
        self._timeout_s = timeout_s
        self._thread: threading.Thread | None = None
        self._notified = asyncio.Event()
        self._newest: SessionView | None = None
        self._is_over = False
        self._error: Exception | None = None

    def __repr__(self) -> str:
        return f"<{type(self).__name__} of session {self.session_id}>"

    @property
    def is_archived(self) -> bool:
        """Whether the session was archived: then no further state comes."""
        return self._follower.is_archived

    async def wait_next(self, timeout_s: float | None = None) -> SessionView | None:
        """Return the next state, as `SessionFollower.wait_next` does, with the same errors.

        A caller that is cancelled loses no state: the next call returns it.
        """
        if self._thread is None and not self._is_over:
            work = (asyncio.get_running_loop(),)
            name = f"sessionary-follow-{self.session_id}"
            thread = threading.Thread(target=self._read_states, args=work, name=name, daemon=True)
            start_thread(thread)
            self._thread = thread
        try:
            async with asyncio.timeout(timeout_s):
                await self._notified.wait()
        except TimeoutError:
            return None
        view, self._newest = self._newest, None
        if not self._is_over:
            self._notified.clear()
        elif view is None and self._error is not None:
            error, self._error = self._error, None
            raise error
        return view

    async def close(self) -> None:
        """End the following; a task that waits gets no state. Never raises."""
        await asyncio.to_thread(self._follower.close)
        self._end(None)

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> SessionView:
        """Return the next state; wait as long as `follow` was given. Raises as `wait_next`."""
        view = await self.wait_next(self._timeout_s)
        if view is None:
            raise StopAsyncIteration
        return view

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> Literal[False]:
        await self.close()
        return False

    def _read_states(self, loop: asyncio.AbstractEventLoop) -> None:
        """Hand states over until there are no more; in the thread."""
        raised: Exception | None = None
        try:
            while (view := self._follower.wait_next()) is not None:
                loop.call_soon_threadsafe(self._take, view)
        except Exception as error:  # noqa: BLE001 - the task that waits raises it
            raised = error
        try:
            loop.call_soon_threadsafe(self._end, raised)
        except RuntimeError:  # the loop is closed
            self._follower.close()

    def _take(self, view: SessionView) -> None:
        self._newest = view
        self._notified.set()

    def _end(self, error: Exception | None) -> None:
        self._is_over, self._error = True, self._error or error
        self._notified.set()
