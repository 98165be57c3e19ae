"""What the stores keep, what a reader sees meanwhile, and when a store may be continued."""

import time
from pathlib import Path
from typing import Any, cast

import pytest
from rocksdict import Rdict

from sessionary.schemas.codec import encode_position
from sessionary.schemas.records import Position, Tombstone
from sessionary.schemas.rules import NEWEST_RULES
from sessionary.schemas.types import Limits
from sessionary.stream_processors.core.families import SESSION_JUDGE
from sessionary.stream_processors.core.model import POSITION_KEY, LogRecord
from sessionary.stream_processors.core.session.effects import SessionRow
from sessionary.stream_processors.settings import ProcessorSettings
from sessionary.stream_processors.store.cached_rows import CachedRows
from sessionary.stream_processors.store.packed_rows import FamilyCodec
from sessionary.stream_processors.store.stores import (
    SAVED_AGE_MAX_S,
    MemoryStore,
    PartitionStores,
    RocksMemory,
    RocksStore,
    SavedPosition,
    Store,
    is_usable,
    temporary_state_folder,
)
from tests.core.oracle_rig import START_MS
from tests.core.store_rig import StoreRig
from tests.support.event_factory import TICK, EventFactory, snapshot
from tests.support.waiting import wait_until

ROWS = FamilyCodec(SESSION_JUDGE.families)
RULES = NEWEST_RULES.version
DAY_MS = 86_400_000
SAVED = SavedPosition(Position(9, 1, 0, 2, 0), 21, 5.0)


def stone(name: str, epoch: int = 1) -> Tombstone:
    return Tombstone("acme", name, (), "closed", epoch, 7, 99)


@pytest.fixture(params=["memory", "rocksdb"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Store:
    return MemoryStore(ROWS) if request.param == "memory" else RocksStore(tmp_path / "rows", ROWS, RocksMemory(1))


def test_both_stores_are_the_same_mapping(store: Store) -> None:
    """R-003-83: the store is a choice, and changes no answer."""
    rows = store.rows
    for name in ("a", "b", "c"):
        rows[name.encode()] = stone(name)
    saved = SavedPosition(Position(5, 1, 0, 2, 0), 11, time.time())
    store.save_rows({name.encode(): ROWS.pack(stone(name), RULES).stored for name in ("a", "b", "c")}, saved)
    rows[b"a"] = stone("a", epoch=2)
    assert rows.pop(b"b", None) is not None
    assert rows.pop(b"none", None) is None
    assert rows[b"a"].epoch == 2
    assert sorted(rows) == [b"a", b"c"]
    assert len(rows) == 2
    store.save_rows(
        {b"a": ROWS.pack(stone("a", epoch=2), RULES).stored, b"b": None},
        saved._replace(changelog_next=12),
    )
    assert {key: row.epoch for key, row in rows.items()} == {b"a": 2, b"c": 1}
    assert store.saved_position is not None
    assert (store.saved_position.changelog_next, store.saved_position.position.next_offset) == (12, 5)
    with pytest.raises(KeyError):
        rows[b"b"]
    store.wipe()
    assert store.saved_position is None
    assert list(store.rows) == []
    store.close()


def test_rocksdb_keeps_only_what_was_saved(tmp_path: Path) -> None:
    first = RocksStore(tmp_path, ROWS, RocksMemory(1))
    first.rows[b"kept"] = stone("kept")
    first.save_rows(
        {b"kept": ROWS.pack(stone("kept"), RULES).stored},
        SavedPosition(Position(9, 1, 0, 2, 0), 21, 5.0),
    )
    first.rows[b"merged, not saved"] = stone("lost")
    first.close()
    again = RocksStore(tmp_path, ROWS, RocksMemory(1))
    assert again.saved_position == SavedPosition(Position(9, 1, 0, 2, 0), 21, 5.0)
    assert list(again.rows) == [b"kept"]
    again.close()


def test_a_database_of_the_form_of_release_0_1_0_is_filled_anew(tmp_path: Path) -> None:
    former = Rdict(str(tmp_path), options=RocksMemory(1).database_options())
    former[POSITION_KEY] = encode_position(SAVED.position)
    former[b"\x00changelog"] = b"[21, 5.0]"
    former.close()
    store = RocksStore(tmp_path, ROWS, RocksMemory(1))
    assert not is_usable(store.saved_position, 0, 100, now_s=6.0)
    store.wipe()
    store.save_rows({b"a": None}, SAVED)
    store.close()
    former = Rdict(str(tmp_path), options=RocksMemory(1).database_options())
    assert (former.get(POSITION_KEY), former.get(b"\x00changelog")) == (encode_position(SAVED.position), None)
    former.close()


def test_a_key_of_the_store_s_own_has_no_row(store: Store) -> None:
    """Any client may send a record with such a key, and the fold looks up its row."""
    store.save_rows({b"a": ROWS.pack(stone("a"), RULES).stored}, SavedPosition(Position(9, 1, 0, 2, 0), 21, 5.0))
    for key in (POSITION_KEY, b"\x00changelog"):
        assert store.rows.get(key) is None
    assert list(store.rows) == [b"a"]
    store.close()


def test_a_reader_of_rocksdb_sees_a_row_while_it_is_being_saved(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(CachedRows, "RECENT_MAX", 0)
    store = RocksStore(tmp_path, ROWS, RocksMemory(1))
    store.rows[b"a"] = stone("a")

    class SavedMeanwhile(dict[bytes, SessionRow | None]):
        """The writer's thread gets its turn between a reader's two looks."""

        def __contains__(self, key: object) -> bool:
            found = super().__contains__(key)
            store.save_rows(
                {b"a": ROWS.pack(stone("a"), RULES).stored},
                SavedPosition(Position(9, 1, 0, 2, 0), 21, 5.0),
            )
            return found

    store.rows.unsaved = SavedMeanwhile(store.rows.unsaved)
    row = store.rows.get(b"a")
    assert row is not None
    assert row.session_id == "a"
    store.close()


@pytest.mark.parametrize(
    ("changelog_next", "age_s", "worth"),
    [
        (10, 0.0, True),
        (20, 0.0, True),
        (9, 0.0, False),  # the changelog begins later
        (21, 0.0, False),  # ahead of the log: the changelog is another one
        (15, SAVED_AGE_MAX_S, False),  # deletions may be gone
        (15, -1.0, False),  # saved in the future: some clock is wrong
    ],
)
def test_a_store_is_usable_within_the_changelog_and_while_young(changelog_next: int, age_s: float, worth: bool) -> None:
    saved = SavedPosition(Position(0, 0, 0, 0, 0), changelog_next, 1_000_000.0)
    assert is_usable(saved, 10, 20, 1_000_000.0 + age_s) is worth
    assert not is_usable(None, 0, 0)


def test_a_process_keeps_a_partition_s_store_until_it_is_closed(tmp_path: Path) -> None:
    settings = ProcessorSettings(store="rocksdb")
    stores = PartitionStores(settings, tmp_path, ROWS)
    store = stores.store_of(3)
    assert isinstance(store, RocksStore)
    assert stores.store_of(3) is store
    assert stores.store_of(2) is not store
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        f"{settings.topic_prefix}-2",
        f"{settings.topic_prefix}-3",
    ]
    stores.close_store(3)
    assert stores.store_of(3) is not store
    stores.close()
    assert isinstance(PartitionStores(ProcessorSettings(), None, ROWS).store_of(0), MemoryStore)


def test_only_rocksdb_without_a_folder_needs_a_temporary_one(tmp_path: Path) -> None:
    assert temporary_state_folder(ProcessorSettings()) is None
    assert temporary_state_folder(ProcessorSettings(store="rocksdb", state_dir=tmp_path)) is None
    folder = temporary_state_folder(ProcessorSettings(store="rocksdb"))
    assert folder is not None
    with folder as name:
        assert Path(name).is_dir()


def test_databases_of_a_process_share_bounded_memory(tmp_path: Path) -> None:
    stores = PartitionStores(ProcessorSettings(store="rocksdb", partitions=16), tmp_path, ROWS)
    opened = [stores.store_of(partition) for partition in range(16)]

    def buffered_bytes() -> int:
        return sum(
            cast("RocksStore", store)._db.property_int_value("rocksdb.cur-size-all-mem-tables") or 0 for store in opened
        )

    for store in opened:
        assert isinstance(store, RocksStore)
        assert store._db.property_int_value("rocksdb.block-cache-capacity") == RocksMemory.CACHE_BYTES_MAX
        for row in range(60):
            store.load_rows({b"%d" % row: bytes(500_000)})
        store.finish_loading()
    # A buffer may exceed its size by one batch of writes.
    wait_until(lambda: buffered_bytes() <= RocksMemory.BUFFERS_BYTES_MAX, 30, "flushes")
    stores.close()


def test_loaded_rows_are_written_before_they_take_much_memory(tmp_path: Path) -> None:
    store = RocksStore(tmp_path, ROWS, RocksMemory(1))
    held = []
    for row in range(50):
        store.load_rows({b"%d" % row: bytes(500_000)})
        held.append(sum(len(stored or b"") for stored in store._unwritten.values()))
    assert max(held) <= RocksStore.BATCH_BYTES
    store.finish_loading()
    assert len(store.rows) == 50
    store.close()


def test_bytes_by_layer_are_those_on_the_shelf(store: Store) -> None:
    rig = StoreRig(store)
    agents = [EventFactory(f"s{number}") for number in range(5)]
    offset = 0

    def fold(agent: EventFactory, event_type: str, **fields: Any) -> None:
        nonlocal offset
        value = agent.event_bytes(event_type, **fields)
        rig.fold_records([LogRecord(offset, START_MS + offset, agent.key.encoded(), value)])
        offset += 1

    for agent in agents:
        digits = "1" * (2_000 if agent is agents[0] else 1)
        fold(agent, "session_created", snapshot=snapshot("first", f'{{"a":{digits}}}'))
    fold(agents[1], "session_start_failed")
    followed = dict(store.rows.layer_bytes)
    assert list(store.rows.due_rows()), "counts again"
    assert followed == store.rows.layer_bytes
    found = store.rows.layer_bytes
    assert found["rows"] > 1_000
    assert found["contents"] > 2_000


def test_a_row_leaves_the_store_a_day_after_its_end_and_a_younger_one_is_there_after_a_restart(tmp_path: Path) -> None:
    """R-003-34: the limit `archive_delay_ms` is the time of this tier; a tombstone stays."""
    first = RocksStore(tmp_path, ROWS, RocksMemory(1))
    rig, offset = StoreRig(first), 0
    old, young = EventFactory("old"), EventFactory("young")

    def append(at_ms: int, key: bytes | None, value: bytes) -> None:
        nonlocal offset
        rig.fold_records([LogRecord(offset, at_ms, key, value)])
        offset += 1

    for agent, at_ms in ((old, START_MS), (young, START_MS + DAY_MS // 2)):
        key = agent.key.encoded()
        append(at_ms, key, agent.event_bytes("session_created", limits=Limits(archive_delay_ms=DAY_MS)))
        append(at_ms, key, agent.event_bytes("session_start_failed"))
        (cleanup,) = rig.state.rows[key].cleanups
        append(at_ms, key, agent.event_bytes("resources_released", cleanup_id=cleanup.cleanup_id))
    for second in range(-60, 0):
        append(START_MS + DAY_MS + second * 1_000, None, TICK)
    assert rig.state.rows[old.key.encoded()].state == "Terminated"
    append(START_MS + DAY_MS, None, TICK)
    assert isinstance(rig.state.rows[old.key.encoded()], Tombstone)
    first.close()
    again = RocksStore(tmp_path, ROWS, RocksMemory(1))
    rig.recover_from(again, [])
    assert isinstance(again.rows[old.key.encoded()], Tombstone)
    assert (again.rows[young.key.encoded()].state, again.rows[young.key.encoded()].state_json) == ("Terminated", "{}")
    again.close()


def test_a_tombstone_is_a_layer_of_its_own(store: Store) -> None:
    assert list(store.rows.due_rows()) == []
    for name, epoch in (("a", 1), ("b", 1), ("a", 2)):
        packed = ROWS.pack_changes({name.encode(): stone(name, epoch)}, RULES)
        rows = {key: row and row.stored for key, row in packed.items()}
        store.sum_with(rows)
        store.save_rows(rows, SAVED)
    size = store.rows.layer_bytes["tombstones"]
    assert (size > 20, store.rows.layer_bytes["rows"]) == (True, 0)
    store.sum_with({b"a": None})
    store.save_rows({b"a": None}, SAVED)
    assert 0 < store.rows.layer_bytes["tombstones"] < size
