"""Fetched records that wait: their order, gaps, and the fetching that they interrupt."""

from typing import Any

import pytest
from confluent_kafka import KafkaError, Message

from sessionary.schemas.headers import UNREADABLE_HEADERS
from sessionary.stream_processors.core.model import RECORD_OVERHEAD_BYTES, LogRecord
from sessionary.stream_processors.runtime.pending_records import (
    PENDING_BYTES_MAX,
    FollowingRecords,
    LazyRecord,
    PartitionRecords,
    PendingRecords,
    group_by_partition,
    split_messages,
)
from tests.core.stream_processors.runtime.messages import CREATE_TIME, LOG_APPEND_TIME, end_of, message
from tests.support.broken_headers import BrokenMessage


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


def test_the_first_record_that_waits_is_reported_by_its_time() -> None:
    pending = PendingRecords(0, FakeFetchControl())
    assert pending.first_ms_from(0) is None
    for first in (0, 2):
        records = [LogRecord(first + n, 1_000 + first + n, None, b"") for n in range(2)]
        pending.append_batch(FollowingRecords(first, records))
    assert [pending.first_ms_from(offset) for offset in (0, 1, 2, 3, 4)] == [1_000, 1_001, 1_002, 1_003, None]


WALL_S, CLOCK_AHEAD_S_MAX = 1_700_000_000.0, 60.0
LATEST_MS = 1_700_000_060_000


def grouped(*messages: Message) -> dict[int, PartitionRecords]:
    """Return the batches of these messages, by partition."""
    return {batch.partition: batch for batch in group_by_partition(messages, WALL_S, CLOCK_AHEAD_S_MAX)}


def offsets(batch: PartitionRecords) -> list[int]:
    return [record.offset for record in batch.records]


def test_messages_become_records_of_their_partition_in_order() -> None:
    mixed = [(2, 5), (2, 6), (0, 1), (2, 7), (0, 2), (1, 9)]
    batches = grouped(*(message(partition, offset) for partition, offset in mixed))
    assert {partition: offsets(batch) for partition, batch in batches.items()} == {
        2: [5, 6, 7],
        0: [1, 2],
        1: [9],
    }
    assert all(isinstance(record, LogRecord) for batch in batches.values() for record in batch.records)
    record = batches[0].records[1]
    assert (record.timestamp_ms, record.key, record.value) == (1_002, b"k2", b"v")
    assert dict(record.headers) == {"event": b"2", "trace": b""}


def test_a_tombstone_and_a_record_without_headers_are_records() -> None:
    bare = Message(topic="events", partition=0, offset=3, timestamp=(LOG_APPEND_TIME, 7))
    [record, gone] = grouped(bare, message(0, 4, value=None))[0].records
    assert (record.offset, record.timestamp_ms, record.key, record.value) == (3, 7, None, None)
    assert list(record.headers) == []
    assert (gone.offset, gone.value) == (4, None)


def test_headers_that_cannot_be_read_stay_so_if_a_void_batch_is_folded_again() -> None:
    fields: Any = (3, 7, b"k", b"v", BrokenMessage())
    record = tuple.__new__(LazyRecord, fields)
    for _ in range(2):
        assert record.headers == list(UNREADABLE_HEADERS)


def test_an_error_among_the_messages_is_no_record() -> None:
    first, second = message(0, 1), message(0, 2)
    rejected = KafkaError(KafkaError.TOPIC_AUTHORIZATION_FAILED, "not yours")
    error = message(0, -1001, error=rejected)
    assert split_messages([first, error, second]) == ([first, second], ([error], {}))
    assert split_messages([error]) == ([], ([error], {}))


@pytest.mark.parametrize("timestamp_type", [0, CREATE_TIME])
def test_records_from_the_first_one_without_the_brokers_time_are_not_delivered(timestamp_type: int) -> None:
    wrong = message(1, 7, timestamp_type=timestamp_type)
    batches = grouped(message(1, 5), message(1, 6), wrong, message(1, 8), message(2, 1), message(1, 9))
    assert (offsets(batches[1]), offsets(batches[2])) == ([5, 6], [1])
    assert batches[2].fault is None
    assert batches[1].fault is not None
    fault, offset = batches[1].fault
    assert (fault.reason, offset) == ("wrong_timestamp_type", 7)
    for part in ("partition 1", "offset 7", "sessionary topics apply"):
        assert part in fault.detail


def test_records_from_the_first_one_that_is_too_far_ahead_are_not_delivered() -> None:
    batches = grouped(
        message(1, 5),
        message(1, 6, timestamp_ms=LATEST_MS),
        message(1, 7, timestamp_ms=LATEST_MS + 1),
        message(2, 3, timestamp_ms=LATEST_MS + 86_400_000),
        message(1, 8),
        message(0, 1),
    )
    assert {partition: offsets(batch) for partition, batch in batches.items()} == {1: [5, 6], 2: [], 0: [1]}
    assert batches[0].fault is None
    assert batches[1].fault is not None
    assert batches[2].fault is not None
    assert (batches[1].fault[0].reason, batches[1].fault[1]) == ("clock_ahead", 7)
    fault, offset = batches[2].fault
    assert (fault.reason, offset, fault.clears_in_s) == ("clock_ahead", 3, 86_400)
    for part in (
        "partition 2",
        "offset 3 with 2023-11-15 22:14:20 UTC, 86,460.0 s ahead",
        "this worker's clock, 2023-11-14 22:13:20 UTC",
        "SESSIONARY_CLOCK_AHEAD_S_MAX",
    ):
        assert part in fault.detail


def test_the_latest_stamp_that_there_is_can_be_reported() -> None:
    [batch] = grouped(message(0, 1, timestamp_ms=(1 << 63) - 1)).values()
    assert batch.fault is not None
    assert "with 292278994-08-17 07:12:56 UTC" in batch.fault[0].detail


@pytest.mark.parametrize(("ahead", "sent", "reason"), [(5, 6, "clock_ahead"), (6, 5, "wrong_timestamp_type")])
def test_of_two_faults_the_first_one_counts(ahead: int, sent: int, reason: str) -> None:
    found = {
        ahead: message(0, ahead, timestamp_ms=LATEST_MS + 1),
        sent: message(0, sent, timestamp_type=CREATE_TIME, timestamp_ms=LATEST_MS + 2),
    }
    batch = grouped(message(0, 4), found[5], found[6])[0]
    assert offsets(batch) == [4]
    assert batch.fault is not None
    assert (batch.fault[0].reason, batch.fault[1]) == (reason, 5)


def test_the_end_of_a_partition_is_no_record_and_no_error() -> None:
    first, second = message(0, 1), message(1, 7)
    assert split_messages([first, end_of(0, 4), end_of(2, 0), second]) == ([first, second], ([], {0: 4, 2: 0}))
