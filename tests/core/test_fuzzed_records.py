"""No record stops a partition or a sink: fuzzed records through the fold and every row builder."""

import pytest

from sessionary.schemas.events import PAYLOADS
from sessionary.schemas.records import SessionState
from sessionary.schemas.types import Refusal
from tests.core.record_fuzzer import RecordFuzzer
from tests.fuzz.campaign import RunResult, find_gaps, format_report, memory_growth, plan_runs, run_campaign, run_seed
from tests.fuzz.fuzz_run import ACCEPTABLE, REASONS, FuzzRun, check_refused

CALL_REASONS = {"unknown_call", "call_in_progress", "call_succeeded", "call_unresolved"}


def check_reach(seed: int, records: int) -> None:
    result = run_seed(seed, records)
    assert find_gaps(result) == []
    assert result.records == records
    assert result.decoded / records <= 0.6
    assert set(result.seen) == {*PAYLOADS, "tick"}
    assert ACCEPTABLE ^ set(result.applied) == {"session_taken_over"}  # unknown to rules 1
    assert REASONS ^ {reason for _, reason in result.refused} == set()


def test_fuzzed_records_stop_neither_processor_nor_sinks() -> None:
    check_reach(2, 20_000)


def test_fuzzed_records_stop_nothing_by_rules_2_either() -> None:
    result = run_seed(1, 20_000, rules=2)
    assert result.failures == ()
    assert ACCEPTABLE ^ set(result.applied) == set()
    assert (REASONS | CALL_REASONS) - {"too_many_producers"} <= {reason for _, reason in result.refused}


@pytest.mark.long
@pytest.mark.parametrize("seed", range(3, 9))
def test_many_more_fuzzed_records_stop_neither_processor_nor_sinks(seed: int) -> None:
    check_reach(seed, 50_000)


def test_a_seed_always_gives_the_same_records() -> None:
    def records(seed: int) -> list[tuple[bytes | None, bytes | None, int]]:
        fuzzer = RecordFuzzer(seed, lambda _: None)
        made = [fuzzer.next_record() for _ in range(500)]
        return [(record.key, record.value, record.later_ms) for record in made]

    assert records(5) == records(5) != records(6)


def test_the_check_of_refusals_can_fail() -> None:
    run = FuzzRun(3)
    run.fold_records(300)
    row = next(row for row in run._state.rows.values() if isinstance(row, SessionState))
    check_refused(row, row._replace(audit_seq=row.audit_seq + 1))
    for changed in (row._replace(version=row.version + 1), row._replace(refusals=[Refusal(1, "late", "")] * 17)):
        with pytest.raises(AssertionError):
            check_refused(row, changed)
    with pytest.raises(AssertionError):
        check_refused(None, row)


def test_a_campaign_has_each_run_once_and_its_sum() -> None:
    assert plan_runs(7, 120_000) == [(7, 50_000), (8, 50_000), (9, 20_000)]
    (alone,) = run_campaign(3, 400, 1)
    assert (alone.records, alone.failures) == (400, ())
    assert sum(alone.seen.values()) == alone.decoded
    twice = alone.combine(alone)
    assert (twice.records, twice.decoded) == (800, 2 * alone.decoded)
    assert dict(twice.refused) == {key: 2 * count for key, count in alone.refused.items()}
    table = "\n".join(format_report(twice, 2.0))
    assert "800 records in 2 s, 400 records/s" in table
    assert "heartbeat" in table


def test_memory_grows_from_a_process_s_first_run_to_its_last() -> None:
    total = RunResult()
    for pid, bytes_ in ((1, 50), (2, 90), (1, 70), (1, 60), (2, 91)):
        total = total.combine(RunResult(memory_bytes={pid: (bytes_, bytes_)}))
    assert memory_growth(total) == 10


def test_a_rare_kind_and_too_much_damage_are_gaps() -> None:
    seen = dict.fromkeys((*PAYLOADS, "tick"), 2)
    refused = {("heartbeat", reason): 2 for reason in REASONS}
    good = RunResult(20_000, 9_000, seen, {}, refused)
    assert find_gaps(good) == []
    assert find_gaps(good._replace(seen=seen | {"tick": 1})) == [
        "event type tick came 1 times in 20,000 records, must be 2"
    ]
    del refused["heartbeat", "late"]
    assert find_gaps(good) == ["refusal reason late came 0 times in 20,000 records, must be 2"]
    assert "only 35.0% of the records decode" in find_gaps(good._replace(decoded=7_000))[-1]


def test_a_record_that_raises_is_a_failure_that_says_how_to_repeat_it(monkeypatch: pytest.MonkeyPatch) -> None:
    def fold_records(run: FuzzRun, records: int) -> None:
        run._offset = 100
        raise KeyError("a fault of the fold")

    monkeypatch.setattr(FuzzRun, "fold_records", fold_records)
    result = run_seed(9, 1_000)
    (failure,) = find_gaps(result)[:1]
    assert "seed 9, at offset 99; to repeat: make fuzz SEED=9 RECORDS=1000" in failure
    assert "a fault of the fold" in failure
