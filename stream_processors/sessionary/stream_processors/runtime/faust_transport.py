"""Faust's transport, reduced to the membership of the group.

Stock Faust wraps every message in two asyncio tasks, and its exactly-once mode opens producers
inside the rebalance callback, where the group's heartbeats stop. Here Faust joins the group,
subscribes, assigns and heartbeats, and carries no record:

- `MemberThread` pauses the partitions of the events topic, so that aiokafka fetches nothing, and
  `IdleFetcher` replaces the loop that asks for records. They come from `fetcher.py`, past Faust.
- `RebalanceListener` is called first in a rebalance, before Faust does anything else. It passes on
  the beginning and the assignment. Owners continue meanwhile; new partitions open as tasks.
- `MemberThread` also records the group's heartbeats, commits the offsets that show the group's lag,
  and leaves the group before Faust stops.
- `FaustGroup` answers the control API's questions about the group.

A worker with Faust agents of users has the transport of `stream_transport.py`.

tests/contract/test_faust_internals.py lists all names of Faust and aiokafka that are used here.
"""

import asyncio
import logging
import time
from collections.abc import Iterable, Mapping, MutableMapping
from functools import partial
from typing import Any, ClassVar, Protocol, cast

from aiohttp import ClientSession
from aiokafka.errors import ConsumerStoppedError, KafkaError
from aiokafka.structs import OffsetAndMetadata, TopicPartition
from faust.assignor.client_assignment import ClientMetadata
from faust.assignor.partition_assignor import PartitionAssignor
from faust.exceptions import ConsumerNotStarted
from faust.transport.consumer import TransactionManager
from faust.transport.drivers import aiokafka as driver
from faust.types.tuples import TP
from mode import Service, ServiceT
from yarl import URL

from sessionary.schemas.rules import known_rules, newest_known
from sessionary.schemas.telemetry.role_logs import error_fields, role_logger
from sessionary.schemas.types import RuleSet

_log = role_logger(__name__)
# A service of Faust's logs under the name of the module that defines it; these log as Faust.
FAUST_LOG = logging.getLogger("faust.sessionary")
_KNOWN_RULES = "sessionary rules"  # no topic has a name with a space
_COMMIT_S = 2.0
_LEAVE_S = 4.0
_REJOIN_PAUSE_S = 1.0


class AssignmentListener(Protocol):
    """Takes the partitions of the events topic that this worker has. Nothing may block."""

    def begin_rebalance(self) -> None:
        """Learn that partitions may be another worker's soon; an assignment follows."""
        ...

    def take_assignment(self, partitions: Iterable[int]) -> None:
        """Take the whole assignment of a new generation."""
        ...

    def is_open(self, partition: int) -> bool:
        """Return whether the partition's rows can be read."""
        ...


class RebalanceListener(TransactionManager):
    """Replaces Faust's transactions: passes rebalances on and commits nothing."""

    logger = FAUST_LOG

    async def on_partitions_revoked(self, revoked: set[TP]) -> None:
        """Pass the beginning on. All partitions are revoked, those too that will come back."""
        cast(MemberTransport, self.transport).owners.begin_rebalance()

    async def on_rebalance(self, assigned: set[TP], revoked: set[TP], newly_assigned: set[TP]) -> None:
        """Pass the assignment on. Must return soon: until then the group gets no heartbeats."""
        transport = cast(MemberTransport, self.transport)
        transport.heartbeat_s = time.monotonic()
        transport.owners.take_assignment([tp.partition for tp in assigned if tp.topic == transport.events_topic])

    async def commit(self, offsets: Mapping[TP, int], start_new_transaction: bool = True) -> bool:
        """Do nothing: the changelog holds the position, and `commit_offsets` shows the lag."""
        return True


async def outlast_error(coordinator: Any, error: Exception) -> None:
    """Let a member of the group try again in a second, instead of aiokafka's `_push_error_to_user`.

    aiokafka's method waits until a call that reads records takes the error, and a member makes no
    such call. So one failed join left a worker outside of its group for ever, while its API
    reported that its partitions are not open yet. A member whose heartbeats have ended joins again.
    """
    _log.warning(
        "the group does not take this member: %(error)s; it tries again in %(pause_s)g s",
        pause_s=_REJOIN_PAUSE_S,
        **error_fields(error),
    )
    await asyncio.wait([coordinator._closing], timeout=_REJOIN_PAUSE_S)
    if (heartbeats := coordinator._heartbeat_task) is not None and heartbeats.done():
        coordinator.request_rejoin()


class MemberThread(driver.AIOKafkaConsumerThread):
    """The thread of aiokafka's consumer, as a member of the group."""

    logger = FAUST_LOG

    async def on_start(self) -> None:
        """Start, and record each heartbeat that the group acknowledges from then on."""
        await super().on_start()
        coordinator: Any = self._ensure_consumer()._coordinator
        transport = cast(MemberTransport, self.transport)
        do_heartbeat = coordinator._do_heartbeat

        async def record_heartbeat() -> bool:
            acknowledged: bool = await do_heartbeat()
            if acknowledged:
                transport.heartbeat_s = time.monotonic()
            return acknowledged

        coordinator._do_heartbeat = record_heartbeat
        coordinator._push_error_to_user = partial(outlast_error, coordinator)

    async def on_partitions_assigned(self, assigned: set[TP], generation_id: int = 0) -> None:
        """Pause the events topic, then pass the assignment on."""
        events_topic = cast(MemberTransport, self.transport).events_topic
        # Before anything is awaited: until then aiokafka knows no position to fetch from.
        self._ensure_consumer().pause(*(TopicPartition(*tp) for tp in assigned if tp.topic == events_topic))
        await super().on_partitions_assigned(assigned, generation_id)

    async def commit_offsets(self, offsets: Mapping[TopicPartition, int], metadata: str = "") -> bool:
        """Commit the group's offsets. Return False if the broker refuses or takes more than 2 s."""
        committed = {place: OffsetAndMetadata(n, metadata) for place, n in offsets.items()}
        try:
            await asyncio.wait_for(self._ensure_consumer().commit(committed), _COMMIT_S)
        except (KafkaError, ConsumerStoppedError, ConsumerNotStarted, TimeoutError) as error:
            _log.debug("offsets were not committed: %(error)r", **error_fields(error))
            return False
        return True

    async def leave_group(self) -> None:
        """Leave the group, which a static member does not do by itself; the others would wait.

        The member joins no group again. Nothing happens if it has not begun, or has left.
        """
        if self._consumer is not None and (coordinator := self._consumer._coordinator) is not None:
            coordinator._group_instance_id = None
            await coordinator.close()
            await coordinator._maybe_leave_group()  # left to be done if a former `close` was cut short

    async def give_up_instance(self) -> None:
        """Join again without the instance's name: another process is a member by it.

        With the name, each would take the other's place at each heartbeat.
        """
        if self._consumer is not None and (coordinator := self._consumer._coordinator) is not None:
            coordinator._group_instance_id = None
            coordinator.reset_generation()

    async def on_thread_stop(self) -> None:
        """Leave the group and stop."""
        await self.leave_group()
        await super().on_thread_stop()


class IdleFetcher(Service):
    """Replaces Faust's loop that reads its consumer, and does nothing."""

    logger = FAUST_LOG

    def __init__(self, app: Any, **kwargs: Any) -> None:
        super().__init__(**kwargs)


class MemberConsumer(driver.Consumer):
    """Faust's consumer, which is only a member of the group."""

    logger = FAUST_LOG

    def _new_consumer_thread(self) -> MemberThread:
        return MemberThread(self, loop=self.loop, beacon=self.beacon)

    async def commit_offsets(self, positions: Mapping[int, int], topic_id: str | None) -> bool:
        """Commit each partition's next offset, for lag monitoring. Return False if that fails.

        `topic_id`: of the topic that the offsets are of. A topic that is made again keeps what is
        committed late, and a new partition must not be taken for one that was folded before.
        """
        topic = cast(MemberTransport, self.transport).events_topic
        return await self.commit_places({TP(topic, partition): n for partition, n in positions.items()}, topic_id or "")

    async def commit_places(self, places: Mapping[TP, int], metadata: str = "") -> bool:
        """Commit next offsets. Return False if that fails."""
        offsets = {TopicPartition(*place): n for place, n in places.items()}
        member = cast(MemberThread, self._thread)
        try:
            committed: bool = await asyncio.wait_for(
                member.call_thread(member.commit_offsets, offsets, metadata), 2 * _COMMIT_S
            )
        except TimeoutError:
            return False  # a thread that has just ended does not answer
        return committed

    async def leave_group(self) -> bool:
        """Leave the group before Faust stops. Return False if that fails or takes more than 4 s.

        First commits the offsets that agents have handled: a member that left cannot commit.
        """
        member = cast(MemberThread, self._thread)
        try:
            async with asyncio.timeout(_LEAVE_S):
                await self.commit()
                await member.call_thread(member.leave_group)
        except (KafkaError, TimeoutError) as error:
            _log.warning("the worker leaves its group as it stops: %(error)r", **error_fields(error))
            return False
        return True

    async def give_up_instance(self) -> None:
        """Join again as a member without a name. Waits for nothing else."""
        member = cast(MemberThread, self._thread)
        await member.call_thread(member.give_up_instance)

    def verify_event_path(self, now: float, tp: TP) -> None:
        """Let Faust complain of a partition that stands still, unless it is one of the events."""
        if tp.topic != cast(MemberTransport, self.transport).events_topic:
            super().verify_event_path(now, tp)


class MemberTransport(driver.Transport):
    """Faust's transport, made of the parts above.

    `heartbeat_s` is when the group last acknowledged a heartbeat or gave an assignment, on the
    monotonic clock.
    """

    Consumer = MemberConsumer
    TransactionManager = RebalanceListener
    Fetcher: ClassVar[type[ServiceT]] = IdleFetcher

    def __init__(self, url: list[URL], app: Any, owners: AssignmentListener, events_topic: str) -> None:
        super().__init__(url, app)
        self.owners = owners
        self.events_topic = events_topic
        self.heartbeat_s = time.monotonic()


class Assignor(PartitionAssignor):
    """Faust's sticky assignor, which also sends every worker the URLs of the others' APIs.

    It also finds which rules all workers know: each sends its newest rules as it joins, and the
    group's leader sends the oldest of these to all. The rules take the place of a topic among the
    numbers by topic, which members and leader send each other.
    """

    _known_by_all = newest_known().version

    @property
    def _metadata(self) -> ClientMetadata:
        said: ClientMetadata = super()._metadata
        said.topic_groups = {**said.topic_groups, _KNOWN_RULES: newest_known().version}
        return said

    def _perform_assignment(self, cluster: Any, member_metadata: MutableMapping[str, Any]) -> Any:
        said = [self._get_client_metadata(member).topic_groups for member in member_metadata.values()]
        self._known_by_all = min(groups.get(_KNOWN_RULES, min(known_rules())) for groups in said)
        return super()._perform_assignment(cluster, member_metadata)

    def _protocol_assignments(
        self, assignments: Any, cl_distribution: Any, tp_distribution: Any, topic_groups: Mapping[str, int]
    ) -> Any:
        reported = {**topic_groups, _KNOWN_RULES: self._known_by_all}
        return super()._protocol_assignments(assignments, cl_distribution, tp_distribution, reported)

    def rules_known_by_all(self) -> RuleSet:
        """Return the newest rules that every worker of the last assignment knows."""
        version = self._topic_groups.get(_KNOWN_RULES, min(known_rules()))
        return known_rules()[min(version, newest_known().version)].rules

    def on_assignment(self, assignment: Any) -> None:
        """Take an assignment, also one that names this static member's former URL."""
        try:
            super().on_assignment(assignment)
        except AssertionError as error:
            # Faust compares the URLs in its last statement; the assignment has been taken before.
            _log.warning(
                "the assignment names another URL than %(url)s: %(error)s", url=self._url, **error_fields(error)
            )

    def owner_urls(self, topic: str) -> dict[int, str]:
        """Return the URL of the API that answers for each partition of `topic`."""
        return {
            partition: url
            for url, topics in self.external_topic_distribution.items()
            for partition in topics.get(topic, ())
        }

    def worker_urls(self) -> list[str]:
        """Return the URLs of the APIs of all workers, also of those without a partition."""
        return list(self.external_topic_distribution)


class FaustGroup:
    """The consumer group as the control API sees it, answered by Faust."""

    def __init__(self, app: Any, transport: MemberTransport) -> None:
        self._app, self._transport = app, transport

    def owner_urls(self) -> Mapping[int, str]:
        """Return the URL of each partition's owner, from the last assignment."""
        return cast(Assignor, self._app.assignor).owner_urls(self._transport.events_topic)

    def worker_urls(self) -> list[str]:
        """Return the URL of each worker in the last assignment."""
        return cast(Assignor, self._app.assignor).worker_urls()

    def heartbeat_s(self) -> float:
        """Return when the group last acknowledged a heartbeat, on the monotonic clock."""
        return self._transport.heartbeat_s

    def http_client(self) -> ClientSession:
        """Return Faust's HTTP client."""
        client: ClientSession = self._app.http_client
        return client
