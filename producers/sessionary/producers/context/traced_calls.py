"""A decorator that reports each call of a function in the current session."""

import functools
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Coroutine, Generator, Iterator
from contextlib import AbstractContextManager, aclosing, contextmanager
from typing import Any, TypeVar, cast

from sessionary.producers.context.callables import decorate_inside, kind_of, name_of
from sessionary.producers.context.reported_block import (
    ReportedCall,
    send_off_loop,
    start_off_loop,
    step_events,
    tool_events,
)
from sessionary.producers.context.scope import CallReporter, active_session, added_metadata

F = TypeVar("F", bound=Callable[..., Any])

_Function = Callable[..., Any]


def traced(kind: str, *, name: str | None = None, side_effect: bool = False) -> Callable[[F], F]:
    """Decorate a function so that each call is reported in the current session.

    For functions, coroutine functions, generators and asynchronous generators, methods, partials
    and objects that can be called. A generator's call ends with the generator. The function's
    arguments, result and exceptions are unchanged, and not reported. A call outside any session is
    not reported. Errors of reporting go to the client's `on_error`.

    A call of kind `tool` becomes the events `tool_call_started`, then `tool_call_succeeded` or
    `tool_call_failed`. A call of any other kind becomes `step_started`, then `step_succeeded` or
    `step_failed`, with the kind and the name as the step's name. The last event has the duration,
    and on failure the error. Events that the session sends during the call, not in a generator,
    name the call's first event as their cause.

    Args:
        kind: `tool`, or a word of your own.
        name: Name of the tool or the step. Default: the function's name.
        side_effect: The tool changes something outside.
    """

    def decorate(function: F) -> F:
        label = f"{name or name_of(function)}"

        def new_call() -> "_QuietCall | None":
            session = active_session()
            if session is None:
                return None
            try:
                reporter = session.core.call_reporter()
            except RuntimeError:  # an `AsyncSession` that is not open yet
                return None
            is_tool = kind == "tool"
            events = tool_events(label, side_effect=side_effect) if is_tool else step_events(f"{kind} {label}")
            return _QuietCall(reporter, ReportedCall(reporter, events))

        return cast("F", functools.wraps(function)(_wrapper_for(function, new_call)))

    return functools.partial(decorate_inside, decorate)


class _QuietCall:
    """Reports a call, and never raises: reporting must not change what a function does."""

    def __init__(self, reporter: CallReporter, call: ReportedCall) -> None:
        self._reporter = reporter
        self._call = call

    def send_start(self) -> None:
        self._send_quietly(self._call.send_start)

    def send_end(self, error: BaseException | None) -> None:
        self._send_quietly(lambda: self._call.send_end(error))

    async def send_start_async(self) -> None:
        await start_off_loop(self._reporter, self.send_start, self.send_end)

    async def send_end_async(self, error: BaseException | None) -> None:
        if isinstance(error, GeneratorExit):  # a coroutine that is closed can wait for nothing
            self.send_end(error)
        else:
            await send_off_loop(self._reporter, lambda: self.send_end(error))

    def inside(self) -> AbstractContextManager[None]:
        """Return a block whose events are marked as caused by the call."""
        return added_metadata(self._reporter.session_id, self._call.inner_metadata)

    def _send_quietly(self, send: Callable[[], None]) -> None:
        try:
            send()
        except Exception as error:  # noqa: BLE001 - whatever is wrong with a report is not the function's fault
            self._reporter.on_error(error)


_NewCall = Callable[[], _QuietCall | None]


def _wrapper_for(function: _Function, new_call: _NewCall) -> _Function:
    kind = kind_of(function)
    if kind == "coroutine":
        return _coroutine_wrapper(function, new_call)
    if kind == "async generator":
        return _async_generator_wrapper(function, new_call)
    return _generator_wrapper(function, new_call) if kind == "generator" else _function_wrapper(function, new_call)


def _function_wrapper(function: _Function, new_call: _NewCall) -> _Function:
    def call_traced(*args: Any, **kwargs: Any) -> Any:
        call = new_call()
        if call is None:
            return function(*args, **kwargs)
        call.send_start()
        try:
            with call.inside():
                result = function(*args, **kwargs)
        except BaseException as error:
            call.send_end(error)
            raise
        return _end_with(call, result)

    return call_traced


def _end_with(call: "_QuietCall", result: Any) -> Any:
    """Report the end of a call that returned `result`, once the work of the result has ended."""
    if isinstance(result, Generator):
        return _generate(call, result)
    if isinstance(result, AsyncGenerator):
        return _generate_async(call, result)
    if isinstance(result, Coroutine):
        return _await(call, lambda: result)
    call.send_end(None)
    return result


@contextmanager
def _end_after_block(call: "_QuietCall") -> Iterator[None]:
    try:
        yield
    except BaseException as error:
        call.send_end(error)
        raise
    call.send_end(None)


def _generate(call: "_QuietCall", items: "Generator[Any, Any, Any]") -> "Generator[Any, Any, Any]":
    # Without metadata: what a generator sets in its context, its consumer would see.
    with _end_after_block(call):
        return (yield from items)


async def _generate_async(call: "_QuietCall", items: "AsyncGenerator[Any, Any]") -> AsyncGenerator[Any, Any]:
    try:
        async with aclosing(items):
            async for item in items:
                yield item
    except BaseException as error:
        await call.send_end_async(error)
        raise
    await call.send_end_async(None)


async def _await(call: "_QuietCall", work: _Function) -> Any:
    try:
        with call.inside():
            result = await work()
    except BaseException as error:
        await call.send_end_async(error)
        raise
    await call.send_end_async(None)
    return result


def _generator_wrapper(function: _Function, new_call: _NewCall) -> _Function:
    def call_traced(*args: Any, **kwargs: Any) -> Any:
        call, items = new_call(), function(*args, **kwargs)
        if call is None:
            return (yield from items)
        call.send_start()
        return (yield from _generate(call, items))

    return call_traced


def _coroutine_wrapper(function: _Function, new_call: _NewCall) -> _Function:
    async def call_traced(*args: Any, **kwargs: Any) -> Any:
        call = new_call()
        if call is None:
            return await function(*args, **kwargs)
        await call.send_start_async()
        return await _await(call, functools.partial(function, *args, **kwargs))

    return call_traced


def _async_generator_wrapper(function: _Function, new_call: _NewCall) -> _Function:
    async def call_traced(*args: Any, **kwargs: Any) -> AsyncIterator[Any]:
        call, items = new_call(), function(*args, **kwargs)
        if call is not None:
            await call.send_start_async()
            items = _generate_async(call, items)
        async with aclosing(items):
            async for item in items:
                yield item

    return call_traced
