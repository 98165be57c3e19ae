"""Where a partition's rows live between transactions: in memory, or in RocksDB.

A store is a cache of the changelog, never ahead of it: it is written after the transaction's acknowledgement, and it
knows up to which changelog offset it holds. An opening partition reads the changelog from there; a store that is too
old, or of a changelog that no longer exists, is emptied and filled from the beginning.

    store.saved         what the store says it holds; None: nothing
    store.rows          the mapping the fold works on
    store.save(…)       make the merged rows, the position and the changelog offset one fact
    store.wipe()        forget everything
"""

import json
import shutil
import time
from collections.abc import Iterator, Mapping, MutableMapping
from pathlib import Path
from typing import Any, NamedTuple, Protocol, cast

from sessionary.schemas.codec import Decoder, encode_record
from sessionary.schemas.records import Gravestone, Position, SessionState
from sessionary.stream_processors.fold import Row

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

    rows: MutableMapping[bytes, Row]
    blocks: bool  # whether `save` waits for a disk

    @property
    def saved(self) -> Saved | None:
        """What the store holds; None where it holds nothing."""
        ...

    def save(self, rows: Mapping[bytes, bytes | None], saved: Saved) -> None:
        """Make rows (encoded; None = gone) and position one fact. May block for a write to disk."""
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

    def __init__(self) -> None:
        self.rows: MutableMapping[bytes, Row] = {}
        self._saved: Saved | None = None

    @property
    def saved(self) -> Saved | None:
        """See `Store`."""
        return self._saved

    def save(self, rows: Mapping[bytes, bytes | None], saved: Saved) -> None:
        """See `Store`; the rows are in the dict already."""
        self._saved = saved

    def wipe(self) -> None:
        """See `Store`."""
        self.rows = {}
        self._saved = None

    def close(self) -> None:
        """See `Store`."""


class RocksRows(MutableMapping[bytes, Row]):
    """Rows in RocksDB; what is not yet saved stands in `unsaved` and is read first."""

    def __init__(self, db: Any) -> None:
        self.db = db
        self.unsaved: dict[bytes, Row | None] = {}
        self._decoder = Decoder()

    def __getitem__(self, key: bytes) -> Row:
        unsaved = self.unsaved  # one look: a save in another thread replaces it, once the rows are in the database
        if key in unsaved:
            row = unsaved[key]
            if row is None:
                raise KeyError(key)
            return row
        value: bytes | None = self.db.get(key)
        if value is None:
            raise KeyError(key)
        return self._row(value)

    def __setitem__(self, key: bytes, row: Row) -> None:
        self.unsaved[key] = row

    def __delitem__(self, key: bytes) -> None:
        if key not in self:
            raise KeyError(key)
        self.unsaved[key] = None

    def __iter__(self) -> Iterator[bytes]:
        yield from (key for key, _ in self.items())

    def items(self) -> Any:
        """Yield key and row of every row; decodes each once."""
        unsaved = dict(self.unsaved)
        yield from ((key, row) for key, row in unsaved.items() if row is not None)
        for key, value in self.db.items():
            if key not in unsaved and not key.startswith(b"\x00"):
                yield key, self._row(value)

    def __len__(self) -> int:
        return sum(1 for _ in self.items())

    def _row(self, value: bytes) -> Row:
        row = self._decoder.record(value)
        assert isinstance(row, SessionState | Gravestone)
        return row


class RocksStore:
    """RocksDB in a folder. While recovery fills it, `spill` keeps what is unsaved small."""

    SPILL_ROWS = 10_000
    blocks = True

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._open()

    def _open(self) -> None:
        from rocksdict import Options, Rdict  # an extra: the memory store does without

        self._folder.mkdir(parents=True, exist_ok=True)
        self._db = Rdict(str(self._folder), options=Options(raw_mode=True))
        self.rocks = RocksRows(self._db)
        self.rows: MutableMapping[bytes, Row] = self.rocks

    @property
    def saved(self) -> Saved | None:
        """See `Store`."""
        position, changelog = self._db.get(_POSITION), self._db.get(_CHANGELOG)
        if position is None or changelog is None:
            return None
        return Saved(cast(Position, Decoder().record(position)), *json.loads(changelog))

    def save(self, rows: Mapping[bytes, bytes | None], saved: Saved) -> None:
        """See `Store`: one write batch."""
        batch = self._batch(rows)
        batch.put(_POSITION, encode_record(saved.position))
        batch.put(_CHANGELOG, json.dumps([saved.changelog_next, saved.saved_s]).encode())
        self._db.write(batch)
        self.rocks.unsaved = {key: row for key, row in self.rocks.unsaved.items() if key not in rows}

    def spill(self) -> None:
        """Write unsaved rows while recovery goes on. Cut off here, the next one reads them again, from `saved` on."""
        self._db.write(self._batch({key: row and encode_record(row) for key, row in self.rocks.unsaved.items()}))
        self.rocks.unsaved = {}

    def wipe(self) -> None:
        """See `Store`."""
        self._db.close()
        shutil.rmtree(self._folder)
        self._open()

    def close(self) -> None:
        """See `Store`."""
        self.rocks.unsaved = {}
        self._db.close()

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


__all__ = ["SAVED_AGE_MAX_S", "MemoryStore", "RocksRows", "RocksStore", "Saved", "Store", "usable"]
