"""When a partition is stuck, and what follows."""

from typing import Any

import pytest

from sessionary.schemas.kafka.log_progress import LogEnd
from sessionary.schemas.records import Position
from sessionary.schemas.topics import TopicNames
from sessionary.stream_processors.errors import Halted
from sessionary.stream_processors.metrics import Metrics
from sessionary.stream_processors.runtime.assignment import Assignment
from sessionary.stream_processors.runtime.decisions import GapAcceptance, OperatorDecision
from sessionary.stream_processors.runtime.log_identity import TopicIds
from sessionary.stream_processors.runtime.log_probe import LogProbe, LogTruncated, RecordStamp
from sessionary.stream_processors.runtime.watchdog import (
    StuckLimits,
    StuckPartitionWatchdog,
    TruncationWatchdog,
    halt_replaced,
)


class FakeOwner:
    """An open partition at a position."""

    def __init__(self, position: int) -> None:
        self.is_open = True
        self.state = self
        self.position = Position(position, 0, 0, 0, 0)
        self.topic_ids = TopicIds("events-1", "changelog-1")
        self.decision_left = GapAcceptance("gone", "alice")


class FakeAssignment:
    def __init__(self, position: int) -> None:
        self.owners: dict[int, Any] = {0: FakeOwner(position)}
        self.reopened = 0
        self.faults: list[Halted] = []

    def reopen_partition(self, partition: int, decision: OperatorDecision | None) -> None:
        self.reopened += 1
        assert decision == self.owners[partition].decision_left, "a decision outlasts it"

    def halt_partition(self, partition: int, fault: Halted) -> None:
        self.faults.append(fault)

    @property
    def as_assignment(self) -> Assignment:
        assignment: Any = self
        return assignment  # type: ignore[no-any-return]


def watchdog(assignment: FakeAssignment, gave_up: list[str]) -> StuckPartitionWatchdog:
    limits = StuckLimits(reopen_s=30.0, give_up_s=90.0)
    return StuckPartitionWatchdog(assignment.as_assignment, Metrics(), limits, gave_up.append, {0: 12}.get)


def test_a_stuck_partition_is_reopened_once_then_given_up() -> None:
    assignment, gave_up = FakeAssignment(10), list[str]()
    dog = watchdog(assignment, gave_up)
    for second in range(0, 30, 5):
        dog.check_progress({0: 20 + second}, float(second))
    assert assignment.reopened == 0
    dog.check_progress({0: 50}, 30.0)
    assert (assignment.reopened, gave_up) == (1, [])
    for second in range(35, 120, 5):
        dog.check_progress({0: 20 + second}, float(second))
    assert (assignment.reopened, gave_up) == (1, [])
    dog.check_progress({0: 140}, 120.0)
    assert assignment.reopened == 1
    assert "stays at 10" in gave_up[0]


def test_time_in_which_a_partition_is_not_open_does_not_count() -> None:
    assignment, gave_up = FakeAssignment(10), list[str]()
    dog = watchdog(assignment, gave_up)
    for second in range(0, 60, 5):
        assignment.owners[0].is_open = not 10 <= second < 30
        dog.check_progress({0: 20 + second}, float(second))
    assert (assignment.reopened, gave_up) == (0, [])
    dog.check_progress({0: 80}, 60.0)
    assert assignment.reopened == 1


def test_a_partition_that_is_idle_or_moves_is_left_alone() -> None:
    assignment, gave_up = FakeAssignment(10), list[str]()
    dog = watchdog(assignment, gave_up)
    for second in range(0, 300, 15):
        dog.check_progress({0: 10}, float(second))  # caught up
    for second in range(300, 600, 15):
        assignment.owners[0].position = Position(second, 0, 0, 0, 0)
        dog.check_progress({0: second + 500}, float(second))  # behind, but moving
    assert (assignment.reopened, gave_up) == (0, [])


def test_time_without_an_answer_of_the_log_does_not_count() -> None:
    assignment, gave_up = FakeAssignment(10), list[str]()
    dog = watchdog(assignment, gave_up)
    dog.check_progress({0: 10}, 0.0)
    for second in range(5, 70, 5):
        dog.check_progress({}, float(second))  # the broker is away
    dog.check_progress({0: 20}, 70.0)  # and back, with what waited at the clients
    assert (assignment.reopened, gave_up) == (0, [])
    dog.check_progress({0: 21}, 75.0)
    assert assignment.reopened == 0
    for second in range(80, 101, 5):
        dog.check_progress({0: second}, float(second))
    assert assignment.reopened == 1


def test_a_partition_is_a_suspect_exactly_when_it_would_be_reopened() -> None:
    assignment, gave_up = FakeAssignment(10), list[str]()
    dog = watchdog(assignment, gave_up)
    dog.check_progress({0: 20}, 0.0)
    assert dog.find_suspects({0: 21}, 29.0) == {}
    assert dog.find_suspects({0: 20}, 30.0) == {}
    assert dog.find_suspects({0: 21, 1: 99}, 30.0) == {0: 10}
    dog.check_progress({0: 10}, 30.0)  # nothing to be fetched is behind it
    assert dog.find_suspects({0: 22}, 31.0) == {}
    assert (assignment.reopened, gave_up) == (0, [])


@pytest.mark.parametrize(
    ("now", "is_halted"),
    [
        (TopicIds("events-1", "changelog-1"), False),
        (TopicIds(), False),
        (TopicIds("events-2", "changelog-1"), True),
        (TopicIds(None, "changelog-2"), True),
    ],
)
def test_a_topic_that_is_made_again_halts_its_open_partitions(now: TopicIds, is_halted: bool) -> None:
    assignment, topics = FakeAssignment(1_000), TopicNames.with_prefix("t")
    halt_replaced(assignment.as_assignment, now, topics)
    assert [fault.reason for fault in assignment.faults] == ["topic_replaced"] * is_halted
    assignment.owners[0].is_open = False
    halt_replaced(assignment.as_assignment, now, topics)
    assert len(assignment.faults) == is_halted, "the opening compares them itself"


class TruncationBench:
    """A truncation watchdog over partition 0; the test tells its position and log."""

    def __init__(self) -> None:
        self.assignment = FakeAssignment(0)
        self.dog = TruncationWatchdog(self.assignment.as_assignment)

    def check_end(self, position: int | None, end: int | None, leader_epoch: int = 1) -> list[int]:
        """A round; None: the partition is not open, or its log gives no answer."""
        positions = {} if position is None else {0: Position(position, 5_000, 0, 1, 0)}
        return self.dog.check_ends(positions, {} if end is None else {0: LogEnd(end, leader_epoch)})

    def check_log(self, position: int, timestamp_ms: int, leader_epoch: int) -> None:
        log = LogProbe(0, position + 100, None, RecordStamp(timestamp_ms, leader_epoch))
        self.dog.check_log(0, Position(position, 5_000, 0, 1, 0), log)

    @property
    def reasons(self) -> list[str]:
        return [fault.reason for fault in self.assignment.faults]


def test_a_log_that_ends_below_the_position_twice_in_a_row_halts_the_partition() -> None:
    bench = TruncationBench()
    bench.check_end(1_000, 1_000)
    bench.check_end(1_000, 900)
    assert bench.reasons == []
    bench.check_end(1_000, 950)
    assert bench.reasons == ["log_truncated"]
    (fault,) = bench.assignment.faults
    assert isinstance(fault, LogTruncated)
    assert fault.lost_from == 900, "the smallest end that was seen"
    assert "below offset 1000" in bench.assignment.faults[0].detail


def test_one_old_answer_halts_nothing() -> None:
    bench = TruncationBench()
    for end in (900, 1_000, 900, 1_001):
        bench.check_end(1_000, end)
    bench.check_end(1_000, 900)
    bench.check_end(None, 900)  # opened again: the opening checks by itself
    bench.check_end(1_000, 900)
    assert bench.reasons == []


def test_a_round_without_an_answer_leaves_the_suspicion() -> None:
    bench = TruncationBench()
    for end in (900, None, 900):
        bench.check_end(1_000, end)
    assert bench.reasons == ["log_truncated"]


def test_a_new_leader_is_looked_at_until_its_log_was_seen() -> None:
    bench = TruncationBench()
    assert bench.check_end(1_000, 1_000, leader_epoch=1) == []
    assert bench.check_end(1_010, 1_010, leader_epoch=1) == []
    assert bench.check_end(1_020, 1_500, leader_epoch=2) == [0]
    assert bench.check_end(1_020, 1_500, leader_epoch=2) == [0], "the look got no answer"
    bench.check_log(1_020, 5_000, 2)
    assert bench.check_end(1_020, 1_500, leader_epoch=2) == []
    assert bench.reasons == []


def test_a_log_that_was_cut_and_grew_past_the_position_halts_the_partition() -> None:
    bench = TruncationBench()
    bench.check_end(1_000, 1_000, leader_epoch=1)
    assert bench.check_end(1_020, 1_500, leader_epoch=2) == [0]
    bench.check_log(1_020, 5_001, 2)  # stamped after all that was folded
    assert bench.reasons == ["log_truncated"]


def test_a_new_leader_with_a_slow_clock_is_found_out_if_the_position_rested() -> None:
    bench = TruncationBench()
    bench.check_end(1_000, 1_000, leader_epoch=1)
    assert bench.check_end(1_000, 1_500, leader_epoch=2) == [0]
    bench.check_log(1_000, 4_000, 2)
    assert bench.reasons == ["log_truncated"]
