"""What a rebalance sets off, and what becomes of the offsets of the group, without a broker."""

import asyncio
import time
from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest
from aiokafka.consumer.group_coordinator import GroupCoordinator
from aiokafka.errors import CommitFailedError, ConsumerStoppedError, KafkaError
from aiokafka.structs import OffsetAndMetadata, TopicPartition
from faust.exceptions import ConsumerNotStarted
from faust.transport.drivers import aiokafka as driver
from faust.types.tuples import TP

from sessionary.stream_processors.runtime import faust_transport
from sessionary.stream_processors.runtime.faust_transport import (
    MemberConsumer,
    MemberThread,
    RebalanceListener,
    outlast_error,
)


class FakeMember:
    """A member of the group whose commits end as reported."""

    def __init__(self, error: Exception | None) -> None:
        self.error, self.committed = error, list[object]()

    def _ensure_consumer(self) -> "FakeMember":
        return self

    async def commit(self, offsets: object) -> None:
        if self.error is not None:
            raise self.error
        self.committed.append(offsets)


@pytest.mark.parametrize("error", [CommitFailedError(), ConsumerStoppedError(), ConsumerNotStarted(), TimeoutError()])
def test_offsets_that_are_not_committed_are_reported_so_and_raise_nothing(error: Exception) -> None:
    member: Any = FakeMember(error)
    assert not asyncio.run(MemberThread.commit_offsets(member, {TopicPartition("events", 0): 7}))


def test_offsets_are_committed_as_kafka_has_them() -> None:
    member: Any = FakeMember(None)
    assert asyncio.run(MemberThread.commit_offsets(member, {TopicPartition("events", 0): 7}, "events-1"))
    assert member.committed == [{TopicPartition("events", 0): OffsetAndMetadata(7, "events-1")}]


class FakeCoordinator:
    """A group's coordinator as aiokafka has it, of a static member."""

    def __init__(self) -> None:
        self._group_instance_id: str | None = "w1"
        self.is_member, self.is_cut_short = True, False

    async def close(self) -> None:
        if not self.is_cut_short:
            await self._maybe_leave_group()

    async def _maybe_leave_group(self) -> None:
        self.is_member = self.is_member and self._group_instance_id is not None


@pytest.mark.parametrize("is_cut_short", [False, True])
def test_a_static_member_leaves_its_group(is_cut_short: bool) -> None:
    coordinator = FakeCoordinator()
    coordinator.is_cut_short = is_cut_short
    thread: Any = SimpleNamespace(_consumer=SimpleNamespace(_coordinator=coordinator))
    asyncio.run(MemberThread.leave_group(thread))
    assert not coordinator.is_member


def test_a_member_that_has_not_begun_has_nothing_to_leave() -> None:
    for consumer in (None, SimpleNamespace(_coordinator=None)):
        thread: Any = SimpleNamespace(_consumer=consumer)
        asyncio.run(MemberThread.leave_group(thread))


class FakeTransport:
    """Takes rebalances, in order."""

    events_topic = "events"

    def __init__(self) -> None:
        self.owners = self.transport = self
        self.heartbeat_s = 0.0
        self.calls: list[object] = []

    def begin_rebalance(self) -> None:
        self.calls.append("begin")

    def take_assignment(self, partitions: list[int]) -> None:
        self.calls.append(partitions)


def test_the_owners_learn_of_a_rebalance_when_it_begins_and_when_it_ends() -> None:
    transport: Any = FakeTransport()
    assigned = {TP("events", 2), TP("other", 1)}
    asyncio.run(RebalanceListener.on_partitions_revoked(transport, {TP("events", 0)}))
    asyncio.run(RebalanceListener.on_rebalance(transport, assigned, {TP("events", 0)}, assigned))
    assert transport.calls == ["begin", [2]]


def test_an_assignment_is_an_answer_of_the_group() -> None:
    transport: Any = FakeTransport()
    begun_s = time.monotonic()
    asyncio.run(RebalanceListener.on_rebalance(transport, set(), set(), set()))
    assert transport.heartbeat_s >= begun_s


def test_the_events_are_paused_before_the_assignment_is_passed_on(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[object] = []

    async def pass_on(self: object, assigned: set[TP], generation_id: int) -> None:
        calls.append(("assigned", assigned, generation_id))

    thread: Any = object.__new__(MemberThread)
    thread.transport = FakeTransport()
    thread._consumer = SimpleNamespace(pause=lambda *places: calls.append(("paused", set(places))))
    monkeypatch.setattr(driver.AIOKafkaConsumerThread, "on_partitions_assigned", pass_on)
    assigned = {TP("events", 2), TP("events", 3), TP("other", 1)}
    asyncio.run(MemberThread.on_partitions_assigned(thread, assigned, 7))
    assert calls == [("paused", {TP("events", 2), TP("events", 3)}), ("assigned", assigned, 7)]


def test_faust_does_not_complain_that_events_are_not_fetched(monkeypatch: pytest.MonkeyPatch) -> None:
    looked: list[TP] = []
    monkeypatch.setattr(driver.Consumer, "verify_event_path", lambda self, now, tp: looked.append(tp))
    consumer: Any = object.__new__(MemberConsumer)
    consumer.transport = FakeTransport()
    for place in (TP("events", 2), TP("other", 1)):
        MemberConsumer.verify_event_path(consumer, 0.0, place)
    assert looked == [TP("other", 1)]


def joining_coordinator(failures: int) -> Any:
    """Return a coordinator with aiokafka's own loop, whose first joins fail; the next ends it."""
    coordinator: Any = object.__new__(GroupCoordinator)
    coordinator.joins = 0
    coordinator._closing = asyncio.get_running_loop().create_future()
    coordinator._subscription = SimpleNamespace(
        subscription=SimpleNamespace(active=True, assignment=None),
        partitions_auto_assigned=lambda: True,
        abort_waiters=lambda error: None,
    )
    coordinator._heartbeat_task = coordinator._commit_refresh_task = None

    async def find_coordinator() -> None:
        """It is known."""

    async def join(subscription: object, former: object) -> None:
        coordinator.joins += 1
        if coordinator.joins <= failures:
            raise KafkaError("UnknownError()")
        coordinator._closing.set_result(None)

    coordinator.ensure_coordinator_known, coordinator.ensure_active_group = find_coordinator, join
    coordinator.need_rejoin = lambda subscription: True
    return coordinator


def test_a_member_whose_joins_fail_tries_again(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(faust_transport, "_REJOIN_PAUSE_S", 0.01)

    async def story() -> int:
        coordinator = joining_coordinator(3)
        coordinator._push_error_to_user = partial(outlast_error, coordinator)
        await asyncio.wait_for(coordinator._coordination_routine(), 60.0)
        joins: int = coordinator.joins
        return joins

    assert asyncio.run(story()) == 4
    assert caplog.text.count("the group does not take this member: KafkaError") == 3


def test_by_itself_a_member_waits_for_a_reader_that_takes_the_error() -> None:
    """If it no longer does, `outlast_error` is not needed any more."""

    async def story() -> int:
        coordinator = joining_coordinator(3)
        member = asyncio.create_task(coordinator._coordination_routine())
        async with asyncio.timeout(60.0):
            while not hasattr(coordinator, "_error_consumed_fut"):
                await asyncio.sleep(0)
        for _ in range(100):
            await asyncio.sleep(0)
        joins: int = coordinator.joins
        coordinator._closing.set_result(None)
        await member
        return joins

    assert asyncio.run(story()) == 1


@pytest.mark.parametrize(("is_done", "asked"), [(True, 1), (False, 0), (None, 0)])
def test_a_member_joins_again_if_its_heartbeats_have_ended(
    is_done: bool | None, asked: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(faust_transport, "_REJOIN_PAUSE_S", 0.01)
    calls: list[bool] = []

    async def story() -> None:
        coordinator = SimpleNamespace(
            _closing=asyncio.get_running_loop().create_future(),
            _heartbeat_task=None if is_done is None else SimpleNamespace(done=lambda: is_done),
            request_rejoin=lambda: calls.append(True),
        )
        await outlast_error(coordinator, KafkaError("reported so"))

    asyncio.run(story())
    assert len(calls) == asked
