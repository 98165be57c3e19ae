"""Fetched records that wait: their order, gaps, and the fetching that they interrupt."""

import pytest

from sessionary.stream_processors.core.model import RECORD_OVERHEAD_BYTES, LogRecord
from sessionary.stream_processors.runtime.fetching.pending_records import (
    PENDING_BYTES_MAX,
    FollowingRecords,
    PendingRecords,
)


class FakeFetchControl:
    """Holds what was asked of the fetching, and the bytes that wait."""

    def __init__(self) -> None:
        self.asked: list[str] = []
        self.pending_bytes = 0

    def fetch_from(self, partition: int, offset: int, believed_from: int) -> None:
        raise AssertionError("only the owner seeks")

    def drop_partition(self, partition: int) -> None:
        raise AssertionError("only the owner drops")

    def pause_partition(self, partition: int) -> None:
        self.asked.append(f"pause {partition}")

    def resume_partition(self, partition: int) -> None:
        self.asked.append(f"resume {partition}")

    def add_pending_bytes(self, size: int) -> None:
        self.pending_bytes += size


def fetch(*offsets: int, begin_offset: int | None = None, size: int = 10) -> FollowingRecords:
    records = [LogRecord(offset, 1_000, b"key", bytes(size), ()) for offset in offsets]
    return FollowingRecords(offsets[0] if begin_offset is None else begin_offset, records)


def offsets_of(taken: FollowingRecords) -> list[int]:
    return [record.offset for record in taken.records]


def taken(*fetches: FollowingRecords, position: int, records_max: int = 100) -> list[list[int]]:
    """Return the offsets of each batch that is taken, until nothing waits."""
    pending = PendingRecords(0, FakeFetchControl())
    for fetched in fetches:
        pending.append_batch(fetched)
    batches = []
    while pending:
        batches.append(offsets_of(pending.take_batch(position, records_max)))
        position = batches[-1][-1] + 1 if batches[-1] else position
    return batches


@pytest.mark.parametrize(
    ("fetches", "position", "batches"),
    [
        ([(0, 1), (2, 3)], 0, [[0, 1, 2, 3]]),
        ([(0, 1, 2), (1, 2, 3)], 0, [[0, 1, 2, 3]]),  # fetched twice
        ([(0, 1, 2, 3)], 2, [[2, 3]]),
        ([(0, 1)], 2, [[]]),
        ([(5, 6)], 2, [[5, 6]]),  # the owner asks the log whether these are the next ones
        ([(0, 1), (4, 5)], 0, [[0, 1], [4, 5]]),
        ([(1, 3, 6), (7, 9)], 1, [[1, 3, 6, 7, 9]]),  # a fetch may leave offsets out
        ([(8, 9), (0, 1), (2, 3)], 0, [[0, 1, 2, 3]]),  # from before a seek
    ],
)
def test_records_come_from_the_position_on_until_a_gap(
    fetches: list[tuple[int, ...]], position: int, batches: list[list[int]]
) -> None:
    assert taken(*(fetch(*offsets) for offsets in fetches), position=position) == batches


def test_a_batch_ends_with_the_fetch_that_fills_it() -> None:
    assert taken(fetch(0, 1), fetch(2, 3), fetch(4, 5), position=0, records_max=3) == [[0, 1, 2, 3], [4, 5]]


def test_what_is_put_back_comes_first() -> None:
    pending = PendingRecords(0, FakeFetchControl())
    pending.append_batch(fetch(2, 3))
    pending.put_back(fetch(0, 1))
    assert offsets_of(pending.take_batch(0, 100)) == [0, 1, 2, 3]


@pytest.mark.parametrize(
    ("fetches", "position", "batches"),
    [
        # Offset 2 holds no record.
        ([(0, (0, 1)), (2, (3, 4))], 0, [(0, [0, 1, 3, 4])]),
        # A fetch between was dropped.
        ([(0, (0, 1)), (4, (5, 6))], 0, [(0, [0, 1]), (4, [5, 6])]),
        # The position is on an offset without a record.
        ([(0, (0, 1)), (2, (5, 6))], 3, [(3, [5, 6])]),
        # Folded already: the next fetch begins where this one ended.
        ([(0, (0, 1)), (2, (7, 8))], 2, [(2, [7, 8])]),
        # From before a seek; it ends before what follows on the position.
        ([(7, (8, 9)), (0, (2, 3))], 1, [(1, [2, 3])]),
    ],
)
def test_a_fetch_follows_on_the_one_that_it_begins_after(
    fetches: list[tuple[int, tuple[int, ...]]], position: int, batches: list[tuple[int, list[int]]]
) -> None:
    pending = PendingRecords(0, FakeFetchControl())
    for begin_offset, offsets in fetches:
        pending.append_batch(fetch(*offsets, begin_offset=begin_offset))
    for begin_offset, expected in batches:
        taken = pending.take_batch(position, 100)
        assert (taken.begin_offset, offsets_of(taken)) == (begin_offset, expected)
        position = (expected or [position])[-1] + 1
    assert not pending


def test_too_much_interrupts_the_fetching_until_half_is_taken() -> None:
    control = FakeFetchControl()
    pending = PendingRecords(3, control)
    third = PENDING_BYTES_MAX // 3
    for offset in range(3):
        pending.append_batch(fetch(offset, size=third))
    assert control.asked == ["pause 3"]
    assert control.pending_bytes == 3 * (third + len(b"key") + RECORD_OVERHEAD_BYTES)
    pending.take_batch(0, 1)
    assert control.asked == ["pause 3"]
    pending.take_batch(1, 1)
    assert control.asked == ["pause 3", "resume 3"]
    pending.take_batch(2, 1)
    assert (control.pending_bytes, bool(pending)) == (0, False)


def test_keys_count_too() -> None:
    control = FakeFetchControl()
    pending = PendingRecords(3, control)
    pending.append_batch(FollowingRecords(0, [LogRecord(0, 1_000, bytes(PENDING_BYTES_MAX), None)]))
    assert control.asked == ["pause 3"]
    assert control.pending_bytes == PENDING_BYTES_MAX + RECORD_OVERHEAD_BYTES


def test_what_is_dropped_waits_no_longer() -> None:
    control = FakeFetchControl()
    pending = PendingRecords(3, control)
    pending.append_batch(fetch(0, size=PENDING_BYTES_MAX))
    pending.drop_all()
    assert (control.asked, control.pending_bytes, bool(pending)) == (["pause 3", "resume 3"], 0, False)


def test_the_first_record_that_waits_is_told_by_its_time() -> None:
    pending = PendingRecords(0, FakeFetchControl())
    assert pending.first_ms_from(0) is None
    for first in (0, 2):
        records = [LogRecord(first + n, 1_000 + first + n, None, b"") for n in range(2)]
        pending.append_batch(FollowingRecords(first, records))
    assert [pending.first_ms_from(offset) for offset in (0, 1, 2, 3, 4)] == [1_000, 1_001, 1_002, 1_003, None]
