"""Where a partition's rows live between transactions: in memory, or in RocksDB.

A store is a cache of the changelog and never ahead of it: it is written after the transaction's
acknowledgement, and it knows up to which changelog offset it holds. An opening partition reads the
changelog from there. A store that is too old, or whose changelog no longer exists, is emptied and
filled from the beginning.

    store.saved_position    up to where the store holds the changelog; None: it is empty
    store.loading_mark      how far a recovery has come that has not ended
    store.load_rows(…)      rows from the changelog, then store.finish_loading()
    store.rows              the mapping for the fold
    store.save_rows(…)      save merged rows, position and changelog offset atomically
    store.wipe()            remove everything
    store.stored_row(…)     the store's bytes under a key
    store.row_sum           number and checksum of the rows, once they are counted
"""

import contextlib
import errno
import json
import os
import shutil
import struct
import tempfile
import threading
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final, NamedTuple, Protocol, cast

from sessionary.schemas.codec import Decoder, encode_position
from sessionary.schemas.records import Position
from sessionary.schemas.telemetry.role_logs import error_fields, role_logger
from sessionary.stream_processors.core.model import POSITION_KEY
from sessionary.stream_processors.errors import Halted
from sessionary.stream_processors.settings import ProcessorSettings
from sessionary.stream_processors.store.cached_rows import CachedRows
from sessionary.stream_processors.store.packed_rows import RowCodec, RowSum, RowSurvey, sum_rows
from sessionary.stream_processors.store.shelves import MemoryShelf, RocksShelf

# The memory that the RocksDB databases of a process share.


class RocksMemory:
    """The memory of all databases of a process, however many partitions it owns.

    RocksDB's defaults are 160 MiB for each partition's database.
    """

    CACHE_BYTES_MAX = 64 << 20  # of blocks read from files
    BUFFERS_BYTES_MAX = 256 << 20  # of rows that no file has yet
    _BUFFERS = 2  # of a database: one is filled while the other is written
    _BUFFER_BYTES = range(1 << 20, 16 << 20)

    def __init__(self, partitions: int) -> None:
        """`partitions`: how many databases there may be."""
        from rocksdict import Cache  # an extra that the memory store does not need

        self._cache = Cache(self.CACHE_BYTES_MAX)
        share = self.BUFFERS_BYTES_MAX // (self._BUFFERS * partitions)
        self._buffer_bytes = min(max(share, self._BUFFER_BYTES.start), self._BUFFER_BYTES.stop)

    def database_options(self) -> Any:
        """Return the options of a database that shares this memory."""
        from rocksdict import BlockBasedOptions, Options

        tables = BlockBasedOptions()
        tables.set_block_cache(self._cache)
        options = Options(raw_mode=True)
        options.set_block_based_table_factory(tables)
        options.set_write_buffer_size(self._buffer_bytes)
        options.set_max_write_buffer_number(self._BUFFERS)
        return options


# The room on the disk of a local store.


# RocksDB and its driver have no error class for them; both quote the operating system.
_TEXTS: Final = tuple(os.strerror(number) for number in (errno.ENOSPC, errno.EDQUOT))


def free_bytes(folder: Path | None) -> int | None:
    """Return the free bytes on a folder's disk; None for no folder, or if it cannot be reported."""
    with contextlib.suppress(OSError):
        return None if folder is None else shutil.disk_usage(folder).free
    return None


@contextmanager
def halt_if_disk_full(folder: Path) -> Iterator[None]:
    """Raise `Halted` (`store_disk_full`) if the body fails because of a full disk."""
    try:
        yield
    except Exception as error:
        if not any(text in str(error) for text in _TEXTS):
            raise
        raise Halted(
            "store_disk_full",
            f"no room is left on the disk of the local store {folder}. Make room there, or restart this worker with a "
            "SESSIONARY_STATE_DIR on a larger disk. Nothing is lost: the partition continues once it can be written",
        ) from error


# Up to where a store holds its changelog, and whether it may continue from there.


# Kafka keeps deletions for one day (delete.retention.ms): an older store could miss a deletion.
SAVED_AGE_MAX_S = 43_200


class SavedPosition(NamedTuple):
    """Up to where a store holds the changelog.

    As the mark of an unfinished recovery: how far it has read, the last position record that it has
    read (zeros if none), and since when it must find every deletion. This is when the recovery
    first began, or when the position was saved from which it continued.
    """

    position: Position
    changelog_next: int  # the first changelog offset that the store does not hold
    saved_s: float  # when it was saved, seconds since the epoch


def is_usable(saved: SavedPosition | None, changelog_low: int, changelog_end: int, now_s: float | None = None) -> bool:
    """Return True if a store may be filled from its saved position on; otherwise it must be wiped.

    `changelog_low` and `changelog_end` are the first offset and the next one of the changelog.
    """
    if saved is None:
        return False
    age_s = (time.time() if now_s is None else now_s) - saved.saved_s
    return 0 <= age_s < SAVED_AGE_MAX_S and changelog_low <= saved.changelog_next <= changelog_end


_log = role_logger(__name__)
# The store's knowledge of its changelog. Releases that keep rows in another form have another key
# for it: so no release continues with a database of the other form, but fills it again.
_CHANGELOG = b"\x00changelog 2"
_LOADING = b"\x00loading"  # how far a recovery has come
_LOADING_FORM = struct.Struct(">qd")  # changelog offset, time; the position record follows


class Store(Protocol):
    """One partition's rows.

    One thread uses a store; `save_rows` may run in another thread while `rows` is read. All that
    writes to a disk raises `Halted` if the disk is full.
    """

    rows: CachedRows
    blocks: bool  # whether `save_rows` waits for a disk
    row_sum: RowSum | None  # of the rows, and contents apart from them, that are loaded or saved; None: not counted
    has_failed: bool  # for a full disk: it must be closed, and opened again
    loading_mark: SavedPosition | None  # how far a recovery has come that has not ended

    @property
    def saved_position(self) -> SavedPosition | None:
        """Up to where the store holds the changelog; None if it is empty."""
        ...

    def stored_row(self, key: bytes) -> bytes | None:
        """Return the loaded or saved bytes under a key: a packed row, or its content. May block."""
        ...

    def load_rows(self, rows: Mapping[bytes, bytes | None], mark: SavedPosition | None = None) -> None:
        """Take packed rows from the changelog; None deletes one. May block.

        `mark` becomes the `loading_mark`, until rows are saved; None leaves it as it is.
        """
        ...

    def finish_loading(self) -> None:
        """Make all loaded rows visible in `rows`. May block."""
        ...

    def sum_with(self, rows: Mapping[bytes, bytes | None]) -> RowSum:
        """Return the `row_sum` after `rows` are saved. May count first, and block."""
        ...

    def count_again(self) -> RowSum:
        """Set `row_sum` by reading every row, and return it. May block."""
        ...

    def survey_rows(self, *, counts: bool) -> RowSurvey:
        """Read every row once: when each is due, and their `row_sum` if it `counts`. May block."""
        ...

    def save_rows(self, rows: Mapping[bytes, bytes | None], saved: SavedPosition) -> None:
        """Save packed rows (None deletes) and position atomically. Blocks if `blocks` says so."""
        ...

    def wipe(self) -> None:
        """Remove all rows and the position. May block."""
        ...

    def close(self) -> None:
        """Release files and memory; the store may be opened again."""
        ...


class MemoryStore:
    """Rows in a dict.

    The process keeps the store as long as the partition stays, so that each new owner reads only
    the changelog's new records.
    """

    blocks = has_failed = False

    def __init__(self, row_codec: RowCodec) -> None:
        self._codec = row_codec
        self._saved: SavedPosition | None = None
        self.loading_mark: SavedPosition | None = None
        self._former_rows: dict[bytes, bytes | None] = {}  # before those of the transaction under way
        self.row_sum: RowSum | None = None
        self.wipe()

    @property
    def saved_position(self) -> SavedPosition | None:
        """Up to where the store holds the changelog; None if it is empty."""
        return self._saved

    def stored_row(self, key: bytes) -> bytes | None:
        """Return the bytes under a key: a packed row, or its content."""
        return self._shelf.get(key)

    def stored_rows(self) -> Iterable[tuple[bytes, bytes]]:
        """Return the bytes of every row and content, with their keys."""
        return self._shelf.items()

    def load_rows(self, rows: Mapping[bytes, bytes | None], mark: SavedPosition | None = None) -> None:
        """Take packed rows from the changelog; None deletes one."""
        if self.row_sum is not None:
            self.row_sum = self.sum_with(rows)
            self._former_rows = {}
        self._shelf.put(rows)
        self.loading_mark = mark or self.loading_mark

    def finish_loading(self) -> None:
        """Do nothing: loaded rows are visible at once."""

    def sum_with(self, rows: Mapping[bytes, bytes | None]) -> RowSum:
        """Return the `row_sum` after `rows` are saved."""
        before = self.count_again() if self.row_sum is None else self.row_sum
        self._former_rows = self._shelf.get_each(rows)
        return before.replace_rows(rows, self._former_rows.get)

    def count_again(self) -> RowSum:
        """Set `row_sum` by reading every row, and return it."""
        self.row_sum = sum_rows(self._shelf.items())
        return self.row_sum

    def survey_rows(self, *, counts: bool) -> RowSurvey:
        """Read every row once: when each is due, and their `row_sum` if it `counts`."""
        survey = self.rows.survey_shelf(counts=counts)
        self.row_sum = survey.row_sum or self.row_sum
        return survey

    def save_rows(self, rows: Mapping[bytes, bytes | None], saved: SavedPosition) -> None:
        """Save packed rows (None deletes) and position. Does not block."""
        self.row_sum = _saved_sum(saved)
        is_known = self._former_rows.keys() == rows.keys()  # by `sum_with`
        self.rows.replace_bytes(rows, self._former_rows.get if is_known else self._shelf.get)
        self._former_rows = {}
        self._shelf.put(rows)
        self.rows.mark_saved(rows)
        self._saved, self.loading_mark = saved, None

    def wipe(self) -> None:
        """Remove all rows and the position."""
        self._shelf = MemoryShelf()
        self.rows = CachedRows(self._shelf, self._codec)
        self.row_sum = None
        self._saved = self.loading_mark = None

    def close(self) -> None:
        """Do nothing: memory goes with the object."""


class RocksStore:
    """Rows in a RocksDB database, in a separate folder."""

    BATCH_ROWS = 10_000  # loaded rows that are written at once
    BATCH_BYTES = 8 << 20
    blocks = True

    def __init__(self, folder: Path, row_codec: RowCodec, memory: RocksMemory) -> None:
        self._folder = folder
        self._codec = row_codec
        self._memory = memory
        self.row_sum: RowSum | None = None
        self.has_failed = False
        self._open_database()

    def _open_database(self) -> None:
        from rocksdict import Rdict

        with self._note_full_disk():
            self._folder.mkdir(parents=True, exist_ok=True)
            self._db = Rdict(str(self._folder), options=self._memory.database_options())
        self._shelf = RocksShelf(self._db)
        self.rows = CachedRows(self._shelf, self._codec)
        self._unwritten: dict[bytes, bytes | None] = {}
        self._former_rows: dict[bytes, bytes | None] = {}  # before those of the transaction under way
        self._unwritten_bytes = 0
        self.loading_mark = self._read_mark()
        self.row_sum = None if self.loading_mark else _saved_sum(self.saved_position)

    @property
    def saved_position(self) -> SavedPosition | None:
        """Up to where the store holds the changelog; None if it is empty. Reads from disk."""
        position, changelog = self._db.get(POSITION_KEY), self._db.get(_CHANGELOG)
        if position is None or changelog is None:
            return None
        return SavedPosition(cast(Position, Decoder().decode_record(position)), *json.loads(changelog))

    def stored_row(self, key: bytes) -> bytes | None:
        """Return the bytes under a key: a packed row, or its content. Reads from disk."""
        return self._unwritten[key] if key in self._unwritten else self._shelf.get(key)

    def load_rows(self, rows: Mapping[bytes, bytes | None], mark: SavedPosition | None = None) -> None:
        """Take packed rows from the changelog; None deletes one. Writes a batch now and then.

        `saved_position` is left behind. After a crash `loading_mark` is that of the last batch, and
        `row_sum` is None.
        """
        if self.row_sum is not None:
            self.row_sum = self.sum_with(rows)
        self._unwritten.update(rows)
        self.loading_mark = mark or self.loading_mark
        self._unwritten_bytes += sum(map(len, filter(None, rows.values())))
        if len(self._unwritten) >= self.BATCH_ROWS or self._unwritten_bytes >= self.BATCH_BYTES:
            self._write_rows(self._unwritten)

    def sum_with(self, rows: Mapping[bytes, bytes | None]) -> RowSum:
        """Return the `row_sum` after `rows` are saved. Reads from disk."""
        before = self.count_again() if self.row_sum is None else self.row_sum
        self._former_rows = {key: self.stored_row(key) for key in rows}
        return before.replace_rows(rows, self._former_rows.get)

    def count_again(self) -> RowSum:
        """Set `row_sum` by reading every row, and return it. Reads from disk."""
        self.finish_loading()
        self.row_sum = sum_rows(self._shelf.items())
        return self.row_sum

    def survey_rows(self, *, counts: bool) -> RowSurvey:
        """Read every row once: when each is due, and their `row_sum` if it `counts`. Reads from
        disk.
        """
        self.finish_loading()
        survey = self.rows.survey_shelf(counts=counts)
        self.row_sum = survey.row_sum or self.row_sum
        return survey

    def save_rows(self, rows: Mapping[bytes, bytes | None], saved: SavedPosition) -> None:
        """Save packed rows (None deletes) and position in one write batch. Blocks for the disk."""
        self.row_sum = _saved_sum(saved)
        batch = self._shelf.write_batch({**self._unwritten, **rows})
        batch.put(POSITION_KEY, encode_position(saved.position))
        batch.put(_CHANGELOG, json.dumps([saved.changelog_next, saved.saved_s]).encode())
        if self.loading_mark is not None:
            batch.delete(_LOADING)
        self._write_batch(batch)
        self.loading_mark = None
        if self._former_rows.keys() == rows.keys():  # known by `sum_with`: to read them again costs too much
            self.rows.replace_bytes(rows, self._former_rows.get)
        self._former_rows = {}
        self.rows.mark_saved(rows)

    def finish_loading(self) -> None:
        """Write the loaded rows that no batch has written. Blocks for the disk."""
        self._write_rows(self._unwritten)

    def wipe(self) -> None:
        """Remove the database and open an empty one. Blocks for the disk."""
        self._db.close()
        shutil.rmtree(self._folder)
        self._open_database()

    def close(self) -> None:
        """Close the database; it may be opened again."""
        try:
            self._db.close()
        except Exception as error:  # noqa: BLE001 - rocksdict has no error class for a full disk
            # The changelog holds the unwritten rows; `saved_position` says from where on.
            if not self.has_failed:
                _log.warning(
                    "store %(folder)s was closed with an error: %(error)s", folder=self._folder, **error_fields(error)
                )

    def _write_rows(self, rows: Mapping[bytes, bytes | None]) -> None:
        batch = self._shelf.write_batch(rows)
        if (mark := self.loading_mark) is not None:
            place = _LOADING_FORM.pack(mark.changelog_next, mark.saved_s)
            batch.put(_LOADING, place + encode_position(mark.position))
        self._write_batch(batch)

    def _read_mark(self) -> SavedPosition | None:
        written = self._db.get(_LOADING)
        if written is None:
            return None
        position = Decoder().decode_record(written[_LOADING_FORM.size :])
        return SavedPosition(cast(Position, position), *_LOADING_FORM.unpack_from(written))

    def _write_batch(self, batch: Any) -> None:
        with self._note_full_disk():
            self._db.write(batch)
        self._unwritten, self._unwritten_bytes = {}, 0

    @contextmanager
    def _note_full_disk(self) -> Iterator[None]:
        try:
            with halt_if_disk_full(self._folder):
                yield
        except Halted:
            self.has_failed = True
            raise


def _saved_sum(saved: SavedPosition | None) -> RowSum | None:
    if saved is None or saved.position.row_count is None or saved.position.row_checksum is None:
        return None
    return RowSum(saved.position.row_count, saved.position.row_checksum)


class PartitionStores:
    """The stores of this process, by partition; open while the partition is assigned."""

    def __init__(self, settings: ProcessorSettings, folder: Path | None, row_codec: RowCodec) -> None:
        """`folder` holds the databases; only the setting `store=rocksdb` needs one."""
        self._folder = folder
        self._codec = row_codec
        self._rocks = settings.store == "rocksdb"
        # The role quotas has stores next to those of a processor.
        self._prefix = settings.topics.changelog.removesuffix(".changelog")
        self._partitions = settings.partitions
        self._stores: dict[int, Store] = {}
        self._memory: RocksMemory | None = None  # of all databases, once there is one
        self._memory_lock = threading.Lock()  # stores are opened in any thread

    def store_of(self, partition: int) -> Store:
        """Return the partition's store, opened. Blocks; raises if another process has it open.

        A database refuses all writes once a disk was full, so a store that failed is opened again.
        Raises `Halted` if the disk is full.
        """
        store = self._stores.get(partition)
        if store is not None and store.has_failed:
            self.close_store(partition)
            store = None
        if store is None:
            store = self._stores[partition] = self._new_store(partition)
        return store

    def close_store(self, partition: int) -> None:
        """Close a partition's store. A memory store's rows are gone."""
        if store := self._stores.pop(partition, None):
            store.close()

    def close(self) -> None:
        """Close all stores."""
        for partition in list(self._stores):
            self.close_store(partition)

    def list_layer_bytes(self) -> list[Mapping[str, int]]:
        """Return `layer_bytes` of each store; RocksDB's are as of its opening."""
        return [store.rows.layer_bytes for store in list(self._stores.values())]

    def _new_store(self, partition: int) -> Store:
        if not self._rocks or self._folder is None:
            return MemoryStore(self._codec)
        with self._memory_lock:
            self._memory = self._memory or RocksMemory(self._partitions)
        return RocksStore(self._folder / f"{self._prefix}-{partition}", self._codec, self._memory)


def temporary_state_folder(settings: ProcessorSettings) -> "tempfile.TemporaryDirectory[str] | None":
    """Return a new folder for RocksDB, or None if none is needed. The caller removes it."""
    if settings.store != "rocksdb" or settings.state_dir is not None:
        return None
    return tempfile.TemporaryDirectory(prefix="sessionary-processor-")
