"""Where a partition's rows live between transactions: in memory, or in RocksDB.

A store is a cache of the changelog, never ahead of it: it is written after the transaction's acknowledgement, and it
knows up to which changelog offset it holds. An opening partition reads the changelog from there; a store that is too
old, or of a changelog that no longer exists, is emptied and filled from the beginning.

    store.saved         what the store says it holds; None: nothing
    store.take(…)       one row from the changelog; store.filled() once there are no more
    store.rows          the mapping the fold works on
    store.save(…)       make the merged rows, the position and the changelog offset one fact
    store.wipe()        forget everything
"""

import json
import logging
import shutil
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple, Protocol, cast

from sessionary.schemas.codec import Decoder, encode_record
from sessionary.schemas.records import Position
from sessionary.stream_processors.store.packed_rows import Rows, unpack

_log = logging.getLogger(__name__)
# Kafka keeps tombstones for one day (delete.retention.ms); older than that a store could miss a deletion.
SAVED_AGE_MAX_S = 43_200
_POSITION = b"\x00position"
_CHANGELOG = b"\x00changelog"


class Saved(NamedTuple):
    """Up to where a store holds the changelog."""

    position: Position
    changelog_next: int  # the first changelog offset that it has not seen
    saved_s: float  # when, wall clock


class Store(Protocol):
    """One partition's rows. Not thread-safe, but `save` may run in another thread than readers of `rows`."""

    rows: Rows
    blocks: bool  # whether `save` waits for a disk

    @property
    def saved(self) -> Saved | None:
        """What the store holds; None where it holds nothing."""
        ...

    def take(self, key: bytes, stored: bytes | None) -> None:
        """Take one packed row while recovery fills the store (None = gone)."""
        ...

    def filled(self) -> None:
        """Take note that recovery has come to its end: from here on `rows` holds all that was taken."""
        ...

    def save(self, rows: Mapping[bytes, bytes | None], saved: Saved) -> None:
        """Make packed rows (None = gone) and position one fact. May block for a write to disk."""
        ...

    def wipe(self) -> None:
        """Forget everything."""
        ...

    def close(self) -> None:
        """Release what is held; the store may be opened again."""
        ...


class MemoryStore:
    """A dict. Held by the process, it outlives an assignment, so that a returning partition reads only what is new."""

    blocks = False

    def __init__(self, unpack_row: Callable[[bytes], Any] = unpack) -> None:
        self._unpack = unpack_row
        self._saved: Saved | None = None
        self.wipe()

    @property
    def saved(self) -> Saved | None:
        """See `Store`."""
        return self._saved

    def take(self, key: bytes, stored: bytes | None) -> None:
        """See `Store`."""
        if stored is None:
            self._shelf.pop(key, None)
        else:
            self._shelf[key] = stored

    def filled(self) -> None:
        """See `Store`."""

    def save(self, rows: Mapping[bytes, bytes | None], saved: Saved) -> None:
        """See `Store`."""
        shelf: dict[bytes, Any] = self._shelf
        shelf.update(rows)
        for key in [key for key, stored in rows.items() if stored is None]:
            del shelf[key]
        self.rows.shelved(rows)
        self._saved = saved

    def wipe(self) -> None:
        """See `Store`."""
        self._shelf: dict[bytes, bytes] = {}
        self.rows = Rows(self._shelf, self._unpack)
        self._saved = None

    def close(self) -> None:
        """See `Store`."""


class _RocksShelf(NamedTuple):
    """The database's rows; keys that begin with a zero byte are the store's own."""

    db: Any

    def get(self, key: bytes) -> bytes | None:
        """See `Shelf`."""
        value: bytes | None = self.db.get(key)
        return value

    def items(self) -> Iterator[tuple[bytes, bytes]]:
        """See `Shelf`."""
        return ((key, value) for key, value in self.db.items() if not key.startswith(b"\x00"))


class RocksStore:
    """RocksDB in a folder."""

    BATCH_ROWS = 10_000
    blocks = True

    def __init__(self, folder: Path, unpack_row: Callable[[bytes], Any] = unpack) -> None:
        self._folder = folder
        self._unpack = unpack_row
        self._open()

    def _open(self) -> None:
        from rocksdict import Options, Rdict  # an extra: the memory store does without

        self._folder.mkdir(parents=True, exist_ok=True)
        self._db = Rdict(str(self._folder), options=Options(raw_mode=True))
        self.rows = Rows(_RocksShelf(self._db), self._unpack)
        self._taken: dict[bytes, bytes | None] = {}

    @property
    def saved(self) -> Saved | None:
        """See `Store`."""
        position, changelog = self._db.get(_POSITION), self._db.get(_CHANGELOG)
        if position is None or changelog is None:
            return None
        return Saved(cast(Position, Decoder().decode_record(position)), *json.loads(changelog))

    def take(self, key: bytes, stored: bytes | None) -> None:
        """See `Store`. Cut off before the next `save`, the rows are read again: `saved` says from where on."""
        self._taken[key] = stored
        if len(self._taken) >= self.BATCH_ROWS:
            self._write(self._taken)

    def save(self, rows: Mapping[bytes, bytes | None], saved: Saved) -> None:
        """See `Store`: one write batch."""
        batch = self._batch({**self._taken, **rows})
        batch.put(_POSITION, encode_record(saved.position))
        batch.put(_CHANGELOG, json.dumps([saved.changelog_next, saved.saved_s]).encode())
        self._db.write(batch)
        self._taken = {}
        self.rows.shelved(rows)

    def filled(self) -> None:
        """See `Store`."""
        self._write(self._taken)

    def wipe(self) -> None:
        """See `Store`."""
        self._db.close()
        shutil.rmtree(self._folder)
        self._open()

    def close(self) -> None:
        """See `Store`."""
        try:
            self._db.close()
        except Exception as error:  # noqa: BLE001 - rocksdict has no class of its own for a database whose disk was full
            # What it could not write is in the changelog, and its own position says so.
            _log.warning("store %s was closed with an error: %s", self._folder, error)

    def _write(self, rows: Mapping[bytes, bytes | None]) -> None:
        self._db.write(self._batch(rows))
        self._taken = {}

    def _batch(self, rows: Mapping[bytes, bytes | None]) -> Any:
        from rocksdict import WriteBatch

        batch = WriteBatch(raw_mode=True)
        for key, value in rows.items():
            if value is None:
                batch.delete(key)
            else:
                batch.put(key, value)
        return batch


def usable(saved: Saved | None, changelog_low: int, changelog_end: int, now_s: float | None = None) -> bool:
    """Whether a store may be continued from where it stands, or must be wiped."""
    if saved is None:
        return False
    age_s = (time.time() if now_s is None else now_s) - saved.saved_s
    return 0 <= age_s < SAVED_AGE_MAX_S and changelog_low <= saved.changelog_next <= changelog_end


__all__ = ["SAVED_AGE_MAX_S", "MemoryStore", "RocksStore", "Saved", "Store", "usable"]
