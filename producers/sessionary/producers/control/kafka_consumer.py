"""The Kafka consumer of requests to clean up or to migrate: its configuration and its port."""

from collections.abc import Callable
from typing import Any, Final, Literal, Protocol

from confluent_kafka import Consumer, Message, TopicPartition

from sessionary.producers.settings import ProducerSettings

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
        """Join the group; the callbacks name what is assigned, revoked and lost."""
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
        """Leave the group; revokes what is assigned."""
        ...


def open_consumer(settings: ProducerSettings, group_id: str) -> RequestConsumer:
    """Return a consumer in a group; it connects in the background."""
    return Consumer(
        {
            # The log's end tells the position of a partition without new requests.
            **settings.reader_config_of(group_id),
            "auto.offset.reset": "earliest",
            "fetch.wait.max.ms": 100,
            # What a killed process was to answer is another's after so long, and not after 45 s.
            "session.timeout.ms": _SESSION_TIMEOUT_MS,
        }
    )
