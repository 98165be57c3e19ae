"""Faust's transport for a worker with Faust agents of users: it also fetches their topics.

The partitions of the events topic stay paused, as without agents. A record of another topic reaches
its agent once the events partition of the same number is open on this worker, so that the sessions
of that partition can be read:

- `StreamConsumer` asks for no record of a partition that is not open, and reads records again that
  came in a rebalance. Offsets are committed after the records were handled; a record may come twice
  after a crash or a rebalance.
- `LocalStream` holds records that were fetched before their partition closed.
- `AgentSupervisor` starts agents that raised an exception again.
- `StreamTransactions` sends the agents' records at once. It takes no part in the transactions of
  the partitions' owners.
"""

import asyncio
from collections.abc import Awaitable, Mapping
from typing import Any, cast

import faust
from aiokafka.structs import TopicPartition
from faust.exceptions import Skip
from faust.transport.drivers import aiokafka as driver
from faust.types.tuples import TP, RecordMetadata
from mode import OneForOneSupervisor, ServiceT

from sessionary.schemas.telemetry.role_logs import role_logger
from sessionary.stream_processors.runtime.faust_transport import (
    MemberConsumer,
    MemberThread,
    MemberTransport,
    RebalanceListener,
)

_log = role_logger(__name__)
_LOOK_S = 0.1


class StreamTransactions(RebalanceListener):
    """Sends agents' records and commits the offsets of handled records, without transactions."""

    async def on_rebalance(self, assigned: set[TP], revoked: set[TP], newly_assigned: set[TP]) -> None:
        """Pass the assignment on. Warn if a stream is not where its sessions are."""
        await super().on_rebalance(assigned, revoked, newly_assigned)
        events_topic = cast(MemberTransport, self.transport).events_topic
        owned = {tp.partition for tp in assigned if tp.topic == events_topic}
        if away := sorted(tp for tp in assigned if tp.partition not in owned):
            _log.warning(
                "records of %(places)s wait: the sessions of these partitions are on other workers. Run every "
                "worker of the group with the same SESSIONARY_FAUST_AGENTS",
                places=", ".join(f"{tp.topic}[{tp.partition}]" for tp in away),
                partitions=[tp.partition for tp in away],
            )

    async def send(
        self,
        topic: str,
        key: bytes | None,
        value: bytes | None,
        partition: int | None,
        timestamp: float | None,
        headers: Any,
        *,
        transactional_id: str | None = None,
    ) -> Awaitable[RecordMetadata]:
        """Queue a record for sending; the result is there once the broker acknowledged it."""
        return await self.producer.send(topic, key, value, partition, timestamp, headers)

    async def commit(self, offsets: Mapping[TP, int], start_new_transaction: bool = True) -> bool:
        """Commit offsets of handled records, after sent records have arrived. False if it fails.

        Nothing is committed once Faust stops: it counts a record as handled whose agent it
        interrupts. Handled records were committed when the worker left its group.
        """
        if self.app.should_stop:
            return False
        await self.producer.flush()
        return await cast(MemberConsumer, self.consumer).commit_places(offsets)


class StreamConsumer(MemberConsumer):
    """Faust's consumer, which fetches the topics of agents where sessions are open."""

    async def _getmany(self, active_partitions: set[TP] | None, timeout: float) -> Any:
        transport = cast(StreamTransport, self.transport)
        ready = {tp for tp in active_partitions or () if transport.is_open(tp.partition)}
        ready = {tp for tp in ready if tp.topic != transport.events_topic}
        if not ready:
            await self.sleep(_LOOK_S)
            return {}
        return await super()._getmany(ready, timeout)

    async def seek_to_committed(self) -> Mapping[TP, int]:
        """Seek to the committed offsets, and to the log's beginning where there is none.

        A fetch that begins before a rebalance may end in it. Faust drops its records, and seeks to
        read them again; aiokafka alone leaves a partition without a commit behind them.
        """
        committed: Mapping[TP, int] = await super().seek_to_committed()
        events_topic, thread = cast(StreamTransport, self.transport).events_topic, cast(MemberThread, self._thread)
        if fresh := [tp for tp, offset in committed.items() if not offset and tp.topic != events_topic]:
            places = [TopicPartition(*tp) for tp in fresh]
            await thread.call_thread(thread._ensure_consumer().seek_to_beginning, *places)
        return committed


class StreamTransport(MemberTransport):
    """The transport of a worker with agents."""

    Consumer = StreamConsumer
    TransactionManager = StreamTransactions
    Fetcher = driver.Transport.Fetcher

    def is_open(self, partition: int) -> bool:
        """Return whether this worker has the partition of the events topic open."""
        return self.owners.is_open(partition)


class LocalStream(faust.Stream[Any]):
    """A stream whose records wait until their partition of the events topic is open here."""

    def __init__(self, *args: Any, processors: Any = None, **kwargs: Any) -> None:
        super().__init__(*args, processors=[self._wait_until_open, *(processors or ())], **kwargs)

    async def _wait_until_open(self, value: Any) -> Any:
        if (event := self.current_event) is None:
            return value
        place, transport = event.message.tp, cast(StreamTransport, self.app.transport)
        while not transport.is_open(place.partition):
            if place not in self.app.consumer.assignment():
                event.message.acked = True  # so that no commit counts it as handled: it is read again
                raise Skip
            await asyncio.sleep(_LOOK_S)
        return value


class AgentSupervisor(OneForOneSupervisor):
    """Starts an agent again that raised: at once, at most 100 times a second, however often.

    Faust's own supervisor ends the process, and so its partitions, if an agent raises too often.
    """

    def __init__(self, *services: ServiceT, **kwargs: Any) -> None:
        super().__init__(*services, **{**kwargs, "raises": None})  # None: wait instead of giving up

    async def restart_services(self, services: list[ServiceT]) -> None:
        """Start new agents for failed ones."""
        await super().restart_services(services)
        # Left to the next look, an agent that has failed by then would wait 5 s for the one after.
        await self.start_services([service for service in self._services if not service.started])
