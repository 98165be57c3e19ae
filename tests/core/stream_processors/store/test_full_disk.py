"""A full disk of RocksDB halts by name, and its database is opened again once there is room."""

import errno
import os
import time
from pathlib import Path
from typing import Any

import pytest

from sessionary.schemas.records import Position
from sessionary.stream_processors.core.families import SESSION_JUDGE
from sessionary.stream_processors.errors import Halted
from sessionary.stream_processors.settings import ProcessorSettings
from sessionary.stream_processors.store.packed_rows import FamilyCodec
from sessionary.stream_processors.store.stores import PartitionStores, RocksStore, SavedPosition, halt_if_disk_full

SAVED = SavedPosition(Position(5, 1, 0, 2, 0), 11, time.time())
NO_SPACE = f"IO error: {os.strerror(errno.ENOSPC)}: While appending to file: 000004.log"


class FullDiskDatabase:
    """A database that injects the error of a full disk into each write, also if there is room."""

    def __init__(self, database: Any) -> None:
        self._database = database

    def write(self, _batch: object) -> None:
        raise Exception(NO_SPACE)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._database, name)


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT])
def test_an_error_of_a_full_disk_halts_and_names_folder_and_remedy(number: int) -> None:
    with pytest.raises(Halted) as raised, halt_if_disk_full(Path("/state/p-3")):
        raise OSError(number, os.strerror(number))
    assert raised.value.reason == "store_disk_full"
    assert "/state/p-3" in raised.value.detail
    assert "SESSIONARY_STATE_DIR" in raised.value.detail


def test_another_error_of_a_store_stays_as_it_is() -> None:
    with pytest.raises(OSError, match="Permission denied"), halt_if_disk_full(Path("/state")):
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))


def test_a_store_that_failed_for_a_full_disk_is_opened_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stores = PartitionStores(ProcessorSettings(store="rocksdb"), tmp_path, FamilyCodec(SESSION_JUDGE.families))
    store = stores.store_of(3)
    assert isinstance(store, RocksStore)
    store.save_rows({b"a": b"one"}, SAVED)
    monkeypatch.setattr(store, "_db", FullDiskDatabase(store._db))
    with pytest.raises(Halted, match="store_disk_full"):
        store.save_rows({b"b": b"two"}, SAVED._replace(changelog_next=12))
    again = stores.store_of(3)
    assert again is not store
    assert (again.stored_row(b"a"), again.stored_row(b"b")) == (b"one", None)
    assert again.saved_position is not None
    assert again.saved_position.changelog_next == 11
    again.save_rows({b"b": b"two"}, SAVED._replace(changelog_next=12))
    assert stores.store_of(3) is again
    stores.close()


def test_loaded_rows_on_a_full_disk_halt_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = PartitionStores(ProcessorSettings(store="rocksdb"), tmp_path, FamilyCodec(SESSION_JUDGE.families)).store_of(
        0
    )
    assert isinstance(store, RocksStore)
    monkeypatch.setattr(store, "_db", FullDiskDatabase(store._db))
    store.load_rows({b"a": b"one"})
    with pytest.raises(Halted, match="store_disk_full"):
        store.finish_loading()
    assert store.has_failed
    store.close()
