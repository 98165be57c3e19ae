"""Until the broker knows a producer on a partition, one record at a time is under way to it."""

from collections import defaultdict
from typing import Any, cast

import pytest
from confluent_kafka import KafkaError, KafkaException, Message
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from sessionary.producers.delivery.first_records import DeliveryCallback, FirstRecords
from sessionary.producers.ports import OutRecord
from sessionary.schemas.ids import partition_of

PARTITIONS = 3
HALF_A_DAY_S = 43_200.0


class Report:
    """A delivery report's message."""

    def __init__(self, partition: int) -> None:
        self._partition = partition

    def partition(self) -> int:
        return self._partition


class Rig:
    """`FirstRecords` over a librdkafka that is a list; records are named by numbers."""

    def __init__(self, bytes_max: int = 1_000, timeout_s: float = 0) -> None:
        self.partitions: int | None = PARTITIONS
        self.queued: list[tuple[str, DeliveryCallback | None]] = []
        self.under_way: list[tuple[str, DeliveryCallback | None]] = []
        self.reports: list[tuple[str, int | None]] = []  # with the error's code
        self.refusal: Exception | None = None
        self.now_s = 0.0
        self.records = FirstRecords(self._queue, lambda: self.partitions, bytes_max, timeout_s, lambda: self.now_s)

    def _queue(self, record: OutRecord, on_delivery: DeliveryCallback | None) -> None:
        if self.refusal is not None:
            raise self.refusal
        self.queued.append((record.event_id, on_delivery))
        self.under_way.append((record.event_id, on_delivery))

    def produce(self, name: str, key: bytes) -> None:
        def report(error: KafkaError | None, message: Message) -> None:
            self.reports.append((name, None if error is None else error.code()))

        record = OutRecord(key, name.encode(), [], name, "t", "acme", "s", "p", 1)
        self.records.produce(record, report)

    def answer(self, name: str, key: bytes, error: int | None = None) -> None:
        """Answer a record that is under way, and release what waits for it."""
        (found,) = [one for one in self.under_way if one[0] == name]
        self.under_way.remove(found)
        assert found[1] is not None
        found[1](None if error is None else KafkaError(error), cast(Message, Report(partition_of(key, PARTITIONS))))
        self.records.release()

    @property
    def names(self) -> list[str]:
        """What librdkafka was given, in order."""
        return [name for name, _ in self.queued]


def key_of(place: int, n: int = 0) -> bytes:
    """Return the n-th key of a partition."""
    return [key for i in range(100) if partition_of(key := b"k%d" % i, PARTITIONS) == place][n]


def opened(**given: Any) -> Rig:
    """A rig whose producer is known on partition 0."""
    rig = Rig(**given)
    rig.produce("first", key_of(0))
    rig.answer("first", key_of(0))
    return rig


def test_all_wait_for_the_very_first_record_and_then_for_the_first_of_their_partition() -> None:
    rig = Rig()
    for n, place in enumerate([0, 1, 0, 1, 2, 1]):
        rig.produce(f"r{n}", key_of(place, n % 2))
    assert rig.names == ["r0"]
    rig.answer("r0", key_of(0))
    assert sorted(rig.names[1:]) == ["r1", "r2", "r4"]
    rig.answer("r4", key_of(2))
    assert len(rig.names) == 4
    rig.answer("r1", key_of(1))
    assert rig.names[4:] == ["r3", "r5"]
    rig.produce("r6", key_of(1))
    assert rig.names[-1] == "r6"


def test_a_partition_whose_number_is_not_known_yet_is_asked_for_again() -> None:
    rig = Rig()
    rig.partitions = None
    rig.produce("a", key_of(0))
    rig.produce("b", key_of(0))
    rig.answer("a", key_of(0))
    assert rig.names == ["a"]
    rig.partitions = PARTITIONS
    rig.records.release()
    assert rig.names == ["a", "b"]


def test_the_next_record_is_the_first_if_that_failed() -> None:
    rig = opened()
    for name in "abc":
        rig.produce(name, key_of(1))
    rig.answer("a", key_of(1), KafkaError._MSG_TIMED_OUT)
    assert rig.names[1:] == ["a", "b"]
    rig.answer("b", key_of(1))
    assert rig.names[1:] == ["a", "b", "c"]
    assert rig.reports[1:] == [("a", KafkaError._MSG_TIMED_OUT), ("b", None)]


def test_what_waited_too_long_fails_with_the_first() -> None:
    rig = opened(timeout_s=10)
    rig.produce("a", key_of(1))
    rig.produce("b", key_of(1))
    rig.now_s = 9.0
    rig.produce("c", key_of(1))
    rig.now_s = 10.0
    rig.answer("a", key_of(1), KafkaError._MSG_TIMED_OUT)
    assert rig.reports[1:] == [("a", KafkaError._MSG_TIMED_OUT), ("b", KafkaError._MSG_TIMED_OUT)]
    assert rig.names[-1] == "c"


def test_so_many_bytes_are_held_back() -> None:
    rig = opened(bytes_max=2)
    for name in "abc":
        rig.produce(name, key_of(1))
    with pytest.raises(BufferError):
        rig.produce("d", key_of(1))
    rig.produce("e", key_of(0))
    rig.answer("a", key_of(1))
    rig.produce("f", key_of(1))
    assert rig.names[1:] == ["a", "e", "b", "c", "f"]


def test_a_full_queue_only_delays_what_was_held_back() -> None:
    rig = opened()
    for name in "abc":
        rig.produce(name, key_of(1))
    rig.refusal = BufferError("full")
    rig.answer("a", key_of(1))
    rig.produce("d", key_of(1))
    rig.refusal = None
    rig.records.release()
    assert rig.names[1:] == ["a", "b", "c", "d"]


def test_a_full_queue_only_delays_the_next_first_record() -> None:
    rig = opened()
    for name in "abc":
        rig.produce(name, key_of(1))
    rig.refusal = BufferError("full")
    rig.answer("a", key_of(1), KafkaError.INVALID_RECORD)
    rig.refusal = None
    rig.records.release()
    assert rig.names[1:] == ["a", "b"]


@pytest.mark.parametrize("error", [None, KafkaError.INVALID_RECORD])
def test_what_librdkafka_does_not_take_is_reported(error: int | None) -> None:
    rig = opened()
    for name in "abc":
        rig.produce(name, key_of(1))
    rig.refusal = KafkaException(KafkaError(KafkaError._FATAL))
    rig.answer("a", key_of(1), error)
    assert rig.reports[-2:] == [("b", KafkaError._FATAL), ("c", KafkaError._FATAL)]
    with pytest.raises(KafkaException):
        rig.produce("d", key_of(1))


def test_a_broker_may_forget_a_producer_within_a_day() -> None:
    rig = opened()
    rig.now_s = HALF_A_DAY_S
    rig.records.release()
    rig.produce("a", key_of(0))
    rig.produce("b", key_of(0))
    assert rig.names == ["first", "a"]
    rig.answer("a", key_of(0))
    assert rig.names == ["first", "a", "b"]


class AnyOrder(RuleBasedStateMachine):
    """Records to three partitions; answers, failures and a full queue at any time."""

    @initialize()
    def begin(self) -> None:
        self.rig = Rig(bytes_max=1_000_000)
        self.made: dict[int, list[str]] = defaultdict(list)
        self.keys: dict[str, bytes] = {}
        self.acknowledged: set[int] = set()

    @rule(place=st.integers(0, PARTITIONS - 1), n=st.integers(0, 1))
    def make(self, place: int, n: int) -> None:
        name = f"r{len(self.keys)}"
        try:
            self.rig.produce(name, key_of(place, n))
        except BufferError:
            assert self.rig.refusal is not None
            return
        self.keys[name] = key_of(place, n)
        self.made[place].append(name)

    @precondition(lambda self: self.rig.under_way)
    @rule(data=st.data(), fails=st.booleans())
    def answer(self, data: st.DataObject, fails: bool) -> None:
        name = data.draw(st.sampled_from([name for name, _ in self.rig.under_way]))
        if not fails:
            self.acknowledged.add(partition_of(self.keys[name], PARTITIONS))
        self.rig.answer(name, self.keys[name], KafkaError.INVALID_RECORD if fails else None)

    @rule(full=st.booleans())
    def fill(self, full: bool) -> None:
        self.rig.refusal = BufferError("full") if full else None
        self.rig.records.release()

    @invariant()
    def one_is_under_way_to_a_partition_that_acknowledged_nothing(self) -> None:
        places = [partition_of(self.keys[name], PARTITIONS) for name, _ in self.rig.under_way]
        assert all(places.count(place) == 1 for place in set(places) - self.acknowledged)

    @invariant()
    def each_partitions_records_are_in_order(self) -> None:
        for place, made in self.made.items():
            queued = [name for name in self.rig.names if partition_of(self.keys[name], PARTITIONS) == place]
            assert queued == made[: len(queued)]

    def teardown(self) -> None:
        """All are queued in the end."""
        self.rig.refusal = None
        self.rig.records.release()
        while self.rig.under_way:
            name, _ = self.rig.under_way[0]
            self.rig.answer(name, self.keys[name])
        assert sorted(self.rig.names) == sorted(self.keys)


TestAnyOrder = AnyOrder.TestCase
TestAnyOrder.settings = settings(max_examples=100, stateful_step_count=30, deadline=None)
