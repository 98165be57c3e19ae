"""How often a test's condition is asked."""

import pytest

from tests.support import waiting
from tests.support.waiting import wait_until


class Clock:
    """A clock that only a condition and a pause move."""

    def __init__(self) -> None:
        self.now_s, self.pauses = 100.0, list[float]()

    def monotonic(self) -> float:
        return self.now_s

    def sleep(self, pause_s: float) -> None:
        self.pauses.append(pause_s)
        self.now_s += pause_s


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    made = Clock()
    monkeypatch.setattr(waiting, "time", made)  # in this module alone: threads of other tests may sleep
    return made


def pauses_of(clock: Clock, call_s: float, *, exact: bool = False) -> list[float]:
    """Ask a condition that takes so long until it holds at the fourth call; return the pauses."""
    calls = list[float]()

    def condition() -> bool:
        clock.now_s += call_s
        calls.append(clock.now_s)
        return len(calls) == 4

    wait_until(condition, 60, "the fourth call", exact=exact)
    return clock.pauses


@pytest.mark.parametrize(("call_s", "pause_s"), [(0.0, 0.05), (0.02, 0.05), (0.25, 0.5), (3.0, 2.0)])
def test_the_pause_is_twice_as_long_as_the_call_and_two_seconds_at_most(
    clock: Clock, call_s: float, pause_s: float
) -> None:
    assert pauses_of(clock, call_s) == pytest.approx([pause_s] * 3)


def test_where_the_time_is_what_is_tested_the_pause_is_the_given_one(clock: Clock) -> None:
    assert pauses_of(clock, 0.25, exact=True) == [0.05] * 3
