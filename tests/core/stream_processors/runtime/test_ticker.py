"""When a tick is due, and what becomes of a producer that cannot send one."""

from collections.abc import Callable
from typing import Any

import pytest
from confluent_kafka import KafkaError

from sessionary.stream_processors.metrics import Metrics
from sessionary.stream_processors.runtime import ticker
from sessionary.stream_processors.runtime.ticker import (
    DUE_MS,
    RENEW_MS,
    STEADY_MS,
    LastTick,
    is_tick_due,
    steady_pause_ms,
)
from sessionary.stream_processors.settings import ProcessorSettings

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
    ("partitions", "hole_ms", "pause_ms"),
    [
        (0, 5_000, 1_000),
        (64, 5_000, 1_000),
        (96, 5_000, 1_500),
        (256, 5_000, 2_000),
        (256, 3_000, 1_200),
        (256, 1, 1_000),
    ],
)
def test_many_partitions_have_ticks_less_often_but_well_within_a_hole(
    partitions: int, hole_ms: int, pause_ms: float
) -> None:
    assert steady_pause_ms(partitions, hole_ms) == pause_ms
    sent = LastTick(NOW_MS - pause_ms + 1, under_way=False)
    assert not is_tick_due(NOW_MS, 2_000_000, sent, pause_ms)
    assert is_tick_due(NOW_MS + 1, 2_000_000, sent, pause_ms)
    assert is_tick_due(NOW_MS, int(NOW_MS), sent, pause_ms), "a deadline has passed"


class FakeProducer:
    """Fails every delivery, or none."""

    def __init__(self, fails: bool) -> None:
        self.fails, self.reports, self.sent = fails, list[Callable[[], None]](), 0

    def produce(self, topic: str, value: bytes, *, partition: int, on_delivery: Callable[[Any, Any], None]) -> None:
        self.sent += 1
        told = KafkaError(KafkaError._MSG_TIMED_OUT, "told so") if self.fails else None
        self.reports.append(lambda: on_delivery(told, None))

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
