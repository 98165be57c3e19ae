"""How fetched messages become records, without a broker, and reach the event loop in batches."""

import asyncio
import logging
import threading
from collections.abc import Callable, Sequence
from typing import Any

import pytest
from confluent_kafka import KafkaError, Message

from sessionary.schemas.headers import UNREADABLE_HEADERS
from sessionary.stream_processors.core.model import LogRecord
from sessionary.stream_processors.errors import Halted
from sessionary.stream_processors.runtime.fetcher import Fetcher, _group_by_partition, _LazyRecord, _PartitionRecords
from sessionary.stream_processors.settings import ProcessorSettings
from tests.support.broken_headers import BrokenMessage

CREATE_TIME, LOG_APPEND_TIME = 1, 2


def message(
    partition: int,
    offset: int,
    value: bytes | None = b"v",
    error: KafkaError | None = None,
    timestamp_type: int = LOG_APPEND_TIME,
) -> Message:
    return Message(
        topic="events",
        partition=partition,
        offset=offset,
        key=b"k%d" % offset,
        value=value,
        headers=[("event", b"%d" % offset), ("trace", None)],
        error=error,
        timestamp=(timestamp_type, 1_000 + offset),
    )


def grouped(*messages: Message) -> dict[int, _PartitionRecords]:
    """Return the batches of these messages, by partition."""
    return {batch.partition: batch for batch in _group_by_partition(list(messages))}


def offsets(batch: _PartitionRecords) -> list[int]:
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
    record = tuple.__new__(_LazyRecord, fields)
    for _ in range(2):
        assert record.headers == list(UNREADABLE_HEADERS)


def test_an_error_among_the_messages_is_reported_and_no_record(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    refused = KafkaError(KafkaError.TOPIC_AUTHORIZATION_FAILED, "not yours")
    batches = grouped(message(0, 1), message(0, -1001, error=refused), message(0, 2))
    assert offsets(batches[0]) == [1, 2]
    assert "not yours" in caplog.text
    assert grouped(message(0, -1001, error=refused)) == {}


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


class Delivered:
    """A fetcher without a broker; the test plays its thread. `batches` holds what was delivered."""

    def __init__(self, story: Callable[["Delivered"], None]) -> None:
        self.batches: list[tuple[int, list[int]]] = []
        self.begin_offsets: list[int] = []
        self.halts: list[tuple[int, str, int]] = []
        self.threads: set[int] = set()
        self.fetcher = Fetcher(ProcessorSettings(bootstrap_servers="127.0.0.1:1"))
        self.fetcher._thread = threading.Thread(target=story, args=[self])
        asyncio.run(self._play())

    def fetch_from(self, partition: int, *offsets: int) -> None:
        first, *more = [message(partition, offset) for offset in offsets]
        self.fetcher._hand_over(first, more)

    def on_loop(self, call: Callable[[], None]) -> None:
        """Make a call on the event loop, after all that was scheduled there before."""
        done = threading.Event()
        self.fetcher._loop.call_soon_threadsafe(call)
        self.fetcher._loop.call_soon_threadsafe(done.set)
        assert done.wait(10)

    async def _play(self) -> None:
        self.fetcher.start(self._take, self._take_fault)
        await asyncio.to_thread(self.fetcher._thread.join, 10)
        await asyncio.sleep(0)
        assert self.threads <= {threading.get_ident()}

    def _take(self, partition: int, begin_offset: int, records: Sequence[LogRecord]) -> None:
        self.begin_offsets.append(begin_offset)
        self.threads.add(threading.get_ident())
        self.batches.append((partition, [record.offset for record in records]))

    def _take_fault(self, partition: int, fault: Halted, offset: int) -> None:
        self.threads.add(threading.get_ident())
        self.halts.append((partition, fault.reason, offset))


def test_batches_are_delivered_on_the_event_loop_in_order_and_once() -> None:
    def story(test: Delivered) -> None:
        for offset in range(0, 40, 2):
            test.fetch_from(1, offset, offset + 1)
            test.fetch_from(2, offset)

    batches = Delivered(story).batches
    assert [offset for partition, offsets in batches if partition == 1 for offset in offsets] == list(range(40))
    assert [offset for partition, offsets in batches if partition == 2 for offset in offsets] == list(range(0, 40, 2))


def test_held_delivery_delivers_nothing_and_a_restart_drops_what_waits() -> None:
    def story(test: Delivered) -> None:
        test.fetch_from(1, 1, 2)
        test.on_loop(test.fetcher.hold_delivery)
        test.fetch_from(1, 3)
        test.on_loop(lambda: None)
        assert test.batches == [(1, [1, 2])]
        test.on_loop(test.fetcher.restart_delivery)
        test.fetch_from(1, 7)

    assert Delivered(story).batches == [(1, [1, 2]), (1, [7])]


def test_records_from_before_a_new_fetch_or_a_drop_are_not_delivered() -> None:
    def story(test: Delivered) -> None:
        loop_is_busy = threading.Event()
        test.fetcher._loop.call_soon_threadsafe(loop_is_busy.wait, 10)
        for partition in (1, 2, 3):
            test.fetch_from(partition, 5)
        test.fetcher.fetch_from(1, 4)
        test.fetcher.drop_partition(2)
        while test.fetcher._commands:
            test.fetcher._commands.popleft()()
        loop_is_busy.set()

    assert Delivered(story).batches == [(3, [5])]


def test_a_batch_begins_where_the_one_before_it_ended() -> None:
    def story(test: Delivered) -> None:
        test.fetch_from(1, 5, 6)  # of the offsets before 5 nothing is known
        test.fetch_from(2, 40)
        test.fetch_from(1, 9, 10)  # 7 and 8 hold no record
        test.fetch_from(1, 8, 12)  # from 8 on once more

    fetched = Delivered(story)
    assert fetched.batches == [(1, [5, 6]), (2, [40]), (1, [9, 10]), (1, [8, 12])]
    assert fetched.begin_offsets == [5, 40, 7, 8]


@pytest.mark.parametrize("begin_anew", ["fetch_from", "drop_partition"])
def test_the_first_batch_of_another_place_follows_on_none(begin_anew: str) -> None:
    def story(test: Delivered) -> None:
        test.fetch_from(1, 5, 6)
        test.on_loop(lambda: None)
        if begin_anew == "fetch_from":
            test.fetcher.fetch_from(1, 7)
        else:
            test.fetcher.drop_partition(1)
        test.fetcher._commands.popleft()()
        test.fetch_from(1, 9)

    assert Delivered(story).begin_offsets == [5, 9]


def test_what_is_fetched_after_an_error_follows_on_nothing() -> None:
    error = message(1, -1001, error=KafkaError(KafkaError._BAD_MSG, "told so"))

    def story(test: Delivered) -> None:
        test.fetch_from(1, 5)
        test.fetch_from(2, 5)
        test.fetcher._hand_over(message(1, 7), [error, message(2, 7)])
        test.fetch_from(1, 9)

    fetched = Delivered(story)
    assert fetched.batches == [(1, [5]), (2, [5]), (1, [7]), (2, [7]), (1, [9])]
    assert fetched.begin_offsets == [5, 5, 7, 6, 9]


def test_a_fault_is_delivered_after_the_records_before_it() -> None:
    def story(test: Delivered) -> None:
        test.fetcher._hand_over(message(1, 5), [message(1, 6, timestamp_type=CREATE_TIME)])
        test.on_loop(lambda: None)
        test.fetcher._hand_over(message(2, 3, timestamp_type=CREATE_TIME), [])

    delivered = Delivered(story)
    assert delivered.batches == [(1, [5])]
    assert delivered.halts == [(1, "wrong_timestamp_type", 6), (2, "wrong_timestamp_type", 3)]
