"""A partition's rows as they are kept: packed, and those used last decoded too.

    packed row = when it is next looked at (8 bytes, big-endian, ms of log time) + the record as the changelog has it

Decoded, an idle session takes some 2.3 kB and every garbage collection walks over it; packed it is its bytes. The
moment in front is derived from the row when it is packed, so that an opening partition learns its deadlines without
decoding every session; what then fires is asked of the row itself. The changelog carries the same moment as a header.
"""

import struct
from collections.abc import Callable, Iterable, Iterator, Mapping, MutableMapping
from typing import Any, NamedTuple, Protocol

from sessionary.schemas.codec import Decoder, encode_record, record_header
from sessionary.schemas.errors import DecodeError
from sessionary.schemas.records import Gravestone, SessionState
from sessionary.stream_processors.core.partition import Row, Standing, due_of
from sessionary.stream_processors.errors import Halted

_DUE = struct.Struct(">q")
_STATE, _GRAVE = record_header(SessionState), record_header(Gravestone)


class Packed(NamedTuple):
    """A row in its two forms of bytes: `due`, and the record."""

    due: bytes
    value: bytes

    @property
    def stored(self) -> bytes:
        """What a store keeps."""
        return self.due + self.value


def pack(row: Row) -> Packed:
    """Return a row's bytes."""
    return Packed(_DUE.pack(due_of(row)), encode_record(row))


def repack(value: bytes, due: bytes | None) -> bytes:
    """Return what a store keeps of a changelog record; `due` is its header.

    A record of today's schemas that has the header is not decoded. Raises `DecodeError`, also for a foreign record.
    """
    if due is not None and len(due) == _DUE.size and value.startswith((_STATE, _GRAVE)):
        return due + value
    return pack(_row(value)).stored


def unpack(stored: bytes) -> Row:
    """Return the row. Raises `DecodeError`."""
    return _row(stored[_DUE.size :])


def _row(value: bytes) -> Row:
    row = Decoder().decode_record(value)
    if not isinstance(row, SessionState | Gravestone):
        raise DecodeError("unknown_schema", f"a {type(row).__name__} is no row")
    return row


def standing(key: bytes, stored: bytes) -> Standing:
    """Return when a packed row is next looked at, and whether it is a session's."""
    lives = stored.startswith(_STATE, _DUE.size)
    if not lives and not stored.startswith(_GRAVE, _DUE.size):
        lives = isinstance(unpack(stored), SessionState)
    return Standing(key, _DUE.unpack_from(stored)[0], lives)


class Shelf(Protocol):
    """Where packed rows lie: a dict, or a database."""

    def get(self, key: bytes) -> bytes | None:
        """Return a row's bytes, or None."""
        ...

    def items(self) -> Iterable[tuple[bytes, bytes]]:
        """Return every row's key and bytes."""
        ...


class Rows(MutableMapping[bytes, Row]):
    """The mapping that a fold works on. What is set stands in `unsaved` until its bytes are on the shelf.

    One thread works on it; another may replace `unsaved` once rows are on the shelf. Reading a row raises `Halted`
    where its bytes cannot be read.
    """

    RECENT_MAX = 4_096

    def __init__(self, shelf: Shelf, unpack_row: Callable[[bytes], Any] = unpack) -> None:
        self._shelf = shelf
        self._unpack = unpack_row
        self._recent: dict[bytes, Row] = {}
        self.unsaved: dict[bytes, Row | None] = {}

    def __getitem__(self, key: bytes) -> Row:
        if (row := self._recent.get(key)) is not None:
            return row
        unsaved = self.unsaved  # one look: a save in another thread replaces it, once the rows are on the shelf
        if key in unsaved:
            row = unsaved[key]
        elif (stored := self._shelf.get(key)) is not None:
            row = self._unpacked(key, stored)
        if row is None:
            raise KeyError(key)
        self._keep(key, row)
        return row

    def __setitem__(self, key: bytes, row: Row) -> None:
        self.unsaved[key] = row
        self._recent.pop(key, None)  # to the end: the one that was used longest ago stands first
        self._keep(key, row)

    def __delitem__(self, key: bytes) -> None:
        if key not in self:
            raise KeyError(key)
        self.unsaved[key] = None
        self._recent.pop(key, None)

    def __iter__(self) -> Iterator[bytes]:
        unsaved = dict(self.unsaved)
        yield from (key for key, row in unsaved.items() if row is not None)
        yield from (key for key, _ in self._shelf.items() if key not in unsaved)

    def __len__(self) -> int:
        return sum(1 for _ in self)

    def standing(self) -> Iterator[Standing]:
        """Yield of every row when it is next looked at; decodes none that is on the shelf."""
        unsaved = dict(self.unsaved)
        for key, row in unsaved.items():
            if row is not None:
                yield Standing(key, due_of(row), isinstance(row, SessionState))
        for key, stored in self._shelf.items():
            if key not in unsaved:
                yield standing(key, stored)

    def forget(self) -> None:
        """Keep nothing but what is on the shelf."""
        self.unsaved, self._recent = {}, {}

    def shelved(self, keys: Mapping[bytes, object]) -> None:
        """Take note that these rows are on the shelf."""
        self.unsaved = {key: row for key, row in self.unsaved.items() if key not in keys}

    def _unpacked(self, key: bytes, stored: bytes) -> Row:
        try:
            row: Row = self._unpack(stored)
        except DecodeError as error:
            raise Halted("changelog_unreadable", f"the row of {key!r}: {error.detail}") from error
        return row

    def _keep(self, key: bytes, row: Row) -> None:
        self._recent[key] = row
        if len(self._recent) > self.RECENT_MAX:
            del self._recent[next(iter(self._recent))]


__all__ = ["Packed", "Rows", "Shelf", "pack", "repack", "standing", "unpack"]
