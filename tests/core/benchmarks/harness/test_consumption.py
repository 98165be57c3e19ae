"""The rate of a program, from samples of its commits."""

from collections.abc import Mapping
from pathlib import Path

import pytest
from confluent_kafka import TopicPartition

from benchmarks.bench import Bench, Options
from benchmarks.harness import consumption
from benchmarks.harness.consumption import GroupProgress, Rate, Sample, steady_rate
from benchmarks.harness.stack import Stack

OFFSETS = (40, -1_001, 70)  # the group has committed nothing in the second partition


class FakeConsumer:
    """A consumer whose group has committed `OFFSETS`."""

    def __init__(self, _: Mapping[str, object]) -> None:
        pass

    def committed(self, places: list[TopicPartition], timeout: float) -> list[TopicPartition]:
        return [TopicPartition(place.topic, place.partition, OFFSETS[place.partition]) for place in places]


def test_the_rate_is_that_behind_the_warm_up() -> None:
    samples = [Sample(float(n), 100 * n * n, float(n), 2.0 * n) for n in range(11)]
    assert steady_rate(samples, 2_000) == Rate(events=7_500, elapsed_s=5.0, cpu_s=5.0, broker_cpu_s=10.0)


@pytest.mark.parametrize(("ends", "committed"), [(None, 110), ({0: 50, 1: 50, 2: 50}, 90), ({2: 0}, 40)])
def test_what_lies_behind_the_end_of_the_events_does_not_count(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, ends: Mapping[int, int] | None, committed: int
) -> None:
    monkeypatch.setattr(consumption, "Consumer", FakeConsumer)
    stack = Stack(Bench(Options()), tmp_path, "127.0.0.1:1")
    assert GroupProgress(stack, "events", "group", 3, ends).committed_events() == committed
