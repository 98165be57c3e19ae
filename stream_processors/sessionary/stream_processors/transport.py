"""Faust's transport, with batches in place of messages and marks in place of transactions.

Stock Faust wraps every message in two asyncio tasks, and its exactly-once mode opens producers inside the rebalance
callback, where the group's heartbeats stop. Here

- `BatchConsumer.getmany` yields one Faust message per partition and fetch; its value is the list of records;
- `RecordsTopic` passes that list through undecoded; acks are off, so Faust keeps no gaps and commits nothing;
- `Marks` hears of a rebalance before anything else and only tells the owners; they open their partitions as tasks;
- `QuickFetchThread` fetches with a short wait, notes the group's heartbeats, and leaves the group when it stops.

All names of Faust and aiokafka that are used here are named by tests/contract/test_faust_internals.py.
"""

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Iterable, Sequence
from typing import Any, Protocol, cast

from aiokafka.errors import IllegalStateError
from faust.assignor.partition_assignor import PartitionAssignor
from faust.topics import Topic
from faust.transport.consumer import TransactionManager
from faust.transport.drivers import aiokafka as driver
from faust.types.tuples import TP, ConsumerMessage
from yarl import URL

_log = logging.getLogger(__name__)
# A service logs under its module's name unless it says otherwise; what Faust's code says here is Faust's.
_FAUST_LOG = logging.getLogger("faust.sessionary")
# A fetch over idle partitions may wait this long before busy ones are asked again; Faust fixes it at 1,500.
FETCH_WAIT_MS = 10
# How long one look for records may take; a partition that is wanted again waits no longer than this.
_LOOK_S = 0.05


class Record(Protocol):
    """A record as aiokafka gives it."""

    @property
    def offset(self) -> int:
        """Its place in the partition."""
        ...

    @property
    def timestamp(self) -> int:
        """When it was appended, ms since the epoch."""
        ...

    @property
    def key(self) -> bytes | None:
        """Its key."""
        ...

    @property
    def value(self) -> bytes | None:
        """Its value."""
        ...

    @property
    def headers(self) -> Sequence[tuple[str, bytes]]:
        """Its headers."""
        ...


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
        """Do nothing: offsets travel in the partitions' own transactions."""
        return True


class QuickFetchThread(driver.AIOKafkaConsumerThread):
    """The thread that aiokafka's consumer lives in."""

    logger = _FAUST_LOG

    def _create_worker_consumer(self, transport: Any) -> Any:
        consumer = super()._create_worker_consumer(transport)
        consumer._fetch_max_wait_ms = FETCH_WAIT_MS
        return consumer

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

    async def on_thread_stop(self) -> None:
        """Stop, and leave the group. A static member does not leave by itself, and others would wait for it."""
        if self._consumer is not None and self._consumer._coordinator is not None:
            self._consumer._coordinator._group_instance_id = None
        await super().on_thread_stop()

    def seek_soon(self, tp: TP, offset: int) -> None:
        """Fetch from `offset` next; harmless where the partition has gone meanwhile."""

        def seek() -> None:
            try:
                self._ensure_consumer().seek(tp, offset)
            except IllegalStateError:
                _log.info("%s is no longer assigned: not sought", tp)

        self.thread_loop.call_soon_threadsafe(seek)


class BatchConsumer(driver.Consumer):
    """Yields one message per partition and fetch."""

    logger = _FAUST_LOG

    def _new_consumer_thread(self) -> QuickFetchThread:
        return QuickFetchThread(self, loop=self.loop, beacon=self.beacon)

    def seek_soon(self, tp: TP, offset: int) -> None:
        """See `QuickFetchThread.seek_soon`."""
        cast(QuickFetchThread, self._thread).seek_soon(tp, offset)

    async def getmany(self, timeout: float) -> AsyncIterator[tuple[TP, ConsumerMessage]]:
        """Yield what one look finds; `timeout` is Faust's, and too long where a partition may be resumed meanwhile."""
        if not self.flow_active:
            await self.wait(self.can_resume_flow.wait())
        generation, active = self.app.consumer_generation_id, self._get_active_partitions()
        if not active:
            await asyncio.sleep(_LOOK_S)
            return
        fetched = await self._getmany(active_partitions=active, timeout=_LOOK_S)
        for tp, records in (fetched or {}).items():
            if self.should_stop or not self.flow_active or self.app.consumer_generation_id != generation:
                return
            if not records or not (tp in active or tp in self._buffered_partitions):
                continue
            # Faust drops what lies below the offset it read last; here the position alone rules.
            self._read_offset[tp] = None
            yield tp, _message(tp, records, generation)


def _message(tp: TP, records: Any, generation: int) -> ConsumerMessage:
    last = records[-1]
    return ConsumerMessage(
        tp.topic,
        tp.partition,
        last.offset,
        last.timestamp / 1000,
        last.timestamp_type,
        last.headers,
        b"",
        records,
        last.checksum,
        0,
        0,
        tp,
        generation_id=generation,
    )


class BatchTransport(driver.Transport):
    """Brings the parts together, and knows when the group was last heard."""

    Consumer = BatchConsumer

    def __init__(self, url: list[URL], app: Any, owners: Owners, events_topic: str) -> None:
        super().__init__(url, app)
        self.owners = owners
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


__all__ = ["FETCH_WAIT_MS", "Assignor", "BatchConsumer", "BatchTransport", "Marks", "Owners", "Record", "RecordsTopic"]
