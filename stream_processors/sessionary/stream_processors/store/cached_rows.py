"""A partition's rows as its state works on them: packed, and those used last decoded too.

Decoded, an idle session takes about 2.3 kB, and every garbage collection walks over it; packed it
is its bytes.
"""

from collections.abc import Iterable, Iterator, Mapping, MutableMapping
from typing import Any, ClassVar, Protocol

from sessionary.schemas.errors import DecodeError
from sessionary.stream_processors.core.model import DueRows
from sessionary.stream_processors.errors import Halted
from sessionary.stream_processors.store.packed_rows import (
    CONTENT_SUFFIX,
    RowCodec,
    RowSurvey,
    StoredLookup,
    layer_of_fate,
)


class Shelf(Protocol):
    """Where packed rows are: a dict, or a database."""

    def get(self, key: bytes) -> bytes | None:
        """Return a row's bytes, or None."""
        ...

    def items(self) -> Iterable[tuple[bytes, bytes]]:
        """Return every row's key and bytes."""
        ...


class CachedRows(MutableMapping[bytes, Any]):
    """The mapping that a partition's state works on.

    A row that is set stays in `unsaved` until its bytes are on the shelf. The rows used last stay
    decoded, as long as neither their number nor their packed bytes exceed a bound.

    `layer_bytes`: the bytes on the shelf with their keys, by layer; empty until `survey_shelf` has
    counted them.

    One thread works on it; another may replace `unsaved` once rows are on the shelf. Reading a row
    raises `Halted` if its bytes cannot be read.
    """

    RECENT_MAX: ClassVar[int] = 4_096
    RECENT_BYTES_MAX: ClassVar[int] = 16 << 20  # as they are packed; decoded, a small row takes four times as much

    def __init__(self, shelf: Shelf, codec: RowCodec) -> None:
        self._shelf = shelf
        self._codec = codec
        self._recent: dict[bytes, Any] = {}
        self._recent_sizes: dict[bytes, int] = {}  # packed, by key
        self._recent_bytes = 0  # their sum
        self.unsaved: dict[bytes, Any] = {}
        self.layer_bytes: dict[str, int] = {}

    def __getitem__(self, key: bytes) -> Any:
        if (row := self.get(key)) is None:
            raise KeyError(key)
        return row

    def get(self, key: bytes, default: Any = None) -> Any:
        """Return a row, or `default`; often there is none, and an error would cost more."""
        if (row := self._recent.get(key)) is not None:
            return row
        row, size = self._find_row(key)
        if row is None:
            return default
        self._keep_recent(key, row, size or self._codec.estimate_bytes(row))
        return row

    def peek(self, key: bytes) -> Any:
        """Return a row, or None, without keeping it decoded: for rows that are read just once."""
        recent = self._recent.get(key)
        return self._find_row(key)[0] if recent is None else recent

    def _find_row(self, key: bytes) -> tuple[Any, int]:
        """Return a row that is not decoded, and its packed bytes; None if there is none.

        The bytes are 0 if they are not known.
        """
        unsaved = self.unsaved  # read once: a save in another thread replaces it after the rows are on the shelf
        if key in unsaved:
            return unsaved[key], 0
        # Any client may send a record with the key of a content, and its row is looked up.
        if not key.endswith(CONTENT_SUFFIX) and (stored := self._shelf.get(key)) is not None:
            return self._unpack_row(key, stored)
        return None, 0

    def __contains__(self, key: object) -> bool:
        return isinstance(key, bytes) and self.get(key) is not None

    def __setitem__(self, key: bytes, row: Any) -> None:
        self.unsaved[key] = row
        self._drop_recent(key)  # to the end: the first one is the one used longest ago
        self._keep_recent(key, row, self._codec.estimate_bytes(row))

    def __delitem__(self, key: bytes) -> None:
        if key not in self:
            raise KeyError(key)
        self.unsaved[key] = None
        self._drop_recent(key)

    def __iter__(self) -> Iterator[bytes]:
        unsaved = dict(self.unsaved)
        yield from (key for key, row in unsaved.items() if row is not None)
        yield from (key for key, _ in self._stored_rows() if key not in unsaved)

    def __len__(self) -> int:
        return sum(1 for _ in self)

    def due_rows(self) -> list[DueRows]:
        """Return when each row is due; decodes none that is on the shelf. Counts `layer_bytes`."""
        unsaved = dict(self.unsaved)
        due_rows = self.survey_shelf(counts=False).due_rows
        if unsaved:
            due_rows = [_without_keys(rows, unsaved) for rows in due_rows]
        changed = (self._codec.due_row(key, row) for key, row in unsaved.items() if row is not None)
        return due_rows + [DueRows(fate, [due_ms], [key]) for key, due_ms, fate in changed]

    def survey_shelf(self, *, counts: bool) -> RowSurvey:
        """Walk over the whole shelf; decodes nothing. Sets `layer_bytes`."""
        survey = self._codec.survey_rows(self._shelf.items(), counts=counts)
        self.layer_bytes = survey.layer_bytes
        return survey

    def replace_bytes(self, rows: Mapping[bytes, bytes | None], former: StoredLookup) -> None:
        """Count the bytes of rows that are saved, by key, instead of the `former` ones."""
        if layers := self.layer_bytes:
            for key, stored in rows.items():
                if (before := former(key)) is not None:
                    layers[self._layer_of(key, before)] -= len(key) + len(before)
                if stored is not None:
                    layers[self._layer_of(key, stored)] += len(key) + len(stored)

    def _layer_of(self, key: bytes, stored: bytes) -> str:
        if key.endswith(CONTENT_SUFFIX):
            return "contents"
        return layer_of_fate(self._codec.due_stored_row(key, stored).fate)

    def forget_unsaved(self) -> None:
        """Forget all rows that are not on the shelf."""
        self.unsaved, self._recent, self._recent_sizes, self._recent_bytes = {}, {}, {}, 0

    def mark_saved(self, keys: Mapping[bytes, object]) -> None:
        """Note that these rows are on the shelf."""
        self.unsaved = {key: row for key, row in self.unsaved.items() if key not in keys}

    def _stored_rows(self) -> Iterator[tuple[bytes, bytes]]:
        return ((key, stored) for key, stored in self._shelf.items() if not key.endswith(CONTENT_SUFFIX))

    def _unpack_row(self, key: bytes, stored: bytes) -> tuple[Any, int]:
        """Return a row, and the number of its bytes on the shelf."""
        size = len(stored)

        def read_content() -> bytes | None:
            nonlocal size
            content = self._shelf.get(key + CONTENT_SUFFIX)
            size += len(content or b"")
            return content

        try:
            return self._codec.unpack(stored, read_content), size
        except DecodeError as error:
            raise Halted("changelog_unreadable", f"the row of {key!r}: {error.detail}") from error

    def _keep_recent(self, key: bytes, row: Any, size: int) -> None:
        self._recent[key] = row
        self._recent_sizes[key] = size
        self._recent_bytes += size
        while len(self._recent) > self.RECENT_MAX or self._recent_bytes > self.RECENT_BYTES_MAX:
            self._drop_recent(next(iter(self._recent)))

    def _drop_recent(self, key: bytes) -> None:
        if self._recent.pop(key, None) is not None:
            self._recent_bytes -= self._recent_sizes.pop(key)


def _without_keys(rows: DueRows, keys: Mapping[bytes, object]) -> DueRows:
    left = [(due_ms, key) for due_ms, key in rows.pairs() if key not in keys]
    return DueRows(rows.fate, [due_ms for due_ms, _ in left], [key for _, key in left])
