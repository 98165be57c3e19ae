"""A decorator that makes the calls of a function recorded ones: reserved, called, completed."""

import functools
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any, Literal, TypeVar, cast

from sessionary.producers.context.scope import active_session, added_metadata, current_scope
from sessionary.producers.delivery.emitter import NO_FIELDS, EnvelopeFields
from sessionary.producers.durable.call_keys import checked_key, idempotency_key
from sessionary.producers.durable.errors import ResultTooLarge
from sessionary.producers.durable.flow import Flow, run_flow, run_flow_async
from sessionary.producers.durable.large_values import TOOL_ARGUMENTS, store_value
from sessionary.producers.durable.recorder import Recorder
from sessionary.producers.durable.reserved_call import CallPlan, CallRate, Query, Retry, ToolPolicy, recorded_call
from sessionary.producers.errors import Invalid
from sessionary.schemas.limits import LIMIT_MAX, NAME_CHARACTERS_MAX

if TYPE_CHECKING:
    import inspect

F = TypeVar("F", bound=Callable[..., Any])
ToolEffect = Literal["read", "write", "unknown"]
_DEFAULT_RETRY = Retry()
_policies: dict[str, ToolPolicy] = {}  # of this process's tools, by name: a resumed run asks them
_key: ContextVar[str | None] = ContextVar("sessionary_tool_key", default=None)


def tool(
    *,
    name: str | None = None,
    key: Callable[..., str] | None = None,
    effect: ToolEffect = "unknown",
    queryable: bool = False,
    query: Query | None = None,
    deadline: float | None = None,
    retry: Retry | None = None,
    calls_per_s: float | None = None,
    wait_s: float = 0.0,
) -> Callable[[F], F]:
    """Decorate a function so that each of its calls in a session is recorded, and made once.

    For functions and coroutine functions. A call first reserves its idempotency key, and waits for
    the processor's verdict. Then the function is called, and its outcome recorded. The call returns
    once the broker has the outcome. A key whose call succeeded before returns the stored result
    without a call. So a run that is resumed after a crash repeats nothing that took effect.

    The key is a hash of tenant, run, step, tool and arguments, or what `key` returns. Within the
    function, `current_tool_key` returns the key: pass it to a service that takes idempotency keys.
    Results and, without `key`, arguments must be what JSON can hold. A stored result is as JSON
    gives it back: a list where a tuple was returned. JSON of more than 256 KiB, of a result or of
    arguments, is kept by the client's library of artifacts (`SessionClient(artifacts=...)`); the
    key is made of the arguments themselves.

    Outside any session, the function is called without a record.

    Args:
        name: Name of the tool. Default: the function's name.
        key: Takes the function's arguments, returns the call's key in its run.
        effect: `read`: a call changes nothing outside, so that it may be repeated. `write`: it
            does. `unknown` is treated as `write`.
        queryable: People or programs can ask the tool whether a call took effect.
        query: Asks it: takes the key, returns `TookEffect(result)`, or None if the call had no
            effect. May be a coroutine function if the tool is one.
        deadline: Seconds after which the outcome of a call that does not end is unknown. Default:
            the session's limit `tool_ms`. The function itself is not stopped.
        retry: How failures that may pass are retried: the network, 429, 5xx, time-outs, and errors
            whose attribute `retryable` is True. Default: five times. A call with an effect that may
            have happened (a time-out, a connection that broke, 5xx) is repeated only if `query`
            says that it did not, or if `retry` is given: then the service must honor keys.
        calls_per_s: How many calls of the tool may begin in a second in this process.
        wait_s: Seconds to wait for a call of the same key that is in progress elsewhere.

    Raises, when the decorated function is called:
        ToolCallInProgress: The same call is in progress elsewhere.
        ToolCallUnresolved: It may have taken effect before; a person must decide.
        ToolCallOverdue: It was made, but ended after its limit, and its outcome is rejected.
        ToolCallFailed: It has failed for good before.
        Unavailable: Broker or processor do not answer in time. Call again later.
        Rejected: The processor rejects the call, for example as its run is paused.
        Invalid: JSON cannot hold an argument or the result, or the key is no short text.
        ResultTooLarge: The result fits into no event, and the client has no library. The error has
            the result. The call is recorded, and is repeated only if it has no effect.

    Also raises the function's exceptions, and as `Session.emit` does.
    """
    limit_ms = _check_declaration(effect, deadline, calls_per_s)

    def decorate(function: F) -> F:
        label = f"{name or getattr(function, '__name__', type(function).__name__)}"[:NAME_CHARACTERS_MAX]
        rate = None if calls_per_s is None else CallRate(calls_per_s)
        outcome = effect != "read", queryable or query is not None, query, limit_ms
        is_repeatable = effect == "read" or retry is not None
        policy = ToolPolicy(label, *outcome, retry or _DEFAULT_RETRY, rate, wait_s, is_repeatable)
        _policies[label] = policy
        return cast("F", functools.wraps(function)(_wrapper_for(function, policy, key)))

    return decorate


def _check_declaration(effect: str, deadline: float | None, calls_per_s: float | None) -> int | None:
    """Return the limit in ms. Raises `Invalid` for a value that makes no sense."""
    if effect not in ("read", "write", "unknown"):
        raise Invalid("invalid_value", f"effect is {effect!r}: use 'read', 'write' or 'unknown'")
    limit_ms = None if deadline is None else round(deadline * 1_000)
    if limit_ms is not None and not 1 <= limit_ms <= LIMIT_MAX:
        raise Invalid("invalid_value", f"deadline is {deadline} seconds: use at least 0.001")
    if calls_per_s is not None and not calls_per_s > 0:
        raise Invalid("invalid_value", f"calls_per_s is {calls_per_s}: use more than 0")
    return limit_ms


def _wrapper_for(
    function: Callable[..., Any], policy: ToolPolicy, key: Callable[..., str] | None
) -> Callable[..., Any]:
    import inspect  # takes long to load

    caller = _ToolCaller(policy, key, inspect.signature(function))

    async def call_tool_async(*args: Any, **kwargs: Any) -> Any:
        recorder = _current_recorder()
        if recorder is None:
            return await function(*args, **kwargs)
        flow = caller.flow_of(recorder, functools.partial(function, *args, **kwargs), args, kwargs)
        return await run_flow_async(flow, recorder.waits.pause)

    def call_tool(*args: Any, **kwargs: Any) -> Any:
        recorder = _current_recorder()
        if recorder is None:
            return function(*args, **kwargs)
        flow = caller.flow_of(recorder, functools.partial(function, *args, **kwargs), args, kwargs)
        return run_flow(flow, recorder.waits.pause)

    return call_tool_async if inspect.iscoroutinefunction(function) else call_tool


def current_tool_key() -> str | None:
    """Return the idempotency key of the tool call that runs this code; None outside any."""
    return _key.get()


def policy_of(tool_name: str) -> ToolPolicy | None:
    """Return the policy of a tool that this process has decorated."""
    return _policies.get(tool_name)


class _ToolCaller:
    """Makes the flow of each call of one tool."""

    def __init__(self, policy: ToolPolicy, key: Callable[..., str] | None, signature: "inspect.Signature") -> None:
        self._policy = policy
        self._key = key
        self._signature = signature

    def flow_of(
        self, recorder: Recorder, call: Callable[[], Any], args: tuple[Any, ...], kwargs: Mapping[str, Any]
    ) -> Flow[Any]:
        """Return the flow of one call. Raises `Invalid`, and `TypeError` for wrong arguments."""
        session_id, name = recorder.key.session_id, self._policy.name
        scope = current_scope()
        metadata = scope.metadata.get(session_id, NO_FIELDS)
        place = scope.place if scope.place is not None and scope.place.run_id == metadata.run_id else None
        bound = self._signature.bind(*args, **kwargs)
        bound.apply_defaults()
        arguments = bound.arguments
        if self._key is not None:
            key = checked_key(self._key(*args, **kwargs), name)
        else:
            step_name = None if place is None else place.step_name
            key = idempotency_key(recorder.key.tenant_id, metadata.run_id, step_name, name, arguments)

        def inside(reservation: str) -> AbstractContextManager[None]:
            return _InsideCall(added_metadata(session_id, EnvelopeFields(causation_id=reservation)), key)

        # Under a key of the business the arguments are for people only.
        text_of = functools.partial(_arguments_text, recorder, name, dict(arguments), self._key is None)
        known = None if place is None else place.known_calls.pop(key, None)
        plan = CallPlan(metadata.run_id, metadata.step_id, key, text_of, call, inside, known)
        if place is not None:
            fields = EnvelopeFields(run_id=metadata.run_id, step_id=metadata.step_id)
            plan = plan._replace(save_border=lambda side: place.save_border(name, side, key, fields))
        return recorded_call(self._policy, recorder, plan)


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
    """Return the arguments as an event carries them. Raises `Invalid` if JSON cannot hold them.

    If they are not needed, that is `{}`.
    """
    try:
        return store_value(recorder, arguments, f"arguments of {tool_name}", TOOL_ARGUMENTS, fields).text or "{}"
    except ResultTooLarge as error:
        if is_needed:
            raise Invalid("invalid_value", error.detail) from error.__cause__
    except Invalid:
        if is_needed:
            raise
    return "{}"


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
