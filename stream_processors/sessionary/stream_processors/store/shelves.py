"""Where a store's packed rows are: a dict, or a database. Both keep them in their compact form.

shelf.get(key)     a row's bytes, or those of a content
shelf.items()      all keys and bytes
shelf.put(rows)    takes rows; None deletes one
"""

from collections.abc import Iterable, Iterator, Mapping
from itertools import chain
from typing import Any

from sessionary.stream_processors.store.compact_rows import PLAIN_KEYS, compact_key, compact_row, whole_key, whole_row


class MemoryShelf:
    """Rows in a dict."""

    def __init__(self) -> None:
        # Apart, because a recovery walks over all rows: no code runs for one that is whole.
        self.whole: dict[bytes, bytes] = {}  # of sessions and runs, mostly
        self.compact: dict[bytes, bytes] = {}  # in the compact form

    def get(self, key: bytes) -> bytes | None:
        """Return the bytes under a key, or None."""
        short = compact_key(key)
        if short is key:
            return self.whole.get(key)
        kept = self.compact.get(short)
        return None if kept is None else whole_row(short, kept)

    def get_each(self, keys: Iterable[bytes]) -> dict[bytes, bytes | None]:
        """Return the bytes under each key, or None."""
        return {key: self.get(key) for key in keys}

    def items(self) -> Iterator[tuple[bytes, bytes]]:
        """Return every key and its bytes."""
        return chain(self.whole.items(), _whole_items(iter(self.compact.items())))

    def put(self, rows: Mapping[bytes, bytes | None]) -> None:
        """Take rows by key; None deletes one."""
        whole, compact = self.whole, self.compact
        for key, stored in rows.items():
            short = compact_key(key) if key < PLAIN_KEYS or 0 in key else key
            if short is key:
                if stored is None:
                    whole.pop(key, None)
                else:
                    whole[key] = stored
            elif stored is None:
                compact.pop(short, None)
            else:
                compact[short] = compact_row(short, stored)


class RocksShelf:
    """Rows in a database. Keys that begin with a zero byte are the store's own."""

    def __init__(self, db: Any) -> None:
        self._db = db

    def get(self, key: bytes) -> bytes | None:
        """Return the bytes under a key, or None."""
        # Any client may send a record with a key of the store's own, and its row is looked up.
        short = compact_key(key)
        kept: bytes | None = None if key.startswith(b"\x00") else self._db.get(short)
        return None if kept is None else whole_row(short, kept)

    def items(self) -> Iterator[tuple[bytes, bytes]]:
        """Return every key and its bytes."""
        return _whole_items(self._db.items(from_key=b"\x01"))

    def write_batch(self, rows: Mapping[bytes, bytes | None]) -> Any:
        """Return a batch for the database; None deletes a row."""
        from rocksdict import WriteBatch

        batch = WriteBatch(raw_mode=True)
        for key, stored in rows.items():
            short = compact_key(key) if key < PLAIN_KEYS or 0 in key else key
            if stored is None:
                batch.delete(short)
            else:
                batch.put(short, stored if short is key else compact_row(short, stored))
        return batch


def _whole_items(kept: Iterator[tuple[bytes, bytes]]) -> Iterator[tuple[bytes, bytes]]:
    for item in kept:
        short, row = item
        yield item if short >= PLAIN_KEYS else (whole_key(short), whole_row(short, row))
