"""No record stops a partition or a sink: fuzzed records through the fold and every row builder."""

from functools import reduce

import pytest

from sessionary.schemas.events import PAYLOADS
from sessionary.schemas.records import AgentState, RunState, SessionState
from sessionary.schemas.types import Rejection
from tests.core.record_fuzzer import RecordFuzzer
from tests.fuzz.campaign import (
    GROWTH_BYTES_MAX,
    Run,
    RunResult,
    find_gaps,
    find_growth,
    format_report,
    memory_growth,
    plan_runs,
    run_campaign,
    run_seed,
)
from tests.fuzz.full_sessions import full_sessions
from tests.fuzz.fuzz_run import ACCEPTABLE, MARKS, REASONS, VERDICT, FailingJudge, FuzzRun, check_rejected


def check_reach(records: int, *seeds: int) -> None:
    """Check the runs of some seeds. Together they reach everything: one may miss a rare event."""
    results = [run_seed(seed, records) for seed in seeds]
    assert find_gaps(reduce(RunResult.combine, results)) == []
    for result in results:
        assert result.records == records
        assert result.decoded / records <= 0.6
    assert {name for result in results for name in result.seen} == {*PAYLOADS, "tick", VERDICT}
    assert {name for result in results for name in result.applied} == ACCEPTABLE
    assert {reason for result in results for _, reason in result.rejected} == REASONS
    assert {mark for result in results for mark in result.marks} >= MARKS


def test_fuzzed_records_stop_neither_processor_nor_sinks() -> None:
    check_reach(40_000, 11)


def test_many_more_fuzzed_records_stop_neither_processor_nor_sinks() -> None:
    check_reach(50_000, *range(3, 9))


def test_a_seed_always_gives_the_same_records() -> None:
    def records(seed: int) -> list[tuple[bytes | None, bytes | None, int]]:
        fuzzer = RecordFuzzer(seed, lambda _: None)
        made = [fuzzer.next_record() for _ in range(500)]
        return [(record.key, record.value, record.later_ms) for record in made]

    assert records(5) == records(5) != records(6)


def test_the_check_of_rejections_can_fail() -> None:
    run = FuzzRun(3)
    run.fold_records(300)
    row = next(row for row in run._state.rows.values() if isinstance(row, SessionState))
    check_rejected(row, row._replace(audit_seq=row.audit_seq + 1))
    for changed in (row._replace(version=row.version + 1), row._replace(rejections=[Rejection(1, "late", "")] * 17)):
        with pytest.raises(AssertionError):
            check_rejected(row, changed)
    with pytest.raises(AssertionError):
        check_rejected(None, row)


def test_columns_are_compared_if_the_build_makes_them_at_once() -> None:
    run = FuzzRun(3)
    run.fold_records(300)
    assert (run.columns.taken > 50) == run.columns.has_encoder
    run.columns.compare()
    run.columns._rows = [(0,)]
    with pytest.raises((AssertionError, ValueError)):
        run.columns.compare()


def test_a_failure_that_was_not_meant_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    run = FuzzRun(3)
    monkeypatch.setattr(FailingJudge, "report", staticmethod(lambda *_: 1 // 0))
    with pytest.raises(AssertionError):
        run.fold_records(300)


def test_full_sessions_have_as_much_of_everything_as_they_may() -> None:
    full = full_sessions()
    rows = {row.session_id: row for row in full.rows.values() if isinstance(row, SessionState)}
    assert sorted(len(row.open_runs) for row in rows.values()) == [0, 0, 64]
    assert sorted(len(row.forgotten) for row in rows.values()) == [0, 0, 1_024]
    of_others = [row for row in full.rows.values() if not isinstance(row, SessionState | RunState)]
    agents = [row for row in of_others if isinstance(row, AgentState)]
    assert (len(agents), len(of_others)) == (64, 10_064)


def test_a_campaign_has_each_run_once_and_its_sum() -> None:
    assert plan_runs(7, 120_000) == [Run(7, 50_000), Run(8, 50_000), Run(9, 20_000)]
    assert plan_runs(7, 1) == [Run(7, 1)]
    ((run, alone),) = run_campaign(plan_runs(3, 400), 1)
    assert (run.seed, alone.records, alone.failures) == (3, 400, ())
    assert sum(alone.seen.values()) == alone.decoded
    twice = alone.combine(alone)
    assert (twice.records, twice.decoded) == (800, 2 * alone.decoded)
    assert dict(twice.rejected) == {key: 2 * count for key, count in alone.rejected.items()}
    table = "\n".join(format_report(twice, 2.0))
    assert "800 records in 2 s, 400 records/s" in table
    assert "heartbeat" in table


def test_a_process_that_grows_after_its_first_runs_is_a_fault() -> None:
    def grown(*samples: int) -> RunResult:
        total = RunResult()
        for one in samples:
            total = total.combine(RunResult(memory_bytes={1: (one,), 2: (70,)}))
        return total

    assert memory_growth(grown(50, 90, 70, 80)) == 0, "too few runs to tell"
    assert memory_growth(grown(50, 90, 70, 80, 300, 95)) == 5, "a peak is no growth"
    assert find_growth(grown(50, 90, 70, 80, 95, 90 + GROWTH_BYTES_MAX)) == []
    assert find_growth(grown(50, 90, 70, 80, *[91 + GROWTH_BYTES_MAX] * 2)) == [
        "a process grew by 48.0 MiB, must be at most 48 MiB"
    ]


def test_a_rare_kind_and_too_much_damage_are_gaps() -> None:
    seen = dict.fromkeys((*PAYLOADS, "tick"), 2)
    rejected = {("heartbeat", reason): 2 for reason in REASONS}
    good = RunResult(20_000, 9_000, seen, {}, rejected, dict.fromkeys(MARKS, 2))
    assert find_gaps(good) == []
    assert find_gaps(good._replace(seen={**good.seen, "tick": 1})) == [
        "event type tick came 1 times in 20,000 records, must be 2"
    ]
    less = {key: count for key, count in good.rejected.items() if key[1] != "late"}
    assert find_gaps(good._replace(rejected=less)) == [
        "rejection reason late came 0 times in 20,000 records, must be 2"
    ]
    assert "mark chunks merged came 0 times" in find_gaps(good._replace(marks={}))[0]
    assert "only 35.0% of the records decode" in find_gaps(good._replace(decoded=7_000))[-1]


def test_a_record_that_raises_is_a_failure_that_says_how_to_repeat_it(monkeypatch: pytest.MonkeyPatch) -> None:
    def fold_records(run: FuzzRun, records: int) -> None:
        run._offset = 100
        raise KeyError("a fault of the fold")

    monkeypatch.setattr(FuzzRun, "fold_records", fold_records)
    result = run_seed(9, 1_000)
    (failure,) = find_gaps(result)[:1]
    assert "seed 9, at offset 99; to repeat: make fuzz SEED=9 RECORDS=1000\n" in failure
    assert "a fault of the fold" in failure
