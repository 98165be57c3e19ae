"""Blocks in the Native format, byte by byte, without a server."""

import pytest
from clickhouse_connect.datatypes.registry import get_from_name
from clickhouse_connect.driver.insert import InsertContext

from sessionary.sinks.clickhouse.native import NativeBlock
from sessionary.sinks.core.rows.shared import TableRow

TYPES = {
    "n": "UInt16",
    "text": "String",
    "maybe": "Nullable(String)",
    "number": "Nullable(Int32)",
    "tags": "Array(String)",
    "headers": "Array(Tuple(name String, value String))",
    "labels": "Map(String, String)",
}
ROWS: list[TableRow] = [
    (1, "a", None, None, ("x", "y"), [("h", b"\xff"), ("h", None)], {"k": "v"}),
    (2, "é", "b", None, (), [], {}),
    (3, "", "", -7, ("z",), [("i", b"")], {"k": "w", "l": ""}),
]


def new_block() -> NativeBlock:
    types = [get_from_name(name) for name in TYPES.values()]
    return NativeBlock(InsertContext("t", list(TYPES), types, column_oriented=True))


def encoded_column(name: str, *planes: bytes) -> bytes:
    kind = TYPES[name].replace("name String, value String", "`name` String, `value` String")
    return bytes([len(name)]) + name.encode() + bytes([len(kind)]) + kind.encode() + b"".join(planes)


def test_a_block_holds_column_by_column_and_each_plane_whole() -> None:
    made = new_block()
    assert made.add_rows(ROWS) == []
    ends = {"tags": (2, 2, 3), "headers": (2, 2, 3), "labels": (1, 1, 3)}
    lists = {name: b"".join(end.to_bytes(8, "little") for end in found) for name, found in ends.items()}
    assert made.to_bytes() == b"".join(
        [
            b"\x07\x03",
            encoded_column("n", b"\x01\0\x02\0\x03\0"),
            encoded_column("text", b"\x01a\x02\xc3\xa9\0"),
            encoded_column("maybe", b"\x01\0\0", b"\0\x01b\0"),
            encoded_column("number", b"\x01\x01\0", b"\0\0\0\0\0\0\0\0\xf9\xff\xff\xff"),
            encoded_column("tags", lists["tags"], b"\x01x\x01y\x01z"),
            encoded_column("headers", lists["headers"], b"\x01h\x01h\x01i", b"\x01\xff\0\0"),
            encoded_column("labels", lists["labels"], b"\x01k\x01k\x01l", b"\x01v\x01w\0"),
        ]
    )


@pytest.mark.parametrize("cut", range(7))
def test_a_block_is_the_same_however_its_rows_are_added(cut: int) -> None:
    rows = ROWS * 2
    whole, portions = new_block(), new_block()
    whole.add_rows(rows)
    portions.add_rows(rows[:cut])
    portions.add_rows(rows[cut:])
    assert portions.rows == whole.rows == 6
    assert portions.to_bytes() == whole.to_bytes()


def test_rows_that_do_not_fit_are_named_and_leave_no_bytes() -> None:
    bad_number, bad_text, bad_tag = (70_000, *ROWS[0][1:]), (1, 5, *ROWS[0][2:]), (*ROWS[0][:4], ("x", 3), *ROWS[0][5:])
    short_header = (*ROWS[0][:5], [("h",)], ROWS[0][6])
    made, good = new_block(), new_block()
    found = made.add_rows([ROWS[0], bad_number, ROWS[1], bad_text, bad_tag, ROWS[2], short_header])
    assert [(value.row_index, value.detail.partition(":")[0]) for value in found] == [
        (1, "n"),
        (3, "text"),
        (4, "tags"),
        (6, "headers"),
    ]
    good.add_rows(ROWS)
    assert made.to_bytes() == good.to_bytes()


def test_an_empty_block_is_no_bytes() -> None:
    made = new_block()
    assert made.add_rows([]) == []
    assert (made.rows, made.to_bytes()) == (0, b"")
