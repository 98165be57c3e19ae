"""Our counting job counts as its rivals do."""

import itertools

from benchmarks.measurements.keyed_count.counting import RECORDS_MAX, counting_job
from benchmarks.measurements.keyed_count.job import key_bytes
from sessionary.stream_processors.core.committed import PartitionSettings
from sessionary.stream_processors.core.model import LogRecord
from sessionary.stream_processors.runtime.job import Produced
from sessionary.stream_processors.store.stores import MemoryStore, SavedPosition
from sessionary.stream_processors.worker_gauges import count_for_a_slice
from tests.core.benchmarks.measurements.keyed_count.outputs import EVENTS, KEYS, audited


def test_our_fold_counts_each_event_once_across_batches_and_a_void_batch_counts_nothing() -> None:
    job = counting_job(PartitionSettings("events", 4), "changelog", "output")
    fold, store = job.new_state(0), MemoryStore(job.row_codec)
    log = [LogRecord(n, 0, key_bytes(drawn), b"%08d...." % n) for n, drawn in enumerate(KEYS)]
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
    reported = [(record.key or b"", record.value or b"") for record in written if record.topic == "output"]
    assert audited(reported).is_right
    assert [record.value for record in written if record.topic == "changelog"] == [
        value.partition(b" ")[0] for _, value in reported
    ]
    again = job.new_state(0)
    again.rows = store.rows
    again.load_position(fold.position)
    again.finish_loading(())
    batch = again.begin()
    assert batch.apply(LogRecord(EVENTS, 0, key_bytes(0), b""))
    assert next(iter(job.transaction(0, batch.finish(), 0).records))[2] == b"%d" % (KEYS.count(0) + 1)


def test_our_fold_takes_no_more_into_a_batch_than_the_product_does() -> None:
    batch = counting_job(PartitionSettings("events", 4), "changelog", "output").new_state(0).begin()
    assert all(batch.apply(LogRecord(n, 0, b"k", b"")) for n in range(RECORDS_MAX))
    assert not batch.apply(LogRecord(RECORDS_MAX, 0, b"k", b""))
    assert PartitionSettings("events", 4).records_max == RECORDS_MAX


def test_the_census_of_rows_finds_nothing_to_count() -> None:
    state = counting_job(PartitionSettings("events", 4), "changelog", "output").new_state(0)
    assert count_for_a_slice([state])
