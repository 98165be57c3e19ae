"""Work of coroutines in threads, whose caller may be cancelled while a thread is at work.

A thread cannot be stopped. So its work after the caller has left must change nothing, or must be
undone. For asyncio only: the client for threads does not load it.
"""

import asyncio
import contextvars
import threading
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import TypeVar

from sessionary.producers.ports import OnError

T = TypeVar("T")


async def run_unless_left(lock: AbstractContextManager[None], work: Callable[[], T]) -> T:
    """Call `work` in a thread, under `lock`, unless the caller was cancelled before it began.

    So the work happens before all that the caller does under the lock after the cancellation, or
    never. Raises as `work` does.
    """
    left = threading.Event()

    def begin() -> T:
        with lock:
            if left.is_set():
                raise asyncio.CancelledError
            return work()

    try:
        return await asyncio.to_thread(begin)
    except asyncio.CancelledError:
        left.set()
        raise


async def run_anyway(work: Callable[[], T], on_error: OnError) -> T:
    """Call `work` in a thread, even if the caller is cancelled while none is free.

    Raises as `work` does; if the caller was cancelled, `on_error` gets it.
    """
    left = threading.Event()

    def finish() -> T:
        try:
            return work()
        except Exception as error:
            if left.is_set():
                on_error(error)
            raise

    context, loop = contextvars.copy_context(), asyncio.get_running_loop()
    try:
        return await asyncio.shield(loop.run_in_executor(None, context.run, finish))
    except asyncio.CancelledError:
        left.set()
        raise


async def open_or_leave(open_it: Callable[[], T], leave: Callable[[T, BaseException], object]) -> T:
    """Open something in a thread; if the caller is cancelled, leave what the thread opens.

    `leave` takes the opened object, and the exception that ended the wait. The thread calls it if
    the object is opened later, else this coroutine does. Raises as `open_it` does.
    """
    lock, opened, raised = threading.Lock(), list[T](), list[BaseException]()

    def open_in_thread() -> T:
        found = open_it()
        with lock:
            opened.append(found)
            is_left = bool(raised)
        if is_left:
            leave(found, raised[0])
        return found

    try:
        return await asyncio.to_thread(open_in_thread)
    except BaseException as error:
        with lock:
            raised.append(error)
            found_now = list(opened)
        for found in found_now:
            leave(found, error)
        raise
