"""Which pauses of a partition belong to a move."""

from benchmarks.harness.pipeline import Batch
from benchmarks.measurements.rolling_restart import Pauses, find_pauses
from sessionary.schemas.records import BatchRecord


def make_batch(at_s: float, partition: int, number: int, instance: str, applied: int = 1) -> Batch:
    return Batch(at_s, BatchRecord(partition, number, 0, 0, applied, 0, 0, 0, 0, 0, 0, None, instance))


def test_a_pause_between_two_workers_is_a_move_and_another_one_is_not() -> None:
    batches = [
        make_batch(13.0, 0, 3, "w2"),  # in any order
        make_batch(10.0, 0, 1, "w1"),
        make_batch(10.5, 0, 2, "w1"),
        make_batch(10.0, 1, 7, "w1"),
        make_batch(11.0, 1, 8, "w1"),
    ]
    assert find_pauses(batches, 0.0, 20.0) == Pauses(moved=[2.5], stayed=[0.5, 1.0])


def test_only_pauses_that_end_in_the_time_span_and_batches_with_events_count() -> None:
    batches = [
        make_batch(10.0, 0, 1, "w1"),
        make_batch(11.0, 0, 2, "w1"),
        make_batch(11.5, 0, 3, "w2", applied=0),  # ticks alone
        make_batch(14.0, 0, 4, "w2"),
        make_batch(20.0, 0, 5, "w2"),
    ]
    assert find_pauses(batches, 11.5, 20.0) == Pauses(moved=[3.0], stayed=[])
