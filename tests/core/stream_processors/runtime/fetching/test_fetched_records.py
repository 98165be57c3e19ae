"""Messages of librdkafka become records of their partitions."""

from typing import Any

import pytest
from confluent_kafka import KafkaError, Message

from sessionary.schemas.headers import UNREADABLE_HEADERS
from sessionary.stream_processors.core.model import LogRecord
from sessionary.stream_processors.runtime.fetching.fetched_records import (
    LazyRecord,
    PartitionRecords,
    group_by_partition,
    split_messages,
)
from tests.core.stream_processors.runtime.fetching.messages import CREATE_TIME, LOG_APPEND_TIME, end_of, message
from tests.support.broken_headers import BrokenMessage

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
    refused = KafkaError(KafkaError.TOPIC_AUTHORIZATION_FAILED, "not yours")
    error = message(0, -1001, error=refused)
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


def test_the_latest_stamp_that_there_is_can_be_told() -> None:
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
