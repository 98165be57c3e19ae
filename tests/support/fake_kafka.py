"""A Kafka consumer without a broker: one topic, one group, the methods that sinks and clients use.

`tests/contract/test_kafka_consumer.py` runs it and the driver through the same steps.
"""

from collections.abc import Callable, Iterable
from typing import Literal, overload

from confluent_kafka import OFFSET_BEGINNING, KafkaError, KafkaException, Message, TopicPartition

from sessionary.sinks.runtime.ports import ErrorCallback, RebalanceCallback

_NO_OFFSET = -1001


def make_message(topic: str, partition: int, offset: int, key: bytes | None = None, value: bytes = b"v") -> Message:
    """Return a record as the driver delivers it; its log time is the offset in ms, plus 1,000."""
    at_ms = 1_000 + offset
    return Message(topic=topic, partition=partition, offset=offset, key=key, value=value, timestamp=(1, at_ms))


class FakeConsumer:
    """Delivers what `append_records` put into the log; `calls` lists what was asked of it.

    Each call of `consume` first takes the next of `steps`, if there is one, then collects messages
    and then runs the callbacks of a rebalance. So messages that were fetched before a rebalance
    are delivered after it, as the driver may do.
    """

    def __init__(self, topic: str, steps: Iterable[Callable[[], None]] = ()) -> None:
        self.topic = topic
        self.steps = list(steps)
        self.when_out_of_steps: Callable[[], None] = lambda: None
        self.calls: list[str] = []
        self.paused: set[int] = set()
        self.positions: dict[int, int] = {}  # of the partitions that are assigned
        self.offsets: dict[int, tuple[int, str]] = {}  # that the group has committed, with metadata
        self.commits: list[tuple[int, int, str]] = []
        self.on_error: ErrorCallback = lambda error: None
        self.on_commit: Callable[[], None] = lambda: None
        self.reaches_broker = True
        self.on_close: Callable[[], object] = lambda: None
        self.commit_error: KafkaError | None = None
        self.committed_error: KafkaError | None = None
        self._ends: dict[int, int] = {}
        self.lows: dict[int, int] = {}  # where logs begin, if not at 0
        self._given_up: set[int] = set()  # partitions whose log did not have their offset
        self._contents: dict[tuple[int, int], tuple[bytes, bytes]] = {}
        self._events: list[Message] = []
        self.unreadable: set[tuple[int, int]] = set()  # partition and offset
        self._ends_reported: set[int] = set()
        self._rebalances: list[Callable[[], None]] = []
        self._callbacks: tuple[RebalanceCallback, RebalanceCallback, RebalanceCallback] | None = None

    @property
    def assigned(self) -> set[int]:
        """The partitions that are assigned."""
        return set(self.positions)

    def append_records(self, partition: int, count: int, first: int | None = None) -> None:
        """Append records to a partition's log; `first`: the log starts at this offset."""
        end = self._ends.get(partition, first or 0)
        self._ends[partition] = end + count
        self._ends_reported.discard(partition)

    def append_record(self, partition: int, key: bytes, value: bytes) -> None:
        """Append one record with this key and value to a partition's log."""
        self._contents[partition, self._ends.get(partition, 0)] = key, value
        self.append_records(partition, 1)

    def deliver_error(self, error: KafkaError, offset: int = _NO_OFFSET) -> None:
        """Deliver an error of partition 0 as a message."""
        self._events.append(Message(topic=self.topic, partition=0, offset=offset, error=error))

    def append_unreadable(self, partition: int) -> None:
        """Append a record to a partition's log whose batch cannot be unpacked."""
        self.unreadable.add((partition, self._ends.get(partition, 0)))
        self.append_records(partition, 1)

    def schedule_assignment(self, *partitions: int) -> None:
        """Revoke everything and assign these partitions in the next `consume`."""

        def rebalance() -> None:
            self._revoke_all()
            assert self._callbacks is not None
            self._callbacks[0](self, self._places(partitions))

        self._rebalances.append(rebalance)

    def schedule_loss(self) -> None:
        """Lose every partition in the next `consume`."""

        def lose() -> None:
            assert self._callbacks is not None
            self._callbacks[2](self, self._places(self.positions))
            self.positions.clear()

        self._rebalances.append(lose)

    def _revoke_all(self) -> None:
        if self.positions and self._callbacks is not None:
            self._callbacks[1](self, self._places(self.positions))
        self.positions.clear()

    def _places(self, partitions: Iterable[int]) -> list[TopicPartition]:
        return [TopicPartition(self.topic, partition) for partition in partitions]

    def _group_offset(self, partition: int) -> int:
        return self.offsets.get(partition, (0, ""))[0]

    # The methods of the driver.

    def subscribe(
        self,
        topics: list[str],
        on_assign: RebalanceCallback,
        on_revoke: RebalanceCallback,
        on_lost: RebalanceCallback,
    ) -> None:
        """See `KafkaConsumer`."""
        assert topics == [self.topic]
        self._callbacks = on_assign, on_revoke, on_lost

    def consume(self, num_messages: int, timeout: float) -> list[Message]:
        """See `KafkaConsumer`; never waits. A call for one message finds none, and is no step."""
        if num_messages == 1:
            return []
        if self.steps:
            self.steps.pop(0)()
        else:
            self.when_out_of_steps()
        messages, self._events = self._events, []
        for partition, position in self.positions.items():
            if partition in self.paused or partition in self._given_up:
                continue
            end = self._ends.get(partition, 0)
            if not self.lows.get(partition, 0) <= position <= end:
                lost = KafkaError(KafkaError._AUTO_OFFSET_RESET)
                messages.append(Message(topic=self.topic, partition=partition, offset=position, error=lost))
                self._given_up.add(partition)
                continue
            last = min(end, position + num_messages - len(messages))
            found = next((offset for offset in range(position, last) if (partition, offset) in self.unreadable), None)
            last = last if found is None else found
            messages += [
                make_message(self.topic, partition, offset, *self._contents.get((partition, offset), ()))
                for offset in range(position, last)
            ]
            self.positions[partition] = max(position, last)
            if found is not None:
                error = KafkaError(KafkaError._BAD_COMPRESSION, "Invalid compressed data")
                messages.append(Message(topic=self.topic, partition=partition, offset=found, error=error))
            if self.positions[partition] >= end and partition not in self._ends_reported:
                self._ends_reported.add(partition)
                eof = KafkaError(KafkaError._PARTITION_EOF)
                messages.append(Message(topic=self.topic, partition=partition, offset=end, error=eof))
        rebalances, self._rebalances = self._rebalances, []
        for rebalance in rebalances:
            rebalance()
        return messages

    def assign(self, partitions: list[TopicPartition]) -> None:
        """See `KafkaConsumer`."""
        self.calls.append(f"assign {[(place.partition, place.offset) for place in partitions]}")
        self.positions = {
            place.partition: self.lows.get(place.partition, 0)
            if place.offset == OFFSET_BEGINNING
            else max(0, self._group_offset(place.partition) if place.offset == _NO_OFFSET else place.offset)
            for place in partitions
        }
        self._ends_reported.clear()
        self._given_up.clear()

    def pause(self, partitions: list[TopicPartition]) -> None:
        """See `KafkaConsumer`."""
        self.paused |= {place.partition for place in partitions}

    def resume(self, partitions: list[TopicPartition]) -> None:
        """See `KafkaConsumer`."""
        self.paused -= {place.partition for place in partitions}

    def seek(self, partition: TopicPartition) -> None:
        """See `KafkaConsumer`."""
        self.calls.append(f"seek {partition.partition} to {partition.offset}")
        if partition.partition in self._given_up:
            raise KafkaException(KafkaError(KafkaError._STATE))
        self.positions[partition.partition] = partition.offset
        self._ends_reported.discard(partition.partition)

    def committed(self, partitions: list[TopicPartition], timeout: float) -> list[TopicPartition]:
        """See `KafkaConsumer`."""
        self.calls.append("committed")
        if self.committed_error is not None:
            raise KafkaException(self.committed_error)
        found = ((place.partition, *self.offsets.get(place.partition, (_NO_OFFSET, ""))) for place in partitions)
        return [TopicPartition(self.topic, partition, offset, metadata) for partition, offset, metadata in found]

    @overload
    def commit(self, *, offsets: list[TopicPartition], asynchronous: Literal[False]) -> list[TopicPartition]: ...
    @overload
    def commit(self, *, offsets: list[TopicPartition], asynchronous: Literal[True]) -> None: ...
    def commit(self, *, offsets: list[TopicPartition], asynchronous: bool) -> list[TopicPartition] | None:
        """See `KafkaConsumer`."""
        self.on_commit()
        if self.commit_error is not None:
            raise KafkaException(self.commit_error)
        for place in offsets:
            self.offsets[place.partition] = place.offset, place.metadata or ""
            self.commits.append((place.partition, place.offset, place.metadata or ""))
        return None if asynchronous else offsets

    def get_watermark_offsets(
        self, partition: TopicPartition, timeout: float = 0.0, *, cached: bool
    ) -> tuple[int, int] | None:
        """See `KafkaConsumer`."""
        return self.lows.get(partition.partition, 0), self._ends.get(partition.partition, 0)

    def list_topics(self, topic: str, timeout: float) -> object:
        """See `KafkaConsumer`."""
        self.calls.append("list_topics")
        if not self.reaches_broker:
            raise KafkaException(KafkaError(KafkaError._TRANSPORT))
        return None

    def close(self) -> None:
        """See `KafkaConsumer`."""
        self.on_close()
        self.calls.append("close")
        self._revoke_all()
