"""The interfaces of a sink's loop to Kafka and ClickHouse, without an import of either client."""

from collections.abc import Callable
from typing import Any, Literal, Protocol

from confluent_kafka import KafkaError, Message, TopicPartition

from sessionary.sinks.core.intent import RecordBlock

RebalanceCallback = Callable[[Any, list[TopicPartition]], None]
ErrorCallback = Callable[[KafkaError], None]


class KafkaConsumer(Protocol):
    """The methods of `confluent_kafka.Consumer` that a sink uses.

    Callbacks run in the thread that calls `consume` or `close`, before these return. A method may
    raise `KafkaException`. tests/contract compares the driver with the consumer that tests use.
    """

    def subscribe(
        self,
        topics: list[str],
        on_assign: RebalanceCallback,
        on_revoke: RebalanceCallback,
        on_lost: RebalanceCallback,
    ) -> None:
        """Join the group; the callbacks name the assigned, revoked and lost partitions."""
        ...

    def consume(self, num_messages: int, timeout: float) -> list[Message]:
        """Return up to so many messages, errors and ends of partitions among them.

        Blocks for up to `timeout` seconds.
        """
        ...

    def assign(self, partitions: list[TopicPartition]) -> None:
        """Fetch these partitions, and no others, from their offsets on."""
        ...

    def pause(self, partitions: list[TopicPartition]) -> None:
        """Stop fetching partitions; they stay paused across assignments."""
        ...

    def resume(self, partitions: list[TopicPartition]) -> None:
        """Fetch paused partitions again."""
        ...

    def seek(self, partition: TopicPartition) -> None:
        """Read an assigned partition from its offset on; drop its fetched records. Blocks."""
        ...

    def committed(self, partitions: list[TopicPartition], timeout: float) -> list[TopicPartition]:
        """Return the group's offsets with their metadata; a negative offset if there is none."""
        ...

    def commit(self, *, offsets: list[TopicPartition], asynchronous: Literal[False]) -> list[TopicPartition]:
        """Commit offsets with their metadata. Blocks without a limit."""
        ...

    def get_watermark_offsets(
        self, partition: TopicPartition, timeout: float = 0.0, *, cached: bool
    ) -> tuple[int, int] | None:
        """Return the lowest offset of a partition's log, and the offset after its highest.

        If not `cached`, asks a broker; blocks for up to `timeout` seconds.
        """
        ...

    def list_topics(self, topic: str, timeout: float) -> Any:
        """Ask a broker for a topic's metadata. Blocks for up to `timeout` seconds."""
        ...

    def close(self) -> None:
        """Leave the group; revokes the assigned partitions."""
        ...


# Makes a consumer that reports Kafka's errors to a callback.
ConsumerFactory = Callable[[ErrorCallback], KafkaConsumer]


class BlockTarget(Protocol):
    """Where the loop writes its blocks."""

    def write_block(self, partition: int, block: RecordBlock) -> None:
        """Store a block whose intent is committed.

        Raises `Transient`, `OperatorError`; the same call is then repeated.
        """
        ...

    def find_skip(self, partition: int, offset: int) -> int | None:
        """Return the last offset that an operator had skipped with `offset`, or None.

        Blocks. Raises `Transient`, `OperatorError`.
        """
        ...

    def check_writable(self) -> None:
        """Raise `Transient` or `OperatorError` unless rows can be stored; no row is."""
        ...

    def read_topic_ids(self) -> set[str]:
        """Return the ids of the sink's topic in the stored rows.

        Raises `Transient`, `OperatorError`.
        """
        ...

    def read_next_offsets(self, topic_id: str) -> dict[int, int]:
        """Return, by partition, the offset after the last stored record of a topic of this id.

        Raises `Transient`, `OperatorError`.
        """
        ...

    def close(self) -> None:
        """Close connections."""
        ...
