"""Packed tombstones in a real changelog: written once packed, recovered by each new owner."""

import asyncio
from collections.abc import Callable
from pathlib import Path

import pytest

from sessionary.schemas.ids import SessionKey, derived_id
from sessionary.schemas.records import Tombstone
from sessionary.schemas.settings import KafkaSettings
from sessionary.stream_processors.core.session.rows import TOMBSTONE_MS
from sessionary.stream_processors.core.tombstones import is_chunk_key
from sessionary.stream_processors.runtime.partition_owner import PartitionOwner
from sessionary.stream_processors.store.packed_rows import FamilyCodec
from sessionary.stream_processors.store.stores import MemoryStore, RocksMemory, RocksStore, Store
from tests.integration.test_changelog_loss import LossBench, changelog
from tests.integration.test_processor_partition import WAIT_S
from tests.support.judges import JUDGE

KEYS = [SessionKey("acme", derived_id(n)).encoded() for n in range(700)]


def new_memory_store(_folder: Path) -> Store:
    return MemoryStore(FamilyCodec(JUDGE.families))


def new_rocks_store(folder: Path) -> Store:
    return RocksStore(folder, FamilyCodec(JUDGE.families), RocksMemory(1))


def bury_sessions(owner: PartitionOwner, now_ms: int) -> None:
    """Let the owner's partition have tombstones that no transaction has written."""
    for key in KEYS:
        tenant, session = key.decode().split(":")
        owner.state.load(key, Tombstone(tenant, session, (), "closed", 1, 7, now_ms + TOMBSTONE_MS))
    owner.state.finish_loading()


@pytest.mark.parametrize("make_store", [new_memory_store, new_rocks_store])
def test_packed_tombstones_come_back_with_each_store(
    kafka: KafkaSettings, tmp_path: Path, make_store: Callable[[Path], Store]
) -> None:
    async def story() -> None:
        bench = LossBench(kafka)
        store = make_store(tmp_path / "first")
        owner = bench.own_with(store)
        await bench.seen(lambda: owner.is_open)
        bury_sessions(owner, bench.log[0].timestamp_ms)
        owner.offer_records(bench.log[0].offset, bench.log)
        assert await owner.wait_until_committed(bench.log[-1].offset, WAIT_S)
        packed = len(owner.state.chunks)
        assert packed == 512
        held = [owner.state.is_packed(key) for key in KEYS]
        owner.request_end()
        await owner.task
        assert store.row_sum == store.count_again()
        records = [stored for stored in changelog(kafka) if is_chunk_key(stored.key or b"")]
        assert sum(len(stored.value or b"") for stored in records) < 18 * packed
        for again in (store, make_store(tmp_path / "second")):
            owner = bench.own_with(again)
            await bench.seen(lambda owner=owner: owner.is_open)  # type: ignore[misc]
            assert [owner.state.is_packed(key) for key in KEYS] == held
            owner.request_end()
            await owner.task
        await bench.close()

    asyncio.run(story())
