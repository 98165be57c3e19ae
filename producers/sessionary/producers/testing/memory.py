"""The ports of clients in memory: transport, control API, clean-up requests, and a fake clock."""

import itertools
import math
import threading
import time
import weakref
from collections.abc import Callable, Sequence
from threading import Lock, RLock
from typing import TYPE_CHECKING, Protocol

from sessionary.producers.errors import Invalid, ProducerError, QueueFull, Unavailable
from sessionary.producers.ports import (
    Backlog,
    Counters,
    KnownSession,
    OnReceipt,
    OnRequest,
    OutRecord,
    Receipt,
    SessionChanges,
    SessionView,
)
from sessionary.producers.testing.judged_event import JudgedEvent, MemoryQuota, NamedSession
from sessionary.producers.testing.operator import OperatorHand
from sessionary.schemas.codec import Event
from sessionary.schemas.ids import SessionId
from sessionary.schemas.records import (
    AuditRecord,
    CleanupRequest,
    MigrationRequest,
    RejectedEvent,
    SessionState,
    TaskRequest,
)
from sessionary.schemas.types import RejectionReason

if TYPE_CHECKING:
    from sessionary.producers.testing.judged_log import Judge

Asked = CleanupRequest | MigrationRequest
"""The requests of a memory's judge to services, on their way to the clients' handlers."""


class AskingJudge(Protocol):
    """The part of the judge that is read here."""

    cleanups: list[CleanupRequest]
    migrations: list[MigrationRequest]


class MemoryRequests:
    """`CleanupConsumer` or `MigrationConsumer` of one service; of every one if none is named."""

    works_in_place = True

    def __init__(self, kind: type[Asked], tenant_id: str | None, service_id: str | None) -> None:
        self._kind = kind
        self._tenant_id = tenant_id
        self._service_id = service_id
        self.on_request: OnRequest | None = None

    def is_for(self, request: Asked) -> bool:
        """Return whether a request is one of its service's, and of its kind."""
        is_ours = self._tenant_id in (None, request.tenant_id) and self._service_id in (None, request.service_id)
        return is_ours and isinstance(request, self._kind)

    def start(self, on_request: OnRequest) -> None:
        """Pass requests on from now on."""
        self.on_request = on_request

    def close(self, timeout_s: float = 0.0) -> None:
        """Pass none."""
        self.on_request = None


class Deliveries:
    """The requests that no handler has answered yet. Thread-safe; no lock is held in handlers."""

    def __init__(self, judge: AskingJudge, lock: RLock) -> None:
        """`lock`: the memory's."""
        self._judge, self._lock = judge, lock
        self._readers: list[MemoryRequests] = []
        self._open: list[Asked] = []
        self._seen = (0, 0)

    def add_reader(self, reader: MemoryRequests, *, first: bool = False) -> None:
        """Pass requests to a client, to this one before all others if `first`."""
        with self._lock:
            self._readers.insert(0 if first else len(self._readers), reader)

    def collect(self) -> None:
        """Take the judge's requests since the last call. Hold the lock."""
        cleanups, migrations = self._judge.cleanups, self._judge.migrations
        self._open += [*cleanups[self._seen[0] :], *migrations[self._seen[1] :]]
        self._seen = len(cleanups), len(migrations)

    def pass_on(self) -> None:
        """Pass requests to their handlers; those without a handler, or without an answer, wait."""
        waiting: list[Asked] = []
        while (found := self._take_next()) is not None:
            request, on_request = found

            def on_receipt(receipt: Receipt, request: Asked = request) -> None:
                if receipt.error is not None:
                    waiting.append(request)

            try:
                on_request(request, on_receipt)
            except QueueFull:
                waiting.append(request)
        with self._lock:
            self._open += waiting

    def handler_of(self, request: Asked) -> OnRequest | None:
        """Return the handler of a request; None if there is none yet."""
        with self._lock:
            for reader in self._readers:
                if reader.on_request is not None and reader.is_for(request):
                    return reader.on_request
        return None

    def _take_next(self) -> tuple[Asked, OnRequest] | None:
        with self._lock:
            handlers = ((request, self.handler_of(request)) for request in self._open)
            found = next(((request, handler) for request, handler in handlers if handler is not None), None)
            if found is not None:
                self._open.remove(found[0])
            return found


# The clients of a memory ask about their sessions each time a test moves the clock.


class FakePolls:
    """`PollTimer` without a thread: `poll_all` lets each client ask. Thread-safe."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._polls: list[weakref.WeakMethod[Callable[[], None]]] = []

    def start_polls(self, poll: Callable[[], None]) -> None:
        """Call `poll`, a bound method whose object is held weakly, with each `poll_all`."""
        with self._lock:
            self._polls.append(weakref.WeakMethod(poll))

    def poll_all(self) -> None:
        """Let each client ask, in the order of their creation, and report its findings."""
        with self._lock:
            self._polls = [poll for poll in self._polls if poll() is not None]
            current = list(self._polls)
        for each in current:
            poll = each()
            if poll is not None:
                poll()


# The heartbeats of one client's sessions on a clock that only a test moves.


class _Beating:
    """One session's heartbeats; `due_ms` is when the next one is due."""

    __slots__ = ("due_ms", "interval_ms", "send")

    def __init__(self, send: Callable[[], bool], interval_ms: int, now_ms: int) -> None:
        self.send = weakref.WeakMethod(send)
        self.interval_ms = interval_ms
        self.due_ms = now_ms + interval_ms


class FakeHeartbeats:
    """`HeartbeatTimer` without a thread: `send_due` sends due heartbeats. Thread-safe."""

    def __init__(self, read_clock: Callable[[], int]) -> None:
        """`read_clock` returns the fake time, ms since the epoch."""
        self._read_clock = read_clock
        self._lock = RLock()
        self._live: dict[int, _Beating] = {}
        self._tokens = itertools.count(1)

    def start_heartbeat(self, send: Callable[[], bool], interval_s: float, key: bytes = b"") -> int:
        """Call `send` every `interval_s` of fake time; return a token for `stop_heartbeat`.

        `send` is a bound method; its object is held weakly. `key` is of no use here.
        """
        with self._lock:
            token = next(self._tokens)
            self._live[token] = _Beating(send, max(1, math.ceil(interval_s * 1_000)), self._read_clock())
            return token

    def stop_heartbeat(self, token: int) -> None:
        """Stop the heartbeats of `token`, if there are any."""
        with self._lock:
            self._live.pop(token, None)

    def close(self, timeout_s: float = 0.0) -> None:
        """Stop all heartbeats; a second call does nothing."""
        with self._lock:
            self._live.clear()

    @property
    def next_due_ms(self) -> int | None:
        """When the next heartbeat is due, ms since the epoch on the fake clock; None if none is."""
        with self._lock:
            return min((beating.due_ms for beating in self._live.values()), default=None)

    def send_due(self, now_ms: int) -> None:
        """Send each heartbeat that is due, in the order in which the sessions began to beat."""
        with self._lock:
            due = [(token, beating) for token, beating in self._live.items() if beating.due_ms <= now_ms]
        for token, beating in due:
            send = beating.send()
            if send is None or not send():
                self.stop_heartbeat(token)
            beating.due_ms = now_ms + beating.interval_ms


# The state of a memory, which its ports share: the judged log, under one lock.


class MemoryCore:
    """The log of a memory, its judge, and the clients' heartbeats, polls and readers.

    Attributes:
        lock: Guards the others.
        log: The events that were sent, with their verdicts.
        timers: The heartbeats of the clients.
        deliveries: Passes requests to the clients.
        polls: Lets the clients ask about their sessions.
        is_silent: The control API does not answer.
    """

    def __init__(self, partitions: int, quota: MemoryQuota | None, now_ms: int | None, *, outages: bool) -> None:
        """Begin empty, at the present time unless `now_ms` is given."""
        from sessionary.producers.testing.judged_log import JudgedLog  # loads the processor's rules

        self.lock = threading.RLock()
        began_ms = time.time_ns() // 1_000_000 if now_ms is None else now_ms
        self.log: JudgedLog = JudgedLog(partitions, began_ms, quota, outages=outages)
        self.judge: Judge = self.log.judge
        self.timers: list[FakeHeartbeats] = []
        self.deliveries = Deliveries(self.judge, self.lock)
        self.polls = FakePolls()
        self.is_silent = False

    def new_heartbeats(self) -> FakeHeartbeats:
        """Return the heartbeats of a client, which moving the clock sends."""
        timer = FakeHeartbeats(lambda: self.judge.now_ms)
        with self.lock:
            self.timers.append(timer)
        return timer


class InMemoryTransport:
    """The events of clients, judged at once by the processor's own rules. Thread-safe.

    Time stands still until a test calls `advance`. Each event is acknowledged at once, whatever the
    verdict. Several clients may share one memory: other agents, or a second process of one.
    """

    def __init__(
        self,
        partitions: int = 4,
        quota: MemoryQuota | None = None,
        *,
        now_ms: int | None = None,
        outages: bool = False,
    ) -> None:
        """Begin empty.

        Args:
            partitions: Number of partitions of the events topic.
            quota: Each tenant's quota; None: runs ask for none.
            now_ms: The time, ms since the epoch; default: the present.
            outages: A stretch without records is an outage, in which no clock fires.
        """
        self.core = MemoryCore(partitions, quota, now_ms, outages=outages)  # for sessionary's own modules
        self._advancing = threading.Lock()
        self._pausing = threading.Lock()
        self._silenced: set[str] = set()
        self._polled_at = (0, 0, 0)  # the numbers of records when clients asked last
        self.has_quota = quota is not None
        self.operator = OperatorHand(self)  # the actions of people

    # The history, for tests

    def records(self) -> list[OutRecord]:
        """Return all records so far in order, without heartbeats."""
        with self.core.lock:
            return list(self.core.log.records)

    def __repr__(self) -> str:
        return f"<{type(self).__name__}, {len(self.events())} events>"

    def events(self, session_id: SessionId | None = None) -> list[Event]:
        """Return all events sent so far in order, rejected ones too, without heartbeats.

        Args:
            session_id: Return only the events of this session.
        """
        return [judged.event for judged in self.verdicts(session_id)]

    def heartbeats(self) -> list[Event]:
        """Return all heartbeats so far in order, without those of silenced sessions."""
        with self.core.lock:
            return list(self.core.log.heartbeats)

    def verdicts(self, session_id: SessionId | None = None) -> list[JudgedEvent]:
        """Return all events so far with their verdicts, in order, without heartbeats.

        Args:
            session_id: Return only the events of this session.
        """
        with self.core.lock:
            wanted = self._wanted_id(session_id)
            return [judged for judged in self.core.log.judged if wanted in (None, judged.session_id)]

    def rejections(self, session_id: SessionId | None = None) -> list[JudgedEvent]:
        """Return the events that were rejected, in order, without heartbeats.

        Args:
            session_id: Return only the events of this session.
        """
        return [judged for judged in self.verdicts(session_id) if judged.outcome == "rejected"]

    def rejected_records(self) -> list[RejectedEvent]:
        """Return the processor's records for the topic `rejected`, in order, heartbeats too."""
        with self.core.lock:
            return list(self.core.judge.rejected_records)

    def cleanups(self, session_id: SessionId | None = None) -> list[CleanupRequest]:
        """Return the clean-up requests so far, in order, whether they reached a handler or not.

        Args:
            session_id: Return only the requests for this session.
        """
        with self.core.lock:
            wanted = self._wanted_id(session_id)
            return [request for request in self.core.judge.cleanups if wanted in (None, request.session_id)]

    def tasks(self, session_id: SessionId | None = None) -> list[TaskRequest]:
        """Return the requests for long tasks so far, in order.

        Args:
            session_id: Return only the requests for this session.
        """
        with self.core.lock:
            wanted = self._wanted_id(session_id)
            return [request for request in self.core.judge.tasks if wanted in (None, request.session_id)]

    def migrations(self, session_id: SessionId | None = None) -> list[MigrationRequest]:
        """Return the requests to take sessions that migrate so far, in order.

        Args:
            session_id: Return only the requests for this session.
        """
        with self.core.lock:
            wanted = self._wanted_id(session_id)
            return [request for request in self.core.judge.migrations if wanted in (None, request.session_id)]

    def audit(self, session_id: SessionId | None = None) -> list[AuditRecord]:
        """Return the audit trail so far, in order.

        Args:
            session_id: Return only the records of this session.
        """
        with self.core.lock:
            wanted = self._wanted_id(session_id)
            return [record for record in self.core.judge.audits if wanted in (None, record.session_id)]

    def view_session(self, session: NamedSession | SessionId) -> SessionView:
        """Return a session as the processor knows it now. Raises `SessionLost`.

        Args:
            session: A session, or its id.
        """
        with self.core.lock:
            return self.core.log.view_session(self.core.log.id_of(session), None)

    def find_row(self, session: NamedSession | SessionId) -> SessionState:
        """Return the processor's row of a session: everything it knows. Raises `SessionLost`."""
        with self.core.lock:
            return self.core.log.find_row(self.core.log.id_of(session))

    @property
    def now_ms(self) -> int:
        """The fake time, ms since the epoch."""
        return self.core.judge.now_ms

    # The controls of a test

    def advance(self, seconds: float) -> None:
        """Move the clock forward, and run everything that is due until then, in order.

        Sessions with heartbeats keep sending them at their interval. Each clock of a session fires
        at its exact time. Requests for clean-ups and migrations are passed to the clients'
        handlers, in this thread, and their answers are judged. The clients' callbacks
        (`on_rejected`, `on_paused` and the like) are called at once, in this thread, too.
        `advance(0)` does only these two. Takes no real time.

        Args:
            seconds: How far, 0 or more.

        Raises:
            Invalid: `seconds` is negative.
            RuntimeError: Called by a clean-up handler or a callback, or by two threads at once.
        """
        if seconds < 0:
            raise Invalid("invalid_value", f"seconds is {seconds}; a clock never goes back")
        if not self._advancing.acquire(blocking=False):
            raise RuntimeError(
                "advance is running already: call it neither in a handler or callback nor in two threads"
            )
        try:
            end_ms = self.core.judge.now_ms + round(seconds * 1_000)
            self.core.deliveries.pass_on()
            while (moment_ms := self._next_moment_ms()) <= end_ms:
                self._go_to(moment_ms)
            self._go_to(end_ms)
        finally:
            self._advancing.release()

    def pause(self, seconds: float) -> None:
        """Move the clock forward as a client that waits does, after others that move it.

        Retrying tools wait this way. Within `advance`, nothing waits.
        """
        with self._pausing:
            if not self._advancing.locked():
                self.advance(seconds)

    def silence(self, session: NamedSession | SessionId, *, silent: bool = True) -> None:
        """Drop a session's heartbeats, as if its agent had died or was cut off.

        Args:
            session: A session, or its id.
            silent: False: its heartbeats arrive again.
        """
        with self.core.lock:
            (self._silenced.add if silent else self._silenced.discard)(self.core.log.id_of(session))

    def reject_next(self, reason: RejectionReason) -> None:
        """Reject the next resume, recovery or take-over with `reason`, whatever the rules say.

        Each call rejects one more. The event changes nothing, and leaves no audit record.
        """
        with self.core.lock:
            self.core.log.next_rejections.append(reason)

    def silence_control(self, *, silent: bool) -> None:
        """Make the control API raise `Unavailable`; `silent=False` makes it answer again."""
        self.core.is_silent = silent

    def request_cleanup(self, request: CleanupRequest) -> Receipt | None:
        """Pass a request of your own to the client's clean-up handler; return its answer's receipt.

        Raises `ProducerError` if no client has a handler.
        """
        on_request = self.core.deliveries.handler_of(request)
        if on_request is None:
            raise ProducerError("the client has no clean-up handler; call client.on_cleanup first")
        receipts: list[Receipt] = []
        on_request(request, receipts.append)
        return receipts[0] if receipts else None

    # The protocol `Transport`

    @property
    def may_block(self) -> bool:
        """False."""
        return False

    @property
    def counters(self) -> Counters:
        """The counters as they are now: all events sent are delivered."""
        with self.core.lock:
            count = len(self.core.log.records)
            return Counters(sent=count, delivered=count, heartbeats=len(self.core.log.heartbeats))

    @property
    def backlog(self) -> Backlog:
        """Nothing: every event is acknowledged at once."""
        return Backlog()

    def send(self, record: OutRecord, on_receipt: OnReceipt | None = None) -> None:
        """Judge one record, keep it, and acknowledge it."""
        with self.core.lock:
            judged = self.core.log.append_event(record)
            self.core.deliveries.collect()
        if on_receipt is not None:
            on_receipt(judged.receipt)

    def send_heartbeat(self, record: OutRecord) -> None:
        """Judge a heartbeat and keep it, unless its session is silenced."""
        with self.core.lock:
            if record.session_id not in self._silenced:
                self.core.log.append_heartbeat(record)
                self.core.deliveries.collect()

    def wait_taken_over(self, key: bytes, timeout_s: float) -> bool:
        """Return True: a dead process leaves nothing."""
        return True

    def flush(self, timeout_s: float) -> int:
        """Return 0: every event is acknowledged at once."""
        return 0

    # The protocol `Control`

    def check_configured(self) -> None:
        """Do nothing: this control API needs no settings."""

    def fetch_session(self, session_id: str, after: tuple[int, int] | None, timeout_s: float) -> SessionView:
        """Return the session at once. Raises `SessionLost`, `Unavailable` if silenced."""
        if self.core.is_silent:
            raise Unavailable("the control API is silent", 1.0)
        with self.core.lock:
            return self.core.log.view_session(session_id, after)

    # The protocol `SessionPolls`

    def poll_sessions(self, known: Sequence[KnownSession], timeout_s: float) -> SessionChanges:
        """Return the sessions that differ from the known ones. Raises `Unavailable` if silenced."""
        if self.core.is_silent:
            raise Unavailable("the control API is silent", 1.0)
        with self.core.lock:
            return self.core.log.find_changes(known)

    # All protocols

    def close(self, timeout_s: float = 0.0) -> int:
        """Do nothing: other clients may continue, and the kept events stay readable."""
        return 0

    def _wanted_id(self, session_id: SessionId | None) -> str | None:
        return None if session_id is None else self.core.log.id_of(session_id)

    # Time

    def _next_moment_ms(self) -> float:
        """Return when something is due, ms since the epoch; infinity if nothing ever is."""
        with self.core.lock:
            moments = [timer.next_due_ms for timer in self.core.timers]
            due_ms = min(
                (moment for moment in (*moments, self.core.judge.next_deadline_ms) if moment is not None), default=0
            )
            return due_ms or float("inf")

    def _go_to(self, moment_ms: float) -> None:
        """Run everything that is due at a moment. No lock is held while clients are called."""
        with self.core.lock:
            self.core.judge.now_ms = max(self.core.judge.now_ms, int(moment_ms))
            timers: Sequence[FakeHeartbeats] = tuple(self.core.timers)
        for timer in timers:
            timer.send_due(self.now_ms)
        with self.core.lock:
            self.core.judge.fire_timers()
            self.core.deliveries.collect()
        self.core.deliveries.pass_on()
        self._poll_notifications()

    def _poll_notifications(self) -> None:
        """Let the clients ask about their sessions, if anything was judged since they did."""
        with self.core.lock:
            numbers = (len(self.core.log.judged), len(self.core.judge.audits), len(self.core.judge.rejected_records))
        if numbers != self._polled_at and not self.core.is_silent:
            self._polled_at = numbers
            self.core.polls.poll_all()
