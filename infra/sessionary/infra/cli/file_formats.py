"""Files of rows that other programs read whole: bytes are bytes there, and a text is no formula.

ClickHouse writes the files. It has one type for texts and bytes; Parquet, Arrow and their readers
have two, and refuse a text that is not UTF-8. So the columns of bytes are marked as such in the
file's schema. CSV and JSON have texts alone: bytes are in base64 there.
"""

import re
import struct
from collections.abc import Collection, Iterable, Iterator
from enum import StrEnum
from pathlib import Path
from typing import IO, Any, Final, Protocol

from sessionary.infra.clickhouse_client import Row
from sessionary.schemas.errors import Invalid


class OutputFormat(StrEnum):
    """A format of the rows."""

    JSON = "json"
    CSV = "csv"
    PARQUET = "parquet"
    ARROW = "arrow"


# As ClickHouse names them.
FORMATS: Final = {
    OutputFormat.JSON: "JSONEachRow",
    OutputFormat.CSV: "CSVWithNames",
    OutputFormat.PARQUET: "Parquet",
    OutputFormat.ARROW: "Arrow",
}
BINARY: Final = (OutputFormat.PARQUET, OutputFormat.ARROW)


class _QueryClient(Protocol):
    def fetch_rows(self, sql: str, **parameters: str | int | float | None) -> list[Row]: ...


_ONE_TEXT: Final = re.compile(r"((LowCardinality|Nullable)\()*String\)*")
_FORMAT: Final = re.compile(r"\bFORMAT\s+\w+\s*$", re.IGNORECASE)
_QUERY: Final = re.compile(r"(?:[\s(]|--[^\n]*\n|/\*.*?\*/)*(SELECT|WITH)\b", re.IGNORECASE | re.DOTALL)


def find_bytes(client: _QueryClient, query: str) -> dict[str, str]:
    """Return the columns of a query that hold bytes, with their types.

    These are texts whose name ends with `_bytes`, and all with a value that is not UTF-8. Runs the
    query once. Blocks. Raises as the client does.
    """
    if not _QUERY.match(query):
        return {}
    try:
        columns = client.fetch_rows(f"DESCRIBE ({query}\n)")
    except Invalid:
        if _FORMAT.search(query):
            raise Invalid("invalid_value", "remove FORMAT from the statement: --format names the format") from None
        raise
    texts = {row["name"]: row["type"] for row in columns if "String" in row["type"]}
    if not texts:
        return {}
    # Names that no column has: an alias would hide a column.
    checks = ", ".join(
        f"max(NOT isValidUTF8(toString({_quote_name(name)}))) AS `{n}. is odd`" for n, name in enumerate(texts)
    )
    (found,) = client.fetch_rows(f"SELECT {checks} FROM ({query}\n)")
    odd = dict(zip(texts, found.values(), strict=True))
    return {name: kind for name, kind in texts.items() if name.endswith("_bytes") or odd[name]}


def encode_bytes(query: str, columns: dict[str, str]) -> str:
    """Return the query with base64 in place of bytes.

    In a column of several texts, such as headers, the server replaces what is not UTF-8.
    """
    plain = [_quote_name(name) for name, kind in columns.items() if _ONE_TEXT.fullmatch(kind)]
    if not plain:
        return query
    replaced = ", ".join(f"base64Encode({name}) AS {name}" for name in plain)
    return f"SELECT * REPLACE ({replaced}) FROM ({query}\n)"


def _quote_name(name: str) -> str:
    escaped = name.replace("\\", "\\\\").replace("`", "\\`")
    return f"`{escaped}`"


# CSV: a spreadsheet takes a text for a formula that begins with one of these, or with = + - @ in
# full width.

_FORMULA: Final = tuple(char.encode() for char in "=+-@\t\r\n\uff1d\uff0b\uff0d\uff20")
_TEXT: Final = re.compile(rb'"((?:[^"]|"")*)"')


def guard_csv(chunks: Iterable[bytes]) -> Iterator[bytes]:
    """Yield CSV of ClickHouse with `'` before each text that looks like a formula.

    ClickHouse quotes texts, and no numbers. Bytes that are not UTF-8 are replaced.
    """
    parts: list[bytes] = []  # of lines that are not yet whole
    is_text = False
    for chunk in chunks:
        end = _find_end(chunk, is_text=is_text)
        is_text ^= chunk.count(b'"') % 2 == 1
        if end:
            yield _guard_lines(b"".join([*parts, chunk[:end]]))
            parts.clear()
        parts.append(chunk[end:])
    if rest := b"".join(parts):
        yield _guard_lines(rest)


def _find_end(chunk: bytes, *, is_text: bool) -> int:
    """Return the place after the last line's end in a chunk; 0 without one.

    An end of line within a text is none. `is_text`: the chunk begins within one.
    """
    pieces, end = chunk.split(b'"'), len(chunk)
    for number in reversed(range(len(pieces))):
        piece = pieces[number]
        is_within = is_text ^ (number % 2 == 1)
        if not is_within and (at := piece.rfind(b"\n")) >= 0:
            return end - len(piece) + at + 1
        end -= len(piece) + 1
    return 0


def _guard_lines(lines: bytes) -> bytes:
    guarded = _TEXT.sub(lambda text: b"\"'" + text[0][1:] if text[1].startswith(_FORMULA) else text[0], lines)
    return guarded.decode(errors="replace").encode()


# Parquet: its schema is in the footer, in Thrift's compact protocol.

_MARK: Final = b"PAR1"
_NAME, _CHILDREN, _CONVERTED_TYPE, _LOGICAL_TYPE = 4, 5, 6, 10  # fields of a SchemaElement
_FIXED: Final = {1: 0, 2: 0, 3: 1, 7: 8}  # bytes of a value by type; true and false are in the type
_NUMBERS, _BINARY, _LISTS, _STRUCT = (4, 5, 6), 8, (9, 10), 12
_Field = tuple[int, int, bytes]


class _Thrift:
    """Reads the compact protocol."""

    def __init__(self, data: bytes) -> None:
        self.data, self.at = data, 0

    def number(self) -> int:
        value = shift = 0
        while True:
            byte = self.data[self.at]
            self.at += 1
            value |= (byte & 127) << shift
            shift += 7
            if byte < 128:
                return value

    def list_header(self) -> tuple[int, int]:
        """Return the number of elements, and their type."""
        byte = self.data[self.at]
        self.at += 1
        return (byte >> 4 if byte >> 4 != 15 else self.number()), byte & 15

    def field(self, last: int) -> tuple[int, int]:
        """Return number and type of the next field of a struct; type 0 at its end."""
        byte = self.data[self.at]
        self.at += 1
        if byte == 0:
            return 0, 0
        if byte >> 4:
            return last + (byte >> 4), byte & 15
        number = self.number()
        return (number >> 1) ^ -(number & 1), byte & 15

    def skip(self, kind: int) -> None:
        if kind in _FIXED:
            self.at += _FIXED[kind]
        elif kind in _NUMBERS:
            self.number()
        elif kind == _BINARY:
            size = self.number()
            self.at += size
        elif kind in _LISTS:
            count, element = self.list_header()
            for _ in range(count):
                self.skip(3 if element in (1, 2) else element)
        elif kind == _STRUCT:
            for _ in self.fields():
                pass
        else:
            raise Invalid("invalid_value", f"the Parquet footer has a value of type {kind}, which is not understood")

    def fields(self) -> Iterator[_Field]:
        """Yield number, type and bytes of each field of a struct."""
        number = 0
        while True:
            number, kind = self.field(number)
            if not kind:
                return
            begin = self.at
            self.skip(kind)
            yield number, kind, self.data[begin : self.at]


def _number_of(value: bytes) -> int:
    number = _Thrift(value).number()
    return (number >> 1) ^ -(number & 1)


def _struct_bytes(fields: Iterable[_Field]) -> bytes:
    parts, last = bytearray(), 0
    for number, kind, value in fields:
        parts.append((number - last) << 4 | kind)  # of a schema's element: fewer than 16 fields
        parts += value
        last = number
    return bytes(parts) + b"\0"


def mark_parquet(path: Path, columns: Collection[str]) -> None:
    """Change a Parquet file so that these columns of texts, and texts within them, are bytes."""
    if not columns:
        return
    with path.open("r+b") as file:
        file.seek(-8, 2)
        size, mark = struct.unpack("<I4s", file.read())
        if mark != _MARK:
            raise Invalid("invalid_value", f"{path} does not end as a Parquet file does")
        file.seek(-8 - size, 2)
        begin = file.tell()
        footer = _mark_footer(file.read(size), columns)
        file.seek(begin)
        file.truncate()
        file.write(footer + struct.pack("<I4s", len(footer), _MARK))


def _mark_footer(footer: bytes, columns: Collection[str]) -> bytes:
    reader, number = _Thrift(footer), 0
    while True:
        number, kind = reader.field(number)
        if number == 2:
            break
        reader.skip(kind)
    count, _ = reader.list_header()
    begin, elements = reader.at, [list(reader.fields()) for _ in range(count)]
    parts: list[bytes] = [_struct_bytes(elements[0])]
    left: list[int] = []  # children that are to come, of each open element below the root
    column = ""
    for element in elements[1:]:
        values = {number: value for number, _, value in element}
        if not left:
            named = values[_NAME]
            column = named[len(named) - _Thrift(named).number() :].decode()
        else:
            left[-1] -= 1
        children = _number_of(values[_CHILDREN]) if _CHILDREN in values else 0
        is_text = not children and _number_of(values.get(_CONVERTED_TYPE, b"\2")) == 0
        kept = [each for each in element if each[0] not in (_CONVERTED_TYPE, _LOGICAL_TYPE)]
        parts.append(_struct_bytes(kept if column in columns and is_text else element))
        if children:
            left.append(children)
        while left and left[-1] == 0:
            left.pop()
    return footer[:begin] + b"".join(parts) + footer[reader.at :]


# Arrow: its schema is there twice, in FlatBuffers: in the first message and in the footer.

_ARROW: Final = b"ARROW1"
_TYPE_BINARY, _TYPE_UTF8 = 4, 5


def mark_arrow(path: Path, columns: Collection[str]) -> None:
    """Change an Arrow file so that these columns of texts, and texts within them, are bytes."""
    if not columns:
        return
    with path.open("r+b") as file:
        file.seek(8)
        _, size = struct.unpack("<iI", file.read(8))
        _mark_schema(file, 16, size, 2, columns)
        file.seek(-10, 2)
        size, mark = struct.unpack("<I6s", file.read())
        if mark != _ARROW:
            raise Invalid("invalid_value", f"{path} does not end as an Arrow file does")
        file.seek(-10 - size, 2)
        _mark_schema(file, file.tell(), size, 1, columns)


def _mark_schema(file: IO[bytes], begin: int, size: int, slot: int, columns: Collection[str]) -> None:
    """Mark the fields of the schema that is in this slot of a FlatBuffer's root table."""
    file.seek(begin)
    data = bytearray(file.read(size))
    schema = _follow(data, _slot(data, _follow(data, 0), slot))
    for field in _fields(data, _slot(data, schema, 1)):
        name = _follow(data, _slot(data, field, 0))
        if data[name + 4 : name + 4 + _u32(data, name)].decode() in columns:
            _mark_field(data, field)
    file.seek(begin)
    file.write(data)


def _mark_field(data: bytearray, field: int) -> None:
    kind = _slot(data, field, 2)
    if kind and data[kind] == _TYPE_UTF8:
        data[kind] = _TYPE_BINARY
    for child in _fields(data, _slot(data, field, 5)):
        _mark_field(data, child)


def _fields(data: bytearray, slot: int) -> Iterator[int]:
    if slot:
        vector = _follow(data, slot)
        for n in range(_u32(data, vector)):
            yield _follow(data, vector + 4 + 4 * n)


def _u32(data: bytearray, at: int) -> int:
    found: tuple[Any, ...] = struct.unpack_from("<I", data, at)
    return int(found[0])


def _follow(data: bytearray, at: int) -> int:
    return at + _u32(data, at)


def _slot(data: bytearray, table: int, number: int) -> int:
    """Return the place of a table's field; 0 if the table has none of this number."""
    (back,) = struct.unpack_from("<i", data, table)
    vtable = table - back
    (size,) = struct.unpack_from("<H", data, vtable)
    if 4 + 2 * number >= size:
        return 0
    (offset,) = struct.unpack_from("<H", data, vtable + 4 + 2 * number)
    return table + offset if offset else 0
