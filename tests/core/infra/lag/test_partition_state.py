"""Burrow's rules, as a table."""

import pytest

from sessionary.infra.lag.partition_state import Observation, PartitionState, judge_partition

WINDOW_S = 60.0
# Offsets and lags in steps of 20 s, the last at the window's end.
Steps = list[tuple[int | None, int]]


def _observations(steps: Steps, step_s: float = 20.0) -> list[Observation]:
    return [
        Observation(number * step_s, committed, (committed or 0) + lag, lag)
        for number, (committed, lag) in enumerate(steps)
    ]


@pytest.mark.parametrize(
    ("steps", "state"),
    [
        ([(5, 9), (5, 9), (5, 9), (5, 0)], "ok"),  # no lag now, whatever there was
        ([(5, 0), (5, 3), (5, 6), (5, 9)], "ok"),  # at the end once in the window
        ([(5, 9), (4, 10), (6, 8), (7, 7)], "rewind"),
        ([(5, 9), (None, 14), (None, 14), (None, 14)], "rewind"),  # the commit is gone
        ([(5, 9), (5, 9), (5, 9), (5, 9)], "stall"),
        ([(5, 9), (5, 10), (5, 11), (5, 12)], "stall"),
        ([(None, 9), (None, 9), (None, 9), (None, 9)], "stall"),  # it never commits
        ([(5, 9), (6, 9), (7, 9), (8, 9)], "warn"),
        ([(5, 9), (6, 10), (7, 11), (8, 12)], "warn"),
        ([(5, 9), (5, 9), (5, 9), (6, 9)], "warn"),
        ([(5, 9), (6, 10), (9, 8), (10, 9)], "ok"),  # it fell once
        ([(None, 9), (3, 6), (6, 3), (8, 1)], "ok"),  # the first commit is no rewind
    ],
)
def test_a_group_with_members_is_judged_by_its_window(steps: Steps, state: str) -> None:
    found = judge_partition(_observations(steps), window_s=WINDOW_S, has_members=True)
    assert found == PartitionState(state)


@pytest.mark.parametrize(
    ("steps", "lag_s", "state"),
    [
        ([(5, 0)], 0.0, "ok"),
        ([(5, 9)], 59.0, "observing"),  # before the oldest unread record there was nothing to read
        ([(5, 9)], 60.0, "stop"),  # its age alone proves it: one observation is enough
        ([(5, 9)], None, "observing"),
        ([(5, 9), (5, 9), (5, 9)], None, "observing"),
        ([(5, 9), (5, 9), (5, 9), (5, 9)], None, "stop"),
        ([(5, 0), (5, 9), (5, 9), (5, 9)], 40.0, "ok"),  # it was at the end a minute ago
        ([(5, 0), (5, 9), (5, 9), (5, 9), (5, 9)], 70.0, "stop"),
        ([(9, 9), (5, 13), (5, 13), (5, 13)], 90.0, "stop"),  # worse than a rewind
        ([(None, 9)], 90.0, "stop"),
    ],
)
def test_a_group_without_members_has_stopped(steps: Steps, lag_s: float | None, state: str) -> None:
    found = judge_partition(_observations(steps), window_s=WINDOW_S, has_members=False, lag_s=lag_s)
    assert found == PartitionState(state)


def test_nothing_but_the_end_of_the_log_is_said_before_the_window_is_filled() -> None:
    short: list[Steps] = [[(5, 9)], [(5, 9), (4, 10)], [(5, 9), (5, 9), (5, 9)]]
    for steps in short:
        assert judge_partition(_observations(steps), window_s=WINDOW_S, has_members=True) == "observing"


def test_what_lies_before_the_window_is_forgotten() -> None:
    older: Steps = [(9, 0), (1, 8), (1, 8)]
    within: Steps = [(2, 7), (3, 7), (4, 7), (5, 7)]
    assert judge_partition(_observations(older + within), window_s=WINDOW_S, has_members=True) == "warn"
    # The window begins with the youngest observation that is a window old.
    assert judge_partition(_observations([(1, 0), (2, 7), (3, 7)], 50.0), window_s=WINDOW_S, has_members=True) == "ok"


def test_a_small_lag_may_be_allowed() -> None:
    stalled = _observations([(5, 9), (5, 9), (5, 9), (5, 9)])
    assert judge_partition(stalled, window_s=WINDOW_S, has_members=True, lag_max=9) == "ok"
    assert judge_partition(stalled, window_s=WINDOW_S, has_members=True, lag_max=8) == "stall"


def test_the_states_are_ordered_by_what_they_cost() -> None:
    states = sorted(PartitionState, key=lambda state: state.severity)
    assert (states[0], states[-1]) == (PartitionState.OK, PartitionState.NO_TOPIC)
    assert PartitionState.WARN.severity < PartitionState.STALL.severity < PartitionState.LOG_GAP.severity
