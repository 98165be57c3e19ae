"""A changelog that lost rows: the partition halts by name, and its rows are not taken for all."""

import asyncio
from collections.abc import Sequence

import pytest
from confluent_kafka import Producer

from sessionary.schemas.codec import Decoder
from sessionary.schemas.records import Position
from sessionary.schemas.settings import KafkaSettings
from sessionary.stream_processors.core.model import POSITION_KEY, LogRecord
from sessionary.stream_processors.errors import Halted
from sessionary.stream_processors.runtime.partition_owner import PartitionOwner
from sessionary.stream_processors.store.stores import MemoryStore, Store
from tests.integration.test_processor_partition import WAIT_S, Bench, new_store
from tests.support import read_topic
from tests.support.reading import Stored


def changelog(kafka: KafkaSettings) -> Sequence[Stored]:
    return read_topic(kafka, kafka.topics.changelog)


def append_to_changelog(kafka: KafkaSettings, like: Stored, value: bytes | None) -> None:
    producer = Producer(kafka.client_config())
    producer.produce(kafka.topics.changelog, value, like.key, like.partition, headers=list(like.headers))
    assert producer.flush(120) == 0


class EpochRecord(LogRecord):
    """A record of a leader's third term."""

    @property
    def leader_epoch(self) -> int:
        return 3


class LossBench(Bench):
    """Forty records are folded in two transactions."""

    def own_with(self, store: Store) -> PartitionOwner:
        return PartitionOwner(self.context, self.partition, lambda: store, None)

    async def fold_all(self) -> MemoryStore:
        store = new_store()
        owner = self.own_with(store)
        await self.seen(lambda: owner.is_open)
        for records in (self.log[:20], self.log[20:]):
            owner.offer_records(records[0].offset, [EpochRecord(*record) for record in records])
            assert await owner.wait_until_committed(records[-1].offset, WAIT_S)
        owner.request_end()
        await owner.task
        return store

    async def opens(self, store: Store) -> PartitionOwner:
        owner = self.own_with(store)
        await self.seen(lambda: owner.is_open or owner.task.done())
        if owner.task.done():
            await owner.task
        owner.request_end()
        await owner.task
        return owner


def test_a_position_counts_the_rows(kafka: KafkaSettings) -> None:
    async def story() -> None:
        bench = LossBench(kafka)
        store = await bench.fold_all()
        stored = [
            record for record in changelog(kafka) if record.key == POSITION_KEY and record.partition == bench.partition
        ]
        position = Decoder().decode_record(stored[-1].value)
        assert isinstance(position, Position)
        known = (position.leader_epoch, position.row_count, position.row_checksum)
        kept = store.row_sum
        counted = store.count_again()
        assert kept == counted
        assert known == (3, *counted)
        assert counted.rows == 1
        for again in (store, new_store()):
            owner = await bench.opens(again)
            assert owner.state.position == position
        await bench.close()

    asyncio.run(story())


@pytest.mark.parametrize("lost", ["missing", "stale"])
def test_a_changelog_without_its_newest_rows_halts_the_partition(kafka: KafkaSettings, lost: str) -> None:
    async def story() -> None:
        bench = LossBench(kafka)
        await bench.fold_all()
        rows = [record for record in changelog(kafka) if record.key not in (None, POSITION_KEY)]
        append_to_changelog(kafka, rows[0], None if lost == "missing" else rows[0].value)
        with pytest.raises(Halted) as caught:
            await bench.opens(new_store())
        assert caught.value.reason == "changelog_incomplete"
        assert "counts 1 rows" in caught.value.detail
        append_to_changelog(kafka, rows[-1], rows[-1].value)  # the row comes back, and the partition opens
        await bench.opens(new_store())
        await bench.close()

    asyncio.run(story())


def test_a_store_that_differs_from_the_changelog_is_filled_from_the_start(kafka: KafkaSettings) -> None:
    async def story() -> None:
        bench = LossBench(kafka)
        store = await bench.fold_all()
        right = store.row_sum
        (key, _), *_ = store.rows.items()
        store.load_rows({key: None})
        await bench.opens(store)
        assert store.row_sum == right
        assert list(store.rows) == [key]
        await bench.close()

    asyncio.run(story())
