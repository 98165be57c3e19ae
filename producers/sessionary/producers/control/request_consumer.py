"""Reads the requests for clean-ups, tasks or migrations of one service from Kafka.

The offset of a request is committed once its answer has its position in the log. A record that this
version cannot read may be a request: it stops its partition, and is left to a newer client.

A librdkafka client may lose its last broker for ever. A consumer is replaced if it reads nothing
although the log grows, or if it gets no assignment. Each partition begins at the group's offset.
"""

import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final, Literal, NamedTuple, Protocol, cast

from confluent_kafka import Consumer, ConsumerGroupState, KafkaError, KafkaException, Message, TopicPartition

from sessionary.producers.errors import Invalid, QueueFull, SessionaryError, Unavailable, UnreadableRequest
from sessionary.producers.ports import OnError, OnRequest, ReaderState, Receipt
from sessionary.producers.process.guards import join_thread, start_thread
from sessionary.producers.settings import ProducerSettings
from sessionary.schemas.codec import Decoder
from sessionary.schemas.errors import DecodeError
from sessionary.schemas.ids import parse_key
from sessionary.schemas.kafka.clients import AdminConnection, close_in_background, take_answer
from sessionary.schemas.kafka.log_progress import ASK_EVERY_S, LogAnswer, LogEndClient, StuckConsumerDetector
from sessionary.schemas.records import CleanupRequest, MigrationRequest, TaskRequest

# The Kafka consumer of requests to clean up or to migrate: its configuration and its port.


_SESSION_TIMEOUT_MS: Final = 10_000

RebalanceCallback = Callable[[Any, list[TopicPartition]], None]


class RequestConsumer(Protocol):
    """The methods of `confluent_kafka.Consumer` that the loop uses.

    Callbacks run in the thread that calls `consume` or `close`. A method may raise
    `KafkaException`.
    """

    def subscribe(
        self,
        topics: list[str],
        on_assign: RebalanceCallback,
        on_revoke: RebalanceCallback,
        on_lost: RebalanceCallback,
    ) -> None:
        """Join the group; the callbacks name assigned, revoked and lost partitions."""
        ...

    def consume(self, num_messages: int, timeout: float) -> list[Message]:
        """Return up to so many messages, errors and ends of partitions among them.

        Blocks for up to `timeout` seconds.
        """
        ...

    def assign(self, partitions: list[TopicPartition]) -> None:
        """Fetch these partitions, and no others; without an offset, from the group's."""
        ...

    def pause(self, partitions: list[TopicPartition]) -> None:
        """Stop fetching partitions; they stay paused across assignments."""
        ...

    def resume(self, partitions: list[TopicPartition]) -> None:
        """Fetch paused partitions again."""
        ...

    def commit(self, *, offsets: list[TopicPartition], asynchronous: Literal[True]) -> None:
        """Commit offsets in the background."""
        ...

    def list_topics(self, topic: str, timeout: float) -> Any:
        """Ask a broker for a topic's metadata. Blocks for up to `timeout` seconds."""
        ...

    def close(self) -> None:
        """Leave the group; revokes assigned partitions."""
        ...


def open_consumer(settings: ProducerSettings, group_id: str) -> RequestConsumer:
    """Return a consumer in a group; it connects in the background."""
    return Consumer(
        {
            # The log's end shows the position of a partition without new requests.
            **settings.reader_config_of(group_id),
            "auto.offset.reset": "earliest",
            "fetch.wait.max.ms": 100,
            # Another process takes over a killed one's requests after so long, not after 45 s.
            "session.timeout.ms": _SESSION_TIMEOUT_MS,
        }
    )


# The requests that are read and not answered yet, and the offsets to commit.


ServiceRequest = CleanupRequest | TaskRequest | MigrationRequest
"""A request to a service."""

_BACKLOG_RETRY_S = 0.5
# An assigned partition of which neither a record nor the end was seen: behind any end of its log.
_NOT_READ = -1


class OpenRequest:
    """A request whose answer is not in the log yet."""

    def __init__(self, partition: int, offset: int, request: ServiceRequest | None) -> None:
        """`request` is None if the record is not for this service."""
        self.partition = partition
        self.offset = offset
        self._request = request
        self._next_try = 0.0
        self._answer_sent = False
        self.delivered = request is None

    def try_answer(self, on_request: OnRequest) -> None:
        """Answer, or answer again if the last answer was lost."""
        # In this order: a receipt, on another thread, sets the one before it resets the other.
        if self._request is None or self._answer_sent or self.delivered or time.monotonic() < self._next_try:
            return
        self._next_try = time.monotonic() + _BACKLOG_RETRY_S
        self._answer_sent = True
        try:
            on_request(self._request, self._on_receipt)
        except QueueFull:
            self._answer_sent = False
        except Exception:  # of any kind: it is tried again, and the loop reports it
            self._answer_sent = False
            raise

    def _on_receipt(self, receipt: Receipt) -> None:
        self.delivered = receipt.error is None
        self._answer_sent = False


class RequestBacklog:
    """The open requests of the partitions that the group has assigned. For one thread.

    A partition stops at a record that cannot be read: no record from there on is taken, so nothing
    from there on is committed. A new assignment starts it again, because the group's offset may
    have passed the record by then.
    """

    def __init__(self) -> None:
        self.waiting: list[OpenRequest] = []
        self._next_offsets: dict[int, int] | None = None
        self._stopped: set[int] = set()

    @property
    def partitions(self) -> list[int]:
        """The assigned partitions."""
        return sorted(self._next_offsets or ())

    @property
    def next_offsets(self) -> Mapping[int, int] | None:
        """The next offset of each assigned, running partition; None without an assignment."""
        if self._next_offsets is None:
            return None
        return {number: offset for number, offset in self._next_offsets.items() if number not in self._stopped}

    @property
    def stopped_partitions(self) -> Sequence[int]:
        """The assigned partitions that have stopped. Any thread may ask."""
        return sorted(self._stopped)

    def begin_assignment(self, partitions: Iterable[int]) -> None:
        """Start with these partitions; open requests are read again."""
        self.waiting = []
        self._stopped.clear()
        self._next_offsets = dict.fromkeys(partitions, _NOT_READ)

    def end_assignment(self) -> None:
        """Forget all partitions: their next owner reads uncommitted records again."""
        self.begin_assignment(())
        self._next_offsets = None

    def takes_from(self, partition: int) -> bool:
        """Return whether the partition is assigned and running."""
        return partition not in self._stopped and partition in (self._next_offsets or ())

    def add_request(self, partition: int, offset: int, request: ServiceRequest | None) -> None:
        """Take the record at `offset`; `request` is None if it is not for this service."""
        self.waiting.append(OpenRequest(partition, offset, request))
        self.note_position(partition, offset + 1)

    def note_position(self, partition: int, offset: int) -> None:
        """Note that all below `offset` was read."""
        if self._next_offsets is not None:
            self._next_offsets[partition] = offset

    def stop_partition(self, partition: int) -> None:
        """Take nothing more from a partition; earlier requests are still answered."""
        self._stopped.add(partition)

    def take_answered(self) -> dict[int, int]:
        """Drop answered requests; return by partition the offset to commit.

        A partition is committed up to its first request without an answer.
        """
        left: list[OpenRequest] = []
        held: dict[int, OpenRequest] = {}  # the last one that stays, by partition
        offsets: dict[int, int] = {}
        for one in self.waiting:
            before = held.get(one.partition)
            if before is not None and before.delivered and one.delivered:
                before.offset = one.offset  # neither is asked for again: one of them is enough
            elif before is not None or not one.delivered:
                held[one.partition] = one
                left.append(one)
            else:
                offsets[one.partition] = one.offset + 1
        self.waiting = left
        return offsets


_REQUESTS_PER_POLL = 200
_OPEN_REQUESTS_MAX = 1_000
_POLL_S = 0.1
_POLL_WHILE_OPEN_S = 0.005
_RETRY_S, _RETRY_S_MAX = 0.5, 5.0
_ASK_S = 2.0
_METADATA_S = 1.0
# A rebalance waits for members whose handlers run. A new consumer would have to wait for them too.
_JOIN_S_MAX = 60.0

AskEnds = Callable[[Iterable[int]], Mapping[int, int]]
"""Returns the log's end of each of these partitions that answers; may block for seconds."""
AskGroup = Callable[[], bool]
"""Returns True if a rebalance of the group waits for members, or if nothing is known of the group.

May block for seconds.
"""


class RequestKind(NamedTuple):
    """One kind of requests: the field of its topic in `TopicNames`, its groups, and its records."""

    topic: Literal["cleanup", "tasks", "migrations"]
    groups: str
    record: type[CleanupRequest] | type[TaskRequest] | type[MigrationRequest]
    name: str  # for people


CLEANUPS: Final = RequestKind("cleanup", "cleanup", CleanupRequest, "clean-up")
TASKS: Final = RequestKind("tasks", "task-workers", TaskRequest, "task")
MIGRATIONS: Final = RequestKind("migrations", "migration", MigrationRequest, "migration")


class KafkaRequestConsumer:
    """`CleanupConsumer` of the cleanup topic, group `<prefix>.cleanup.<tenant>:<service>`.

    Or, for tasks, `TaskConsumer` of the topic tasks, group `<prefix>.task-workers.<tenant>:…`; for
    migrations `MigrationConsumer` of the topic migrations, group `<prefix>.migration.<tenant>:…`.

    Names have no colon, so no two services share a group. Requests of other tenants or services
    are skipped.
    """

    def __init__(
        self,
        settings: ProducerSettings,
        tenant_id: str,
        service_id: str,
        on_error: OnError,
        kind: RequestKind = CLEANUPS,
        *,
        new_consumer: Callable[[], RequestConsumer] | None = None,
        ask_ends: AskEnds | None = None,
        ask_group: AskGroup | None = None,
        clock_s: Callable[[], float] = time.monotonic,
    ) -> None:
        """Connects when it is started.

        `new_consumer`, `ask_ends` and `ask_group` replace Kafka for tests, `clock_s` the monotonic
        clock.
        """
        self._kind = kind
        self._topic = getattr(settings.topics, kind.topic)
        self._tenant_id = tenant_id
        self._service_id = service_id
        self._group_id = f"{settings.topic_prefix}.{kind.groups}.{tenant_id}:{service_id}"
        self._on_error = on_error
        self._new_consumer = new_consumer or (lambda: open_consumer(settings, self._group_id))
        self._connection = AdminConnection(settings)
        self._ask_ends = ask_ends or _ask_ends_by(self._connection, self._topic)
        self._ask_group = ask_group or _ask_group_by(self._connection, self._group_id)
        self._clock_s = clock_s
        self._ask_at_s = clock_s() + ASK_EVERY_S
        self._answer = LogAnswer(0, {})
        self._stuck = StuckConsumerDetector(_JOIN_S_MAX)
        self._decoder = Decoder()
        self._backlog = RequestBacklog()
        self._consumer: RequestConsumer
        self._joined = False
        self._consumers = self._assignments = 0  # so far
        self._turned_s = clock_s()
        self._waits: str | None = "its group has given it no assignment yet"
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None

    @property
    def state(self) -> ReaderState:
        """The loop's current activity, on any thread; also while the loop hangs."""
        return ReaderState(self._clock_s() - self._turned_s, self._waits, self._backlog.stopped_partitions)

    @property
    def works_in_place(self) -> bool:
        """False: this thread only reads; who answers a request may take longer on its own."""
        return False

    def start(self, on_request: OnRequest) -> None:
        """Start the consumer's thread. Call it once."""
        self._turned_s = self._clock_s()
        thread = threading.Thread(
            target=self._run_consumer, args=(on_request,), name=f"sessionary-{self._kind.topic}", daemon=True
        )
        self._thread = thread
        start_thread(thread)

    def close(self, timeout_s: float) -> None:
        """Stop after the current request. Blocks for `timeout_s` at most."""
        self._stop.set()
        join_thread(self._thread, timeout_s)

    def _run_consumer(self, on_request: OnRequest) -> None:
        pause_s = _RETRY_S
        while not self._stop.is_set():
            self._turned_s = self._clock_s()
            try:
                if not self._joined:
                    self._join_group()
                self._take_turn(on_request)
            except Exception as error:  # noqa: BLE001 - without this thread no request is ever answered
                self._on_error(error)
                self._leave_group(f"reading begins again after an error: {_safe_text(error)}")
                self._stop.wait(pause_s)
                pause_s = min(2 * pause_s, _RETRY_S_MAX)
            else:
                pause_s = _RETRY_S
        self._close_consumer()
        # Here, not where this object is forgotten: the host's thread that frees it would wait for
        # librdkafka's threads, of which each may wait for the address of a broker's name.
        self._connection.free_client()

    def _take_turn(self, on_request: OnRequest) -> None:
        self._take_requests()
        for one in self._backlog.waiting:
            if self._stop.is_set():
                break
            try:
                one.try_answer(on_request)
            except Exception as error:  # noqa: BLE001 - one request must not end the answers to all others
                self._on_error(error)
        self._commit_answered()
        self._check_progress()

    def _close_consumer(self) -> None:
        """Leave the group. This may hang, so `close` does not wait without a limit.

        Not on a separate thread: none can be started while the interpreter exits.
        """
        if not self._joined:
            return
        try:
            self._consumer.close()
        except Exception as error:  # noqa: BLE001 - a callback may raise anything, and the thread has no caller
            self._on_error(error)

    def _join_group(self) -> None:
        """Open a consumer and subscribe it; callbacks of former consumers have no effect."""
        self._consumers += 1
        number = self._consumers

        def on_assign(_consumer: object, partitions: list[TopicPartition]) -> None:
            if number == self._consumers:
                self._assignments += 1
                self._backlog.begin_assignment(place.partition for place in partitions)
                self._waits = None

        def on_revoke(_consumer: object, _partitions: list[TopicPartition]) -> None:
            if number == self._consumers:
                self._assignments += 1
                self._waits = "its group has taken its assignment back"
                self._backlog.end_assignment()

        consumer = self._new_consumer()
        consumer.subscribe([self._topic], on_assign=on_assign, on_revoke=on_revoke, on_lost=on_revoke)
        self._consumer, self._joined = consumer, True

    def _take_requests(self) -> None:
        # Answers are delivered meanwhile; pausing instead would cost a new fetch each time.
        pause_s = _POLL_WHILE_OPEN_S if self._backlog.waiting else _POLL_S
        room = min(_REQUESTS_PER_POLL, _OPEN_REQUESTS_MAX - len(self._backlog.waiting))
        if room <= 0:
            self._stop.wait(pause_s)
            return
        assignments = self._assignments
        # A call for several records waits until all have come, or its time is over.
        messages = self._consumer.consume(1, pause_s)
        messages += self._consumer.consume(room - 1, 0.0)
        self._stuck.note_fetch(drained=len(messages) < room)
        if assignments != self._assignments:
            # Some of these may have been fetched before the assignment: all are fetched again.
            places = [TopicPartition(self._topic, number) for number in self._backlog.partitions]
            self._consumer.assign(places)
            self._consumer.resume(places)
            return
        for message in messages:
            self._take_message(message)

    def _take_message(self, message: Message) -> None:
        error = message.error()
        partition, offset = cast(int, message.partition()), cast(int, message.offset())
        if error is not None and error.code() != KafkaError._PARTITION_EOF:
            self._on_error(Unavailable(f"{self._kind.name} requests: {error.str()}", _RETRY_S))
        elif self._backlog.takes_from(partition):
            if error is not None:
                self._backlog.note_position(partition, offset)
                return
            try:
                request = self._decode_request(message)
            except DecodeError as unreadable:
                self._stop_partition(partition, offset, unreadable)
            else:
                self._backlog.add_request(partition, offset, request)

    def _decode_request(self, message: Message) -> ServiceRequest | None:
        """Return the request, or None if it is not for this service. Raises `DecodeError`."""
        try:
            request = self._decoder.decode_record(message.value())
        except DecodeError:
            if self._is_foreign(message.key()):
                return None
            raise
        ours = (self._tenant_id, self._service_id)
        if isinstance(request, self._kind.record) and (request.tenant_id, request.service_id) == ours:
            return request
        return None

    def _is_foreign(self, key: str | bytes | None) -> bool:
        """Return whether a record's key names another tenant."""
        try:
            return parse_key(cast("bytes | None", key)).tenant_id != self._tenant_id
        except Invalid:
            return False

    def _stop_partition(self, partition: int, offset: int, error: DecodeError) -> None:
        self._backlog.stop_partition(partition)
        self._consumer.pause([TopicPartition(self._topic, partition)])
        self._on_error(UnreadableRequest(self._topic, partition, offset, self._group_id, error))

    def _commit_answered(self) -> None:
        answered = self._backlog.take_answered()
        if not answered:
            return
        offsets = [TopicPartition(self._topic, partition, offset) for partition, offset in answered.items()]
        try:
            self._consumer.commit(offsets=offsets, asynchronous=True)
        except KafkaException as error:  # the next commit of the partition passes these too
            self._on_error(Unavailable(f"{self._kind.name} offsets: {error}", _RETRY_S))

    def _check_progress(self) -> None:
        """Replace the consumer if it stands still although the log answers another client."""
        if self._clock_s() < self._ask_at_s:
            return
        # Partition 0 always exists: its answer shows that the brokers can be reached.
        ends = self._ask_ends(self._backlog.partitions or (0,))
        now_s = self._clock_s()
        self._ask_at_s = now_s + ASK_EVERY_S
        self._answer = LogAnswer(self._answer.number + 1, ends)
        fault = self._stuck.find_fault(
            self._answer,
            self._backlog.next_offsets,
            now_s,
            is_paused=False,
            reaches_broker=self._reaches_broker,
            awaits_members=self._ask_group,
        )
        if fault is not None:
            self._renew_consumer(fault)

    def _reaches_broker(self) -> bool:
        try:
            self._consumer.list_topics(self._topic, timeout=_METADATA_S)
        except KafkaException:
            return False
        return True

    def _renew_consumer(self, why: str) -> None:
        """Begin again with a new consumer, at the group's offsets. The former may never close."""
        again = f"reading begins again with a new consumer: {why}"
        self._on_error(Unavailable(f"{self._kind.name} requests: {again}", _RETRY_S))
        self._leave_group(again)
        self._join_group()

    def _leave_group(self, waits: str) -> None:
        """Give the consumer up; requests that it read and did not answer are read again.

        `waits` says why no request is taken until another consumer has an assignment.
        """
        self._waits = waits
        self._backlog.end_assignment()
        self._stuck = StuckConsumerDetector(_JOIN_S_MAX)
        if self._joined:
            self._joined = False
            self._consumers += 1  # its callbacks have no effect from now on
            close_in_background(self._consumer)


def _safe_text(error: Exception) -> str:
    """Return an error's text, or its class if the text may repeat a record."""
    return str(error) if isinstance(error, SessionaryError | KafkaException) else type(error).__name__


def _ask_ends_by(connection: AdminConnection, topic: str) -> AskEnds:
    client = LogEndClient(connection, committed_only=True)

    def ask_ends(partitions: Iterable[int]) -> dict[int, int]:
        ends = client.ask_ends(topic, partitions, _ASK_S)
        return {partition: end.offset for partition, end in ends.items()}

    return ask_ends


def _ask_group_by(connection: AdminConnection, group_id: str) -> AskGroup:
    def ask_group() -> bool:
        admin = connection.open_client()
        answer = admin.describe_consumer_groups([group_id], request_timeout=_ASK_S)[group_id]
        try:
            state = take_answer(answer, _ASK_S).state
        except (KafkaException, TimeoutError):
            return True
        return state is ConsumerGroupState.PREPARING_REBALANCING

    return ask_group
