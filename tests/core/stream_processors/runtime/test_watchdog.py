"""When a partition is stuck, and what follows."""

from typing import Any

from sessionary.schemas.records import Position
from sessionary.stream_processors.metrics import Metrics
from sessionary.stream_processors.runtime.assignment import Assignment
from sessionary.stream_processors.runtime.watchdog import StuckPartitionWatchdog


class FakeOwner:
    """An open partition at a position."""

    def __init__(self, position: int) -> None:
        self.is_open = True
        self.state = self
        self.position = Position(position, 0, 0, 0, 0)


class FakeAssignment:
    def __init__(self, position: int) -> None:
        self.owners: dict[int, Any] = {0: FakeOwner(position)}
        self.reopened = 0

    def reopen_partition(self, partition: int) -> None:
        self.reopened += 1

    @property
    def as_assignment(self) -> Assignment:
        assignment: Any = self
        return assignment  # type: ignore[no-any-return]


def watchdog(assignment: FakeAssignment, gave_up: list[str]) -> StuckPartitionWatchdog:
    return StuckPartitionWatchdog(assignment.as_assignment, Metrics(), 60.0, gave_up.append)


def test_a_stuck_partition_is_reopened_once_then_given_up() -> None:
    assignment, gave_up = FakeAssignment(10), list[str]()
    dog = watchdog(assignment, gave_up)
    dog.check_progress({0: 20}, 0.0)
    dog.check_progress({0: 21}, 59.0)
    assert assignment.reopened == 0
    dog.check_progress({0: 22}, 60.0)
    assert (assignment.reopened, gave_up) == (1, [])
    dog.check_progress({0: 23}, 119.0)
    dog.check_progress({0: 24}, 121.0)
    assert assignment.reopened == 1
    assert "stays at 10" in gave_up[0]


def test_a_partition_that_is_idle_or_moves_is_left_alone() -> None:
    assignment, gave_up = FakeAssignment(10), list[str]()
    dog = watchdog(assignment, gave_up)
    for second in range(0, 300, 30):
        dog.check_progress({0: 10}, float(second))  # caught up
    for second in range(300, 600, 30):
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
    for second in range(80, 131, 5):
        dog.check_progress({0: second}, float(second))
    assert assignment.reopened == 1


def test_a_partition_is_a_suspect_exactly_when_it_would_be_reopened() -> None:
    assignment, gave_up = FakeAssignment(10), list[str]()
    dog = watchdog(assignment, gave_up)
    dog.check_progress({0: 20}, 0.0)
    assert dog.find_suspects({0: 21}, 59.0) == {}
    assert dog.find_suspects({0: 20}, 60.0) == {}
    assert dog.find_suspects({0: 21, 1: 99}, 60.0) == {0: 10}
    dog.check_progress({0: 10}, 60.0)  # nothing to be fetched is behind it
    assert dog.find_suspects({0: 22}, 61.0) == {}
    assert (assignment.reopened, gave_up) == (0, [])
