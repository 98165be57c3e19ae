"""How far apart the bare hop begins its transactions."""

from benchmarks.programs.transactional_hop import Pace


def test_transactions_begin_at_least_an_interval_apart_and_none_waits_after_a_silence() -> None:
    pace = Pace(30.0)
    assert pace.begin(5.0) == 0.0
    waits = [pace.begin(now_s) for now_s in (5.010, 5.031, 9.0, 9.001)]
    assert [round(wait_s, 6) for wait_s in waits] == [0.020, 0.029, 0.0, 0.029]


def test_without_an_interval_transactions_follow_each_other() -> None:
    pace = Pace(0.0)
    assert [pace.begin(now_s) for now_s in (5.0, 5.0, 5.001)] == [0.0, 0.0, 0.0]
