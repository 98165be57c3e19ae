"""Asks Kafka for a sample: groups, committed offsets, and where logs begin and end."""

import time
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import Future
from contextlib import suppress
from typing import Any, TypeVar

from confluent_kafka import (
    ConsumerGroupState,
    ConsumerGroupTopicPartitions,
    IsolationLevel,
    KafkaException,
    TopicPartition,
)
from confluent_kafka.admin import AdminClient, OffsetSpec  # type: ignore[attr-defined]

from sessionary.infra.lag.cluster_sample import ClusterSample, GroupOffsets, GroupState, LogRange, Place
from sessionary.infra.lag.group_topics import pipeline_groups
from sessionary.schemas.errors import Unavailable
from sessionary.schemas.kafka.clients import AdminConnection, take_answer
from sessionary.schemas.settings import KafkaSettings

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
    """Asks again and again over one connection; a failure closes it. For one thread."""

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
        logs = _ask_logs(admin, [Place(topic, n) for topic, count in wanted.items() for n in range(count)], timeout_s)
        return ClusterSample(time.time(), groups, wanted, logs, {})


def _group_offsets(
    group: str, topic: str, state: ConsumerGroupState, committed: Mapping[str, Mapping[Place, int] | None]
) -> GroupOffsets:
    """`committed` lacks groups that Kafka does not know: they have committed nothing."""
    offsets = committed.get(group, {})
    if offsets is None:
        return GroupOffsets(group, GroupState.UNKNOWN, frozenset({topic}), None)
    # A Faust agent in a processor reads topics of its own, in the processor's group.
    topics = {topic, *(place.topic for place in offsets)}
    return GroupOffsets(group, _STATES.get(state, GroupState.UNKNOWN), frozenset(topics), offsets)


def _ask_committed(
    admin: AdminClient, groups: Iterable[str], timeout_s: float
) -> dict[str, Mapping[Place, int] | None]:
    """Return each group's committed offsets; None if Kafka does not tell them."""
    asked: dict[str, Future[Any]] = {}
    for group in groups:  # a request takes one group
        request = [ConsumerGroupTopicPartitions(group)]
        asked.update(admin.list_consumer_group_offsets(request, request_timeout=timeout_s))
    found: dict[str, Mapping[Place, int] | None] = dict.fromkeys(asked)
    for group, answer in asked.items():
        with suppress(KafkaException, TimeoutError):
            places = take_answer(answer, timeout_s).topic_partitions
            found[group] = {Place(one.topic, one.partition): one.offset for one in places if one.offset >= 0}
    return found


def _ask_logs(admin: AdminClient, places: Iterable[Place], timeout_s: float) -> dict[Place, LogRange]:
    """Return the range of each log whose leader answers all three questions."""
    wanted = [TopicPartition(*place) for place in places]
    if not wanted:
        return {}

    def ask_offsets(spec: OffsetSpec, isolation: IsolationLevel) -> dict[TopicPartition, Future[Any]]:
        asked: dict[TopicPartition, Future[Any]] = admin.list_offsets(
            dict.fromkeys(wanted, spec), isolation_level=isolation, request_timeout=timeout_s
        )
        return asked

    def take_answers(asked: dict[TopicPartition, Future[Any]], take: Callable[[Any], T]) -> dict[Place, T]:
        found: dict[Place, T] = {}
        for place, answer in asked.items():
            with suppress(KafkaException, TimeoutError):
                found[Place(place.topic, place.partition)] = take(take_answer(answer, timeout_s))
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
