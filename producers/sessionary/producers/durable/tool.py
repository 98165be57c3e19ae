"""A decorator that makes the calls of a function recorded ones: reserved, called, completed."""

import functools
import math
from collections.abc import Callable, Coroutine, Mapping
from contextlib import AbstractContextManager
from contextvars import ContextVar
from typing import Any, Literal, TypeVar, cast, overload

from sessionary.producers.context.call_counts import AttemptCalls
from sessionary.producers.context.callables import CallArguments, decorate_inside, is_generator, kind_of, name_of
from sessionary.producers.context.error_info import to_error_info
from sessionary.producers.context.scope import AskedCall, WorkContext, active_session, added_metadata, current_scope
from sessionary.producers.delivery.emitter import NO_FIELDS, EnvelopeFields
from sessionary.producers.durable.call_keys import canonical_text, checked_key, idempotency_key, numbered_key
from sessionary.producers.durable.errors import ResultTooLarge, ToolCallFailed
from sessionary.producers.durable.flow import Flow, run_flow, run_flow_async
from sessionary.producers.durable.large_values import TOOL_ARGUMENTS, lost_text, store_value
from sessionary.producers.durable.recorder import Recorder
from sessionary.producers.durable.reserved_call import CallPlan, CallRate, Query, Retry, ToolPolicy, recorded_call
from sessionary.producers.errors import Invalid, SessionaryError
from sessionary.producers.process.safe_text import json_value
from sessionary.schemas.limits import LIMIT_MAX, NAME_CHARACTERS_MAX

F = TypeVar("F", bound=Callable[..., Any])
ToolEffect = Literal["read", "write", "unknown"]
_DEFAULT_RETRY = Retry()
_CALL_ID = "tool_call_id"
_policies: dict[str, ToolPolicy] = {}  # of this process's tools, by name: a resumed run asks them
_key: ContextVar[str | None] = ContextVar("sessionary_tool_key", default=None)


@overload
def tool(function: F, /) -> F: ...
@overload
def tool(
    *,
    name: str | None = None,
    key: Callable[..., str] | None = None,
    once: bool = False,
    effect: ToolEffect = "unknown",
    queryable: bool = False,
    query: Query | None = None,
    deadline: float | None = None,
    retry: Retry | None = None,
    calls_per_s: float | None = None,
    wait_s: float = 0.0,
    snapshots: bool | None = None,
) -> Callable[[F], F]: ...
def tool(
    function: Callable[..., Any] | None = None,
    /,
    *,
    name: str | None = None,
    key: Callable[..., str] | None = None,
    once: bool = False,
    effect: ToolEffect = "unknown",
    queryable: bool = False,
    query: Query | None = None,
    deadline: float | None = None,
    retry: Retry | None = None,
    calls_per_s: float | None = None,
    wait_s: float = 0.0,
    snapshots: bool | None = None,
) -> Any:
    """Decorate a function so that each of its calls in a session is recorded, and made once.

    As `@tool` or `@tool(effect="read")`, for whatever can be called. A call first reserves its
    idempotency key, and waits for the processor's verdict. Then the function is called, and its
    outcome recorded; the call returns once the broker has it.

    The key is a hash of tenant, run, step, tool and arguments. An equal call after one that
    succeeded has its own key, and is made; one after a failure has the same key. The count begins
    anew in each attempt at a step, block of a run, and process: a resumed run is answered call by
    call. The argument `tool_call_id` (a parameter of the function, or not) is the key instead.
    Within the function, `current_tool_key` returns the key. A stored result is as JSON gives it
    back: `{"text": ..., "type": ...}` of what it cannot hold; the client's library keeps more than
    256 KiB. Outside any session, nothing is recorded.

    Args:
        name: Name of the tool. Default: the function's name.
        key: Takes the function's arguments, returns the call's key in its run.
        once: Equal calls are made once in their run (or session), whatever their step.
        effect: `read`: a call changes nothing outside. `write` and `unknown`: it does.
        queryable: People or programs can ask the tool whether a call took effect.
        query: Asks it: takes the key, returns `TookEffect(result)`, or None if the call had no
            effect. May be a coroutine function if the tool is one.
        deadline: Seconds after which the outcome of a call that does not end is unknown. Default:
            the session's limit `tool_ms`. The function itself is not stopped.
        retry: How failures that may pass are retried. Default: five times. If the effect may have
            happened, only if `query` says that it did not, or `retry` is given: honor keys then.
        calls_per_s: How many calls may begin in a second in this process.
        wait_s: Seconds to wait for a call of the same key in another place.
        snapshots: Take a snapshot before and after each call. Default: as the run or session says.

    Raises, when the decorated function is called:
        ToolCallInProgress: The same call is in progress elsewhere.
        ToolCallUnresolved: It may have taken effect; a person must decide.
        ToolCallOverdue: It was made, but ended after its limit, and its outcome is rejected.
        ToolCallFailed: It has failed for good before.
        Unavailable: Broker or processor do not answer in time. Call again later.
        Rejected: The processor rejects the call, for example as its run is paused.
        Invalid: No key can be made, or the result is a generator or a coroutine yet to be awaited.
        ResultTooLarge: The result of a call without effect fits into no event, and the client has
            no library. With an effect the result is returned, and `on_error` gets the error.
    Also raises the function's exceptions, and as `Session.emit` does.
    """
    limit_ms = _check_declaration(effect, deadline, calls_per_s, wait_s, retry, name, key, query, once)

    def decorate(function: F) -> F:
        label = f"{name or name_of(function)}"[:NAME_CHARACTERS_MAX]
        rate = None if calls_per_s is None else CallRate(calls_per_s)
        outcome = effect != "read", queryable or query is not None, query, limit_ms
        safe = effect == "read" or retry is not None
        policy = _policies[label] = ToolPolicy(label, *outcome, retry or _DEFAULT_RETRY, rate, wait_s, safe, snapshots)
        return cast("F", functools.wraps(function)(_wrapper_for(function, policy, key, once)))

    decorator = functools.partial(decorate_inside, decorate)
    return decorator if function is None else decorator(function)


def _check_declaration(
    effect: Any, deadline: Any, calls_per_s: Any, wait_s: Any, retry: Any, name: Any, key: Any, query: Any, once: Any
) -> int | None:
    """Return the limit in ms. Raises `Invalid` for a value that makes no sense."""
    limit_s = LIMIT_MAX / 1_000
    for what, value, is_right, remedy in (
        ("effect", effect, effect in ("read", "write", "unknown"), "use 'read', 'write' or 'unknown'"),
        ("name", name, name is None or isinstance(name, str), "use a text"),
        ("key", key, key is None or callable(key), "use a function of the tool's arguments"),
        ("query", query, query is None or callable(query), "use a function of the call's key"),
        ("once", once, isinstance(once, bool), "use True or False"),
        ("retry", retry, retry is None or _is_retry(retry), "use Retry(...) with numbers from 0"),
        ("deadline", deadline, deadline is None or _is_number(deadline, 0.001, limit_s), "use seconds from 0.001"),
        ("calls_per_s", calls_per_s, calls_per_s is None or _is_number(calls_per_s, 1e-9), "use a number above 0"),
        ("wait_s", wait_s, _is_number(wait_s, 0, limit_s), "use seconds from 0"),
    ):
        if not is_right:
            raise Invalid("invalid_value", f"{what} is {value!r:.80}: {remedy}")
    return None if deadline is None else round(deadline * 1_000)


def _is_number(value: object, least: float, most: float = math.inf) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and least <= value <= most


def _is_retry(value: object) -> bool:
    if not isinstance(value, Retry):
        return False
    return _is_number(value.jitter, 0) and all(
        isinstance(each, int) and _is_number(each, 0)
        for each in (value.retries, value.base_ms, value.max_ms, value.deadline_ms)
    )


def _wrapper_for(
    function: Callable[..., Any], policy: ToolPolicy, key: Callable[..., str] | None, once: bool
) -> Callable[..., Any]:
    kind = kind_of(function)
    if "generator" in kind:
        raise Invalid(
            "invalid_value",
            f"the tool {policy.name} is {'an' if kind.startswith('a') else 'a'} {kind}, of which no result can be "
            "recorded: return a list, or use @traced('tool')",
        )
    caller = _ToolCaller(policy, function, key, once, is_async=kind == "coroutine")

    async def call_tool_async(*args: Any, **kwargs: Any) -> Any:
        recorder = _current_recorder()
        if recorder is None:
            return await function(*args, **caller.own_arguments(kwargs))
        flow = caller.flow_of(recorder, args, kwargs)
        return await run_flow_async(flow, recorder.waits.pause)

    def call_tool(*args: Any, **kwargs: Any) -> Any:
        recorder = _current_recorder()
        if recorder is None:
            return function(*args, **caller.own_arguments(kwargs))
        flow = caller.flow_of(recorder, args, kwargs)
        return run_flow(flow, recorder.waits.pause)

    return call_tool_async if kind == "coroutine" else call_tool


def current_tool_key() -> str | None:
    """Return the idempotency key of the tool call that runs this code; None outside any."""
    return _key.get()


def policy_of(tool_name: str) -> ToolPolicy | None:
    """Return the policy of a tool that this process has decorated."""
    return _policies.get(tool_name)


class _ToolCaller:
    """Makes the flow of each call of one tool."""

    def __init__(
        self,
        policy: ToolPolicy,
        function: Callable[..., Any],
        key: Callable[..., str] | None,
        once: bool,
        *,
        is_async: bool,
    ) -> None:
        self._is_async = is_async
        self._policy, self._function, self._key, self._once = policy, function, key, once
        try:
            self._arguments = CallArguments(function)
        except (ValueError, TypeError):
            name = policy.name
            raise Invalid("invalid_value", f"the arguments of {name} cannot be read: put it into a function") from None
        self._takes_id = self._arguments.takes(_CALL_ID)

    def _policy_for(self, recorder: Recorder) -> ToolPolicy:
        """Return the policy of a call: in a replay the tool is not asked either."""
        if recorder.answers is None:
            return self._policy
        asks_none = None if self._policy.query is None else _no_effect
        return self._policy._replace(query=asks_none, rate=None)

    def own_arguments(self, kwargs: dict[str, Any]) -> dict[str, Any]:
        """Return the named arguments that the function itself takes."""
        if self._takes_id or _CALL_ID not in kwargs:
            return kwargs
        return {name: value for name, value in kwargs.items() if name != _CALL_ID}

    def flow_of(self, recorder: Recorder, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Flow[Any]:
        """Return the flow of one call. Raises `Invalid`, and `TypeError` for wrong arguments."""
        session_id, name = recorder.key.session_id, self._policy.name
        scope = current_scope()
        metadata = scope.metadata.get(session_id, NO_FIELDS)
        place = scope.place_in(session_id)
        own = self.own_arguments(kwargs)
        arguments = self._arguments.bind(args, own)
        call_id = kwargs.get(_CALL_ID, arguments.get(_CALL_ID))
        step_name = None if place is None or self._once else place.find_path()
        calls = recorder.calls() if place is None else place.calls
        if self._key is not None:
            key = checked_key(self._key(*args, **own), name)
        elif call_id is not None:
            key = checked_key(call_id, name)
        else:
            try:
                turn = 0 if self._once else calls.turn
                key = idempotency_key(recorder.key.tenant_id, metadata.run_id, step_name, name, arguments, turn)
            except Invalid:
                self._check_arguments(arguments)
                raise
        is_named = self._key is not None or call_id is not None
        # Under a key of the business the arguments are for people only.
        text_of = functools.partial(_arguments_text, recorder, name, arguments, not is_named)
        fields = EnvelopeFields(run_id=metadata.run_id, step_id=metadata.step_id)
        of_place = recorder if place is None or not isinstance(place.recorder, Recorder) else place.recorder
        takes_snapshots = of_place.snapshots if self._policy.snapshots is None else self._policy.snapshots

        def inside(key: str, reservation: str) -> AbstractContextManager[None]:
            return _InsideCall(added_metadata(session_id, EnvelopeFields(causation_id=reservation)), key)

        def plan_of(key: str) -> CallPlan:
            known = None if place is None else place.known_calls.pop(key, None)
            look_first = key in calls.ended or (place is None and calls.has_past)
            call = functools.partial(self._call_async if self._is_async else self._call, args, own)
            if (answers := recorder.answers) is not None:
                names = scope.names_in(session_id)
                asked = AskedCall("tool", name, arguments, self._policy.side_effect, call, names)
                call = functools.partial(answers.answer, asked)
            border = None if place is None else functools.partial(_save_border, place, name, key, fields)
            parts = metadata.run_id, metadata.step_id, key, text_of, call, functools.partial(inside, key)
            return CallPlan(*parts, known, border, look_first, until_answered, takes_snapshots)

        until_answered = recorder.until_answered if place is None else place.until_answered
        call_by = self._call_by_key if is_named or self._once else self._call_by_number

        def flow() -> Flow[Any]:
            yield from until_answered()  # another task of the run may ask a person
            return (yield from call_by(recorder, calls, key, plan_of))

        return flow()

    def _call_by_key(
        self, recorder: Recorder, calls: AttemptCalls, key: str, plan_of: Callable[[str], CallPlan]
    ) -> Flow[Any]:
        try:
            return (yield from recorded_call(self._policy_for(recorder), recorder, plan_of(key)))
        finally:
            calls.ended.add(key)

    def _call_by_number(
        self, recorder: Recorder, calls: AttemptCalls, first_key: str, plan_of: Callable[[str], CallPlan]
    ) -> Flow[Any]:
        """Make the call under the first key of its kind that no other one of the attempt has."""
        while True:
            number, is_done = calls.take_number(first_key), False
            key = numbered_key(first_key, number)
            try:
                result = yield from self._call_by_key(recorder, calls, key, plan_of)
                is_done = True
                return result
            except ToolCallFailed as error:
                is_done = not self._policy.side_effect and error.idem_key == key
                if not is_done:
                    raise
            except SessionaryError:
                raise
            except Exception as error:
                # Without an effect, a failure for good is an answer too: the next call asks anew.
                is_done = not self._policy.side_effect and to_error_info(error).error_class != "retryable"
                raise
            finally:
                if not is_done:
                    calls.give_back(first_key, number)

    def _call(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
        """Call the function. Raises `Invalid` if the work of its result is still to be done."""
        return self._check_done(self._function(*args, **kwargs))

    async def _call_async(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
        return self._check_done(await self._function(*args, **kwargs))

    def _check_done(self, result: Any) -> Any:
        if isinstance(result, Coroutine):
            result.close()
        elif not is_generator(result):
            return result
        raise Invalid(
            "invalid_value",
            f"the tool {self._policy.name} returned a value of type {type(result).__name__}, whose work is not done "
            "yet: decorate the coroutine function itself, or return what a generator yields as a list",
        )

    def _check_arguments(self, arguments: Mapping[str, Any]) -> None:
        """Raise `Invalid` for an argument that no key can be made of."""
        for name, value in arguments.items():
            try:
                canonical_text(value)
            except Invalid as error:
                raise Invalid(
                    "invalid_value",
                    f"the argument {name!r} of the tool {self._policy.name}: {error.detail}. A call's key is made of "
                    "its arguments: pass what JSON can hold, or make the key with @tool(key=...)",
                ) from None


def _no_effect(key: str) -> None:
    """Say of a failed try that it had no effect: in a replay, what the record has next follows."""


def _save_border(place: WorkContext, tool_name: str, key: str, fields: EnvelopeFields, side: str) -> None:
    place.save_border(tool_name, side, key, fields)


class _InsideCall:
    """A block in which `current_tool_key` returns a key, and the reservation causes all events."""

    def __init__(self, metadata: AbstractContextManager[None], key: str) -> None:
        self._metadata = metadata
        self._new_key = key
        self._outer_key: str | None = None

    def __enter__(self) -> None:
        self._metadata.__enter__()
        self._outer_key = _key.get()
        _key.set(self._new_key)

    def __exit__(self, *error: Any) -> None:
        _key.set(self._outer_key)
        self._metadata.__exit__(None, None, None)


def _arguments_text(
    recorder: Recorder, tool_name: str, arguments: Mapping[str, Any], is_needed: bool, fields: EnvelopeFields
) -> str:
    """Return the arguments as an event carries them.

    Raises `Invalid` if JSON cannot hold them, or they are too large. If they are not needed, what
    JSON cannot hold is text with its type, and of what is too large there is a summary.
    """
    given = dict(arguments) if is_needed else json_value(dict(arguments))
    try:
        return store_value(recorder, given, f"arguments of {tool_name}", TOOL_ARGUMENTS, fields).text or "{}"
    except ResultTooLarge as error:
        if is_needed:
            raise Invalid("invalid_value", error.detail) from error.__cause__
        return lost_text(error, TOOL_ARGUMENTS)


def _current_recorder() -> Recorder | None:
    """Return the recorder of the current session, or of the run that this code is in."""
    session, place = active_session(), current_scope().place
    if session is None:
        recorder = None if place is None else place.recorder
    else:
        try:
            recorder = session.core.recorder()
        except RuntimeError:  # an `AsyncSession` that is not open yet
            return None
    return recorder if isinstance(recorder, Recorder) and recorder.reads is not None else None
