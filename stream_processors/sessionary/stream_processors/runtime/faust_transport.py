"""Faust's transport, reduced to the membership of the group.

Stock Faust wraps every message in two asyncio tasks, and its exactly-once mode opens producers
inside the rebalance callback, where the group's heartbeats stop. Here Faust joins the group,
subscribes, assigns and heartbeats, and carries no record:

- `IdleFetcher` stands in for the loop that asks Faust's consumer for records. aiokafka fetches next
  to nothing, and what it fetches is not read; records come from `fetcher.py`, past Faust.
- `RebalanceListener` hears of a rebalance before anything else. It holds the delivery of records,
  and tells the owners what they own; they open their partitions as tasks.
- `MemberThread` notes the group's heartbeats, commits the offsets that show the group's lag, and
  leaves the group when it stops.

All names of Faust and aiokafka that are used here are named by
tests/contract/test_faust_internals.py.
"""

import asyncio
import logging
import time
from collections.abc import Iterable, Mapping
from typing import Any, Protocol, cast

from aiokafka.errors import ConsumerStoppedError, KafkaError
from aiokafka.structs import OffsetAndMetadata, TopicPartition
from faust.assignor.partition_assignor import PartitionAssignor
from faust.exceptions import ConsumerNotStarted
from faust.transport.consumer import TransactionManager
from faust.transport.drivers import aiokafka as driver
from faust.types.tuples import TP
from mode import Service
from yarl import URL

_log = logging.getLogger(__name__)
# A service logs under its module's name unless it says otherwise; what Faust's code says here is Faust's.
_FAUST_LOG = logging.getLogger("faust.sessionary")
_COMMIT_S = 2.0


class AssignmentListener(Protocol):
    """Who is told which partitions of the events topic this worker has."""

    def take_assignment(self, partitions: Iterable[int]) -> None:
        """Take the whole assignment of a new generation. Must not block."""
        ...


class Delivery(Protocol):
    """The delivery of fetched records to the owners."""

    def hold_delivery(self) -> None:
        """Deliver nothing for now."""
        ...

    def restart_delivery(self) -> None:
        """Deliver again, but not what was fetched before."""
        ...


class RebalanceListener(TransactionManager):
    """In Faust's place for transactions: tells the owners who owns what, and commits nothing."""

    logger = _FAUST_LOG

    async def on_partitions_revoked(self, revoked: set[TP]) -> None:
        """Hold the delivery: what is fetched now may belong to another worker soon."""
        cast(MemberTransport, self.transport).delivery.hold_delivery()

    async def on_rebalance(self, assigned: set[TP], revoked: set[TP], newly_assigned: set[TP]) -> None:
        """Only take note: what takes long here stops the group's heartbeats."""
        transport = cast(MemberTransport, self.transport)
        transport.owners.take_assignment([tp.partition for tp in assigned if tp.topic == transport.events_topic])
        transport.delivery.restart_delivery()

    async def commit(self, offsets: object, start_new_transaction: bool = True) -> bool:
        """Do nothing: the position in the changelog rules, and `MemberConsumer.tell` commits offsets for the lag."""
        return True


class MemberThread(driver.AIOKafkaConsumerThread):
    """The thread that aiokafka's consumer lives in, as a member of the group."""

    logger = _FAUST_LOG

    async def on_start(self) -> None:
        """Start, and from then on note each heartbeat that the group acknowledges."""
        await super().on_start()
        coordinator: Any = self._ensure_consumer()._coordinator
        transport = cast(MemberTransport, self.transport)
        beat = coordinator._do_heartbeat

        async def noted() -> bool:
            ok: bool = await beat()
            if ok:
                transport.heartbeat_s = time.monotonic()
            return ok

        coordinator._do_heartbeat = noted

    async def commit_offsets(self, offsets: Mapping[TopicPartition, int]) -> bool:
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


class IdleFetcher(Service):
    """In place of Faust's loop that reads its consumer: Faust starts and stops it, and it does nothing."""

    logger = _FAUST_LOG

    def __init__(self, app: Any, **kwargs: Any) -> None:
        super().__init__(**kwargs)


class MemberConsumer(driver.Consumer):
    """Faust's consumer, as a member of the group only."""

    logger = _FAUST_LOG

    def _new_consumer_thread(self) -> MemberThread:
        return MemberThread(self, loop=self.loop, beacon=self.beacon)

    async def commit_offsets(self, positions: Mapping[int, int]) -> bool:
        """Commit the next offset of each partition, bounded; False where that failed. For watchers of lag."""
        topic = cast(MemberTransport, self.transport).events_topic
        offsets = {TopicPartition(topic, partition): n for partition, n in positions.items()}
        member = cast(MemberThread, self._thread)
        try:
            told: bool = await asyncio.wait_for(member.call_thread(member.commit_offsets, offsets), 2 * _COMMIT_S)
        except TimeoutError:
            return False  # a thread that has just ended answers nobody
        return told


class MemberTransport(driver.Transport):
    """Brings the parts together, and knows when the group was last heard."""

    Consumer = MemberConsumer
    TransactionManager = RebalanceListener
    Fetcher = IdleFetcher

    def __init__(
        self, url: list[URL], app: Any, owners: AssignmentListener, delivery: Delivery, events_topic: str
    ) -> None:
        super().__init__(url, app)
        self.owners = owners
        self.delivery = delivery
        self.events_topic = events_topic
        self.heartbeat_s = time.monotonic()


class Assignor(PartitionAssignor):
    """Faust's sticky assignor, which also tells every worker where the others' APIs are."""

    def on_assignment(self, assignment: Any) -> None:
        """Take an assignment. A static member that comes back at another address gets one that names its old one."""
        try:
            super().on_assignment(assignment)
        except AssertionError as error:
            # Everything was taken over before the comparison of addresses, which is Faust's last statement.
            _log.warning("assignment with another address than %s: %s", self._url, error)

    def owner_urls(self, topic: str) -> dict[int, str]:
        """Return which worker's API answers for each partition of `topic`."""
        return {
            partition: url
            for url, topics in self.external_topic_distribution.items()
            for partition in topics.get(topic, ())
        }


__all__ = [
    "AssignmentListener",
    "Assignor",
    "Delivery",
    "IdleFetcher",
    "MemberConsumer",
    "MemberTransport",
    "RebalanceListener",
]
