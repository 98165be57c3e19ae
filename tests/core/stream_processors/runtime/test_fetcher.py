"""The fetcher without a broker: what it delivers, and when its consumer is replaced."""

import asyncio
import threading
from collections.abc import Callable, Sequence
from typing import Any, cast

import pytest
from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaError, Message, TopicPartition

from sessionary.stream_processors.core.model import LogRecord
from sessionary.stream_processors.errors import Halted
from sessionary.stream_processors.runtime.fetcher import Fetcher, fetcher_config
from sessionary.stream_processors.runtime.pending_records import bytes_of
from sessionary.stream_processors.settings import ProcessorSettings
from tests.core.stream_processors.runtime.messages import CREATE_TIME, end_of, message


class Delivered:
    """A fetcher without a broker; the test plays its thread. `batches` holds what was delivered."""

    def __init__(self, story: Callable[["Delivered"], None], **settings: Any) -> None:
        self.wall_s = 1_700_000_000.0
        self.batches: list[tuple[int, list[int]]] = []
        self.begin_offsets: list[int] = []
        self.halts: list[tuple[int, str, int]] = []
        self.threads: set[int] = set()
        self.fetcher = Fetcher(ProcessorSettings(bootstrap_servers="127.0.0.1:1", **settings), lambda: self.wall_s)
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
        assert done.wait(60)

    async def _play(self) -> None:
        self.fetcher.start(self._take, self._take_fault)
        await asyncio.to_thread(self.fetcher._thread.join, 10)
        await asyncio.sleep(0)
        assert self.threads <= {threading.get_ident()}

    def _take(self, partition: int, begin_offset: int, records: Sequence[LogRecord], size: int) -> None:
        assert size == bytes_of(records)
        self.begin_offsets.append(begin_offset)
        self.threads.add(threading.get_ident())
        self.batches.append((partition, [record.offset for record in records]))

    def _take_fault(self, partition: int, fault: Halted, offset: int) -> None:
        self.threads.add(threading.get_ident())
        assert fault.offset == offset, "an operator may skip it"
        self.halts.append((partition, fault.reason, offset))


def test_batches_are_delivered_on_the_event_loop_in_order_and_once() -> None:
    def story(test: Delivered) -> None:
        for offset in range(0, 40, 2):
            test.fetch_from(1, offset, offset + 1)
            test.fetch_from(2, offset)

    batches = Delivered(story).batches
    assert [offset for partition, offsets in batches if partition == 1 for offset in offsets] == list(range(40))
    assert [offset for partition, offsets in batches if partition == 2 for offset in offsets] == list(range(0, 40, 2))


def test_records_from_before_a_new_fetch_or_a_drop_are_not_delivered() -> None:
    def story(test: Delivered) -> None:
        loop_is_busy = threading.Event()
        test.fetcher._loop.call_soon_threadsafe(loop_is_busy.wait, 60)
        for partition in (1, 2, 3):
            test.fetch_from(partition, 5)
        test.fetcher.fetch_from(1, 4)
        test.fetcher.drop_partition(2)
        while test.fetcher._commands:
            test.fetcher._commands.popleft()()
        loop_is_busy.set()

    assert Delivered(story).batches == [(3, [5])]


class IdleConsumer:
    """A consumer that has nothing; it counts the polls."""

    def __init__(self) -> None:
        self.polls = 0

    def poll(self, timeout_s: float) -> None:
        self.polls += 1

    def assignment(self) -> list[TopicPartition]:
        return []


class AssignedConsumer(IdleConsumer):
    """A consumer of partition 1; it keeps where it was to begin."""

    def __init__(self) -> None:
        super().__init__()
        self.begins: list[int] = []

    def assignment(self) -> list[TopicPartition]:
        return [TopicPartition("events", 1)]

    def incremental_unassign(self, places: list[TopicPartition]) -> None:
        assert [place.partition for place in places] == [1]

    def incremental_assign(self, places: list[TopicPartition]) -> None:
        self.begins += [place.offset for place in places]

    def pause(self, places: list[TopicPartition]) -> None:
        raise AssertionError(places)


@pytest.mark.parametrize(("lacked", "begin"), [(6, OFFSET_BEGINNING), (1 << 62, 6), (-1001, OFFSET_BEGINNING)])
def test_only_a_log_that_lacks_the_position_is_read_from_its_beginning(lacked: int, begin: int) -> None:
    consumer = AssignedConsumer()
    error = message(1, lacked, error=KafkaError(KafkaError._AUTO_OFFSET_RESET))

    def story(test: Delivered) -> None:
        test.fetcher._consumer = cast(Consumer, consumer)
        test.fetcher._topic = "events"
        test.fetcher.fetch_from(1, 4)
        test.fetcher._commands.popleft()()
        test.fetcher._hand_over(message(1, 4), [message(1, 5), error])

    assert Delivered(story).batches == [(1, [4, 5])]
    assert consumer.begins == [4, begin]


@pytest.mark.parametrize("freed_by", ["delivery", "drop"])
def test_nothing_is_fetched_while_many_bytes_wait_for_the_event_loop(freed_by: str) -> None:
    consumer = IdleConsumer()

    def story(test: Delivered) -> None:
        loop_is_busy = threading.Event()
        test.fetcher._consumer = cast(Consumer, consumer)
        test.fetcher._loop.call_soon_threadsafe(loop_is_busy.wait, 60)
        for offset in range(4):
            test.fetcher._run_once()
            assert consumer.polls == offset + 1
            test.fetcher._hand_over(message(1, offset, bytes(5 << 20)), [])
        test.fetcher._run_once()
        assert consumer.polls == 4
        if freed_by == "drop":
            test.fetcher.drop_partition(1)
        else:
            loop_is_busy.set()
            test.on_loop(lambda: None)
        test.fetcher._run_once()
        assert consumer.polls == 5
        loop_is_busy.set()

    assert len(Delivered(story).batches) == (4 if freed_by == "delivery" else 0)


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
    error = message(1, -1001, error=KafkaError(KafkaError._BAD_MSG, "reported so"))

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


def test_a_record_ahead_of_the_workers_clock_is_delivered_once_that_clock_has_caught_up() -> None:
    def story(test: Delivered) -> None:
        stamp_ms = int(test.wall_s * 1_000) + 600_000
        for wait_s in (0.0, 569.9, 0.1):
            test.wall_s += wait_s
            test.fetcher._hand_over(message(1, 5), [message(1, 6, timestamp_ms=stamp_ms)])
            test.on_loop(lambda: None)

    delivered = Delivered(story, clock_ahead_s_max=30)
    assert delivered.batches == [(1, [5]), (1, [5]), (1, [5, 6])]
    assert delivered.halts == [(1, "clock_ahead", 6)] * 2


def test_a_record_below_what_is_believed_is_delivered_however_far_it_is_ahead() -> None:
    def story(test: Delivered) -> None:
        ahead_ms = int(test.wall_s * 1_000) + 600_000
        for believed_from in (7, 0):
            test.fetcher.fetch_from(1, 5, believed_from)
            test.fetcher._commands.popleft()()
            later = [message(1, 6, timestamp_ms=ahead_ms), message(1, 7, timestamp_ms=ahead_ms)]
            test.fetcher._hand_over(message(1, 5), later)
            test.on_loop(lambda: None)

    delivered = Delivered(story)
    assert delivered.batches == [(1, [5, 6]), (1, [5])]
    assert delivered.halts == [(1, "clock_ahead", 7), (1, "clock_ahead", 6)]


def unreadable(partition: int, offset: int) -> Message:
    return message(partition, offset, error=KafkaError(KafkaError._BAD_MSG, "failed CRC32C check"))


def test_a_batch_that_cannot_be_read_halts_its_partition_before_what_follows_it() -> None:
    def story(test: Delivered) -> None:
        test.fetcher.fetch_from(1, 4)
        run_commands(test.fetcher)
        # librdkafka leaves out a batch with a wrong checksum, and goes on behind it.
        test.fetcher._hand_over(
            message(1, 4),
            [message(1, 5), unreadable(1, 6), unreadable(1, 8), message(1, 9), end_of(1, 10), message(2, 7)],
        )
        assert test.fetcher.skip_markers(1, 6) == 6

    delivered = Delivered(story)
    assert delivered.batches == [(1, [4, 5]), (2, [7])]
    assert delivered.halts == [(1, "batch_unreadable", 6)]


def test_a_batch_that_cannot_be_read_halts_within_itself_if_it_was_folded_in_part() -> None:
    def story(test: Delivered) -> None:
        test.fetcher.fetch_from(1, 7)
        run_commands(test.fetcher)
        test.fetcher._hand_over(unreadable(1, 5), [])

    delivered = Delivered(story)
    assert delivered.batches == []
    assert delivered.halts == [(1, "batch_unreadable", 7)]


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


@pytest.mark.parametrize(("partitions", "wait_ms"), [(1, 100), (64, 100), (150, 150), (256, 250), (1_000, 250)])
def test_a_fetch_waits_longer_the_more_partitions_it_names(partitions: int, wait_ms: int) -> None:
    assert fetcher_config(ProcessorSettings(partitions=partitions))["fetch.wait.max.ms"] == wait_ms


def test_a_thread_that_hangs_is_reported_by_its_last_turn() -> None:
    fetcher = Fetcher(ProcessorSettings(bootstrap_servers="127.0.0.1:1"))
    fetcher.turned_s -= 100
    assert fetcher.still_s >= 100
    fetcher._run_once()
    assert fetcher.still_s < 50
    fetcher.close()
