"""Rows that a changelog lost are rebuilt: folded again from the log, or taken as they are."""

import asyncio
import dataclasses
from typing import Any

import pytest
from confluent_kafka import Producer

from sessionary.schemas.records import AuditRecord
from sessionary.schemas.settings import KafkaSettings
from sessionary.stream_processors.core.model import POSITION_KEY, Rebuild, RebuildMode
from sessionary.stream_processors.errors import Halted, Lost
from sessionary.stream_processors.runtime import partition_owner
from sessionary.stream_processors.runtime.log_identity import LogClient
from sessionary.stream_processors.runtime.log_probe import find_traces
from sessionary.stream_processors.runtime.partition_owner import PartitionOwner
from sessionary.stream_processors.runtime.rebuild import RebuildPlan, plan_rebuild
from sessionary.stream_processors.runtime.transaction import TransactionWriter
from sessionary.stream_processors.store.stores import MemoryStore
from tests.integration.test_changelog_loss import LossBench, append_to_changelog, changelog
from tests.integration.test_processor_partition import WAIT_S, new_store
from tests.support import read_records, read_topic
from tests.support.pipelines import make_topic_again
from tests.support.reading import Stored

EVENTS: dict[str, list[Stored]] = {}  # of each pipeline, as they were at first


class RebuildBench(LossBench):
    """A partition with forty events, whose owners compare ids and traces as a worker's do."""

    def __init__(self, kafka: KafkaSettings) -> None:
        super().__init__(kafka)
        self.kafka, client = kafka, LogClient(self.settings)
        self.context = dataclasses.replace(
            self.context,
            topic_ids=client.ask_ids,
            changelog_end=client.ask_changelog_end,
            find_traces=lambda partition, position: find_traces(
                self.settings, self.context.job.traces, partition, position
            ),
        )

    def audit(self) -> list[AuditRecord]:
        found = read_records(self.kafka, self.kafka.topics.audit)
        return [one for one in found if isinstance(one, AuditRecord) and one.source_partition == self.partition]

    async def halts(self) -> Halted:
        with pytest.raises(Halted) as caught:
            await self.opens(new_store())
        return caught.value

    async def rebuilds(self, mode: RebuildMode) -> PartitionOwner:
        decision = Rebuild(mode, "lost with broker 3", "on-call")
        owner = PartitionOwner(self.context, self.partition, new_store, None, decision)
        await self.seen(lambda: owner.is_open or owner.task.done())
        if owner.task.done():
            await owner.task
        return owner

    def damage(self, how: str) -> str:
        """Damage the changelog; return the reason of the halt."""
        stored = [one for one in changelog(self.kafka) if one.partition == self.partition]
        rows = [one for one in stored if one.key not in (None, POSITION_KEY)]
        positions = [one for one in stored if one.key == POSITION_KEY]
        if how == "missing":
            append_to_changelog(self.kafka, rows[-1], None)
        elif how == "stale":
            append_to_changelog(self.kafka, rows[0], rows[0].value)
        elif how == "old position":
            append_to_changelog(self.kafka, rows[0], rows[0].value)
            append_to_changelog(self.kafka, positions[0], positions[0].value)
            return "position_lost"
        elif how == "torn position":
            append_to_changelog(self.kafka, positions[-1], positions[-1].value[:-3] if positions[-1].value else None)
            return "changelog_unreadable"
        elif how == "made again":
            make_topic_again(self.kafka, self.kafka.topics.changelog)
            return "position_lost"
        return "changelog_incomplete"


@pytest.mark.parametrize("how", ["missing", "stale", "old position", "torn position", "made again"])
def test_rows_are_folded_again_and_nothing_is_sent_twice(kafka: KafkaSettings, how: str) -> None:
    async def story() -> None:
        bench = RebuildBench(kafka)
        right = (await bench.fold_all()).row_sum
        audited = bench.audit()
        reason = await asyncio.to_thread(bench.damage, how)
        assert (await bench.halts()).reason == reason
        plan = await plan_rebuild(bench.context, bench.partition, "refold", lambda: True)
        assert (await bench.halts()).reason == reason, "a dry run changes nothing"
        owner = await bench.rebuilds("refold")
        store = owner._store
        assert isinstance(store, MemoryStore)
        assert store.count_again() == right
        assert owner.state.position.next_offset == plan.position.next_offset == 40
        (decision,) = [one for one in bench.audit() if one not in audited]
        assert bench.audit() == [*audited, decision]
        assert (decision.event_type, decision.actor) == ("rows_refolded", "on-call")
        assert decision.reason.endswith("judged on from offset 40: lost with broker 3")
        assert [one.event_type for one in owner.state.position.decisions] == ["rows_refolded"]
        owner.request_end()
        await owner.task
        assert (await bench.opens(new_store())).state.position.next_offset == 40, "for every later owner too"
        await bench.close()

    asyncio.run(story())


@pytest.mark.parametrize("how", ["stale", "torn position"])
def test_rows_are_accepted_as_they_are_and_the_partition_goes_on(kafka: KafkaSettings, how: str) -> None:
    async def story() -> None:
        bench = RebuildBench(kafka)
        await bench.fold_all()
        audited = len(bench.audit())
        await asyncio.to_thread(bench.damage, how)
        await bench.halts()
        owner = await bench.rebuilds("accept_rows")
        decision = bench.audit()[-1]
        assert (len(bench.audit()), decision.event_type, decision.source_offset) == (audited + 1, "rows_accepted", 40)
        assert owner.state.position.outage_grace_until_ms == owner.state.position.clock_ms + 25_000
        owner.request_end()
        await owner.task
        assert (await bench.opens(new_store())).state.position.next_offset == 40
        await bench.close()

    asyncio.run(story())


def test_a_whole_changelog_is_not_rebuilt(kafka: KafkaSettings) -> None:
    async def story() -> None:
        bench = RebuildBench(kafka)
        right = (await bench.fold_all()).row_sum
        audited = bench.audit()
        owner = await bench.rebuilds("accept_rows")
        assert owner.decision_left is None
        assert owner._store is not None
        assert owner._store.row_sum == right
        assert bench.audit() == audited
        await bench.close(owner)

    asyncio.run(story())


def test_a_worker_that_lost_the_partition_rebuilds_nothing(
    kafka: KafkaSettings, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def story() -> None:
        bench = RebuildBench(kafka)
        await bench.fold_all()
        await asyncio.to_thread(bench.damage, "missing")
        records = changelog(kafka)
        fence = TransactionWriter(bench.settings, bench.context.job, bench.partition, lambda: True)

        async def plan_late(*arguments: Any) -> RebuildPlan:
            plan = await plan_rebuild(*arguments)
            await asyncio.to_thread(fence.fence_former_owner)  # as another worker does meanwhile
            return plan

        monkeypatch.setattr(partition_owner, "plan_rebuild", plan_late)
        with pytest.raises(Lost):
            await bench.rebuilds("refold")
        assert changelog(kafka) == records
        monkeypatch.undo()
        first = PartitionOwner(bench.context, bench.partition, new_store, None, Rebuild("refold", "why", "alice"))
        second = PartitionOwner(bench.context, bench.partition, new_store, None, Rebuild("refold", "why", "bob"))
        await bench.seen(lambda: all(owner.is_open or owner.task.done() for owner in (first, second)))
        await bench.close(first, second)
        assert len([one for one in bench.audit() if one.kind == "decision"]) == 1, "two at once: one rebuilds"
        fence.discard()

    asyncio.run(story())


def test_topics_that_are_copies_are_accepted_and_others_are_refused(kafka: KafkaSettings) -> None:
    async def story() -> None:
        bench = RebuildBench(kafka)
        right = (await bench.fold_all()).row_sum
        await asyncio.to_thread(copy_events, kafka, 1)
        assert (await bench.halts()).reason == "topic_replaced"
        with pytest.raises(Halted, match="Its offsets must be the same: copy the records so"):
            await bench.rebuilds("accept_topics")
        with pytest.raises(Halted, match="does not have the events of the former one"):
            await bench.rebuilds("refold")
        await asyncio.to_thread(copy_events, kafka, 0)
        owner = await bench.rebuilds("accept_topics")
        assert owner._store is not None
        assert owner._store.row_sum == right
        assert owner.state.position.next_offset == 40
        assert bench.audit()[-1].event_type == "topics_accepted"
        owner.request_end()
        await owner.task
        await bench.opens(new_store())
        await bench.close()

    asyncio.run(story())


def copy_events(kafka: KafkaSettings, first: int) -> None:
    """Make the events topic again, with copies of the former records from the `first` on."""
    records = EVENTS.setdefault(kafka.topic_prefix, read_topic(kafka, kafka.topics.events))
    make_topic_again(kafka, kafka.topics.events)
    producer = Producer(kafka.client_config())
    for record in records:
        if record.offset >= first:
            producer.produce(
                kafka.topics.events, record.value, record.key, record.partition, headers=list(record.headers)
            )
        producer.poll(0)
    for record in records:
        if record.offset < first:  # so the log is as long as the former one
            producer.produce(kafka.topics.events, record.value, record.key, record.partition)
    assert producer.flush(WAIT_S) == 0
