"""A partition's rows as bytes: in its changelog, and in stores.

    packed row = due time (8 bytes, big-endian, ms of log time) + the changelog's record

The moment in front is derived from the row when it is packed, so that a partition that opens learns
its deadlines without decoding its rows. A row that fires is asked itself. The changelog carries the
same moment as a header.

A large content of a row is a separate record, under the row's key and `CONTENT_SUFFIX`, in the
changelog and in stores. It is written only if it differs from the store's. It has no header, and is
kept without a moment in front.
"""

import struct
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final, NamedTuple, Protocol
from zlib import crc32

from sessionary.schemas.errors import DecodeError
from sessionary.schemas.headers import Headers
from sessionary.stream_processors.core.model import DueRow, DueRows, RowFate
from sessionary.stream_processors.core.rows import AnyRows, RowKind

# The number and a checksum of a partition's rows: shows whether its changelog lost some; pure.
#
# The checksum is the sum of the rows' CRC-32, so that it follows a row that changes without a look
# at the others, and does not depend on their order. A content that is stored apart from its row
# counts as a row.


CHECKSUM_MASK = (1 << 63) - 1  # a `long` of the position record


class RowSum(NamedTuple):
    """The rows of a partition: their number, and the sum of their CRC-32 modulo 2**63."""

    rows: int = 0
    checksum: int = 0

    def replace_rows(self, rows: Mapping[bytes, bytes | None], former: Callable[[bytes], bytes | None]) -> "RowSum":
        """Return the sum after `rows` were written; None deletes.

        `former` returns the bytes under a key before that.
        """
        count, checksum = self
        for key, stored in rows.items():
            if (before := former(key)) is not None:
                count -= 1
                checksum -= crc32(before, crc32(key))
            if stored is not None:
                count += 1
                checksum += crc32(stored, crc32(key))
        return RowSum(count, checksum & CHECKSUM_MASK)


def sum_rows(rows: Iterable[tuple[bytes, bytes]]) -> RowSum:
    """Return the sum of all rows, given by key and bytes."""
    count = checksum = 0
    for key, stored in rows:
        count += 1
        checksum += crc32(stored, crc32(key))
    return RowSum(count, checksum & CHECKSUM_MASK)


DUE_HEADER = "due"  # of a changelog record: when its row is due
# At the end of the key of a row's content; no key of a row may end so.
CONTENT_SUFFIX = b"\x00content"
_CONTENT_END: Final = 0x74  # its last byte
_DUE = struct.Struct(">q")
_DUE_BYTES: Final = 8
_HEADER_BYTES: Final = 10  # of Avro's single-object encoding
_RECORD_HEADER_END: Final = _DUE_BYTES + _HEADER_BYTES  # in a packed row
LAYERS = ("rows", "contents", "tombstones")  # of a store; tombstones and finished runs only vanish
StoredLookup = Callable[[bytes], bytes | None]  # from a key to the bytes in a store


def nothing_stored(_key: bytes) -> None:
    """Return None, as an empty store does for any key."""


def layer_of_fate(fate: RowFate) -> str:
    """Return the layer of rows of a fate."""
    return "rows" if fate.live or fate.is_child else "tombstones"


class PackedRow(NamedTuple):
    """A row in bytes: when it is due (empty for the content of a row), and the record."""

    due: bytes
    value: bytes

    @property
    def stored(self) -> bytes:
        """The bytes in a store."""
        return self.due + self.value


class ChangelogRecords(NamedTuple):
    """Records of a changelog, in order; in each list one entry of each."""

    keys: list[bytes | None]
    values: list[bytes | None]
    headers: list[Headers | None]


class RowCodec(Protocol):
    """How a job's rows become bytes in a store, and back."""

    def unpack(self, stored: bytes, read_content: Callable[[], bytes | None]) -> Any:
        """Return a row from its bytes in a store. Raises `DecodeError`.

        `read_content` returns the store's bytes under the row's key and `CONTENT_SUFFIX`.
        """
        ...

    def repack(self, value: bytes, due: bytes | None) -> bytes:
        """Return a changelog record as a store keeps it; `due` is its header.

        Raises `DecodeError`.
        """
        ...

    def repack_usual(self, records: "ChangelogRecords", first: int, rows: dict[bytes, bytes | None]) -> int:
        """Take records from the place `first` on into `rows`, by key, up to one that is not usual.

        Returns the place of the unusual record, or the number of the records. An unusual record is
        repacked by itself. A record without a value becomes None.
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
    """The results of one walk over packed rows and contents."""

    due_rows: list[DueRows]
    layer_bytes: dict[str, int]  # with the keys
    row_sum: RowSum | None  # None: they were not counted


class FamilyCodec:
    """Packs the rows of a judge's families. Implements `RowCodec`."""

    def __init__(self, families: Sequence[AnyRows]) -> None:
        """The first family also reads rows without a known prefix."""
        self._home = families[0]
        self._by_class: dict[type[Any], tuple[AnyRows, RowKind]] = {}
        self._by_prefix: dict[bytes, tuple[AnyRows, RowKind]] = {}
        for family in families:
            for kind in family.kinds:
                self._by_class[kind.row_class] = family, kind
                self._by_prefix.update(dict.fromkeys(kind.prefixes, (family, kind)))
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
        family, kind = self._by_class[type(row)]
        return PackedRow(_DUE.pack(family.due_ms(row)), kind.encode(row, rules))

    def pack_changes(
        self, rows: Mapping[bytes, Any], rules: int, stored: StoredLookup = nothing_stored
    ) -> dict[bytes, PackedRow | None]:
        """Return the records that rows leave in the changelog, by key; None is a deletion.

        A content is among them if it differs from the stored one. May block, as `stored` does.
        """
        packed: dict[bytes, PackedRow | None] = {}
        for key, row in rows.items():
            packed[key], content = (None, None) if row is None else self._pack_parts(row, rules)
            content_key = key + CONTENT_SUFFIX
            if content != stored(content_key):
                packed[content_key] = None if content is None else PackedRow(b"", content)
        return packed

    def unpack(self, stored: bytes, read_content: Callable[[], bytes | None] = lambda: None) -> Any:
        """Return the row, with its content. Raises `DecodeError`."""
        row = self._decode(stored[_DUE_BYTES:])
        parts = self._by_class[type(row)][1].parts
        if parts is None or not parts.is_split(row):
            return row
        content = read_content()
        if content is None:
            raise DecodeError("undecodable", "the record of its content is missing")
        return parts.join(row, content)

    def repack(self, value: bytes, due: bytes | None) -> bytes:
        """Return a changelog record as a store keeps it; `due` is its header.

        A record of a known schema that has the header is not decoded; its row is written with the
        schema of the rules in force when the row is next touched. The content of a row is kept
        unchanged. Raises `DecodeError`.
        """
        is_content = self._content_by_header.get(value[:_HEADER_BYTES])
        if is_content or (is_content is None and value.startswith(self._content_prefixes)):
            return value
        if due is not None and len(due) == _DUE_BYTES and (is_content is False or value.startswith(self._prefixes)):
            return due + value
        row = self._decode(value)
        return _DUE.pack(self._by_class[type(row)][0].due_ms(row)) + value

    def repack_usual(self, records: ChangelogRecords, first: int, rows: dict[bytes, bytes | None]) -> int:
        """Take records into `rows`, as `repack` does, up to one that is not usual; see `RowCodec`.

        A partition opens after one turn of this loop for each of its rows: so it does nothing else.
        """
        keys, values, headers = records
        content_by_header = self._content_by_header
        for place in range(first, len(keys)):
            key, value, pairs = keys[place], values[place], headers[place]
            if value is None:
                rows[key or b""] = None
                continue
            is_content = content_by_header.get(value[:_HEADER_BYTES])
            if is_content:
                rows[key or b""] = value
                continue
            if is_content is None or pairs is None or len(pairs) != 1:
                return place
            name, due = pairs[0]
            if name != DUE_HEADER or due is None or len(due) != _DUE_BYTES:
                return place
            rows[key or b""] = due + value
        return len(keys)

    def estimate_bytes(self, row: Any) -> int:
        """Return about how many bytes a row takes packed; encodes nothing."""
        return self._by_class[type(row)][0].estimate_bytes(row)

    def due_row(self, key: bytes, row: Any) -> DueRow:
        """Return when a row is due, and its fate."""
        family, kind = self._by_class[type(row)]
        return DueRow(key, family.due_ms(row), kind.fate)

    def due_stored_row(self, key: bytes, stored: bytes) -> DueRow:
        """Return when a packed row is due, and its fate.

        Decodes rows of unknown schemas only.
        """
        fate = self._fate_by_header.get(stored[_DUE_BYTES:_RECORD_HEADER_END])
        if fate is None:
            kind = self._kind_of(stored, _DUE_BYTES) or self._by_class[type(self._decode(stored[_DUE_BYTES:]))][1]
            fate = kind.fate
        return DueRow(key, _DUE.unpack_from(stored)[0], fate)

    def survey_rows(self, rows: Iterable[tuple[bytes, bytes]], *, counts: bool) -> RowSurvey:
        """Walk over packed rows and contents, given by key; `counts`: also count them.

        Decodes rows of unknown schemas only. A partition opens after one turn of this loop for each
        of its rows. Rows of a kind mostly come one after the other: values that follow from a row's
        schema are looked up only when the schema changes.
        """
        found: dict[RowFate, DueRows] = {}
        sizes: Counter[str] = Counter()
        contents = content_bytes = checksum = size = 0
        layer, header, read_due = "", None, _DUE.unpack_from
        for key, stored in rows:
            if counts:
                checksum += crc32(stored, crc32(key))
            # Its last byte first: in the compiled core, that calls no method.
            if key and key[-1] == _CONTENT_END and key.endswith(CONTENT_SUFFIX):
                contents += 1
                content_bytes += len(key) + len(stored)
                continue
            if stored[_DUE_BYTES:_RECORD_HEADER_END] != header:
                sizes[layer] += size
                fate, size = self.due_stored_row(key, stored).fate, 0
                known = stored[_DUE_BYTES:_RECORD_HEADER_END]
                header = known if known in self._fate_by_header else None
                rows_of_fate = found.setdefault(fate, DueRows(fate, [], []))
                add_due, add_key, layer = rows_of_fate.due_ms.append, rows_of_fate.keys.append, layer_of_fate(fate)
            size += len(key) + len(stored)
            add_due(read_due(stored)[0])
            add_key(key)
        sizes[layer] += size
        count = contents + sum(len(found_rows.keys) for found_rows in found.values())
        return RowSurvey(
            list(found.values()),
            {"rows": sizes["rows"], "contents": content_bytes, "tombstones": sizes["tombstones"]},
            RowSum(count, checksum & CHECKSUM_MASK) if counts else None,
        )

    def _pack_parts(self, row: Any, rules: int) -> tuple[PackedRow, bytes | None]:
        family, kind = self._by_class[type(row)]
        rest, content = (row, None) if kind.parts is None else kind.parts.split(row, rules)
        return PackedRow(_DUE.pack(family.due_ms(row)), kind.encode(rest, rules)), content

    def _kind_of(self, value: bytes, start: int) -> RowKind | None:
        return next((kind for prefix, (_, kind) in self._by_prefix.items() if value.startswith(prefix, start)), None)

    def _decode(self, value: bytes) -> Any:
        for prefix, (family, _) in self._by_prefix.items():
            if value.startswith(prefix):
                return family.decode(value)
        return self._home.decode(value)
