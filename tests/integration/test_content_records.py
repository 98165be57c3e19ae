"""A large content in the changelog: written once, recovered by each new owner, missed if lost."""

import asyncio
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from sessionary.schemas.codec import encode_record
from sessionary.schemas.events import StateUpdated
from sessionary.schemas.records import SessionState
from sessionary.schemas.settings import KafkaSettings
from sessionary.stream_processors.core.model import LogRecord
from sessionary.stream_processors.errors import Halted
from sessionary.stream_processors.runtime.partition_owner import PartitionOwner
from sessionary.stream_processors.store.packed_rows import CONTENT_SUFFIX, FamilyCodec
from sessionary.stream_processors.store.stores import RocksMemory, RocksStore, Store
from tests.integration.processor_load import Sender, agent_of_partition
from tests.integration.test_changelog_loss import LossBench, append_to_changelog, changelog
from tests.integration.test_processor_partition import WAIT_S, new_store
from tests.support import read_topic
from tests.support.judges import JUDGE
from tests.support.reading import Stored

STATE_JSON = '{"a":"' + 200_000 * "a" + '"}'
BATCHES = 10


class ContentBench(LossBench):
    """A session with a content of 200 kB and `BATCHES` batches of work."""

    def __init__(self, kafka: KafkaSettings) -> None:
        super().__init__(kafka, events=5)
        agent, sender = agent_of_partition(self.partition, kafka.partitions), Sender(kafka)
        self.key = agent.key.encoded()
        update = StateUpdated(base_version=1, new_version=2, state_json=STATE_JSON)
        work = (agent.work() for _ in range(2 * BATCHES))
        sender.send(*agent.start(), agent.event(update), *work)
        sender.flush()
        self.log = [
            LogRecord(stored.offset, stored.timestamp_ms, stored.key, stored.value, stored.headers)
            for stored in read_topic(kafka, kafka.topics.events)
            if stored.partition == self.partition
        ]

    async def fold_log(self, store: Store) -> bytes:
        """Fold the log in batches; return the session's row."""
        owner = self.own_with(store)
        await self.seen(lambda: owner.is_open)
        first = len(self.log) - 2 * BATCHES
        for start in (0, *range(first, len(self.log), 2)):
            records = self.log[start : start + 2 if start else first]
            owner.offer_records(records[0].offset, records)
            assert await owner.wait_until_committed(records[-1].offset, WAIT_S)
        row = row_bytes(owner, self.key)
        owner.request_end()
        await owner.task
        return row

    async def recovered_row(self, store: Store) -> bytes:
        """Return the session's row as a new owner has it."""
        owner = self.own_with(store)
        await self.seen(lambda: owner.is_open)
        assert owner.state.position.row_count == 3
        row = row_bytes(owner, self.key)
        owner.request_end()
        await owner.task
        return row


def row_bytes(owner: PartitionOwner, key: bytes) -> bytes:
    row = owner.state.rows[key]
    assert isinstance(row, SessionState)
    assert row.state_json == STATE_JSON
    return encode_record(row)


def contents(kafka: KafkaSettings) -> Sequence[Stored]:
    return [stored for stored in changelog(kafka) if (stored.key or b"").endswith(CONTENT_SUFFIX)]


def new_memory_store(_folder: Path) -> Store:
    return new_store()


def new_rocks_store(folder: Path) -> Store:
    return RocksStore(folder, FamilyCodec(JUDGE.families), RocksMemory(1))


@pytest.mark.parametrize("make_store", [new_memory_store, new_rocks_store])
def test_a_content_is_written_once_and_comes_back_with_its_row(
    kafka: KafkaSettings, tmp_path: Path, make_store: Callable[[Path], Store]
) -> None:
    async def story() -> None:
        bench = ContentBench(kafka)
        store = make_store(tmp_path / "first")
        row = await bench.fold_log(store)
        assert [content.key for content in contents(kafka)] == [bench.key + CONTENT_SUFFIX]
        rests = [stored for stored in changelog(kafka) if stored.key == bench.key]
        assert len(rests) == BATCHES + 1
        assert max(len(stored.value or b"") for stored in rests) < 1_000
        assert store.row_sum == store.count_again()
        assert store.row_sum.rows == 3  # two sessions and a content
        for again in (store, make_store(tmp_path / "second")):
            assert await bench.recovered_row(again) == row
        await bench.close()

    asyncio.run(story())


def test_a_changelog_without_a_content_halts_the_partition(kafka: KafkaSettings) -> None:
    async def story() -> None:
        bench = ContentBench(kafka)
        await bench.fold_log(new_store())
        (content,) = contents(kafka)
        append_to_changelog(kafka, content, None)
        with pytest.raises(Halted) as caught:
            await bench.opens(new_store())
        assert caught.value.reason == "changelog_incomplete"
        append_to_changelog(kafka, content, content.value)
        await bench.opens(new_store())
        await bench.close()

    asyncio.run(story())
