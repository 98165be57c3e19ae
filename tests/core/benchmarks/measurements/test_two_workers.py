"""In which time two workers judge beside each other."""

import pytest

from benchmarks.harness.pipeline import Batch
from benchmarks.measurements.two_workers import Span, find_shared_span
from sessionary.schemas.records import BatchRecord


def make_batch(at_s: float, instance: str, applied: int = 100) -> Batch:
    return Batch(at_s, BatchRecord(0, 1, 0, 0, applied, 0, 0, 0, 0, 0, 0, None, instance))


def test_the_time_begins_a_second_after_the_later_worker_and_ends_with_the_first_that_is_done() -> None:
    batches = [
        make_batch(10.0, "w1"),
        make_batch(13.0, "w2"),
        make_batch(14.0, "w1"),  # not after the first moment
        make_batch(15.0, "w2"),
        make_batch(16.0, "w1", 40),
        make_batch(17.0, "w2"),  # w1 is done
        make_batch(18.0, "w1", applied=0),  # ticks alone
    ]
    assert find_shared_span(batches) == Span(14.0, 16.0, 140)


@pytest.mark.parametrize("second", [[], [make_batch(20.0, "w2")]], ids=["one worker", "too late"])
def test_workers_that_do_not_judge_at_the_same_time_are_no_measurement(second: list[Batch]) -> None:
    with pytest.raises(RuntimeError, match="write more"):
        find_shared_span([make_batch(10.0, "w1"), make_batch(12.0, "w1"), *second])
