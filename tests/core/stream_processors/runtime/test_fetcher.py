"""How fetched messages become records, without a broker, and reach the event loop in batches."""

import asyncio
import logging
import threading
from collections.abc import Callable, Sequence

import pytest
from confluent_kafka import KafkaError, Message

from sessionary.stream_processors.core.model import LogRecord
from sessionary.stream_processors.runtime.fetcher import Fetcher, _group_by_partition
from sessionary.stream_processors.settings import ProcessorSettings

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
    batches, _ = _group_by_partition([message(partition, offset) for partition, offset in mixed])
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
    [record, gone] = _group_by_partition([bare, message(0, 4, value=None)])[0][0]
    assert (record.offset, record.timestamp_ms, record.key, record.value) == (3, 7, None, None)
    assert list(record.headers) == []
    assert (gone.offset, gone.value) == (4, None)


def test_an_error_among_the_messages_is_reported_and_no_record(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    refused = KafkaError(KafkaError.TOPIC_AUTHORIZATION_FAILED, "not yours")
    batches, _ = _group_by_partition([message(0, 1), message(0, -1001, error=refused), message(0, 2)])
    assert [record.offset for record in batches[0]] == [1, 2]
    assert "not yours" in caplog.text
    assert _group_by_partition([message(0, -1001, error=refused)]) == ({}, {})


def end_of(partition: int, offset: int) -> Message:
    return message(partition, offset, error=KafkaError(KafkaError._PARTITION_EOF))


def test_the_end_of_a_partition_is_no_record_and_no_error(caplog: pytest.LogCaptureFixture) -> None:
    batches, ends = _group_by_partition([message(0, 1), end_of(0, 4), end_of(2, 0), message(1, 7)])
    assert {partition: [record.offset for record in records] for partition, records in batches.items()} == {
        0: [1],
        1: [7],
    }
    assert ends == {0: 4, 2: 0}
    assert caplog.text == ""


class Delivered:
    """A fetcher without a broker; the test plays its thread. `batches` holds what was delivered."""

    def __init__(self, story: Callable[["Delivered"], None]) -> None:
        self.batches: list[tuple[int, list[int]]] = []
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
        self.fetcher.start(self._take)
        await asyncio.to_thread(self.fetcher._thread.join, 10)
        await asyncio.sleep(0)
        assert self.threads <= {threading.get_ident()}

    def _take(self, partition: int, records: Sequence[LogRecord]) -> None:
        self.threads.add(threading.get_ident())
        self.batches.append((partition, [record.offset for record in records]))


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


def run_commands(fetcher: Fetcher) -> None:
    while fetcher._commands:
        fetcher._commands.popleft()()


def assigned_places(fetcher: Fetcher) -> set[tuple[int, int]]:
    return {(place.partition, place.offset) for place in fetcher._consumer.assignment()}


def watch(fetcher: Fetcher, ends: dict[int, int], *, checks: int, drained: bool = True) -> list[bool]:
    """Check `checks` times, five seconds apart; in between the consumer has nothing to deliver."""
    answers = []
    for _ in range(checks):
        if drained:
            fetcher._drained_s = fetcher._observed_s + 1
        answers.append(fetcher.renew_if_stuck(ends, fetcher._observed_s + 5))
    return answers


def test_a_consumer_that_delivers_nothing_of_a_log_that_goes_on_is_replaced() -> None:
    def story(test: Delivered) -> None:
        fetcher = test.fetcher
        for partition in (0, 1, 2):
            fetcher.fetch_from(partition, 10)
        fetcher.pause_partition(2)
        run_commands(fetcher)
        test.fetch_from(0, 10, 11)
        test.fetch_from(1, 10)
        former = fetcher._consumer
        assert watch(fetcher, {0: 12, 1: 15, 2: 90}, checks=3) == [False, False, True]
        run_commands(fetcher)
        assert fetcher._consumer is not former
        # What was delivered stays; the others go on where they stopped.
        assert assigned_places(fetcher) == {(0, 12), (1, 11), (2, 10)}
        # The new one has as long as the former one.
        assert watch(fetcher, {0: 12, 1: 15, 2: 90}, checks=3) == [False, False, True]

    assert Delivered(story).batches == [(0, [10, 11]), (1, [10])]


@pytest.mark.parametrize(
    ("ends", "drained"),
    [
        ({1: 11}, True),  # all was fetched
        ({}, True),  # the log does not answer
        ({1: 15}, False),  # this process has not taken what was fetched
    ],
)
def test_a_consumer_that_is_not_to_blame_stays(ends: dict[int, int], drained: bool) -> None:
    def story(test: Delivered) -> None:
        test.fetcher.fetch_from(1, 10)
        run_commands(test.fetcher)
        test.fetch_from(1, 10)
        assert watch(test.fetcher, ends, checks=10, drained=drained) == [False] * 10

    Delivered(story)


def test_a_slow_consumer_and_one_whose_partition_was_just_resumed_stay() -> None:
    def story(test: Delivered) -> None:
        fetcher = test.fetcher
        fetcher.fetch_from(1, 10)
        run_commands(fetcher)
        for offset in (10, 11, 12):
            test.fetch_from(1, offset)
            assert watch(fetcher, {1: 99}, checks=2) == [False, False]
        fetcher.pause_partition(1)
        run_commands(fetcher)
        assert watch(fetcher, {1: 99}, checks=3) == [False] * 3
        fetcher.resume_partition(1)
        run_commands(fetcher)
        assert watch(fetcher, {1: 99}, checks=3) == [False, False, True]

    Delivered(story)


def test_a_log_that_ends_with_transaction_markers_is_fetched_to_its_end() -> None:
    def story(test: Delivered) -> None:
        fetcher = test.fetcher
        fetcher.fetch_from(1, 10)
        run_commands(fetcher)
        fetcher._hand_over(message(1, 10), [end_of(1, 14)])
        assert watch(fetcher, {1: 14}, checks=4) == [False] * 4
        assert [fetcher.skip_markers(1, position) for position in (9, 10, 11)] == [9, 10, 14]
        assert fetcher.skip_markers(5, 3) == 3
        assert watch(fetcher, {1: 15}, checks=3) == [False, False, True]
        run_commands(fetcher)
        assert assigned_places(fetcher) == {(1, 14)}

    Delivered(story)
