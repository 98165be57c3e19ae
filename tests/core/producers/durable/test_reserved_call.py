"""Waits between tries, and the rate of calls."""

import pytest

from sessionary.producers.durable.reserved_call import CallRate, Retry


def test_waits_double_up_to_the_longest() -> None:
    assert [Retry().wait_ms(failures, 0.5) for failures in range(1, 8)] == [
        *(500, 1_000, 2_000, 4_000, 8_000, 10_000, 10_000)
    ]


@pytest.mark.parametrize(("chance", "wait_ms"), [(0.0, 400), (0.25, 450), (0.5, 500), (0.999999, 599)])
def test_waits_are_spread_by_a_fifth(chance: float, wait_ms: int) -> None:
    assert Retry().wait_ms(1, chance) == wait_ms


def test_a_wait_is_never_negative() -> None:
    assert Retry(jitter=3.0).wait_ms(1, 0.0) == 0


def test_a_hundred_calls_at_once_begin_one_after_another() -> None:
    rate = CallRate(10)
    waits = [rate.take_turn(100.0) for _ in range(100)]
    assert waits == pytest.approx([number / 10 for number in range(100)])


def test_a_pause_between_calls_is_not_saved_up() -> None:
    rate = CallRate(2)
    assert [rate.take_turn(now_s) for now_s in (10.0, 20.0, 20.0)] == [0, 0, 0.5]
