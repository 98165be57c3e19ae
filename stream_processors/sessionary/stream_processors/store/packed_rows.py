"""A partition's rows as they are kept: packed, and those used last decoded too.

    packed row = due time (8 bytes, big-endian, ms of log time) + the changelog's record

Decoded, an idle session takes about 2.3 kB, and every garbage collection walks over it; packed it
is its bytes. The moment in front is derived from the row when it is packed, so that a partition
that opens learns its deadlines without decoding its rows. A row that fires is asked itself. The
changelog carries the same moment as a header.

From the second rules on, a large content of a row is a record of its own, under the row's key and
`CONTENT_SUFFIX`, in the changelog and in stores. It is written only if it is not the one that the
store has. The header says nothing of it, and it is kept without a moment in front.
"""

import struct
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, MutableMapping, Sequence
from typing import Any, NamedTuple, Protocol
from zlib import crc32

from sessionary.schemas.errors import DecodeError
from sessionary.stream_processors.core.machine import AnyMachine, RowKind
from sessionary.stream_processors.core.model import DueRow, DueRows, RowFate
from sessionary.stream_processors.errors import Halted
from sessionary.stream_processors.store.row_sum import CHECKSUM_MASK, RowSum

DUE_HEADER = "due"  # of a changelog record: when its row is due
# At the end of the key of a row's content; no key of a row may end so.
CONTENT_SUFFIX = b"\x00content"
_FIRST_RULES_WITH_CONTENT = 2
_DUE = struct.Struct(">q")
_HEADER_BYTES = 10  # of Avro's single-object encoding
_RECORD_HEADER = slice(_DUE.size, _DUE.size + _HEADER_BYTES)  # where a packed row has it
LAYERS = ("rows", "contents", "gravestones")  # of what a store keeps; gravestones and finished runs only vanish
StoredLookup = Callable[[bytes], bytes | None]  # what a store keeps under a key


def nothing_stored(_key: bytes) -> None:
    """Return what an empty store keeps."""


def _layer_of_fate(fate: RowFate) -> str:
    return "rows" if fate.live or fate.is_child else "gravestones"


class PackedRow(NamedTuple):
    """A row in bytes: when it is due (empty for the content of a row), and the record."""

    due: bytes
    value: bytes

    @property
    def stored(self) -> bytes:
        """What a store keeps."""
        return self.due + self.value


class RowCodec(Protocol):
    """How a job's rows become bytes in a store, and back."""

    def unpack(self, stored: bytes, read_content: Callable[[], bytes | None]) -> Any:
        """Return a row from what a store keeps. Raises `DecodeError`.

        `read_content` returns what the store keeps under the row's key and `CONTENT_SUFFIX`.
        """
        ...

    def repack(self, value: bytes, due: bytes | None) -> bytes:
        """Return what a store keeps of a changelog record; `due` is its header. Raises
        `DecodeError`.
        """
        ...

    def estimate_bytes(self, row: Any) -> int:
        """Return about how many bytes a row takes packed; encodes nothing."""
        ...

    def due_row(self, key: bytes, row: Any) -> DueRow:
        """Return when a row is due."""
        ...

    def due_stored_row(self, key: bytes, stored: bytes) -> DueRow:
        """Return when a packed row is due."""
        ...

    def survey_rows(self, rows: Iterable[tuple[bytes, bytes]], *, counts: bool) -> "RowSurvey":
        """Walk over packed rows and contents, given by key; `counts`: also count them."""
        ...


class RowSurvey(NamedTuple):
    """What one walk over packed rows and contents tells."""

    due_rows: list[DueRows]
    layer_bytes: dict[str, int]  # with the keys
    row_sum: RowSum | None  # None: they were not counted


class MachineRows:
    """Packs the rows of a processor's machines. Implements `RowCodec`."""

    def __init__(self, machines: Sequence[AnyMachine]) -> None:
        """The first machine also reads rows that no known prefix begins."""
        self._home = machines[0]
        self._by_class: dict[type[Any], tuple[AnyMachine, RowKind]] = {}
        self._by_prefix: dict[bytes, tuple[AnyMachine, RowKind]] = {}
        for machine in machines:
            for kind in machine.row_kinds:
                self._by_class[kind.row_class] = machine, kind
                self._by_prefix.update(dict.fromkeys(kind.prefixes, (machine, kind)))
        self._prefixes = tuple(self._by_prefix)
        self._fate_by_header = {
            prefix: kind.fate for prefix, (_, kind) in self._by_prefix.items() if len(prefix) == _HEADER_BYTES
        }
        parts = [kind.parts for _, kind in self._by_class.values() if kind.parts is not None]
        self._content_prefixes = tuple(prefix for part in parts for prefix in part.prefixes)
        # Whether a record is a content. One look-up takes half the time of two comparisons.
        self._content_by_header = {
            prefix: prefix in self._content_prefixes
            for prefix in (*self._prefixes, *self._content_prefixes)
            if len(prefix) == _HEADER_BYTES
        }

    def pack(self, row: Any, rules: int) -> PackedRow:
        """Return the bytes of a whole row, as they are written while `rules` are in force."""
        machine, kind = self._by_class[type(row)]
        return PackedRow(_DUE.pack(machine.due_ms(row)), kind.encode(row, rules))

    def pack_changes(
        self, rows: Mapping[bytes, Any], rules: int, stored: StoredLookup = nothing_stored
    ) -> dict[bytes, PackedRow | None]:
        """Return the records that rows leave in the changelog, by key; None is a tombstone.

        A content is among them if it is not the one that is stored. May block, as `stored` does.
        """
        if rules < _FIRST_RULES_WITH_CONTENT:
            return {key: None if row is None else self.pack(row, rules) for key, row in rows.items()}
        packed: dict[bytes, PackedRow | None] = {}
        for key, row in rows.items():
            packed[key], content = (None, None) if row is None else self._pack_parts(row, rules)
            content_key = key + CONTENT_SUFFIX
            if content != stored(content_key):
                packed[content_key] = None if content is None else PackedRow(b"", content)
        return packed

    def unpack(self, stored: bytes, read_content: Callable[[], bytes | None] = lambda: None) -> Any:
        """Return the row, with its content. Raises `DecodeError`."""
        row = self._decode(stored[_DUE.size :])
        parts = self._by_class[type(row)][1].parts
        if parts is None or not parts.is_split(row):
            return row
        content = read_content()
        if content is None:
            raise DecodeError("undecodable", "the record of its content is missing")
        return parts.join(row, content)

    def repack(self, value: bytes, due: bytes | None) -> bytes:
        """Return what a store keeps of a changelog record; `due` is its header.

        A record of a known schema that has the header is not decoded; its row is written with the
        schema of the rules in force when it is next touched. The content of a row is kept as it is.
        Raises `DecodeError`.
        """
        is_content = self._content_by_header.get(value[:_HEADER_BYTES])
        if is_content or (is_content is None and value.startswith(self._content_prefixes)):
            return value
        if due is not None and len(due) == _DUE.size and (is_content is False or value.startswith(self._prefixes)):
            return due + value
        row = self._decode(value)
        return _DUE.pack(self._by_class[type(row)][0].due_ms(row)) + value

    def estimate_bytes(self, row: Any) -> int:
        """Return about how many bytes a row takes packed; encodes nothing."""
        return self._by_class[type(row)][0].estimate_bytes(row)

    def due_row(self, key: bytes, row: Any) -> DueRow:
        """Return when a row is due, and what becomes of it."""
        machine, kind = self._by_class[type(row)]
        return DueRow(key, machine.due_ms(row), kind.fate)

    def due_stored_row(self, key: bytes, stored: bytes) -> DueRow:
        """Return when a packed row is due, and what becomes of it.

        Decodes rows of unknown schemas only.
        """
        fate = self._fate_by_header.get(stored[_RECORD_HEADER])
        if fate is None:
            kind = self._kind_of(stored, _DUE.size) or self._by_class[type(self._decode(stored[_DUE.size :]))][1]
            fate = kind.fate
        return DueRow(key, _DUE.unpack_from(stored)[0], fate)

    def survey_rows(self, rows: Iterable[tuple[bytes, bytes]], *, counts: bool) -> RowSurvey:
        """Walk over packed rows and contents, given by key; `counts`: also count them.

        Decodes rows of unknown schemas only. A partition opens after one turn of this loop for each
        of its rows. Rows of a kind come one after the other, mostly: what follows from a row's
        schema is looked up if that changes.
        """
        found: dict[RowFate, list[tuple[int, bytes]]] = {}
        sizes: Counter[str] = Counter()
        contents = content_bytes = checksum = size = 0
        layer, header, read_due = "", None, _DUE.unpack_from
        for key, stored in rows:
            if counts:
                checksum += crc32(stored, crc32(key))
            if key.endswith(CONTENT_SUFFIX):
                contents += 1
                content_bytes += len(key) + len(stored)
                continue
            if stored[_RECORD_HEADER] != header:
                sizes[layer] += size
                fate, size = self.due_stored_row(key, stored).fate, 0
                known = stored[_RECORD_HEADER]
                header = known if known in self._fate_by_header else None
                add, layer = found.setdefault(fate, []).append, _layer_of_fate(fate)
            size += len(key) + len(stored)
            add((read_due(stored)[0], key))
        sizes[layer] += size
        count = contents + sum(map(len, found.values()))
        return RowSurvey(
            [DueRows(*rows_of_fate) for rows_of_fate in found.items()],
            {"rows": sizes["rows"], "contents": content_bytes, "gravestones": sizes["gravestones"]},
            RowSum(count, checksum & CHECKSUM_MASK) if counts else None,
        )

    def _pack_parts(self, row: Any, rules: int) -> tuple[PackedRow, bytes | None]:
        machine, kind = self._by_class[type(row)]
        rest, content = (row, None) if kind.parts is None else kind.parts.split(row, rules)
        return PackedRow(_DUE.pack(machine.due_ms(row)), kind.encode(rest, rules)), content

    def _kind_of(self, value: bytes, start: int) -> RowKind | None:
        return next((kind for prefix, (_, kind) in self._by_prefix.items() if value.startswith(prefix, start)), None)

    def _decode(self, value: bytes) -> Any:
        for prefix, (machine, _) in self._by_prefix.items():
            if value.startswith(prefix):
                return machine.decode(value)
        return self._home.decode(value)


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

    A row that is set stays in `unsaved` until its bytes are on the shelf. Of the rows used last, so
    many stay decoded that neither their number nor their packed bytes exceed a bound.

    `layer_bytes`: the bytes on the shelf with their keys, by layer; empty until `survey_shelf` has
    counted them.

    One thread works on it; another may replace `unsaved` once rows are on the shelf. Reading a row
    raises `Halted` if its bytes cannot be read.
    """

    RECENT_MAX = 4_096
    RECENT_BYTES_MAX = 16 << 20  # as they are packed; decoded, a small row takes four times as much

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
        unsaved = self.unsaved  # read once: a save in another thread replaces it after the rows are on the shelf
        size = 0
        if key in unsaved:
            row = unsaved[key]
        # Any client may send a record with the key of a content, and its row is looked up.
        elif not key.endswith(CONTENT_SUFFIX) and (stored := self._shelf.get(key)) is not None:
            row, size = self._unpack_row(key, stored)
        if row is None:
            return default
        self._keep_recent(key, row, size or self._codec.estimate_bytes(row))
        return row

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
            due_rows = [DueRows(fate, [row for row in due if row[1] not in unsaved]) for fate, due in due_rows]
        changed = (self._codec.due_row(key, row) for key, row in unsaved.items() if row is not None)
        return due_rows + [DueRows(fate, [(due_ms, key)]) for key, due_ms, fate in changed]

    def survey_shelf(self, *, counts: bool) -> RowSurvey:
        """Walk over all that is on the shelf; decodes nothing. Sets `layer_bytes`."""
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
        return _layer_of_fate(self._codec.due_stored_row(key, stored).fate)

    def forget_unsaved(self) -> None:
        """Keep nothing but what is on the shelf."""
        self.unsaved, self._recent, self._recent_sizes, self._recent_bytes = {}, {}, {}, 0

    def mark_saved(self, keys: Mapping[bytes, object]) -> None:
        """Note that these rows are on the shelf."""
        self.unsaved = {key: row for key, row in self.unsaved.items() if key not in keys}

    def _stored_rows(self) -> Iterator[tuple[bytes, bytes]]:
        return ((key, stored) for key, stored in self._shelf.items() if not key.endswith(CONTENT_SUFFIX))

    def _unpack_row(self, key: bytes, stored: bytes) -> tuple[Any, int]:
        """Return a row, and how many bytes the shelf has of it."""
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


__all__ = [
    "CONTENT_SUFFIX",
    "DUE_HEADER",
    "LAYERS",
    "CachedRows",
    "MachineRows",
    "PackedRow",
    "RowCodec",
    "RowSurvey",
    "Shelf",
    "StoredLookup",
    "nothing_stored",
]
