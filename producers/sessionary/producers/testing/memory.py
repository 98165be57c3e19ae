"""The outside of clients in memory: transport, control API, clean-up requests, and a fake clock."""

import threading
import time
from collections.abc import Sequence

from sessionary.producers.errors import Invalid, ProducerError, Unavailable
from sessionary.producers.ports import (
    Backlog,
    Counters,
    KnownSession,
    OnReceipt,
    OutRecord,
    Receipt,
    SessionChanges,
    SessionView,
    TaskQuestion,
    TaskView,
)
from sessionary.producers.testing.fake_heartbeats import FakeHeartbeats
from sessionary.producers.testing.fake_polls import FakePolls
from sessionary.producers.testing.judged_event import JudgedEvent, MemoryQuota, NamedSession, id_of
from sessionary.producers.testing.memory_requests import Deliveries, MemoryRequests
from sessionary.producers.testing.operator import OperatorHand
from sessionary.schemas.codec import Event
from sessionary.schemas.records import (
    AuditRecord,
    CleanupRequest,
    MigrationRequest,
    RejectedEvent,
    SessionState,
    TaskRequest,
)
from sessionary.schemas.types import RefusalReason


class InMemoryTransport:
    """What clients send, judged at once by the processor's own rules. Thread-safe.

    Time stands still until a test calls `advance`. Each event is acknowledged at once, whatever the
    verdict. Several clients may share one memory: other agents, or a second process of one.
    """

    def __init__(self, partitions: int = 4, quota: MemoryQuota | None = None) -> None:
        """Begin empty, at the present time.

        Args:
            partitions: Of the events topic.
            quota: Each tenant's; None: runs ask for none.
        """
        from sessionary.producers.testing.judged_log import JudgedLog  # loads the processor's rules

        self._lock = threading.RLock()
        self._advancing = threading.Lock()
        self._pausing = threading.Lock()
        self._log = JudgedLog(partitions, time.time_ns() // 1_000_000, quota)
        self._judge = self._log.judge
        self._silenced: set[str] = set()
        self._timers: list[FakeHeartbeats] = []
        self._deliveries = Deliveries(self._judge, self._lock)
        self._polls = FakePolls()
        self._polled_at = (0, 0, 0)  # the numbers of records when clients asked last
        self._silent, self.has_quota = False, quota is not None
        self.operator = OperatorHand(self)  # what people do

    # What happened, for tests

    def records(self) -> list[OutRecord]:
        """Return all records so far in order, without heartbeats."""
        with self._lock:
            return list(self._log.records)

    def events(self, session_id: str | None = None) -> list[Event]:
        """Return all events sent so far in order, refused ones too, without heartbeats.

        Args:
            session_id: Return only the events of this session.
        """
        return [judged.event for judged in self.verdicts(session_id)]

    def heartbeats(self) -> list[Event]:
        """Return all heartbeats so far in order, without those of silenced sessions."""
        with self._lock:
            return list(self._log.heartbeats)

    def verdicts(self, session_id: str | None = None) -> list[JudgedEvent]:
        """Return all events so far with their verdicts, in order, without heartbeats.

        Args:
            session_id: Return only the events of this session.
        """
        with self._lock:
            return [judged for judged in self._log.judged if session_id in (None, judged.session_id)]

    def refusals(self, session_id: str | None = None) -> list[JudgedEvent]:
        """Return the events that were refused, in order, without heartbeats.

        Args:
            session_id: Return only the events of this session.
        """
        return [judged for judged in self.verdicts(session_id) if judged.outcome == "refused"]

    def rejections(self) -> list[RejectedEvent]:
        """Return what the processor writes to the topic `rejected`, in order, heartbeats too."""
        with self._lock:
            return list(self._judge.rejections)

    def cleanups(self, session_id: str | None = None) -> list[CleanupRequest]:
        """Return the clean-up requests so far, in order, whether they reached a handler or not.

        Args:
            session_id: Return only the requests for this session.
        """
        with self._lock:
            return [request for request in self._judge.cleanups if session_id in (None, request.session_id)]

    def tasks(self, session_id: str | None = None) -> list[TaskRequest]:
        """Return the requests for long tasks so far, in order.

        Args:
            session_id: Return only the requests for this session.
        """
        with self._lock:
            return [request for request in self._judge.tasks if session_id in (None, request.session_id)]

    def migrations(self, session_id: str | None = None) -> list[MigrationRequest]:
        """Return the requests to take sessions that migrate so far, in order.

        Args:
            session_id: Return only the requests for this session.
        """
        with self._lock:
            return [request for request in self._judge.migrations if session_id in (None, request.session_id)]

    def audit(self, session_id: str | None = None) -> list[AuditRecord]:
        """Return the audit trail so far, in order.

        Args:
            session_id: Return only the records of this session.
        """
        with self._lock:
            return [record for record in self._judge.audits if session_id in (None, record.session_id)]

    def view_session(self, session: NamedSession | str) -> SessionView:
        """Return a session as the processor knows it now. Raises `SessionLost`.

        Args:
            session: A session, or its id.
        """
        with self._lock:
            return self._log.view_session(id_of(session), None)

    def find_row(self, session_id: str) -> SessionState:
        """Return the processor's row of a session: everything it knows. Raises `SessionLost`."""
        with self._lock:
            return self._log.find_row(session_id)

    @property
    def now_ms(self) -> int:
        """The fake time, ms since the epoch."""
        return self._judge.now_ms

    # What a test decides

    def advance(self, seconds: float) -> None:
        """Move the clock forward, and let happen in order what is due until then.

        Sessions that beat go on beating at their interval. Each clock of a session fires at its
        exact time. Requests for clean-ups and migrations are passed to the clients' handlers, in
        this thread, and their answers are judged. The clients' callbacks (`on_refused`, `on_paused`
        and their kin) are told at once, in this thread, too. `advance(0)` does only these two.
        Takes no real time.

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
            end_ms = self._judge.now_ms + round(seconds * 1_000)
            self._deliveries.pass_on()
            while (moment_ms := self._next_moment_ms()) <= end_ms:
                self._go_to(moment_ms)
            self._go_to(end_ms)
        finally:
            self._advancing.release()

    def pause(self, seconds: float) -> None:
        """Move the clock forward as a client that waits does, after others that move it.

        Tools that try again wait so. Within `advance`, nothing waits.
        """
        with self._pausing:
            if not self._advancing.locked():
                self.advance(seconds)

    def silence(self, session: NamedSession | str, *, silent: bool = True) -> None:
        """Let a session's heartbeats get lost, as if its agent had died or was cut off.

        Args:
            session: A session, or its id.
            silent: False: its heartbeats arrive again.
        """
        with self._lock:
            (self._silenced.add if silent else self._silenced.discard)(id_of(session))

    def refuse_next(self, reason: RefusalReason) -> None:
        """Refuse the next resume, recovery or take-over with `reason`, whatever the rules say.

        Each call refuses one more. The event changes nothing, and leaves no audit record.
        """
        with self._lock:
            self._log.next_refusals.append(reason)

    def silence_control(self, *, silent: bool) -> None:
        """Make the control API raise `Unavailable`; `silent=False` makes it answer again."""
        self._silent = silent

    def request_cleanup(self, request: CleanupRequest) -> Receipt | None:
        """Pass a request of your own to the client's clean-up handler; return its answer's receipt.

        Raises `ProducerError` if no client has a handler.
        """
        on_request = self._deliveries.handler_of(request)
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
        with self._lock:
            count = len(self._log.records)
            return Counters(sent=count, delivered=count, heartbeats=len(self._log.heartbeats))

    @property
    def backlog(self) -> Backlog:
        """Nothing: every event is acknowledged at once."""
        return Backlog()

    def send(self, record: OutRecord, on_receipt: OnReceipt | None = None) -> None:
        """Judge one record, keep it, and acknowledge it."""
        with self._lock:
            judged = self._log.append_event(record)
            self._deliveries.collect()
        if on_receipt is not None:
            on_receipt(judged.receipt)

    def send_heartbeat(self, record: OutRecord) -> None:
        """Judge a heartbeat and keep it, unless its session is silenced."""
        with self._lock:
            if record.session_id not in self._silenced:
                self._log.append_heartbeat(record)
                self._deliveries.collect()

    def flush(self, timeout_s: float) -> int:
        """Return 0: every event is acknowledged at once."""
        return 0

    # The protocol `Control`

    def check_configured(self) -> None:
        """Do nothing: this control API needs no settings."""

    def fetch_session(self, session_id: str, after: tuple[int, int] | None, timeout_s: float) -> SessionView:
        """Return the session at once. Raises `SessionLost`, `Unavailable` if silenced."""
        if self._silent:
            raise Unavailable("the control API is silent", 1.0)
        with self._lock:
            return self._log.view_session(session_id, after)

    # The protocol `TaskLookup`

    def fetch_task(self, task_id: str, timeout_s: float, question: TaskQuestion) -> TaskView | None:
        """Return a task at once; None if there is none. Raises `Unavailable` if silenced."""
        if self._silent:
            raise Unavailable("the control API is silent", 1.0)
        with self._lock:
            return self._log.view_task(task_id, question.after)

    # The protocol `SessionPolls`

    def poll_sessions(self, known: Sequence[KnownSession], timeout_s: float) -> SessionChanges:
        """Return the sessions that differ from what is known. Raises `Unavailable` if silenced."""
        if self._silent:
            raise Unavailable("the control API is silent", 1.0)
        with self._lock:
            return self._log.find_changes(known)

    # All protocols

    def close(self, timeout_s: float = 0.0) -> int:
        """Do nothing: other clients may go on, and what was kept stays readable."""
        return 0

    # For `memory_ports`

    def _add_reader(self, reader: MemoryRequests, *, first: bool = False) -> None:
        """Pass requests to a client, to this one before all others if `first`."""
        self._deliveries.add_reader(reader, first=first)

    def _new_heartbeats(self) -> FakeHeartbeats:
        """Return the heartbeats of a client, which `advance` sends."""
        timer = FakeHeartbeats(lambda: self.now_ms)
        with self._lock:
            self._timers.append(timer)
        return timer

    # Time

    def _next_moment_ms(self) -> float:
        """Return when something is due, ms since the epoch; infinity if nothing ever is."""
        with self._lock:
            moments = [timer.next_due_ms for timer in self._timers]
            due_ms = min(
                (moment for moment in (*moments, self._judge.next_deadline_ms) if moment is not None), default=0
            )
            return due_ms or float("inf")

    def _go_to(self, moment_ms: float) -> None:
        """Let happen what is due at a moment. No lock is held while clients are called."""
        with self._lock:
            self._judge.now_ms = max(self._judge.now_ms, int(moment_ms))
            timers: Sequence[FakeHeartbeats] = tuple(self._timers)
        for timer in timers:
            timer.send_due(self.now_ms)
        with self._lock:
            self._judge.fire_timers()
            self._deliveries.collect()
        self._deliveries.pass_on()
        self._poll_news()

    def _poll_news(self) -> None:
        """Let the clients ask about their sessions, if anything was judged since they did."""
        with self._lock:
            numbers = (len(self._log.judged), len(self._judge.audits), len(self._judge.rejections))
        if numbers != self._polled_at and not self._silent:
            self._polled_at = numbers
            self._polls.poll_all()


__all__ = ["InMemoryTransport", "NamedSession"]
