"""What a sink reports of its partitions: landed offsets, lags, and whether it is ready."""

import pytest

from sessionary.sinks.core.block_due import BlockLimits
from sessionary.sinks.core.intent import PartitionPlan
from sessionary.sinks.core.rows.shared import RawRecord
from sessionary.sinks.errors import Transient
from sessionary.sinks.metrics import SinkMetrics
from sessionary.sinks.runtime.log_watch import LogWatch, PositionReport
from tests.core.sinks.runtime.consumer_rig import FakeClock, SinkRig

LIMITS = BlockLimits(100, 1_000_000, 0.5)


class Story:
    """A report about one partition, whose log and time the test moves."""

    def __init__(self, plan: PartitionPlan) -> None:
        self.clock, self.metrics, self.plan = FakeClock(), SinkMetrics("history", "g"), plan
        self.high, self.ends = 0, dict[int, int]()
        self.watch = LogWatch(lambda: self.ends, self.clock)
        self.report = PositionReport(self.metrics, self.watch, self.clock)

    def lag(self, after_s: float = 5.0) -> tuple[float | None, float | None]:
        """Return the lag in records and in seconds."""
        self.clock.now_s += after_s
        self.watch.ask_once()
        self.report.report_positions({0: self.plan}, lambda _partition: self.high, lambda _: False, has_plans=True)
        return lag_of(self.metrics, 0)


def lag_of(metrics: SinkMetrics, partition: int) -> tuple[float | None, float | None]:
    labels = {"sink": "history", "group": "g", "partition": str(partition)}
    read = metrics.registry.get_sample_value
    return read("sessionary_sink_lag_records", labels), read("sessionary_sink_lag_seconds", labels)


def record(offset: int, at_ms: int) -> RawRecord:
    return RawRecord("t", 0, offset, at_ms, None, b"v")


def test_a_partition_of_markers_alone_has_no_lag() -> None:
    story = Story(PartitionPlan(LIMITS, None, None))
    story.plan.reached_end(7)
    story.high, story.ends = 7, {0: 7}
    assert story.lag() == (0, 0)


def test_a_lag_is_unknown_before_the_log_s_end_is() -> None:
    story = Story(PartitionPlan(LIMITS, 5, None))
    story.high = -1001  # what librdkafka says before the first fetch
    assert story.lag() == (None, None)
    story.ends = {0: 7}
    assert story.lag()[0] == 2


def test_the_age_is_that_of_the_oldest_record_that_has_not_landed() -> None:
    story = Story(PartitionPlan(LIMITS, 5, None))
    story.plan.add_records([record(5, 101_000), record(6, 104_000)], 0.0)
    assert story.lag(5.0) == (None, None)  # how far the log goes is not known
    story.high = 7
    assert story.lag(5.0) == (2, 9.0)
    assert story.lag(5.0) == (2, 14.0)
    story.plan.reached_end(8)  # a marker follows
    story.plan.take_block(0.0, 0)
    story.plan.mark_declared()
    story.plan.mark_written()
    assert story.lag() == (0, 0)


def test_a_partition_of_which_nothing_can_be_read_grows_older_from_its_first_lag_on() -> None:
    story = Story(PartitionPlan(LIMITS, 5, None))
    story.ends = {0: 9}
    assert story.lag() == (4, 0)
    assert story.lag(30.0) == (4, 30.0)
    story.ends = {0: 5}
    story.plan.reached_end(5)
    assert story.lag() == (0, 0)
    story.ends = {0: 6}
    assert story.lag() == (1, 0)


def test_the_lag_grows_while_the_sink_waits_for_clickhouse() -> None:
    rig, seen = SinkRig(), list[tuple[float | None, float | None]]()
    rig.kafka.append_records(0, 2)
    rig.kafka.append_records(1, 2)
    rig.log_ends = {0: 2, 1: 2}

    def fail() -> None:
        rig.target.error = Transient("network", "no answer")
        rig.kafka.append_records(0, 1)

    def look() -> None:
        seen.append(lag_of(rig.metrics, 1))
        rig.log_ends = {0: 3, 1: 8}  # partition 1 is paused: its consumer does not learn of these

    rig.run_steps(
        lambda: rig.kafka.schedule_assignment(0, 1),
        *[lambda: rig.advance(1.0)] * 3,
        fail,
        lambda: rig.advance(1.0),
        look,
        *[rig.ask_log] * 3,
        lambda: seen.append(lag_of(rig.metrics, 1)),
    )
    assert seen[0] == (0, 0)
    assert seen[1][0] == 6
    assert (seen[1][1] or 0) >= 5


def test_a_sink_with_one_blocked_partition_stays_ready_and_tells_its_lag() -> None:
    rig, seen, lags = SinkRig(), list[tuple[bool, str]](), list[tuple[float | None, float | None]]()
    rig.kafka.append_records(0, 3)
    rig.kafka.append_unreadable(0)
    rig.kafka.append_records(1, 2)
    rig.log_ends = {0: 9, 1: 2}
    rig.run_steps(
        lambda: rig.kafka.schedule_assignment(0, 1),
        *[rig.ask_log] * 6,
        lambda: seen.append(rig.log_watch.readiness()),
        lambda: seen.append(rig.metrics.health()),
        lambda: lags.append(lag_of(rig.metrics, 0)),
    )
    assert seen == [(True, "ready"), (True, "blocked: partition 0: batch_unreadable")]
    assert lags[0][0] == 6
    assert (lags[0][1] or 0) >= 20


@pytest.mark.parametrize("way", ["lost", "its topic was made again"])
def test_the_series_of_a_partition_that_is_gone_vanish(way: str) -> None:
    rig, seen = SinkRig(), list[tuple[float | None, float | None]]()
    rig.topic_id = "first"
    rig.kafka.append_records(0, 2)
    rig.kafka.append_records(1, 2)
    rig.log_ends = {0: 2, 1: 2}

    def take_away() -> None:
        seen.append(lag_of(rig.metrics, 0))
        if way == "lost":
            rig.kafka.schedule_assignment(1)
        else:
            rig.topic_id = "second"

    rig.run_steps(
        lambda: rig.kafka.schedule_assignment(0, 1),
        *[lambda: rig.advance(1.0)] * 3,
        take_away,
        *[rig.ask_log] * 3,
        lambda: seen.append(lag_of(rig.metrics, 0)),
    )
    assert seen == [(0, 0), (None, None)]
