"""The external interfaces of a client: transport, control API, clean-up requests.

`SessionClient` and `Session` know only these protocols. `delivery` and `control` implement them
with Kafka and HTTP, `testing` in memory.
"""

from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final, Literal, NamedTuple, Protocol

from sessionary.producers.errors import DeliveryFailed
from sessionary.producers.run_ports import (
    AgentMember,
    Control,
    FollowedState,
    Follows,
    MigrationView,
    RecordReads,
    RunReads,
    SessionView,
    StateStream,
    Verdict,
    Waits,
)
from sessionary.schemas.headers import restamp_headers
from sessionary.schemas.records import CleanupRequest
from sessionary.schemas.types import DataClass, ErrorInfo, Rejection

if TYPE_CHECKING:
    from sessionary.producers.settings import ProducerSettings


# Records to be sent and their receipts; the state of the reader of a service's requests.


# A turn without requests takes 0.1 s; with all questions to silent brokers, some 10 s.
_HUNG_S: Final = 60.0

Condition = tuple[bool, str]
"""Whether all is well, and a line for people."""


class ReaderState(NamedTuple):
    """The activity of the loop that reads requests."""

    turned_s: float  # Since its last turn began, in seconds
    waits: str | None  # Why it can take no request; None: its group has given it an assignment
    stopped: Sequence[int] = ()  # Assigned partitions that stop at a record that cannot be read

    def health(self) -> Condition:
        """Return whether the loop turns. Kafka may be away, and a partition may wait for people."""
        if self.turned_s > _HUNG_S:
            return False, f"the loop that reads requests has not made a turn for {self.turned_s:.0f} s"
        blocked = ", ".join(f"partition {partition}" for partition in self.stopped)
        return True, f"blocked by a record that cannot be read: {blocked}" if blocked else "ok"

    def readiness(self) -> Condition:
        """Return whether the loop turns and has an assignment, which may be of no partition."""
        is_alive, text = self.health()
        if not is_alive:
            return False, text
        return (True, "ok") if self.waits is None else (False, " ".join(self.waits.split()))


class OutRecord(NamedTuple):
    """One event to be sent: its bytes, and the fields that the journal writes.

    If `stamp_us` is set, `given_headers` are those of another event, which differs in its id and
    its time only. The agent then waits for no headers: the thread that needs them makes them.
    """

    key: bytes
    value: bytes
    given_headers: list[tuple[str, bytes]]
    event_id: str
    event_type: str
    tenant_id: str
    session_id: str
    producer_id: str
    producer_seq: int
    traceparent: str | None = None
    stamp_us: int | None = None  # when it occurred, in µs since the epoch; None: the headers are its own

    @property
    def headers(self) -> list[tuple[str, bytes]]:
        """The headers of the event. The list may be shared: change nothing in it."""
        if self.stamp_us is None:
            return self.given_headers
        return restamp_headers(self.given_headers, self.event_id, self.stamp_us)


class Receipt(NamedTuple):
    """The result of sending an event: its partition and offset, or an error."""

    partition: int | None
    offset: int | None
    error: str | None = None

    def log_position(self, event_id: str) -> tuple[int, int]:
        """Return (partition, offset). Raises `DeliveryFailed` if the event has none."""
        if self.partition is None or self.offset is None or self.error is not None:
            raise DeliveryFailed(event_id, self.error or "its position in the log is unknown")
        return self.partition, self.offset


OnReceipt = Callable[[Receipt], None]


OnError = Callable[[Exception], None]
"""Called with an error that no call can raise, on any thread. Must not block for long."""

Json = Any
"""A value that `json.dumps` takes. A session's state is a dict of these."""


class Counters(NamedTuple):
    """Numbers of events and heartbeats since the client was created.

    `sent + replayed` equals `delivered + dropped + failed + expired` plus the events that are
    still on their way.
    """

    sent: int = 0  # Events taken from the agent, heartbeats not included
    delivered: int = 0  # Events that Kafka acknowledged
    spooled: int = 0  # Events that had to wait in the spool file, as the queue was full
    dropped: int = 0  # Events lost because there was no room; each shows as a gap
    failed: int = 0  # Events given up after an error; each shows as a gap
    heartbeats: int = 0
    heartbeats_dropped: int = 0
    replayed: int = 0  # Events that an earlier process left in its spool
    expired: int = 0  # Spooled events too old to be replayed; kept in a file
    rejected: int = 0  # Delivered events that were rejected, as far as the client was notified
    damaged: int = 0  # Events in the spool that could not be read: a disk or machine failed
    errors: Mapping[str, int] = MappingProxyType({})  # Errors of delivery and of the log-in, by reason


class Backlog(NamedTuple):
    """The events that Kafka has not acknowledged. All zero once the client is closed."""

    events: int = 0  # Taken, and neither delivered nor given up
    spool_events: int = 0  # of these, the ones in the spool
    spool_bytes: int = 0  # size of the spool's files in use
    oldest_age_s: float = 0.0  # Since the oldest one was taken


class Transport(Protocol):
    """Delivers records in order per key. Thread-safe."""

    @property
    def may_block(self) -> bool:
        """True if `send` may wait for room."""
        ...

    @property
    def counters(self) -> Counters:
        """The counters as they are now."""
        ...

    @property
    def backlog(self) -> Backlog:
        """The events that are not acknowledged now."""
        ...

    def send(self, record: OutRecord, on_receipt: OnReceipt | None = None) -> None:
        """Take one record; call `on_receipt` once, on any thread.

        Raises `QueueFull`, `ClientClosed`.
        """
        ...

    def send_heartbeat(self, record: OutRecord) -> None:
        """Send a heartbeat now or drop it; never store it. Never blocks."""
        ...

    def wait_taken_over(self, key: bytes, timeout_s: float) -> bool:
        """Wait until no event of a dead process with this key is open; False after `timeout_s`."""
        ...

    def flush(self, timeout_s: float) -> int:
        """Wait until all events are acknowledged; return how many are not.

        Raises `AuthenticationFailed`.
        """
        ...

    def close(self, timeout_s: float) -> int:
        """Drain for up to `timeout_s`, then stop; return how many events are not acknowledged.

        A second call does nothing and returns 0.
        """
        ...


class Origin(NamedTuple):
    """A snapshot of another session, with which a new session starts, and its content."""

    session_id: str
    snapshot_id: str
    state: dict[str, Json]
    schema_version: int
    data_classes: Sequence[DataClass]


class KnownSession(NamedTuple):
    """A client's knowledge of a session, for a poll."""

    session_id: str
    state: str
    epoch: int
    holder: str | None  # the client's producer id, if it holds the session
    rejected_after: int  # offset up to which rejections are known; -1: none is
    after: tuple[int, int] | None  # place of an event whose verdict is wanted if there is no such session
    producer_id: str | None = None  # the client's
    last_seq: int = 0  # the last number that it has given out under that id
    agents: int = 0  # how many the session has, as far as the client knows


class ChangedSession(NamedTuple):
    """A session that differs from the client's view, or that rejected an event."""

    session_id: str
    state: str | None  # None: there is no such session
    epoch: int | None
    holder: str | None
    reason_code: str | None  # why it is in its state, if that is known
    rejections: Sequence[Rejection]  # the last ones after `rejected_after`
    verdict: Verdict | None  # on the event at `after`, if there is no such session and it is judged
    producer_seq: int = 0  # the last number under `producer_id` that was judged
    holder_epoch: int | None = None  # the last epoch that a client's event has given, if known
    snapshot_id: str | None = None  # id of the last snapshot, if known
    agents: int = 0  # how many the session has
    owner_service: str | None = None  # if known


class SessionChanges(NamedTuple):
    """The answer to a poll.

    A partition that is missing in `positions` has not answered: nothing is known of its sessions.
    """

    positions: Mapping[int, int]  # partition → next offset to be judged
    sessions: Sequence[ChangedSession]


class SessionPolls(Protocol):
    """Asks the processor about many sessions at once. Thread-safe; blocks."""

    def poll_sessions(self, known: Sequence[KnownSession], timeout_s: float) -> SessionChanges:
        """Return the sessions that differ from the known ones; at most 1,000 may be asked for.

        Raises `AuthenticationFailed`, `Invalid`, and `Unavailable` if there is no answer.
        """
        ...


class OnCleanupRequest(Protocol):
    """Handles one clean-up request."""

    def __call__(self, request: CleanupRequest, on_receipt: OnReceipt) -> None:
        """Do the clean-up and send the answer; call `on_receipt` once it is delivered.

        Calls `on_receipt` at once if no answer is due. Raises `QueueFull`: call again later.
        """
        ...


OnRequest = Callable[[Any, OnReceipt], None]
"""Handles a request of any kind; calls the second argument once its answer is delivered."""


class TaskConsumer(Protocol):
    """Receives the requests for tasks of one service."""

    @property
    def state(self) -> ReaderState:
        """The loop's activity, on any thread."""
        ...

    def start(self, on_request: OnRequest) -> None:
        """Pass each request to `on_request`, on a dedicated thread; again after `QueueFull`."""
        ...

    def close(self, timeout_s: float) -> None:
        """Stop taking requests. May be called again."""
        ...


class MigrationConsumer(Protocol):
    """Receives the requests for one service to take sessions that migrate to it."""

    @property
    def works_in_place(self) -> bool:
        """True: requests are carried out in the thread that asks, so that a test sees the end."""
        ...

    def start(self, on_request: OnRequest) -> None:
        """Pass each request to `on_request`, on a dedicated thread; again after `QueueFull`."""
        ...

    def close(self, timeout_s: float) -> None:
        """Stop taking requests. May be called again."""
        ...


class TaskView(NamedTuple):
    """A task as the processor has committed it. Times are ms of log time since the epoch."""

    task_id: str
    session_id: str
    task_type: str
    state: str  # queued, started, running, paused, completed, failed or cancelled
    progress: float | None  # from 0 to 1
    result_json: str | None
    artifact_id: str | None  # the artifact that holds the result
    error: ErrorInfo | None
    plan_json: str | None
    created_ms: int
    entered_ms: int  # when it entered its state
    last_event_ms: int
    version: str  # differs after each change
    verdict: "Verdict | None" = None  # only if one was asked for
    holder: str | None = None  # the producer id of the worker that has it; None without one
    user_id: str | None = None  # only in a list, which has no result and no plan


class TaskQuestion(NamedTuple):
    """The wait before a task is reported."""

    seen: str | None = None  # wait while the task has this version
    after: tuple[int, int] | None = None  # wait for the verdict on the event at (partition, offset)


class TaskFilter(NamedTuple):
    """Which tasks a list has; None: all."""

    user_id: str | None = None
    state: str | None = None  # as in `TaskView`
    limit: int = 100  # at most so many in a part, from 1 to 1,000
    cursor: str | None = None  # `TaskPart.next_cursor` of the part before


class TaskPart(NamedTuple):
    """A part of a list of tasks, and the cursor of the next one; None if it was the last."""

    tasks: Sequence[TaskView]
    next_cursor: str | None


class TaskLookup(Protocol):
    """Asks the processor about tasks of the client's tenant. Thread-safe; blocks."""

    def fetch_task(self, task_id: str, timeout_s: float, question: TaskQuestion) -> TaskView | None:
        """Return a task by its id; None if the tenant has no such task.

        Raises `RunGone` if it vanished; `AuthenticationFailed`, `SettingsError`, `Unavailable`.
        """
        ...

    def fetch_tasks(self, wanted: TaskFilter, timeout_s: float) -> TaskPart:
        """Return a part of the list of the tenant's open and finished tasks.

        Raises `Invalid`, `AuthenticationFailed`, `SettingsError`, and `Unavailable` if a partition
        does not answer.
        """
        ...


class CleanupConsumer(Protocol):
    """Receives the clean-up requests for one service."""

    def start(self, on_request: OnCleanupRequest) -> None:
        """Pass each request to `on_request`, on a dedicated thread."""
        ...

    def close(self, timeout_s: float) -> None:
        """Stop; wait for the current request for at most `timeout_s`. May be called again."""
        ...


PolicyInForce = Literal["spool", "block", "drop", "memory", "disabled"]
"""The policy by which a client's events are delivered.

It may differ from the configured one if the spool cannot be used. `memory`: a client of tests;
`disabled`: a client that is turned off.
"""


def _do_nothing() -> None:
    return None


def _no_place(_key: bytes) -> None:
    return None


class HeartbeatTimer(Protocol):
    """Says when each session of a client sends a heartbeat. Thread-safe."""

    def start_heartbeat(self, send: Callable[[], bool], interval_s: float, key: bytes = b"") -> int:
        """Call `send` every `interval_s` from now on; return a token for `stop_heartbeat`.

        `send` is a bound method; its object is held weakly. It never blocks, and returns False if
        the session needs no more heartbeats. `key` is that of the records.
        """
        ...

    def stop_heartbeat(self, token: int) -> None:
        """Stop the heartbeats of `token`, if there are any."""
        ...

    def close(self, timeout_s: float) -> None:
        """Stop all heartbeats; a second call does nothing. Blocks for up to `timeout_s`."""
        ...


class PollTimer(Protocol):
    """Says when a client asks about its sessions. Thread-safe."""

    def start_polls(self, poll: Callable[[], None]) -> None:
        """Call `poll` from now on, on any thread, but not on two at once.

        `poll` is a bound method; its object is held weakly. The method asks once, reports findings
        to the callbacks, and never raises.
        """
        ...


class Ports(NamedTuple):
    """The ports of one client.

    `abandon_files` closes what a forked child must not hold of its parent: it is called in the
    child, takes no lock, and the parent's files stay as they are.

    `tenant_ports(tenant_id, settings)` returns those of another tenant, with the same transport;
    None: these serve one tenant only.
    """

    transport: Transport
    control: Control
    cleanups: CleanupConsumer
    delivery_policy: PolicyInForce = "memory"
    abandon_files: Callable[[], None] = _do_nothing
    tenant_ports: "Callable[[str, ProducerSettings], Ports] | None" = None
    heartbeats: HeartbeatTimer | None = None  # None: a thread of the client, in real time
    polls: SessionPolls | None = None  # None: rejections and time-outs are reported by verdicts only
    poll_timer: PollTimer | None = None  # None: a thread of the client, in real time
    tasks: TaskLookup | None = None  # None: tasks cannot be asked for
    task_requests: TaskConsumer | None = None  # None: the client can have no worker of tasks
    runs: RunReads | None = None  # None: nothing is known of runs, so tools are called without a record
    waits: Waits | None = None  # None: real time and chance
    follows: Follows | None = None  # None: no session can be followed
    migrations: MigrationConsumer | None = None  # None: sessions cannot migrate to this client
    close_idle: Callable[[], None] = _do_nothing  # closes connections that wait for the next question
    place_of: Callable[[bytes], int | None] = _no_place  # the partition of a key, None while it is not known
    records: Callable[[], RecordReads] | None = None  # opens a reader; None: no session can be replayed


__all__ = [
    "AgentMember",
    "Backlog",
    "ChangedSession",
    "CleanupConsumer",
    "Control",
    "Counters",
    "FollowedState",
    "Follows",
    "HeartbeatTimer",
    "Json",
    "KnownSession",
    "MigrationConsumer",
    "MigrationView",
    "OnCleanupRequest",
    "OnError",
    "OnReceipt",
    "OnRequest",
    "OutRecord",
    "PolicyInForce",
    "PollTimer",
    "Ports",
    "Receipt",
    "SessionChanges",
    "SessionPolls",
    "SessionView",
    "StateStream",
    "TaskConsumer",
    "TaskFilter",
    "TaskLookup",
    "TaskPart",
    "TaskQuestion",
    "TaskView",
    "Transport",
    "Verdict",
]
