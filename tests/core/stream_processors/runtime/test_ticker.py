"""When a tick is due, and what becomes of a producer that cannot send one."""

import time
from collections.abc import Callable, Sequence
from typing import Any

import pytest
from confluent_kafka import KafkaError

from sessionary.schemas.codec import Decoder, encode_record
from sessionary.schemas.records import BatchAcknowledged, RulesActivation
from sessionary.schemas.rules import NEWEST_RULES
from sessionary.schemas.types import AnnouncedRules
from sessionary.stream_processors.metrics import Metrics
from sessionary.stream_processors.runtime import ticker
from sessionary.stream_processors.runtime.ticker import (
    DUE_MS,
    IDLE_MS,
    RENEW_MS,
    STEADY_MS,
    LastTick,
    due_partitions,
    is_tick_due,
    look_pause_s,
    steady_pause_ms,
)
from sessionary.stream_processors.settings import ProcessorSettings
from tests.auditor.signatures import SECRETS, is_signed

NOW_MS = 1_000_000.0


@pytest.mark.parametrize(
    ("deadline_ms", "sent", "due"),
    [
        (None, None, False),  # no session lives
        (None, LastTick(0, under_way=False), False),
        (2_000_000, None, True),
        (2_000_000, LastTick(NOW_MS - STEADY_MS + 1, under_way=False), False),
        (2_000_000, LastTick(NOW_MS - STEADY_MS, under_way=False), True),
        (int(NOW_MS), LastTick(NOW_MS - DUE_MS + 1, under_way=False), False),
        (int(NOW_MS), LastTick(NOW_MS - DUE_MS, under_way=False), True),
        (int(NOW_MS) + 1, LastTick(NOW_MS - DUE_MS, under_way=False), False),
        (int(NOW_MS), LastTick(0, under_way=True), False),  # the broker is away: no pile of ticks
    ],
)
def test_a_tick_is_due_each_second_and_when_a_deadline_has_passed(
    deadline_ms: int | None, sent: LastTick | None, due: bool
) -> None:
    assert is_tick_due(NOW_MS, deadline_ms, sent) is due


@pytest.mark.parametrize(
    ("partitions", "outage_ms", "pause_ms"),
    [
        (0, 5_000, 1_000),
        (64, 5_000, 1_000),
        (96, 5_000, 1_500),
        (256, 5_000, 2_000),
        (256, 3_000, 1_200),
        (256, 1, 1_000),
    ],
)
def test_many_partitions_have_ticks_less_often_but_well_within_an_outage(
    partitions: int, outage_ms: int, pause_ms: float
) -> None:
    assert steady_pause_ms(partitions, outage_ms) == pause_ms
    sent = LastTick(NOW_MS - pause_ms + 1, under_way=False)
    assert not is_tick_due(NOW_MS, 2_000_000, sent, pause_ms)
    assert is_tick_due(NOW_MS + 1, 2_000_000, sent, pause_ms)
    assert is_tick_due(NOW_MS, int(NOW_MS), sent, pause_ms), "a deadline has passed"


@pytest.mark.parametrize("partitions", [8, 64, 256])
def test_ticks_come_in_a_few_rounds_and_none_is_late(partitions: int) -> None:
    """Each look sends what is due; its ticks arrive at once."""
    steady_ms, look_ms = steady_pause_ms(partitions, 5_000), look_pause_s(partitions) * 1_000
    # Partitions open one after the other, so that their first ticks are spread over the pause.
    sent = {number: LastTick(NOW_MS + steady_ms * number / partitions, False) for number in range(partitions)}
    rounds: list[float] = []
    begin_ms = NOW_MS + steady_ms
    for look in range(int(20 * steady_ms / look_ms)):
        now_ms = begin_ms + look * look_ms
        due = due_partitions(now_ms, dict.fromkeys(sent, 2_000_000), sent, steady_ms)
        assert all(now_ms - sent[number].at_ms <= steady_ms + look_ms for number in due)
        rounds += [now_ms] if due else []
        sent |= dict.fromkeys(due, LastTick(now_ms, False))
    last_s = [at_ms for at_ms in rounds if at_ms > now_ms - 4 * steady_ms]
    assert len(last_s) <= 4 * 4, "four rounds in a pause"


def test_a_tick_for_a_deadline_takes_no_other_along() -> None:
    sent = dict.fromkeys(range(3), LastTick(NOW_MS - 0.9 * STEADY_MS, under_way=False))
    assert due_partitions(NOW_MS, {0: 2_000_000, 1: int(NOW_MS), 2: None}, sent) == [1]
    assert due_partitions(NOW_MS + 0.1 * STEADY_MS, {0: 2_000_000, 1: 2_000_000, 2: None}, sent) == [0, 1]


def test_many_partitions_are_looked_at_less_often() -> None:
    """So that looking costs the same from 64 partitions on; a deadline is still met soon."""
    assert [look_pause_s(partitions) for partitions in (0, 64, 256)] == [0.02, 0.02, 0.08]


class FakeProducer:
    """Fails every delivery, or none."""

    def __init__(self, fails: bool) -> None:
        self.fails, self.reports, self.sent = fails, list[Callable[[], None]](), 0
        self.values: list[tuple[str, int, bytes]] = []
        self.headers: list[tuple[str, bytes]] = []  # of the last record

    def __len__(self) -> int:
        return len(self.reports)

    def produce(
        self,
        topic: str,
        value: bytes,
        *,
        partition: int,
        headers: Sequence[tuple[str, bytes]] = (),
        on_delivery: Callable[[Any, Any], None] | None = None,
    ) -> None:
        self.values.append((topic, partition, value))
        self.headers = list(headers)
        if on_delivery is None:
            return
        self.sent += 1
        reported = KafkaError(KafkaError._MSG_TIMED_OUT, "reported so") if self.fails else None
        self.reports.append(lambda: on_delivery(reported, None))

    def poll(self, timeout_s: float) -> None:
        while self.reports:
            self.reports.pop()()

    def purge(self, **options: bool) -> None:
        """Nothing is held."""


def test_a_failing_tick_producer_is_replaced_at_most_once_in_a_while(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[FakeProducer] = []

    def make(config: object) -> FakeProducer:
        made.append(FakeProducer(fails=len(made) < 2))
        return made[-1]

    monkeypatch.setattr(ticker, "Producer", make)
    clock = ticker.Ticker(ProcessorSettings(), Metrics())
    for second in range(60):
        clock.send_due_ticks(NOW_MS + second * STEADY_MS, {0: int(NOW_MS) + 900_000})
    assert [producer.sent for producer in made] == [1, RENEW_MS // STEADY_MS, 60 - 1 - RENEW_MS // STEADY_MS]


def test_announced_rules_begin_with_a_record_that_is_sent_until_they_are_in_force(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    producer = FakeProducer(fails=False)
    monkeypatch.setattr(ticker, "Producer", lambda config: producer)
    metrics = Metrics()
    clock = ticker.Ticker(ProcessorSettings(instance="w1", signing_keys=SECRETS), metrics)
    announced = AnnouncedRules(*NEWEST_RULES, from_offset=7, principal="ops")

    def look(at_ms: float, *partitions: int) -> Sequence[int]:
        """Look once; return the partitions that were sent something."""
        producer.values.clear()
        clock.send_due_activations(NOW_MS + at_ms, dict.fromkeys(partitions, announced))
        clock.send_due_ticks(NOW_MS + at_ms, dict.fromkeys(partitions))
        return [partition for _, partition, _ in producer.values]

    assert look(0, 0, 1) == [0, 1]
    assert Decoder().decode_event(producer.values[0][2]) == RulesActivation(*NEWEST_RULES, "ops", "w1")
    assert is_signed(None, producer.values[-1][2], producer.headers)
    assert look(STEADY_MS - 1, 0, 1) == []
    assert look(STEADY_MS, 0, 1) == [0, 1]
    assert look(STEADY_MS + 1, 1) == []  # those of 0 are in force
    assert look(2 * STEADY_MS, 1) == [1]
    assert look(2 * STEADY_MS + 1, 0, 1) == [0]  # announced by another owner of 0, in a later assignment
    assert metrics.ticks_sent._value.get() == 0


def test_a_partitions_last_acknowledgement_is_reported_once_it_is_idle(monkeypatch: pytest.MonkeyPatch) -> None:
    producer = FakeProducer(fails=False)
    monkeypatch.setattr(ticker, "Producer", lambda _: producer)
    settings = ProcessorSettings()
    sender = ticker.Ticker(settings, Metrics())
    busy, idle = (BatchAcknowledged(n, 7, int(NOW_MS * 1_000) + n, "w1") for n in (1, 0))
    waiting = {0: idle, 1: busy}
    sender.send_acknowledgements(NOW_MS + IDLE_MS - 0.001, waiting)
    assert producer.values == []
    sender.send_acknowledgements(NOW_MS + IDLE_MS, waiting)
    sender.send_acknowledgements(NOW_MS + IDLE_MS, waiting)
    assert waiting == {1: busy}
    assert producer.values == [(settings.topics.batches, 0, encode_record(idle))]
    sender.send_acknowledgements(NOW_MS + 1, waiting, idle_ms=0)
    assert waiting == {}
    assert producer.values[1:] == [(settings.topics.batches, 1, encode_record(busy))]


def test_a_partition_with_ticks_is_not_idle_between_two_of_them() -> None:
    assert IDLE_MS > STEADY_MS + DUE_MS


class AnsweringProducer(FakeProducer):
    """A producer whose records are acknowledged when a test says so."""

    def __init__(self) -> None:
        super().__init__(fails=False)
        self.deliveries: list[Any] = []

    def produce(self, topic: str, value: bytes, partition: int, headers: Any = (), on_delivery: Any = None) -> None:
        self.deliveries.append(on_delivery)


def test_the_age_of_a_tick_counts_from_its_acknowledgement_and_only_if_ticks_are_needed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    producer = AnsweringProducer()
    monkeypatch.setattr(ticker, "Producer", lambda config: producer)
    clock = ticker.Ticker(ProcessorSettings(), Metrics())
    now_ms = time.time() * 1_000
    deadlines: dict[int, int | None] = {0: int(now_ms) + 900_000, 1: None, 2: 0}
    clock.send_due_ticks(now_ms - 900_000, deadlines)
    clock.send_due_ticks(now_ms, deadlines)
    assert clock.tick_ages_s(now_ms) == {0: 900.0, 2: 900.0}, "none was acknowledged since they are needed"
    producer.deliveries[0](None, None)
    ages_s = clock.tick_ages_s(time.time() * 1_000)
    assert ages_s[0] < 300 < ages_s[2]
    clock.send_due_ticks(now_ms, {0: None, 1: None})
    assert clock.tick_ages_s(now_ms) == {}
    producer.deliveries[1](None, None)
    assert clock.tick_ages_s(now_ms) == {}, "the tick of a partition that is gone"
