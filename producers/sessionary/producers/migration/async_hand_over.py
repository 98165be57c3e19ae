"""What lets an event loop await the program's function with a session that has arrived."""

import asyncio
from collections.abc import Awaitable, Callable
from concurrent.futures import Future

from sessionary.producers.migration.hand_over import HandOver
from sessionary.producers.ports import OnError
from sessionary.producers.session.core import SessionCore


def hand_over_to_loop(function: Callable[[SessionCore], Awaitable[object]], on_error: OnError) -> HandOver:
    """Return what lets the running event loop await `function`.

    Raises `RuntimeError` without one.
    """
    loop = asyncio.get_running_loop()

    async def call(core: SessionCore) -> None:
        await function(core)

    def hand_over(core: SessionCore, done: Callable[[], None]) -> None:
        def end(future: "Future[None]") -> None:
            done()
            if not future.cancelled() and isinstance(error := future.exception(), Exception):
                on_error(error)

        work = call(core)
        try:
            asyncio.run_coroutine_threadsafe(work, loop).add_done_callback(end)
        except RuntimeError as error:  # the loop is closed
            work.close()
            done()
            on_error(error)

    return hand_over
