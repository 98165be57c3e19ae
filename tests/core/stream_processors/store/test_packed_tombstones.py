"""What tombstones cost: bytes in the changelog and in memory, over many sessions."""

import tracemalloc
from pathlib import Path

import pytest

from sessionary.schemas.codec import encode_record
from sessionary.schemas.ids import SessionKey, derived_id
from sessionary.schemas.records import Tombstone, TombstoneChunk
from sessionary.stream_processors.core.model import LogRecord
from sessionary.stream_processors.core.session.rows import TOMBSTONE_MS
from sessionary.stream_processors.core.tombstones import ChunkSizes
from sessionary.stream_processors.store.stores import MemoryStore, RocksMemory, RocksStore, Store
from tests.core.oracle_rig import START_MS
from tests.core.store_rig import JOB, StoreRig
from tests.support.event_factory import TICK

COUNT = 40_000
_RECORD_BYTES = 30  # about what Kafka keeps of a record beside key and value


def keys_of(count: int) -> list[bytes]:
    return [SessionKey("acme", derived_id(n)).encoded() for n in range(count)]


def store_with_tombstones(store: Store, keys: list[bytes]) -> StoreRig:
    """Return a fold of a partition whose tombstones all wait to be packed."""
    for n, key in enumerate(keys):
        tenant, session = key.decode().split(":")
        grave = Tombstone(tenant, session, (), "closed", 1, 7, START_MS + TOMBSTONE_MS - n)
        store.load_rows({key: JOB.row_codec.repack(encode_record(grave), None)})
    store.finish_loading()
    return StoreRig(store)


def pack_all(rig: StoreRig) -> None:
    """Let batches with one tick pass until nothing waits to be packed."""
    while len(rig.state.expiries) >= ChunkSizes().chunk_keys:
        rig.fold_records([LogRecord(rig.state.position.next_offset, START_MS, None, TICK)])


def chunk_hashes(rig: StoreRig) -> int:
    rows = (rig.state.rows[key] for key in rig.state.rows)
    return sum(len(row.key_hashes) // 16 for row in rows if isinstance(row, TombstoneChunk))


@pytest.mark.parametrize("kind", ["memory", "rocksdb"])
def test_a_store_has_packed_tombstones_and_is_recovered_with_them(kind: str, tmp_path: Path) -> None:
    def new_store(name: str) -> Store:
        if kind == "memory":
            return MemoryStore(JOB.row_codec)
        return RocksStore(tmp_path / name, JOB.row_codec, RocksMemory(1))

    rig, keys = store_with_tombstones(new_store("first"), keys_of(3_000)), keys_of(3_010)
    pack_all(rig)
    waiting = 3_000 % 512
    assert (len(rig.state.chunks), len(rig.state.expiries)) == (3_000 - waiting, waiting)
    assert rig.store.row_sum == rig.store.count_again()
    for store, changelog in ((rig.store, []), (new_store("second"), rig.compacted_changelog())):
        if store is not rig.store:  # its first rows were never in this changelog
            for key in keys[:3_000]:
                if (stored := rig.store.stored_row(key)) is not None:
                    store.load_rows({key: stored})
        rig.recover_from(store, changelog)
        assert len(rig.state.chunks) == 3_000 - waiting
        known = [rig.state.is_packed(key) or key in rig.state.rows for key in keys]
        assert known == [True] * 3_000 + [False] * 10
        assert chunk_hashes(rig) == 3_000 - waiting


def test_a_tombstone_costs_less_than_40_bytes_in_the_changelog_and_in_memory() -> None:
    keys = keys_of(COUNT)
    rig = store_with_tombstones(MemoryStore(JOB.row_codec), keys)
    pack_all(rig)
    kept = rig.compacted_changelog()
    waiting = len(rig.state.expiries)
    assert sum(isinstance(row, Tombstone) for row in rig.state.rows.values()) == waiting < 512
    kept_bytes = sum(len(entry.key) + len(entry.value or b"") + _RECORD_BYTES for entry in kept)
    assert kept_bytes / (COUNT - waiting) < 18
    stored = {entry.key: entry.value for entry in kept if entry.value is not None}
    del rig, keys
    tracemalloc.start()
    try:
        before = tracemalloc.get_traced_memory()[0]
        store = MemoryStore(JOB.row_codec)
        for key, value in stored.items():
            if not key.startswith(b"\x00"):
                store.load_rows({key: JOB.row_codec.repack(value, None)})
        state = StoreRig(store).state
        taken = tracemalloc.get_traced_memory()[0] - before
    finally:
        tracemalloc.stop()
    assert len(state.chunks) == COUNT - waiting
    assert taken / COUNT < 40
