"""A decorator that reports each call of a function in the current session."""

import functools
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Coroutine, Generator, Iterable, Iterator
from contextlib import AbstractContextManager, aclosing, contextmanager
from typing import TYPE_CHECKING, Any, TypeVar, cast

from sessionary.producers.context.callables import checked_word, decorate_inside, kind_of, name_of
from sessionary.producers.context.reported_block import (
    NO_OUTPUT,
    Output,
    ReportedCall,
    end_off_loop,
    start_off_loop,
    step_events,
    tool_events,
)
from sessionary.producers.context.scope import AskedCall, CallReporter, active_session, added_metadata, current_scope
from sessionary.producers.delivery.emitter import EnvelopeFields
from sessionary.producers.errors import Invalid
from sessionary.schemas.limits import NAME_CHARACTERS_MAX

if TYPE_CHECKING:
    from sessionary.producers.context.captured_call import Capture, CapturedCall

F = TypeVar("F", bound=Callable[..., Any])
T = TypeVar("T")

_Function = Callable[..., Any]


def traced(
    kind: str,
    *,
    name: str | None = None,
    side_effect: bool = False,
    capture: bool = False,
    omit: str | Iterable[str] = (),
) -> Callable[[F], F]:
    """Decorate a function so that each call is reported in the current session.

    For functions, coroutine functions, generators and asynchronous generators, methods, partials
    and objects that can be called. A generator's call ends with the generator. The function's
    arguments, result and exceptions are unchanged; arguments and result are reported only with
    `capture`. A call outside any session is not reported. Errors of reporting go to the client's
    `on_error`.

    A call of kind `tool` becomes the events `tool_call_started`, then `tool_call_succeeded` or
    `tool_call_failed`. A call of any other kind becomes `step_started`, then `step_succeeded` or
    `step_failed`, with the kind and the name as the step's name. The last event has the duration,
    and on failure the error. Events that the session sends during the call, not in a generator,
    name the call's first event as their cause.

    Args:
        kind: `tool`, or a word of your own.
        name: Name of the tool or the step. Default: the function's name.
        side_effect: The tool changes something outside.
        capture: The first event has the arguments by name (`args_json`, else `input_json`), and the
            last one the result (`result_json`, `output_json`). Of a generator that is what it
            yields, the first 256 KiB. Values that JSON cannot hold are kept as
            `{"text": ..., "type": ...}`. More than 256 KiB go to the client's library of artifacts;
            without one, what is larger than an event (1 MiB) is cut:
            `{"text": "...…", "type": ..., "bytes": ...}`. All of it is content, and expires as the
            session's other content.
        omit: Names of arguments that are not kept, such as secrets.

    Raises `Invalid` for `@traced` without a kind; when the function is decorated, if it takes no
    argument that `omit` names.
    """
    checked_word("traced", kind, "tool")
    if not (name is None or isinstance(name, str)):
        raise Invalid("invalid_value", f"name is {name!r:.80}: use a text")

    def decorate(function: F) -> F:
        label, is_tool = f"{name or name_of(function)}", kind == "tool"
        kept = _new_capture(function, label, omit, is_tool=is_tool) if capture else None

        def new_call(args: tuple[Any, ...], kwargs: dict[str, Any]) -> "_QuietCall | None":
            session = active_session()
            if session is None:
                return None
            try:
                reporter = session.core.call_reporter()
            except RuntimeError:  # an `AsyncSession` that is not open yet
                return None
            events = tool_events(label, side_effect=side_effect) if is_tool else step_events(f"{kind} {label}")
            captured = None if kept is None else kept.of_call(session.core, args, kwargs)
            asked = None
            if reporter.answers is not None:
                step = label if is_tool else f"{kind} {label}"
                given = ({} if is_tool else None) if captured is None else captured.given()
                if captured is None or given is not None:  # else the function itself refuses its arguments
                    place = current_scope().names_in(reporter.session_id)
                    asked = AskedCall("traced", step[:NAME_CHARACTERS_MAX], given, side_effect, lambda: None, place)
            return _QuietCall(reporter, ReportedCall(reporter, events), captured, asked)

        return cast("F", functools.wraps(function)(_wrapper_for(function, new_call)))

    return functools.partial(decorate_inside, decorate)


def _new_capture(function: _Function, label: str, omit: str | Iterable[str], *, is_tool: bool) -> "Capture":
    from sessionary.producers.context.captured_call import Capture  # loaded only where calls are captured

    return Capture(function, label, omit, is_tool=is_tool)


class _QuietCall:
    """Reports a call, and never raises: reporting must not change what a function does."""

    def __init__(
        self,
        reporter: CallReporter,
        call: ReportedCall,
        captured: "CapturedCall | None",
        asked: AskedCall | None = None,
    ) -> None:
        """`asked`: what a replay is asked for; None: the function is called."""
        self._reporter = reporter
        self._call = call
        self._captured = captured
        self._asked = asked
        if captured is not None and captured.may_wait:
            self._reporter = reporter._replace(may_block=True)

    def work_of(self, function: _Function) -> _Function:
        """Return what is called for `function`: itself, or its answer in a replay."""
        asked, answers = self._asked, self._reporter.answers
        if asked is None or answers is None:
            return function
        return lambda *args, **kwargs: answers.answer(
            asked._replace(execute=functools.partial(function, *args, **kwargs))
        )

    def send_start(self) -> None:
        given = None if self._captured is None else self._keep(self._captured.input_text, None)
        self._send_quietly(lambda: self._call.send_start(given))

    def send_end(self, error: BaseException | None, result: Any = None) -> None:
        """Report the end; `result`: of a call that succeeded, and yielded nothing."""

        def keep_output() -> Output:
            if self._captured is None:
                return NO_OUTPUT
            return self._keep(functools.partial(self._captured.output_of, result), NO_OUTPUT)

        self._send_quietly(lambda: self._call.send_end(error, keep_output=keep_output))

    async def send_start_async(self) -> None:
        await start_off_loop(self._reporter, self.send_start, self.send_end)

    async def send_end_async(self, error: BaseException | None, result: Any = None) -> None:
        await end_off_loop(self._reporter, functools.partial(self.send_end, result=result), error)

    def inside(self) -> AbstractContextManager[None]:
        """Return a block whose events are marked as caused by the call."""
        return added_metadata(self._reporter.session_id, self._call.inner_metadata)

    def note_item(self, item: Any) -> Any:
        """Return an item that a generator yields, kept if calls are captured."""
        captured = self._captured
        if captured is not None:
            self._send_quietly(lambda: captured.add_item(item))
        return item

    def begin_items(self) -> None:
        """Let what a generator yields be the call's result."""
        if self._captured is not None:
            self._captured.begin_items()

    def watch_items(self, items: "Generator[Any, Any, Any]") -> "Generator[Any, Any, Any]":
        """Return a generator whose items are noted; the same one if nothing is captured."""
        if self._captured is None:
            return items
        self._captured.begin_items()
        return _WatchedItems(items, self.note_item)

    def _keep(self, keep: Callable[[EnvelopeFields], T], nothing: T) -> T:
        try:
            return keep(self._call.inner_metadata)
        except Exception as error:  # noqa: BLE001 - as below; the call is reported without the value
            self._reporter.on_error(error)
            return nothing

    def _send_quietly(self, send: Callable[[], None]) -> None:
        try:
            send()
        except Exception as error:  # noqa: BLE001 - whatever is wrong with a report is not the function's fault
            self._reporter.on_error(error)


class _WatchedItems(Generator[Any, Any, Any]):
    """A generator that is also told what another one yields."""

    def __init__(self, items: Generator[Any, Any, Any], note_item: Callable[[Any], Any]) -> None:
        self._items = items
        self._note_item = note_item

    def send(self, value: Any) -> Any:
        return self._note_item(self._items.send(value))

    def throw(self, *error: Any) -> Any:
        return self._note_item(self._items.throw(*error))

    def close(self) -> None:
        self._items.close()


_NewCall = Callable[[tuple[Any, ...], dict[str, Any]], _QuietCall | None]


def _wrapper_for(function: _Function, new_call: _NewCall) -> _Function:
    kind = kind_of(function)
    if kind == "coroutine":
        return _coroutine_wrapper(function, new_call)
    if kind == "async generator":
        return _async_generator_wrapper(function, new_call)
    return _generator_wrapper(function, new_call) if kind == "generator" else _function_wrapper(function, new_call)


def _function_wrapper(function: _Function, new_call: _NewCall) -> _Function:
    def call_traced(*args: Any, **kwargs: Any) -> Any:
        call = new_call(args, kwargs)
        if call is None:
            return function(*args, **kwargs)
        call.send_start()
        try:
            with call.inside():
                result = call.work_of(function)(*args, **kwargs)
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
    call.send_end(None, result)
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
        return (yield from call.watch_items(items))


async def _generate_async(call: "_QuietCall", items: "AsyncGenerator[Any, Any]") -> AsyncGenerator[Any, Any]:
    call.begin_items()
    try:
        async with aclosing(items):
            async for item in items:
                yield call.note_item(item)
    except BaseException as error:
        await call.send_end_async(error)
        raise
    await call.send_end_async(None)


async def _await(call: "_QuietCall", work: _Function) -> Any:
    try:
        with call.inside():
            result = work()
            result = await result if isinstance(result, Awaitable) else result
    except BaseException as error:
        await call.send_end_async(error)
        raise
    await call.send_end_async(None, result)
    return result


def _generator_wrapper(function: _Function, new_call: _NewCall) -> _Function:
    def call_traced(*args: Any, **kwargs: Any) -> Any:
        call = new_call(args, kwargs)
        if call is None:
            return (yield from function(*args, **kwargs))
        work = call.work_of(function)
        items = function(*args, **kwargs) if work is function else _ask_items(functools.partial(work, *args, **kwargs))
        call.send_start()
        return (yield from _generate(call, items))

    return call_traced


def _ask_items(work: _Function) -> "Generator[Any, Any, Any]":
    """Give the items that a replay has of a generator, or those of the generator itself."""
    return (yield from work())


def _coroutine_wrapper(function: _Function, new_call: _NewCall) -> _Function:
    async def call_traced(*args: Any, **kwargs: Any) -> Any:
        call = new_call(args, kwargs)
        if call is None:
            return await function(*args, **kwargs)
        await call.send_start_async()
        return await _await(call, functools.partial(call.work_of(function), *args, **kwargs))

    return call_traced


def _async_generator_wrapper(function: _Function, new_call: _NewCall) -> _Function:
    async def call_traced(*args: Any, **kwargs: Any) -> AsyncIterator[Any]:
        call = new_call(args, kwargs)
        work = function if call is None else call.work_of(function)
        given = functools.partial(work, *args, **kwargs)
        items = given() if work is function else _ask_items_async(given)
        if call is not None:
            await call.send_start_async()
            items = _generate_async(call, items)
        async with aclosing(items):
            async for item in items:
                yield item

    return call_traced


async def _ask_items_async(work: _Function) -> AsyncGenerator[Any, Any]:
    """As `_ask_items`."""
    found = work()
    if isinstance(found, AsyncGenerator):
        async with aclosing(found):
            async for item in found:
                yield item
    else:
        for item in found:
            yield item
