"""Work as a generator of its blocking parts, so that one text serves threads and asyncio."""

from collections.abc import Awaitable, Callable, Generator
from functools import partial
from typing import Any, NamedTuple, TypeVar

from sessionary.producers.errors import ModelTimeout

T = TypeVar("T")


class Do(NamedTuple):
    """Work of the client that may block."""

    work: Callable[[], Any]


class Send(NamedTuple):
    """Work of the client that hands events over; with asyncio done in place, if it never blocks."""

    work: Callable[[], Any]


class Call(NamedTuple):
    """A function of the user; with asyncio it may return an awaitable.

    `late`: raised if an awaitable takes longer than the error's limit; the awaitable is then
    cancelled.
    """

    function: Callable[[], Any]
    late: ModelTimeout | None = None


class Wait(NamedTuple):
    """A wait, in seconds."""

    seconds: float


FlowStep = Do | Send | Call | Wait
Flow = Generator[FlowStep, Any, T]
Pause = Callable[[float], None]
SendAsync = Callable[[Callable[[], Any]], Awaitable[Any]]
"""Does what `Send` has for a coroutine."""


class Closed(BaseException):
    """A `GeneratorExit` of a flow's work, as the flow gets it: that one would end the flow."""


def run_flow(flow: Flow[T], pause: Pause | None) -> T:
    """Run a flow in this thread; `pause` waits, None: in real time. Raises what the flow raises."""
    return _run_on(flow, lambda: next(flow), pause)


def _run_on(flow: Flow[T], go_on: Callable[[], FlowStep], pause: Pause | None) -> T:
    try:
        effect = go_on()
        while True:
            try:
                found = _perform(effect, pause)
            except BaseException as error:  # noqa: BLE001 - the flow decides, as the work's caller
                effect = _throw(flow, error)
            else:
                effect = flow.send(found)
    except StopIteration as done:
        result: T = done.value
        return result
    except Closed as closed:
        raise GeneratorExit from closed


def _throw(flow: Flow[Any], error: BaseException) -> FlowStep:
    return flow.throw(Closed() if isinstance(error, GeneratorExit) else error)


def _perform(effect: FlowStep, pause: Pause | None) -> Any:
    if isinstance(effect, Do | Send):
        return effect.work()
    if isinstance(effect, Call):
        return effect.function()
    if effect.seconds > 0:
        if pause is not None:
            pause(effect.seconds)
        else:
            import time

            time.sleep(effect.seconds)
    return None


async def run_flow_async(flow: Flow[T], pause: Pause | None, send: SendAsync | None = None) -> T:
    """Run a flow without blocking the event loop; `send`: of events, None: as other work.

    Raises what the flow raises.
    """
    try:
        effect = next(flow)
        while True:
            try:
                found = await _perform_async(effect, pause, send)
            except GeneratorExit as error:  # a coroutine that is closed cannot wait any more
                return _run_on(flow, partial(_throw, flow, error), pause)
            except BaseException as error:  # noqa: BLE001 - the flow decides, as the work's caller
                effect = flow.throw(error)
            else:
                effect = flow.send(found)
    except StopIteration as done:
        result: T = done.value
        return result


async def _perform_async(effect: FlowStep, pause: Pause | None, send: SendAsync | None) -> Any:
    import asyncio  # loaded already, as this runs

    if isinstance(effect, Send) and send is not None:
        return await send(effect.work)
    if isinstance(effect, Do | Send):
        return await asyncio.to_thread(effect.work)
    if isinstance(effect, Call):
        found = effect.function()
        return await _await_in_time(found, effect.late) if isinstance(found, Awaitable) else found
    if effect.seconds > 0:
        await (asyncio.sleep(effect.seconds) if pause is None else asyncio.to_thread(pause, effect.seconds))
    return None


async def _await_in_time(work: Awaitable[Any], late: ModelTimeout | None) -> Any:
    import asyncio  # loaded already, as this runs

    if late is None:
        return await work
    deadline = asyncio.timeout(late.limit_ms / 1_000)
    try:
        async with deadline:
            return await work
    except TimeoutError as error:
        if deadline.expired():
            raise late from error
        raise
