"""Answers the requests for one service to take sessions: loads them, accepts them, passes them on.

Requests wait here for a thread, because a reader retries returned requests in any order. Held
sessions come first, because their agents stand still; offers in the order of their arrival.

A request whose answer has its position in the log is not delivered again. Other requests are, and
may belong to a migration that is over or has proceeded: these are dropped quietly.
"""

import threading
import time
from collections import deque
from collections.abc import Callable
from typing import Final, Literal, Protocol

from sessionary.producers.errors import QueueFull, Rejected, SessionaryError, SessionLost
from sessionary.producers.ports import OnError, OnReceipt, Receipt, SessionView
from sessionary.producers.session.core import SessionCore
from sessionary.producers.session.migration import Migration
from sessionary.producers.session.session import Session
from sessionary.schemas.records import MigrationRequest

# Calls the program's function with a session that has arrived from another service.


OnMigrated = Callable[[Session], object]
"""Takes a session that has arrived. The program keeps it: heartbeats stop once nothing has it."""

HandOver = Callable[[SessionCore, Callable[[], None]], None]
"""Passes a session to the program; calls the second argument once its function is done."""


def hand_over_in_place(function: OnMigrated, on_error: OnError) -> HandOver:
    """Return a hand-over that calls `function` in the thread that accepted a session."""

    def hand_over(core: SessionCore, done: Callable[[], None]) -> None:
        try:
            function(Session(core))
        except Exception as error:  # noqa: BLE001 - a bug of the program, which `on_error` is for
            on_error(error)
        finally:
            done()

    return hand_over


class MigratingClient(Protocol):
    """The core of a client to which sessions migrate."""

    on_error: OnError

    def take_migrations(self, hand_over: HandOver, concurrency: int) -> None:
        """Take the sessions that migrate to the client's service."""
        ...


def take_migrations(client: MigratingClient, function: OnMigrated, concurrency: int) -> None:
    """Let a client call `function` with each session that arrives."""
    client.take_migrations(hand_over_in_place(function, client.on_error), concurrency)


CONCURRENCY = 16
_WAITING_MAX: Final = 1_000  # of each step; a reader has as many open requests at most
_DONE: Final = Receipt(None, None)
_TRIES = 4  # the third other state ends a migration
_LOOKS, _LOOK_S = 5, 0.2
# So long after its end by our clock a migration is over by the broker's, too.
_OVER_US: Final = 600_000_000
# The session has changed since it was read: it is read again.
_MOVED = frozenset({"migration_moved", "stale_epoch", "future_epoch"})
_Key = tuple[str, str]  # migration id, step
Judged = Literal["ready", "behind", "over"]


class OpenAttached(Protocol):
    """Opens a session that exists, before anything is read of it."""

    def __call__(self, session_id: str, user_id: str | None, *, may_beat: bool) -> SessionCore:
        """Return its core."""
        ...


class MigrationAcceptor:
    """Takes the requests of one service, several at once. Each has a thread, unless `in_place`.

    A thread is busy until the program's function has returned. At most `concurrency` threads are
    busy, and at most half of these load sessions that still work elsewhere. A held session
    therefore finds a thread, however many sessions are offered. Other requests wait. A request that
    waits when the client stops is not answered, and so is delivered again elsewhere.
    """

    def __init__(
        self, open_attached: OpenAttached, hand_over: HandOver, concurrency: int, on_error: OnError, *, in_place: bool
    ) -> None:
        self._open_attached = open_attached
        self._hand_over = hand_over
        self._concurrency = concurrency
        self._on_error = on_error
        self._in_place = in_place
        self._changed = threading.Condition()
        self._busy = 0
        self._stopped = False
        self._receipts: dict[_Key, list[OnReceipt]] = {}  # of all requests without an answer
        self._at_work: set[_Key] = set()  # those of them that have a thread
        self._held, self._offers = deque[MigrationRequest](), deque[MigrationRequest]()  # the others
        self._unclear: set[str] = set()  # migrations that were accepted here, without a known verdict

    def __call__(self, request: MigrationRequest, on_receipt: OnReceipt) -> None:
        """Take a request; answer it once a thread is free.

        Raises `QueueFull` if too many wait. One that is answered in place does not wait.
        """
        key = _key_of(request)
        with self._changed:
            if (receipts := self._receipts.get(key)) is not None:
                receipts.append(on_receipt)  # delivered again after a rebalance: one answer is for all
                return
            waiting = self._held if request.step == "prepared" else self._offers
            has_room = self._has_thread(request) if self._in_place else len(waiting) < _WAITING_MAX
            if self._stopped or not has_room:
                raise QueueFull(f"{self._busy} sessions that migrate here are at work, {len(waiting)} wait")
            self._receipts[key] = [on_receipt]
            waiting.append(request)
        self._start_waiting()

    def _start_waiting(self) -> None:
        """Let waiting requests have the threads that are free."""
        while (request := self._take_next()) is not None:
            if self._in_place:
                self._work(request)
                continue
            name = f"sessionary-migration-{request.session_id}"
            try:
                threading.Thread(target=self._work, args=(request,), name=name, daemon=True).start()
            except RuntimeError as error:  # no thread can be had: the request comes again
                self._on_error(error)
                self._end_answer(request, Receipt(None, None, str(error)), is_free=True)

    def _take_next(self) -> MigrationRequest | None:
        """Return the request that is answered next; None if none waits, or no thread is free."""
        with self._changed:
            for waiting in (self._held, self._offers):
                if waiting and not self._stopped and self._has_thread(waiting[0]):
                    self._busy += 1
                    self._at_work.add(_key_of(waiting[0]))
                    return waiting.popleft()
        return None

    def _has_thread(self, request: MigrationRequest) -> bool:
        """Return whether a thread is free for a request. Hold the lock."""
        if request.step != "prepared":
            loading = sum(step != "prepared" for _, step in self._at_work)
            if loading >= max(1, self._concurrency // 2):
                return False
        return self._busy < self._concurrency

    def stop(self) -> None:
        """Take no further requests."""
        with self._changed:
            self._stopped = True

    def close(self, timeout_s: float) -> None:
        """Wait until the requests at work are answered, for at most `timeout_s`.

        The program's function is not waited for: it may work with its session for long.
        """
        self.stop()
        with self._changed:
            self._changed.wait_for(lambda: not self._at_work, timeout_s)

    def _work(self, request: MigrationRequest) -> None:
        core, receipt = None, _DONE
        try:
            core = self._answer(request)
        except Exception as error:  # noqa: BLE001 - the thread has no caller; the request is asked for again
            if not self._stopped:
                self._on_error(error)
            if time.time_ns() // 1_000 < request.expires_at + _OVER_US:
                receipt = Receipt(None, None, str(error))
        self._end_answer(request, receipt, is_free=core is None)
        self._start_waiting()
        if core is not None:
            self._hand_over(core, self._release)

    def _end_answer(self, request: MigrationRequest, receipt: Receipt, *, is_free: bool) -> None:
        """Report the answer to a request; `is_free`: its thread has nothing more to do."""
        with self._changed:
            self._at_work.discard(_key_of(request))
            receipts = self._receipts.pop(_key_of(request))
            self._busy -= is_free
            self._changed.notify_all()
        for on_receipt in receipts:
            on_receipt(receipt)

    def _release(self) -> None:
        with self._changed:
            self._busy -= 1
        self._start_waiting()

    def _answer(self, request: MigrationRequest) -> SessionCore | None:
        """Answer a request; return the session if it is this process's from now on.

        Raises `Unavailable`, and the other errors of the control API and Kafka.
        """
        for _ in range(_TRIES):
            core = self._open_attached(request.session_id, request.user_id, may_beat=False)
            core.emitter.add_data_classes(request.data_classes)
            try:
                view = self._read_session(core, request)
            except SessionLost:
                return None
            if view is None:
                return None
            if view.migration is not None and view.migration.step == "completed":
                self._unclear.discard(request.migration_id)
                Migration(core).hold(view.holder)
                return core
            if request.step == "offered":
                after = Migration(core).report_loaded(request.migration_id)
                if after.verdict is None or after.verdict.reason not in _MOVED:
                    return None
            elif (reason := self._accept(core, request, view)) is None:
                return core
            elif reason not in _MOVED:
                return None
        return None

    def _accept(self, core: SessionCore, request: MigrationRequest, view: SessionView) -> str | None:
        """Accept a session with the state of `view`; return why that was rejected, or None."""
        migration_id = request.migration_id
        self._unclear.add(migration_id)
        try:
            Migration(core).accept(migration_id, view)
        except Rejected as rejected:
            self._unclear.discard(migration_id)
            core.abandon()
            return rejected.reason
        except SessionaryError:
            core.abandon()  # it may be granted: then the request comes again, and finds it so
            raise
        self._unclear.discard(migration_id)
        return None

    def _read_session(self, core: SessionCore, request: MigrationRequest) -> SessionView | None:
        """Read the session as the request knows it, or newer; None if the migration is over."""
        pause: Callable[[float], None] = core.waits.pause or time.sleep
        for look in range(_LOOKS):
            if look:
                pause(_LOOK_S)
            view = core.sync(core.view.departures)
            if (judged := self._judge_view(view, request, core.emitter.producer_id)) != "behind":
                return view if judged == "ready" else None
        return None

    def _judge_view(self, view: SessionView, request: MigrationRequest, producer_id: str) -> Judged:
        """Judge whether the session waits for the requested step, or is past it.

        A worker may for a moment report a session's state from before the request.
        """
        last = view.migration
        if last is None or last.migration_id != request.migration_id:
            return "over" if view.epoch > request.epoch else "behind"
        if last.step == "completed" and request.migration_id in self._unclear and view.holder == producer_id:
            return "ready"
        if last.step == request.step:
            return "ready"
        return "behind" if (last.step, request.step) == ("offered", "prepared") else "over"


def _key_of(request: MigrationRequest) -> _Key:
    return request.migration_id, request.step
