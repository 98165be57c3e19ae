"""The current session and its metadata: one context variable, which tasks inherit.

A block that was left stays left in every context that inherited it: a task or a thread that lives
longer than the `with` block of its session no longer sees that session. Sessions are held weakly.
"""

import functools
import os
import sys
import threading
import weakref
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from datetime import UTC, datetime, timedelta
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final, Literal, NamedTuple, ParamSpec, Protocol, TypedDict, TypeVar, cast

from sessionary.producers.delivery.emitter import NO_FIELDS, EnvelopeFields
from sessionary.producers.errors import Invalid
from sessionary.producers.ports import OnError, Origin
from sessionary.schemas.events import Payload
from sessionary.schemas.limits import REPORTED_MAX_US, REPORTED_MIN_US

if TYPE_CHECKING:
    from concurrent.futures import Future, ThreadPoolExecutor

    from sessionary.producers.context.call_counts import AttemptCalls
    from sessionary.producers.run_ports import CallView, Waits

P = ParamSpec("P")
T = TypeVar("T")


class AskedCall(NamedTuple):
    """A call that is about to be made in a replay.

    Attributes:
        kind: `tool` or `step`, of a run; `traced`: reported work; `block`: the agent's own code
            between the events of a call of a model.
        name: The tool's, or the step's.
        given: The arguments by name; None: they are not kept.
        writes: It changes something outside.
        execute: Makes it.
        place: The run and the step in which it is made; None: outside of any.
    """

    kind: Literal["tool", "step", "traced", "block"]
    name: str
    given: Mapping[str, Any] | None
    writes: bool
    execute: Callable[[], Any]
    place: tuple[str | None, str | None] = (None, None)


class CallAnswers(Protocol):
    """Answers the calls of a session that is replayed, instead of making them. Thread-safe."""

    def recorded_id(self, new_id: str) -> str:
        """Return the id that a session or run has in the record; `new_id` if that has none."""
        ...

    def answer(self, call: AskedCall) -> Any:
        """Return the recorded result, or what `execute` returns. Raises as the call did."""
        ...

    def now_us(self) -> int:
        """Return the session's time in the record, µs since the epoch."""
        ...

    def take_session_id(self, new_id: str) -> str:
        """Return the id of the next new session; `new_id` if it is not the replayed one."""
        ...

    def take_run_id(self, task_type: str, input_json: str | None, new_id: str) -> str:
        """Return the id of the next new run; `new_id` if the record has none."""
        ...

    def take_task_id(self, task_type: str, input_json: str | None, new_id: str) -> str:
        """Return the id of the next new task outside of runs, as `take_run_id` does."""
        ...

    def take_parent(self, parent_id: str | None) -> str | None:
        """Return the parent of the next new session, which was given as `parent_id`."""
        ...

    def recorded_origin(self, session_id: str) -> Origin | None:
        """Return what the replayed session started with from a session's snapshot; None: ask."""
        ...


class CallReporter(NamedTuple):
    """Reports calls of models and tools in one session.

    Attributes:
        session_id: The session's UUID.
        may_block: `send_event` may wait for room in the queue.
        is_active: Returns whether the session is Active, as far as the client knows.
        send_event: Sends one event, returns its id. Raises as `Session.emit` does.
        on_error: Gets the errors that must not reach the program.
        waits: The clock that measures calls.
        model_ms: Returns the time after which a call of a model counts as slow, in ms.
        model_limit_s: The time after which a call of a model fails, in seconds.
        answers: Answers the calls of a session that is replayed; None: they are made.
    """

    session_id: str
    may_block: bool
    is_active: Callable[[], bool]
    send_event: Callable[[Payload, EnvelopeFields], str]
    on_error: OnError
    waits: "Waits"
    model_ms: Callable[[], int]
    model_limit_s: float
    answers: CallAnswers | None = None


class AnyCore(Protocol):
    """The `SessionCore` of a session."""

    def call_reporter(self) -> CallReporter:
        """Return the reporter of calls of models and tools in the session."""
        ...

    def recorder(self) -> Any:  # a `Recorder` of `durable`, which is above this folder
        """Return the recorder of work in the session."""
        ...

    def keep_value(
        self, value: Any, what: str, artifact_type: str, fields: EnvelopeFields
    ) -> tuple[str | None, str | None]:
        """Return a value as an event has it, and the id of the artifact that has it if it is large.

        Blocks while a large value is saved. Raises as the library does, and `Invalid`.
        """
        ...

    def note_access(self, uri: str, operation: str) -> None:
        """Report an access of a resource if the session is Active; raise nothing."""
        ...


class AnySession(Protocol):
    """A `Session` or an `AsyncSession`."""

    @property
    def core(self) -> AnyCore:
        """The inside of the session. Raises `RuntimeError` if an `AsyncSession` is not open yet."""
        ...


class SessionBlock:
    """One `with` block of a session, from entering to leaving it."""

    __slots__ = ("_session", "left", "outer")

    def __init__(self, session: AnySession, outer: "SessionBlock | None") -> None:
        self._session = weakref.ref(session)
        self.outer = outer
        self.left = False

    @property
    def session(self) -> AnySession | None:
        """The session; None if the block was left, or the session is gone."""
        return None if self.left else self._session()


class ModelShare(NamedTuple):
    """The calls of models in one step that took too long.

    Attributes:
        is_retry: The step is tried again because its last attempt took too long.
        over: Step ids of the last calls that took too long, by model.
    """

    is_retry: bool
    over: dict[str, str]


class WorkContext(NamedTuple):
    """The place of recorded work: its run, and its step if there is one.

    `recorder` records work in the run's session. `known_calls` has the run's tool calls by key, as
    known at its resumption. `save_border` takes a tool's name, `before` or `after`, the call's key
    and the fields of its events, and saves a checkpoint; it raises nothing. `share` has the calls
    of models in a step; None outside of steps. `calls` numbers the equal calls and steps of the
    attempt. `find_path` returns what tells work here from equal work elsewhere in the run: the
    step, and the item of a list; None outside of both. `record` takes a name, an input, and a flow
    by the full name, and keeps its output as that of a step here. `until_answered` waits while a
    person is asked.
    """

    recorder: object
    run_id: str
    step_name: str | None
    known_calls: "dict[str, CallView]"
    save_border: Callable[[str, str, str, EnvelopeFields], None]
    calls: "AttemptCalls"
    find_path: Callable[[], str | None]
    record: Callable[[str, Mapping[str, Any], Callable[[str], Any]], Any]  # returns a `Flow` of `durable`
    until_answered: Callable[[], Any]  # so does this
    share: ModelShare | None = None


class Scope(NamedTuple):
    """The inherited part of a context: innermost block, metadata by session id, place of work.

    `decision` has the session and the event of the innermost decision.
    """

    block: SessionBlock | None = None
    metadata: Mapping[str, EnvelopeFields] = MappingProxyType({})
    place: WorkContext | None = None
    decision: tuple[str, str] | None = None

    def place_in(self, session_id: str) -> WorkContext | None:
        """Return the place of work if it is in the run that events of a session belong to here."""
        run_id = self.metadata.get(session_id, NO_FIELDS).run_id
        return self.place if self.place is not None and self.place.run_id == run_id else None

    def names_in(self, session_id: str) -> tuple[str | None, str | None]:
        """Return the run that events of a session belong to here, and the name of the step."""
        place = self.place_in(session_id)
        return self.metadata.get(session_id, NO_FIELDS).run_id, None if place is None else place.step_name

    def decision_in(self, session_id: str) -> str | None:
        """Return the id of the decision that causes the tool calls of a session here."""
        return self.decision[1] if self.decision is not None and self.decision[0] == session_id else None


NO_SCOPE = Scope()
_scope: ContextVar[Scope] = ContextVar("sessionary_scope", default=NO_SCOPE)
current_scope: Callable[[], Scope] = _scope.get
"""Returns the scope of the current context."""


def open_block() -> SessionBlock | None:
    """Return the innermost block of the current context that was not left."""
    block = _scope.get().block
    while block is not None and block.session is None:
        block = block.outer
    return block


def active_session() -> AnySession | None:
    """Return the session of the innermost open block of the current context."""
    block = open_block()
    return None if block is None else block.session


def enter_block(session: AnySession) -> SessionBlock:
    """Make `session` the current one of this context, until `leave_block`."""
    block = SessionBlock(session, open_block())
    _scope.set(_scope.get()._replace(block=block))
    return block


def leave_block(block: SessionBlock) -> None:
    """Leave a block, in every context that inherited it."""
    block.left = True
    scope = _scope.get()
    if scope.block is block:
        _scope.set(scope._replace(block=block.outer))


@contextmanager
def added_metadata(
    session_id: str, metadata: EnvelopeFields, place: WorkContext | None = None, decision: str | None = None
) -> Iterator[None]:
    """Let the events that the session sends in this context carry `metadata`, unless they have own.

    `place`: the place of the work in this context, if it differs from the outer one. `decision`:
    the decision of which the tool calls in this context are made, also those in its steps.
    """
    scope = _scope.get()
    outer = scope.metadata.get(session_id)
    joined = metadata if outer is None else join_fields(metadata, outer)
    decided = scope.decision if decision is None else (session_id, decision)
    token = _scope.set(
        Scope(scope.block, MappingProxyType({**scope.metadata, session_id: joined}), place or scope.place, decided)
    )
    try:
        yield
    finally:
        with suppress(ValueError):  # left in another context than entered, as generators may be
            _scope.reset(token)


def join_fields(own: EnvelopeFields, inherited: EnvelopeFields) -> EnvelopeFields:
    """Return `own`, with its missing fields from `inherited`."""
    return inherited._replace(**{name: value for name, value in own._asdict().items() if value is not None})


def bind_function(session: AnySession, function: Callable[P, T]) -> Callable[P, T]:
    """Return `function` with `session` as the current one, and with the metadata of this
    context.
    """
    block = SessionBlock(session, None)
    return bind_scope(_scope.get()._replace(block=block), function)


def bind_scope(scope: Scope, function: Callable[P, T]) -> Callable[P, T]:
    """Return `function` with `scope` as the one of its context."""

    def run_in_scope(*args: P.args, **kwargs: P.kwargs) -> T:
        token = _scope.set(scope)
        try:
            return function(*args, **kwargs)
        finally:
            _scope.reset(token)

    return run_in_scope


def keep_scope(scope: Scope) -> None:
    """Make `scope` the one of the current context."""
    _scope.set(scope)


def _forget_scope() -> None:
    _scope.set(NO_SCOPE)


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget_scope)  # the session belongs to the parent process


# Lets plain threads and thread pools inherit the current session.
#
# Tasks, `asyncio.to_thread` and `call_soon` copy the context by themselves. Plain threads begin
# with an empty one before Python 3.14, and the threads of a pool serve many sessions. So two
# methods of the standard library are wrapped, once in a process: `Thread.start` and
# `ThreadPoolExecutor.submit`. Outside a session the wrappers only look at one context variable.
# Inside, they carry only this variable, so that no other library's context changes.


_lock = threading.Lock()
_installed = False


def inherit_in_threads() -> None:
    """Wrap `Thread.start` and `ThreadPoolExecutor.submit`; a second call does nothing."""
    global _installed
    with _lock:
        if not _installed:
            _installed = True
            if not getattr(sys.flags, "thread_inherit_context", 0):  # 3.14 can do it itself
                _wrap_start()
            _wrap_submit()


def _wrap_start() -> None:
    start: Callable[[threading.Thread], None] = threading.Thread.start

    def start_in_scope(self: threading.Thread) -> None:
        # `_context`: from 3.14 on, the context that the program chose for the thread.
        if open_block() is not None and getattr(self, "_context", None) is None:
            scope, run = current_scope(), self.run

            def run_in_scope() -> None:
                self.__dict__.pop("run", None)
                keep_scope(scope)
                run()

            self.run = run_in_scope  # type: ignore[method-assign]
        start(self)

    threading.Thread.start = functools.wraps(start)(start_in_scope)  # type: ignore[method-assign]


def _wrap_submit() -> None:
    from concurrent.futures import ThreadPoolExecutor  # takes long to load

    submit: Callable[..., Future[Any]] = ThreadPoolExecutor.submit

    def submit_in_scope(
        self: "ThreadPoolExecutor", fn: Callable[..., Any], /, *args: Any, **kwargs: Any
    ) -> "Future[Any]":
        if open_block() is None:
            return submit(self, fn, *args, **kwargs)
        # A thread that the pool starts now serves other sessions later: it inherits none itself.
        return bind_scope(Scope(), submit)(self, bind_scope(current_scope(), fn), *args, **kwargs)

    ThreadPoolExecutor.submit = functools.wraps(submit)(submit_in_scope)  # type: ignore[method-assign, assignment]


# The trace context of the current OpenTelemetry span, without a need for OpenTelemetry.
#
# A program with spans has imported the API of OpenTelemetry. So the API is looked up among the
# loaded modules: it is never imported, and where it is absent a look-up costs well under 1 µs.


OPENTELEMETRY: Final = "opentelemetry.trace"  # the module of the API


def current_traceparent() -> str | None:
    """Return the W3C `traceparent` of the current span; None if there is none."""
    api = sys.modules.get(OPENTELEMETRY)
    if api is None:
        return None
    context = api.get_current_span().get_span_context()
    if not context.is_valid:
        return None
    from sessionary.schemas.telemetry.trace_context import format_traceparent

    return format_traceparent(context)


# The envelope fields that verbs take, and those that come from the scope.

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND = timedelta(microseconds=1)


class BlockMetadata(TypedDict, total=False):
    """The fields that `Session.metadata` adds to each event of a block.

    Attributes:
        run_id: The run that the event belongs to.
        step_id: The step that the event belongs to.
        causation_id: Id of the event that caused this one.
        actor: The principal that asked for it, instead of the client's `actor`.
        traceparent: W3C trace context, sent as a record header. Default: that of the current
            OpenTelemetry span, if there is one.
    """

    run_id: str | None
    step_id: str | None
    causation_id: str | None
    actor: str | None
    traceparent: str | None


class EventMetadata(BlockMetadata, total=False):
    """The keyword arguments that every verb takes in addition to its own.

    Attributes:
        run_id: The run that the event belongs to.
        run_seq: The event's number within the run.
        step_id: The step that the event belongs to.
        causation_id: Id of the event that caused this one.
        actor: The principal that asked for it, instead of the client's `actor`.
        traceparent: W3C trace context, sent as a record header. Default: that of the current
            OpenTelemetry span, if there is one.
    """

    run_seq: int | None


def envelope_fields(metadata: EventMetadata, occurred_us: int | None = None) -> EnvelopeFields:
    """Return metadata as envelope fields. Raises `TypeError` for an unknown name."""
    if not metadata and occurred_us is None:
        return NO_FIELDS
    try:
        return EnvelopeFields(**metadata, occurred_at=occurred_us)
    except TypeError:
        raise _unknown_metadata(metadata) from None


def epoch_us(occurred_at: datetime) -> int:
    """Return a moment in µs since the epoch.

    Raises `Invalid` if it has no timezone, or lies outside the years that tables hold.
    """
    if not isinstance(occurred_at, datetime) or occurred_at.utcoffset() is None:
        raise Invalid(
            "invalid_value",
            f"occurred_at is {occurred_at!r}: pass a datetime with a timezone, such as datetime.now(UTC)",
        )
    at_us: int = (occurred_at - EPOCH) // _MICROSECOND
    if not REPORTED_MIN_US <= at_us <= REPORTED_MAX_US:
        raise Invalid(
            "invalid_value", f"occurred_at is {occurred_at.isoformat()}: pass a time of the years 1900 to 2299, in UTC"
        )
    return at_us


def block_fields(metadata: BlockMetadata) -> EnvelopeFields:
    """Return a block's metadata as envelope fields. Raises `TypeError` for an unknown name."""
    return envelope_fields(cast(EventMetadata, metadata))


def _unknown_metadata(metadata: Mapping[str, object]) -> TypeError:
    known = [name for name in EnvelopeFields._fields if name != "occurred_at"]
    unknown = ", ".join(name for name in metadata if name not in known)
    return TypeError(f"no verb has the argument {unknown}; the metadata of an event are {', '.join(known)}")


def complete_fields(session_id: str, fields: EnvelopeFields) -> EnvelopeFields:
    """Return `fields`, with what they lack from the context: a block's metadata, the current
    span.
    """
    metadata = current_scope().metadata.get(session_id)
    if metadata is not None:
        fields = join_fields(fields, metadata)
    if fields.traceparent is None and (traceparent := current_traceparent()) is not None:
        fields = fields._replace(traceparent=traceparent)
    return fields
