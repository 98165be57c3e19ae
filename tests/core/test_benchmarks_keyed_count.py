"""The comparison of engines can tell a wrong output from a right one, and counts the same way as its rivals."""

import itertools
from collections.abc import Iterator, Sequence

import pytest

from benchmarks.consumption import Rate, Sample, steady
from benchmarks.keyed_count.check import Auditor, Checked
from benchmarks.keyed_count.compare import Run, results
from benchmarks.keyed_count.counting import RECORDS_MAX, counting
from benchmarks.keyed_count.job import drawn_keys, key
from sessionary.stream_processors.core.committed import PartitionSettings
from sessionary.stream_processors.core.model import LogRecord
from sessionary.stream_processors.runtime.job import Produced
from sessionary.stream_processors.store.stores import MemoryStore, SavedPosition

EVENTS = 400
KEYS = [number % 7 for number in range(EVENTS)]


def outputs(keys: Sequence[int]) -> Iterator[tuple[bytes, bytes]]:
    """What an engine has to write."""
    counts: dict[int, int] = {}
    for number, drawn in enumerate(keys):
        counts[drawn] = counts.get(drawn, 0) + 1
        yield key(drawn), b"%d %08d...." % (counts[drawn], number)


def audited(records: Sequence[tuple[bytes, bytes]]) -> Checked:
    auditor = Auditor(KEYS)
    for record in records:
        auditor.take(*record)
    return auditor.verdict()


def test_what_is_right_is_found_right() -> None:
    assert audited(list(outputs(KEYS))) == Checked(outputs=EVENTS, missing=0, doubled=0, wrong=0)
    assert audited(list(outputs(KEYS))).right


def test_a_missing_output_is_found_and_so_is_the_count_that_jumps() -> None:
    records = list(outputs(KEYS))
    del records[-1]
    assert audited(records) == Checked(EVENTS - 1, missing=1, doubled=0, wrong=0)
    del records[0]
    assert audited(records).wrong > 0


def test_a_doubled_output_is_found() -> None:
    records = list(outputs(KEYS))
    assert audited([*records, records[5]]) == Checked(EVENTS + 1, missing=0, doubled=1, wrong=0)


@pytest.mark.parametrize(
    "wrong", [(key(3), b"99 00000003...."), (key(4), b"1 00000003....")], ids=["wrong count", "foreign key"]
)
def test_a_wrong_output_is_found(wrong: tuple[bytes, bytes]) -> None:
    records = list(outputs(KEYS))
    records[3] = wrong
    assert audited(records) == Checked(EVENTS, missing=0, doubled=0, wrong=1)


def test_events_of_a_key_counted_in_another_order_are_found() -> None:
    records = list(outputs(KEYS))
    (_, first), (_, second) = records[0], records[7]
    records[0] = key(0), first[:2] + second[2:]
    records[7] = key(0), second[:2] + first[2:]
    assert audited(records) == Checked(EVENTS, missing=0, doubled=0, wrong=1)


def test_our_fold_counts_each_event_once_across_batches_and_a_void_batch_counts_nothing() -> None:
    job = counting(PartitionSettings("events", 4), "changelog", "output")
    fold, store = job.new_state(0), MemoryStore(job.row_codec)
    log = [LogRecord(n, 0, key(drawn), b"%08d...." % n) for n, drawn in enumerate(KEYS)]
    written: list[Produced] = []
    while fold.position.next_offset < EVENTS:
        begin = fold.position.next_offset
        void = fold.begin()
        assert void.apply(log[begin])
        batch = fold.begin()
        assert all(batch.apply(record) for record in log[begin : begin + 37])
        outcome = batch.finish()
        transaction = job.transaction(0, outcome, 0)
        written += itertools.starmap(Produced, transaction.records)
        fold.merge(batch)
        store.save_rows(transaction.rows, SavedPosition(outcome.position, 0, 0))
    told = [(record.key or b"", record.value or b"") for record in written if record.topic == "output"]
    assert audited(told).right
    assert [record.value for record in written if record.topic == "changelog"] == [
        value.partition(b" ")[0] for _, value in told
    ]
    again = job.new_state(0)
    again.rows = store.rows
    again.load_position(fold.position)
    again.finish_loading(())
    batch = again.begin()
    assert batch.apply(LogRecord(EVENTS, 0, key(0), b""))
    assert next(iter(job.transaction(0, batch.finish(), 0).records))[2] == b"%d" % (KEYS.count(0) + 1)


def test_our_fold_takes_no_more_into_a_batch_than_the_product_does() -> None:
    batch = counting(PartitionSettings("events", 4), "changelog", "output").new_state(0).begin()
    assert all(batch.apply(LogRecord(n, 0, b"k", b"")) for n in range(RECORDS_MAX))
    assert not batch.apply(LogRecord(RECORDS_MAX, 0, b"k", b""))
    assert PartitionSettings("events", 4).records_max == RECORDS_MAX


def test_keys_are_drawn_alike_each_time() -> None:
    assert list(drawn_keys(50)) == list(drawn_keys(100))[:50]


def test_the_rate_is_that_behind_the_warm_up() -> None:
    samples = [Sample(float(n), 100 * n * n, float(n), 2.0 * n) for n in range(11)]
    assert steady(samples, 2_000) == Rate(events=7_500, elapsed_s=5.0, cpu_s=5.0, broker_cpu_s=10.0)


def _run(per_s: int, checked: Checked) -> Run:
    return Run(Rate(per_s, 1.0, 1.0, 1.0), checked, EVENTS, 1.0)


RIGHT, WRONG = Checked(EVENTS, 0, 0, 0), Checked(EVENTS, 1, 1, 0)


def test_ratios_are_of_the_same_round_and_a_wrong_engine_is_named() -> None:
    found = results(
        {
            "ours": [_run(60, RIGHT), _run(240, RIGHT), _run(90, RIGHT)],
            "quix": [_run(30, RIGHT), _run(60, WRONG), _run(30, RIGHT)],
        }
    )
    ratio = next(result for result in found if result.name == "ours / quix")
    assert list(ratio.runs) == [2.0, 4.0, 3.0]
    assert ratio.met
    quix = next(result for result in found if result.name == "quix")
    assert any("run 2: WRONG: 1 missing, 1 doubled" in note for note in quix.notes)


def test_a_wrong_output_of_our_own_is_an_error() -> None:
    with pytest.raises(RuntimeError, match="our own output is wrong"):
        results({"ours": [_run(60, WRONG)]})
