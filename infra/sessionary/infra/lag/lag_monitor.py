"""Takes a sample and tracks it, for the commands and the exporter."""

import time
from collections.abc import Callable, Collection, Iterable, Mapping
from concurrent.futures import Future
from contextlib import suppress
from itertools import islice
from typing import Any, NamedTuple, TypeVar

from confluent_kafka import (
    Consumer,
    ConsumerGroupState,
    ConsumerGroupTopicPartitions,
    IsolationLevel,
    KafkaError,
    KafkaException,
    Message,
    TopicPartition,
)
from confluent_kafka.admin import AdminClient, OffsetSpec  # type: ignore[attr-defined]

from sessionary.infra.lag.lag_tracker import (
    WINDOW_S,
    ClusterSample,
    FirstRecord,
    GroupOffsets,
    GroupState,
    LagTracker,
    LogPartition,
    LogRange,
    PartitionLag,
    UnreadPosition,
    pipeline_groups,
)
from sessionary.schemas.errors import Unavailable
from sessionary.schemas.kafka.clients import AdminConnection, close_in_background, take_answer
from sessionary.schemas.settings import KafkaSettings
from sessionary.sinks.core.block_due import IDLE_RECORDS

# Asks Kafka for a sample: groups, committed offsets, and where logs begin and end.


_RETRY_AFTER_S = 2.0
_STATES = {
    ConsumerGroupState.STABLE: GroupState.STABLE,
    ConsumerGroupState.PREPARING_REBALANCING: GroupState.REBALANCING,
    ConsumerGroupState.COMPLETING_REBALANCING: GroupState.REBALANCING,
    ConsumerGroupState.EMPTY: GroupState.EMPTY,
    ConsumerGroupState.DEAD: GroupState.ABSENT,
}

T = TypeVar("T")


class ClusterSampler:
    """Samples a cluster over one connection; a failure closes the connection. For one thread."""

    def __init__(self, settings: KafkaSettings) -> None:
        """Connect to nothing yet."""
        self._settings = settings
        self._connection = AdminConnection(settings)

    def take_sample(self, timeout_s: float) -> ClusterSample:
        """Return a sample without first records. Raises `Unavailable` if the broker is away.

        Each of its three rounds of requests may take `timeout_s`, and a second more. An answer that
        is missing for one group or partition leaves that one out.
        """
        try:
            return self._ask_all(self._connection.open_client(), timeout_s)
        except (KafkaException, TimeoutError) as error:
            self.close()
            why = error.args[0].str() if isinstance(error, KafkaException) else "no answer in time"
            raise Unavailable(
                f"Kafka at {self._settings.bootstrap_servers} does not answer ({why}): start a broker, or set "
                "SESSIONARY_BOOTSTRAP_SERVERS and its credentials",
                _RETRY_AFTER_S,
            ) from None

    def close(self) -> None:
        """Disconnect, in the background."""
        self._connection.end_client()

    def _ask_all(self, admin: AdminClient, timeout_s: float) -> ClusterSample:
        listing: Future[Any] = admin.list_consumer_groups(request_timeout=timeout_s)
        topics = admin.list_topics(timeout=timeout_s).topics
        counts = {name: len(topic.partitions) for name, topic in topics.items() if topic.error is None}
        known = {group.group_id: group.state for group in take_answer(listing, timeout_s).valid}
        read = pipeline_groups(self._settings.topic_prefix, known)
        committed = _ask_committed(admin, [group for group in read if group in known], timeout_s)
        groups = tuple(
            _group_offsets(group, topic, known.get(group, ConsumerGroupState.DEAD), committed)
            for group, topic in read.items()
        )
        wanted = {topic: counts[topic] for group in groups for topic in group.topics if topic in counts}
        logs = _ask_logs(
            admin, [LogPartition(topic, n) for topic, count in wanted.items() for n in range(count)], timeout_s
        )
        return ClusterSample(time.time(), groups, wanted, logs, {})


def _group_offsets(
    group: str, topic: str, state: ConsumerGroupState, committed: Mapping[str, Mapping[LogPartition, int] | None]
) -> GroupOffsets:
    """`committed` lacks groups that Kafka does not know: they have committed nothing."""
    offsets = committed.get(group, {})
    if offsets is None:
        return GroupOffsets(group, GroupState.UNKNOWN, frozenset({topic}), None)
    # A Faust agent in a processor reads separate topics, in the processor's group.
    topics = {topic, *(place.topic for place in offsets)}
    return GroupOffsets(group, _STATES.get(state, GroupState.UNKNOWN), frozenset(topics), offsets)


def _ask_committed(
    admin: AdminClient, groups: Iterable[str], timeout_s: float
) -> dict[str, Mapping[LogPartition, int] | None]:
    """Return each group's committed offsets; None if Kafka does not report them."""
    asked: dict[str, Future[Any]] = {}
    for group in groups:  # a request takes one group
        request = [ConsumerGroupTopicPartitions(group)]
        asked.update(admin.list_consumer_group_offsets(request, request_timeout=timeout_s))
    found: dict[str, Mapping[LogPartition, int] | None] = dict.fromkeys(asked)
    for group, answer in asked.items():
        with suppress(KafkaException, TimeoutError):
            places = take_answer(answer, timeout_s).topic_partitions
            found[group] = {LogPartition(one.topic, one.partition): one.offset for one in places if one.offset >= 0}
    return found


def _ask_logs(admin: AdminClient, places: Iterable[LogPartition], timeout_s: float) -> dict[LogPartition, LogRange]:
    """Return the range of each log whose leader answers all three questions."""
    wanted = [TopicPartition(*place) for place in places]
    if not wanted:
        return {}

    def ask_offsets(spec: OffsetSpec, isolation: IsolationLevel) -> dict[TopicPartition, Future[Any]]:
        asked: dict[TopicPartition, Future[Any]] = admin.list_offsets(
            dict.fromkeys(wanted, spec), isolation_level=isolation, request_timeout=timeout_s
        )
        return asked

    def take_answers(asked: dict[TopicPartition, Future[Any]], take: Callable[[Any], T]) -> dict[LogPartition, T]:
        found: dict[LogPartition, T] = {}
        for place, answer in asked.items():
            with suppress(KafkaException, TimeoutError):
                found[LogPartition(place.topic, place.partition)] = take(take_answer(answer, timeout_s))
        return found

    specs: tuple[OffsetSpec, ...] = (
        OffsetSpec.latest(),  # type: ignore[no-untyped-call]
        OffsetSpec.earliest(),  # type: ignore[no-untyped-call]
        OffsetSpec.max_timestamp(),  # type: ignore[no-untyped-call]
    )
    # Records of an open transaction can be read by no group: its end hides them.
    isolations = (IsolationLevel.READ_COMMITTED, IsolationLevel.READ_UNCOMMITTED, IsolationLevel.READ_UNCOMMITTED)
    asked = [ask_offsets(spec, isolation) for spec, isolation in zip(specs, isolations, strict=True)]
    ends, starts = (take_answers(one, lambda found: int(found.offset)) for one in asked[:2])
    newest = take_answers(asked[2], lambda found: int(found.timestamp) if found.timestamp >= 0 else None)
    return {place: LogRange(starts[place], end, newest.get(place)) for place, end in ends.items() if place in starts}


# Reads the first record that a group has not read, of many partitions at once.
#
# Only a reader can find out whether there are records between a committed offset and the log's end:
# a log of transactions ends with a marker that no consumer is given. And Kafka has no request for
# the time of the record at an offset.


# Together 16 MiB. If a batch is larger than a partition's share, the broker sends it alone, and a
# fetch answers for one partition.
_PARTITIONS_AT_ONCE = 64
_FETCH_BYTES = 1 << 18
_POLL_S = 0.05
_QUIET_S = 0.2  # with no answer for this long, further offsets of answered partitions are read


class FirstRecordReader:
    """One consumer outside of any group, with its findings for the last question's places.

    A record at an offset never changes, so each place is read once. Not thread-safe.
    """

    def __init__(self, settings: KafkaSettings) -> None:
        """Connect to nothing yet."""
        self._config = {
            **settings.reader_config_of(f"{settings.topic_prefix}.lag"),  # it never joins and never commits
            "auto.offset.reset": "error",
            "fetch.wait.max.ms": 10,
            "fetch.queue.backoff.ms": 5,
            "queued.min.messages": 1,
            "max.partition.fetch.bytes": _FETCH_BYTES,
        }
        self._idle = {getattr(settings.topics, topic): is_idle for topic, is_idle in IDLE_RECORDS.items()}
        self._consumer: Consumer | None = None
        self._found: dict[UnreadPosition, FirstRecord] = {}
        self._late: set[LogPartition] = set()

    def read_first(
        self, wanted: Collection[UnreadPosition], log_ends: Mapping[LogPartition, int], timeout_s: float
    ) -> dict[UnreadPosition, FirstRecord]:
        """Return the first record, or its absence, of each place that answers.

        `log_ends`: where the logs end now. Blocks for `timeout_s`, 50 ms more at most.
        """
        self._found = {
            unread: first
            for unread in wanted
            if (first := self._found.get(unread)) is not None
            and (first.timestamp_ms is not None or first.offset >= log_ends[unread.place])
        }
        deadline_s = time.monotonic() + timeout_s
        try:
            consumer = self._open_consumer(timeout_s)  # also if nothing is missing: it is ready then
            if missing := [unread for unread in wanted if unread not in self._found]:
                self._read_missing(consumer, missing, deadline_s)
        except KafkaException:
            self.close()
        return dict(self._found)

    def close(self) -> None:
        """Disconnect, in the background."""
        consumer, self._consumer = self._consumer, None
        if consumer is not None:
            close_in_background(consumer)

    def _open_consumer(self, timeout_s: float) -> Consumer:
        if self._consumer is None:
            self._consumer = Consumer(self._config)
            # A topic that it does not know yet would cost a second when it is assigned.
            self._consumer.list_topics(timeout=timeout_s)
        return self._consumer

    def _read_missing(self, consumer: Consumer, missing: list[UnreadPosition], deadline_s: float) -> None:
        left: dict[LogPartition, list[int]] = {}
        # Places that did not answer last time come last, so that they do not hold up the others.
        for place, offset in sorted(missing, key=lambda unread: (unread.place in self._late, unread)):
            left.setdefault(place, []).append(offset)
        self._late = set()
        answered = False
        while left and time.monotonic() < deadline_s:
            answered |= self._read_some(consumer, left, deadline_s)
        consumer.unassign()
        if not answered:  # the consumer may have lost its last broker for ever (librdkafka issue 5301)
            self.close()

    def _read_some(self, consumer: Consumer, left: dict[LogPartition, list[int]], deadline_s: float) -> bool:
        """Read at the lowest offset of some partitions; return whether anything arrived."""
        asked = {place: offsets[0] for place, offsets in islice(left.items(), _PARTITIONS_AT_ONCE)}
        consumer.assign([TopicPartition(*place, offset) for place, offset in asked.items()])
        quiet_from_s = time.monotonic()
        answered = False
        while asked and (now_s := time.monotonic()) < deadline_s:
            if len(asked) < len(left) and now_s - quiet_from_s > _QUIET_S:
                break
            for message in consumer.consume(len(asked), _POLL_S):
                answered = True  # an error too: the consumer reaches its brokers
                if self._take_message(message, asked, left):
                    quiet_from_s = now_s
        self._late |= asked.keys()
        for place in asked:
            left[place] = left.pop(place)
        return answered

    def _take_message(
        self, message: Message, asked: dict[LogPartition, int], left: dict[LogPartition, list[int]]
    ) -> bool:
        """Take a record, or the log's end, if its partition still waits for one."""
        place, offset, error = (
            LogPartition(message.topic() or "", message.partition() or 0),
            message.offset(),
            message.error(),
        )
        if place not in asked or offset is None or offset < asked[place]:
            return False
        if error is None:
            is_idle = self._idle.get(place.topic)
            first = FirstRecord(
                offset, message.timestamp()[1], is_idle=is_idle is not None and is_idle(message.value())
            )
        elif error.code() == KafkaError._PARTITION_EOF:
            first = FirstRecord(offset, None)
        else:
            return False
        del asked[place]
        passed = [wanted for wanted in left[place] if wanted <= offset]
        self._found.update((UnreadPosition(place, wanted), first) for wanted in passed)
        left[place] = left[place][len(passed) :]
        if not left[place]:
            del left[place]
        return True


_ASK_S = 3.0
_READ_S = 0.5


class LagReport(NamedTuple):
    """The lags at `at_s`, seconds since the epoch; the sample took `took_s`."""

    at_s: float
    took_s: float
    partitions: tuple[PartitionLag, ...]


class LagMonitor:
    """Observes the groups of a pipeline. For one thread; close it at the end."""

    def __init__(self, settings: KafkaSettings, window_s: float = WINDOW_S, idle_s: float = 0.0) -> None:
        """Connect to nothing yet. States and rates are those of the last `window_s`.

        `idle_s`: for how long the sinks let ticks and heartbeats wait (`sink_idle_seconds`).
        """
        self._sampler = ClusterSampler(settings)
        self._reader = FirstRecordReader(settings)
        self._tracker = LagTracker(window_s, idle_s)

    def take_report(self, read_s: float = _READ_S) -> LagReport:
        """Sample, and return the lags. Raises `Unavailable` if the broker is away.

        Blocks: some 0.2 s for 1,000 partitions. A broker that does not answer is given up after
        4 s. First records are read for `read_s` at most: for partitions that do not answer in this
        time, the time lag is unknown, and the next report continues with them.
        """
        began_s = time.monotonic()
        sample = self._sampler.take_sample(_ASK_S)
        log_ends = {place: log.end for place, log in sample.logs.items()}
        first_records = self._reader.read_first(sample.unread_positions(), log_ends, read_s)
        partitions = self._tracker.track_sample(sample._replace(first_records=first_records))
        return LagReport(sample.at_s, time.monotonic() - began_s, tuple(partitions))

    def close(self) -> None:
        """Disconnect, in the background."""
        self._sampler.close()
        self._reader.close()
