"""Faust's transport, with batches in place of messages and marks in place of transactions.

Stock Faust wraps every message in two asyncio tasks, and its exactly-once mode opens producers inside the rebalance
callback, where the group's heartbeats stop. Here

- `BatchConsumer.getmany` yields one Faust message per partition and fetch; its value is the list of records, which
  `fetcher.py` got from librdkafka: aiokafka keeps the membership of the group, and fetches nothing that is looked at;
- `RecordsTopic` passes that list through undecoded; acks are off, so Faust keeps no gaps and commits nothing;
- `Marks` hears of a rebalance before anything else and only tells the owners; they open their partitions as tasks;
- `MemberThread` notes the group's heartbeats, commits offsets for whoever watches the group's lag, and leaves the
  group when it stops.

All names of Faust and aiokafka that are used here are named by tests/contract/test_faust_internals.py.
"""

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from typing import Any, Protocol, cast

from aiokafka.errors import ConsumerStoppedError, KafkaError
from aiokafka.structs import OffsetAndMetadata, TopicPartition
from faust.assignor.partition_assignor import PartitionAssignor
from faust.exceptions import ConsumerNotStarted
from faust.topics import Topic
from faust.transport.consumer import TransactionManager
from faust.transport.drivers import aiokafka as driver
from faust.types.tuples import TP, ConsumerMessage
from yarl import URL

from sessionary.stream_processors.core.model import LogRecord
from sessionary.stream_processors.runtime.fetcher import Fetcher

_log = logging.getLogger(__name__)
# A service logs under its module's name unless it says otherwise; what Faust's code says here is Faust's.
_FAUST_LOG = logging.getLogger("faust.sessionary")
_LOG_APPEND_TIME = 1
_LOOK_S = 0.5
_COMMIT_S = 2.0


class Owners(Protocol):
    """Who is told which partitions of the events topic this worker has."""

    def assigned(self, partitions: Iterable[int], generation: int) -> None:
        """Take the whole assignment of a new generation. Must not block."""
        ...


class Marks(TransactionManager):
    """In Faust's place for transactions: tells the owners who owns what, and commits nothing."""

    logger = _FAUST_LOG

    async def on_rebalance(self, assigned: set[TP], revoked: set[TP], newly_assigned: set[TP]) -> None:
        """Only mark: what takes long here stops the group's heartbeats."""
        transport = cast(BatchTransport, self.transport)
        partitions = [tp.partition for tp in assigned if tp.topic == transport.events_topic]
        transport.owners.assigned(partitions, self.app.consumer_generation_id)

    async def commit(self, offsets: object, start_new_transaction: bool = True) -> bool:
        """Do nothing: the position in the changelog rules, and `BatchConsumer.tell` commits offsets for the lag."""
        return True


class MemberThread(driver.AIOKafkaConsumerThread):
    """The thread that aiokafka's consumer lives in, as a member of the group."""

    logger = _FAUST_LOG

    async def on_start(self) -> None:
        """Start, and from then on note each heartbeat that the group acknowledges."""
        await super().on_start()
        coordinator: Any = self._ensure_consumer()._coordinator
        transport = cast(BatchTransport, self.transport)
        beat = coordinator._do_heartbeat

        async def noted() -> bool:
            ok: bool = await beat()
            if ok:
                transport.heartbeat_s = time.monotonic()
            return ok

        coordinator._do_heartbeat = noted

    async def tell(self, offsets: Mapping[TopicPartition, int]) -> bool:
        """Commit the group's offsets, bounded; False where that is refused or late."""
        try:
            await asyncio.wait_for(
                self._ensure_consumer().commit({place: OffsetAndMetadata(n, "") for place, n in offsets.items()}),
                _COMMIT_S,
            )
        except (KafkaError, ConsumerStoppedError, ConsumerNotStarted, TimeoutError) as error:
            _log.debug("offsets were not committed: %r", error)
            return False
        return True

    async def on_thread_stop(self) -> None:
        """Stop, and leave the group. A static member does not leave by itself, and others would wait for it."""
        if self._consumer is not None and self._consumer._coordinator is not None:
            self._consumer._coordinator._group_instance_id = None
        await super().on_thread_stop()


class BatchConsumer(driver.Consumer):
    """Yields one message per partition and fetch."""

    logger = _FAUST_LOG

    def _new_consumer_thread(self) -> MemberThread:
        return MemberThread(self, loop=self.loop, beacon=self.beacon)

    async def tell(self, positions: Mapping[int, int]) -> bool:
        """Commit the next offset of each partition, bounded; False where that failed. For watchers of lag."""
        topic = cast(BatchTransport, self.transport).events_topic
        offsets = {TopicPartition(topic, partition): n for partition, n in positions.items()}
        member = cast(MemberThread, self._thread)
        try:
            told: bool = await asyncio.wait_for(member.call_thread(member.tell, offsets), 2 * _COMMIT_S)
        except TimeoutError:
            return False  # a thread that has just ended answers nobody
        return told

    async def getmany(self, timeout: float) -> AsyncIterator[tuple[TP, ConsumerMessage]]:
        """Yield what was fetched; Faust's `timeout` bounds the wait for it, but is long where it is to stop."""
        if not self.flow_active:
            await self.wait(self.can_resume_flow.wait())
        transport = cast(BatchTransport, self.transport)
        for fetched in await transport.fetcher.next(min(timeout, _LOOK_S)):
            tp = TP(transport.events_topic, fetched.partition)
            # Faust drops what lies below the offset it read last; here the position alone rules.
            self._read_offset[tp] = None
            yield tp, _message(tp, fetched.records, self.app.consumer_generation_id)


def _message(tp: TP, records: Sequence[LogRecord], generation: int) -> ConsumerMessage:
    """Return the records as one message of Faust's; `value` holds them."""
    last = records[-1]
    return ConsumerMessage(
        tp.topic,
        tp.partition,
        last.offset,
        last.timestamp_ms / 1000,
        _LOG_APPEND_TIME,
        [],
        b"",
        cast(Any, records),
        None,
        0,
        0,
        tp,
        generation_id=generation,
    )


class BatchTransport(driver.Transport):
    """Brings the parts together, and knows when the group was last heard."""

    Consumer = BatchConsumer

    def __init__(self, url: list[URL], app: Any, owners: Owners, fetcher: Fetcher, events_topic: str) -> None:
        super().__init__(url, app)
        self.owners = owners
        self.fetcher = fetcher
        self.events_topic = events_topic
        self.heartbeat_s = time.monotonic()

    def create_transaction_manager(self, consumer: Any, producer: Any, **kwargs: Any) -> Marks:
        """Return what Faust tells of rebalances."""
        return Marks(self, consumer=consumer, producer=producer, **kwargs)


class RecordsTopic(Topic):
    """Hands lists of records through, undecoded."""

    async def decode(self, message: Any, *, propagate: bool = False) -> Any:
        """Return an event around the list as it came."""
        return self._create_event(message.key, message.value, headers={}, message=message)


class Assignor(PartitionAssignor):
    """Faust's sticky assignor, which also tells every worker where the others' APIs are."""

    def on_assignment(self, assignment: Any) -> None:
        """Take an assignment. A static member that comes back at another address gets one that names its old one."""
        try:
            super().on_assignment(assignment)
        except AssertionError as error:
            # Everything was taken over before the comparison of addresses, which is Faust's last statement.
            _log.warning("assignment with another address than %s: %s", self._url, error)

    def urls(self, topic: str) -> dict[int, str]:
        """Return which worker's API answers for each partition of `topic`."""
        return {
            partition: url
            for url, topics in self.external_topic_distribution.items()
            for partition in topics.get(topic, ())
        }


__all__ = ["Assignor", "BatchConsumer", "BatchTransport", "Marks", "Owners", "RecordsTopic"]
