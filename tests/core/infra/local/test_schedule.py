"""When supervised parts start, restart and stop."""

from __future__ import annotations

import pytest

from sessionary.infra.local.errors import InvalidPartOrder
from sessionary.infra.local.schedule import BackOff, PartState, Schedule


def test_waits_double_up_to_the_limit() -> None:
    back_off = BackOff()
    assert [back_off.wait_s(deaths) for deaths in range(1, 8)] == [0.2, 0.4, 0.8, 1.6, 3.2, 5.0, 5.0]
    assert back_off.wait_s(10**6) == 5.0


def test_what_needs_set_up_is_tried_again_once_a_minute_after_three_exits() -> None:
    schedule = Schedule({"a": []}, BackOff())
    waits = []
    for died in range(5):
        schedule.mark_started("a", float(died))
        waits.append(schedule.record_death("a", died + 0.5, needs_set_up=True))
    assert waits == [0.2, 0.4, 0.8, 60.0, 60.0]
    schedule.mark_started("a", 100.0)
    assert schedule.record_death("a", 100.5) == 5.0  # it ended for another reason


def _live_and_die(schedule: Schedule, name: str, born: float, died: float) -> float:
    schedule.mark_started(name, born)
    schedule.mark_ready(name)
    return schedule.record_death(name, died)


def test_a_long_life_earns_a_short_wait() -> None:
    schedule = Schedule({"a": []}, BackOff(reset_after_s=30.0))
    assert _live_and_die(schedule, "a", 0.0, 1.0) == 0.2
    assert _live_and_die(schedule, "a", 2.0, 31.9) == 0.4
    assert _live_and_die(schedule, "a", 40.0, 70.0) == 0.2
    assert _live_and_die(schedule, "a", 80.0, 80.0) == 0.4


def test_a_dead_part_starts_when_its_wait_is_over_and_not_before() -> None:
    schedule = Schedule({"a": []}, BackOff(first_s=0.5))
    assert schedule.startable_parts(0.0) == ("a",)
    schedule.mark_started("a", 0.0)
    assert schedule.startable_parts(0.0) == ()
    assert schedule.next_due(0.0) is None
    schedule.record_death("a", 8.0)
    assert schedule.startable_parts(8.25) == ()
    assert schedule.next_due(8.25) == 0.25
    assert schedule.startable_parts(8.5) == ("a",)


def test_a_part_waits_until_what_it_needs_is_ready_each_time() -> None:
    schedule = Schedule({"processor": ["broker", "clickhouse"], "broker": [], "clickhouse": []}, BackOff())
    assert set(schedule.startable_parts(0.0)) == {"broker", "clickhouse"}
    for name in ("broker", "clickhouse"):
        schedule.mark_started(name, 0.0)
    assert schedule.startable_parts(1.0) == ()
    schedule.mark_ready("broker")
    schedule.mark_ready("clickhouse")
    assert schedule.startable_parts(1.0) == ("processor",)
    schedule.mark_started("processor", 1.0)
    schedule.record_death("broker", 2.0)
    schedule.record_death("processor", 2.0)
    assert schedule.startable_parts(60.0) == ("broker",)
    assert schedule.next_due(2.0) == pytest.approx(0.2)


def test_parts_stop_in_reverse_order_and_stay_stopped() -> None:
    schedule = Schedule({"c": ["b"], "b": ["a"], "a": []}, BackOff())
    assert schedule.start_order == ("a", "b", "c")
    assert schedule.stop_order == ("c", "b", "a")
    assert schedule.leaf_parts == ("c",)
    for name in "abc":
        schedule.mark_started(name, 0.0)
        schedule.mark_ready(name)
    assert schedule.all_ready()
    for name in schedule.stop_order:
        schedule.mark_stopped(name)
    assert not schedule.all_ready()
    assert schedule.startable_parts(100.0) == ()
    assert schedule.in_state(PartState.STOPPED) == ("a", "b", "c")


@pytest.mark.parametrize("after", [{"a": ["unknown"]}, {"a": ["b"], "b": ["a"]}, {"a": ["a"]}])
def test_parts_without_an_order_are_refused(after: dict[str, list[str]]) -> None:
    with pytest.raises(InvalidPartOrder):
        Schedule(after, BackOff())
