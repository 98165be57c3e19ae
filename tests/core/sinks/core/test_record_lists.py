import pytest

from sessionary.sinks.core.record_lists import ascending_records, count_block, count_up_to, record_sizes
from sessionary.sinks.core.rows.raw_record import RawRecord


def make_records(*offsets: int, size: int = 1) -> list[RawRecord]:
    return [RawRecord("t.events", 0, offset, 1_000, None, b"v" * size) for offset in offsets]


@pytest.mark.parametrize(
    ("offsets", "first", "left"),
    [
        ((), 0, ()),
        ((3, 4, 7), 3, (3, 4, 7)),
        ((3, 4, 7), 4, (4, 7)),
        ((3, 4, 7), 8, ()),
        ((3, 4, 4, 5), 0, (3, 4, 5)),
        ((3, 5, 4, 6), 0, (3, 5, 6)),
    ],
)
def test_records_before_an_offset_or_out_of_order_are_left_out(
    offsets: tuple[int, ...], first: int, left: tuple[int, ...]
) -> None:
    assert tuple(record.offset for record in ascending_records(make_records(*offsets), first)) == left


def test_sizes_are_those_of_key_and_value() -> None:
    records = [
        RawRecord("t.events", 0, 0, 0, b"key", b"value"),
        RawRecord("t.events", 0, 1, 0, b"key", None),
        RawRecord("t.events", 0, 2, 0, None, b""),
    ]
    assert record_sizes(records) == [8, 3, 0] == [record.size for record in records]


def test_a_block_ends_with_the_record_that_reaches_its_rows_or_bytes() -> None:
    records = make_records(0, 1, 2, 3, size=10)
    assert [count_block(records, 4, size) for size in (1, 10, 11, 20, 21, 40, 41)] == [1, 1, 2, 2, 3, 4, 4]
    assert [count_block(records, rows, 1_000) for rows in (1, 3, 4, 5)] == [1, 3, 4, 4]
    assert [count_block(make_records(0, 1, 2, size=0), 3, 1)] == [3]


def test_records_up_to_an_offset_are_counted() -> None:
    records = make_records(3, 5, 6)
    assert [count_up_to(records, last) for last in (2, 3, 4, 5, 6, 9)] == [0, 1, 1, 2, 3, 3]
