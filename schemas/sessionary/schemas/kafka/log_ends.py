"""Asks for the ends of a topic's partitions."""

import contextlib
from collections.abc import Iterable
from typing import NamedTuple

from confluent_kafka import IsolationLevel, KafkaException, TopicPartition
from confluent_kafka.admin import AdminClient, OffsetSpec  # type: ignore[attr-defined]

from sessionary.schemas.kafka.admin_connection import AdminConnection, take_answer


class LogEnd(NamedTuple):
    """Where a partition's log ends."""

    offset: int  # the next record's
    leader_epoch: int | None  # None: unknown


class LogEndClient:
    """Asks again and again over one connection. For one thread.

    `partition_count` is the topic's number of partitions by the last answer; None before it.
    """

    def __init__(self, connection: AdminConnection, *, committed_only: bool) -> None:
        """`committed_only`: a log ends before the first record of an open transaction."""
        self._connection = connection
        self._isolation = IsolationLevel.READ_COMMITTED if committed_only else IsolationLevel.READ_UNCOMMITTED
        self.partition_count: int | None = None

    def ask_ends(self, topic: str, partitions: Iterable[int], timeout_s: float) -> dict[int, LogEnd]:
        """Return the end of each partition that answers.

        Blocks for twice `timeout_s`, and a second more at most.
        """
        latest: OffsetSpec = OffsetSpec.latest()  # type: ignore[no-untyped-call]
        wanted = {TopicPartition(topic, partition): latest for partition in partitions}
        ends = self._ask(self._connection.open_client(), topic, wanted, timeout_s)
        if len(ends) < len(wanted):
            self._connection.end_client()
        return ends

    def _ask(
        self, admin: AdminClient, topic: str, wanted: dict[TopicPartition, OffsetSpec], timeout_s: float
    ) -> dict[int, LogEnd]:
        try:
            # Otherwise librdkafka goes on asking with the leader epoch that it knew at first, and
            # a broker that was elected since refuses that (FENCED_LEADER_EPOCH).
            described = admin.list_topics(topic, timeout=timeout_s).topics[topic]
        except KafkaException:
            return {}
        if described.error is not None:
            return {}
        self.partition_count = len(described.partitions)
        if not wanted:
            return {}
        ends: dict[int, LogEnd] = {}
        answers = admin.list_offsets(wanted, isolation_level=self._isolation, request_timeout=timeout_s)
        for place, answer in answers.items():
            with contextlib.suppress(KafkaException, TimeoutError):
                found = take_answer(answer, timeout_s)
                if found.offset >= 0:  # negative: unknown
                    ends[place.partition] = LogEnd(found.offset, found.leader_epoch)
        return ends
