"""Asks for the ends of a topic's partitions, with a new client after a failure."""

import contextlib
from collections.abc import Iterable
from typing import NamedTuple

from confluent_kafka import IsolationLevel, KafkaException, TopicPartition
from confluent_kafka.admin import AdminClient, OffsetSpec  # type: ignore[attr-defined]

from sessionary.schemas.kafka.clients import discard_client, take_answer
from sessionary.schemas.settings import KafkaSettings

_ANSWER_S = 1.0  # the client reports a request's time-out itself, this much later at most


class LogEnd(NamedTuple):
    """Where a partition's log ends."""

    offset: int  # the next record's
    leader_epoch: int | None  # None: unknown


class LogEndClient:
    """Asks again and again over one connection. For one thread.

    librdkafka may lose its last broker for ever: a node that was frozen answers for a moment that
    the cluster has no broker (librdkafka issue 5301). So after a failure the next question goes out
    by a new client, and an answer proves that the brokers can be reached.

    `partition_count` is the topic's number of partitions by the last answer; None before it.
    """

    def __init__(self, settings: KafkaSettings, *, committed_only: bool) -> None:
        """`committed_only`: a log ends before the first record of an open transaction."""
        self._config = settings.client_config()
        self._isolation = IsolationLevel.READ_COMMITTED if committed_only else IsolationLevel.READ_UNCOMMITTED
        self._admin: AdminClient | None = None
        self.partition_count: int | None = None

    def ask_ends(self, topic: str, partitions: Iterable[int], timeout_s: float) -> dict[int, LogEnd]:
        """Return the end of each partition that answers.

        Blocks for twice `timeout_s`, and a second more at most.
        """
        latest: OffsetSpec = OffsetSpec.latest()  # type: ignore[no-untyped-call]
        wanted = {TopicPartition(topic, partition): latest for partition in partitions}
        if self._admin is None:
            self._admin = AdminClient({**self._config, "allow.auto.create.topics": False})
        ends = self._ask(self._admin, topic, wanted, timeout_s)
        if len(ends) < len(wanted):
            admin, self._admin = self._admin, None
            discard_client(admin)
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
                found = take_answer(answer, timeout_s + _ANSWER_S)
                if found.offset >= 0:  # negative: unknown
                    ends[place.partition] = LogEnd(found.offset, found.leader_epoch)
        return ends


__all__ = ["LogEnd", "LogEndClient"]
