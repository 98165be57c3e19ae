"""What becomes of fetched messages, without a broker: records in order, by partition; headers only when asked for."""

import logging

import pytest
from confluent_kafka import KafkaError, Message

from sessionary.stream_processors.core.model import LogRecord
from sessionary.stream_processors.runtime.fetcher import _batches

LOG_APPEND_TIME = 2


def message(partition: int, offset: int, value: bytes | None = b"v", error: KafkaError | None = None) -> Message:
    return Message(
        topic="events",
        partition=partition,
        offset=offset,
        key=b"k%d" % offset,
        value=value,
        headers=[("event", b"%d" % offset), ("trace", None)],
        error=error,
        timestamp=(LOG_APPEND_TIME, 1_000 + offset),
    )


def test_messages_become_records_of_their_partition_in_order() -> None:
    mixed = [(2, 5), (2, 6), (0, 1), (2, 7), (0, 2), (1, 9)]
    batches = _batches([message(partition, offset) for partition, offset in mixed])
    assert {partition: [record.offset for record in records] for partition, records in batches.items()} == {
        2: [5, 6, 7],
        0: [1, 2],
        1: [9],
    }
    assert all(isinstance(record, LogRecord) for records in batches.values() for record in records)
    record = batches[0][1]
    assert (record.timestamp_ms, record.key, record.value) == (1_002, b"k2", b"v")
    assert dict(record.headers) == {"event": b"2", "trace": b""}


def test_a_tombstone_and_a_record_without_headers_are_records() -> None:
    bare = Message(topic="events", partition=0, offset=3, timestamp=(LOG_APPEND_TIME, 7))
    [record, gone] = _batches([bare, message(0, 4, value=None)])[0]
    assert (record.offset, record.timestamp_ms, record.key, record.value) == (3, 7, None, None)
    assert list(record.headers) == []
    assert (gone.offset, gone.value) == (4, None)


def test_an_error_among_the_messages_is_reported_and_no_record(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    refused = KafkaError(KafkaError.TOPIC_AUTHORIZATION_FAILED, "not yours")
    batches = _batches([message(0, 1), message(0, -1001, error=refused), message(0, 2)])
    assert [record.offset for record in batches[0]] == [1, 2]
    assert "not yours" in caplog.text
    assert _batches([message(0, -1001, error=refused)]) == {}
