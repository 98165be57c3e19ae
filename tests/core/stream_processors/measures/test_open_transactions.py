"""When a partition is held up by an open transaction, and what is reported."""

import logging

import pytest

from sessionary.stream_processors.measures.open_transactions import LogEnds, OpenTransactionWatch
from sessionary.stream_processors.metrics import Metrics


def held_records(metrics: Metrics) -> dict[str, float]:
    return {
        sample.labels["partition"]: sample.value
        for family in metrics.held_records.collect()
        for sample in family.samples
    }


def test_a_partition_that_rests_at_a_stable_offset_below_the_logs_end_is_reported_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO)
    metrics = Metrics()
    watch = OpenTransactionWatch(metrics)
    watch.observe({0: LogEnds(5, 8), 1: LogEnds(7, 7)})
    assert (held_records(metrics), caplog.text) == ({}, "")
    for high in (9, 12):
        watch.observe({0: LogEnds(5, high), 1: LogEnds(7, 7)})
        assert held_records(metrics) == {"0": high - 5}
    assert caplog.text.count("partition 0 is held up at offset 5") == 1
    watch.observe({0: LogEnds(12, 12)})
    assert held_records(metrics) == {}
    assert caplog.text.count("partition 0 goes on") == 1


def test_short_transactions_and_lost_partitions_are_not_reported(caplog: pytest.LogCaptureFixture) -> None:
    metrics = Metrics()
    watch = OpenTransactionWatch(metrics)
    for stable in (5, 6, 7):
        watch.observe({0: LogEnds(stable, 9)})
    watch.observe({})
    watch.observe({0: LogEnds(7, 9)})
    assert (held_records(metrics), caplog.text) == ({}, "")


def test_a_second_transaction_at_another_offset_is_reported_too(caplog: pytest.LogCaptureFixture) -> None:
    watch = OpenTransactionWatch(Metrics())
    for stable in (5, 5, 20, 20):
        watch.observe({0: LogEnds(stable, 30)})
    assert caplog.text.count("is held up at offset 5") == caplog.text.count("is held up at offset 20") == 1
