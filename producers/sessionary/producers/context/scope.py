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
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NamedTuple, ParamSpec, Protocol, TypeVar

from sessionary.producers.delivery.emitter import EnvelopeFields
from sessionary.producers.ports import OnError
from sessionary.schemas.events import Payload

if TYPE_CHECKING:
    from concurrent.futures import Future, ThreadPoolExecutor

    from sessionary.producers.run_ports import CallView


P = ParamSpec("P")
T = TypeVar("T")


class CallReporter(NamedTuple):
    """Reports calls of models and tools in one session.

    Attributes:
        session_id: The session's UUID.
        may_block: `send_event` may wait for room in the queue.
        is_active: Returns whether the session is Active, as far as the client knows.
        send_event: Sends one event, returns its id. Raises as `Session.emit` does.
        on_error: Gets the errors that must not reach the program.
    """

    session_id: str
    may_block: bool
    is_active: Callable[[], bool]
    send_event: Callable[[Payload, EnvelopeFields], str]
    on_error: OnError


class AnyCore(Protocol):
    """The `SessionCore` of a session."""

    def call_reporter(self) -> CallReporter:
        """Return the reporter of calls of models and tools in the session."""
        ...

    def recorder(self) -> Any:  # a `Recorder` of `durable`, which is above this folder
        """Return the recorder of work in the session."""
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
    """The time that calls of models in one step may take, and the calls that took longer.

    Attributes:
        limit_ms: The share of each call, in ms.
        now_s: The clock that measures them; only differences count.
        is_retry: The step is tried again because its last attempt was over its share.
        over: Step ids of the last calls that exceeded the share, by model.
    """

    limit_ms: int
    now_s: Callable[[], float]
    is_retry: bool
    over: dict[str, str]


class WorkContext(NamedTuple):
    """The place of recorded work: its run, and its step if there is one.

    `recorder` records work in the run's session. `known_calls` has the run's tool calls by key, as
    known at its resumption. `save_border` takes a tool's name, `before` or `after`, the call's key
    and the fields of its events, and saves a checkpoint; it raises nothing. `share` is the time
    that models may take in a step; None outside of steps.
    """

    recorder: object
    run_id: str
    step_name: str | None
    known_calls: "dict[str, CallView]"
    save_border: Callable[[str, str, str, EnvelopeFields], None]
    share: ModelShare | None = None


class Scope(NamedTuple):
    """The inherited part of a context: innermost block, metadata by session id, place of work."""

    block: SessionBlock | None = None
    metadata: Mapping[str, EnvelopeFields] = MappingProxyType({})
    place: WorkContext | None = None


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
def added_metadata(session_id: str, metadata: EnvelopeFields, place: WorkContext | None = None) -> Iterator[None]:
    """Let the events that the session sends in this context carry `metadata`, unless they have own.

    `place`: the place of the work in this context, if it differs from the outer one.
    """
    scope = _scope.get()
    outer = scope.metadata.get(session_id)
    joined = metadata if outer is None else join_fields(metadata, outer)
    token = _scope.set(
        Scope(scope.block, MappingProxyType({**scope.metadata, session_id: joined}), place or scope.place)
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
