"""Every metric is listed, explained and exposed; committed transactions and gauges move them."""

import pytest

from sessionary.schemas.types import Limits
from sessionary.stream_processors import metrics as metrics_module
from sessionary.stream_processors.core.model import BatchResult, LogRecord
from sessionary.stream_processors.metrics import HELP, SCRAPED, CommitCosts, ComplianceTimer, MetricName, Metrics
from tests.core.fold_rig import FoldRig
from tests.core.oracle_rig import START_MS
from tests.support.event_factory import TICK, EventFactory, snapshot
from tests.support.metrics_page import read_series

COSTS = CommitCosts(0.02, 0.004, START_MS + 41_000, 3_000, 2_000)


def series_of(metrics: Metrics) -> dict[str, float]:
    """Return the value of each series, by its name without the prefix, with labels."""
    found = read_series(metrics.exposition().decode())
    return {name.removeprefix("sessionary_processor_"): value for name, value in found.items()}


def test_every_metric_is_explained_and_made() -> None:
    text = Metrics().exposition().decode()
    for name, sentence in HELP.items():
        assert sentence.endswith(".")
        assert f"# HELP {name} " in text
        assert name.startswith("sessionary_processor_")
    assert SCRAPED.keys() <= HELP.keys()


def test_a_gauge_is_read_when_the_metrics_are_and_forgets_what_is_gone() -> None:
    metrics, lags = Metrics(), {0: 7, 3: 0}
    name: MetricName = "sessionary_processor_lag_records"
    assert not any(series.startswith("lag_records") for series in series_of(metrics)), "nothing reads it yet"
    metrics.read_at_scrape(name, lambda: lags)
    metrics.read_at_scrape("sessionary_processor_tombstones", lambda: 12)
    metrics.read_at_scrape("sessionary_processor_disk_free_bytes", lambda: None)
    found = series_of(metrics)
    assert (found['lag_records{partition="0"}'], found['lag_records{partition="3"}'], found["tombstones"]) == (
        7,
        0,
        12,
    )
    assert "disk_free_bytes" not in found
    del lags[0]
    assert 'lag_records{partition="0"}' not in series_of(metrics)


def count(outcome: BatchResult) -> dict[str, float]:
    metrics = Metrics()
    metrics.count_outcome(outcome, COSTS)
    return series_of(metrics)


def test_a_transaction_is_counted_with_what_it_cost() -> None:
    rig, agent = FoldRig(), EventFactory()
    found = count(rig.append_batch(*(LogRecord(n, START_MS, None, TICK) for n in range(3))))
    assert (found["batches_total"], found["batch_records_sum"], found['records_total{outcome="tick"}']) == (1, 3, 3)
    assert (found["transaction_bytes_sum"], found["changelog_bytes_total"]) == (3_000, 2_000)
    assert (found["commit_seconds_sum"], found["work_seconds_total"]) == (0.02, 0.004)
    rig.start(agent)
    assert rig.outcome is not None
    assert count(rig.outcome)['transitions_total{from_state="Idle",to_state="Active"}'] == 1
    rig.at += 7_000
    assert count(rig.append_batch(LogRecord(rig.offset, rig.at, None, TICK)))["outages_total"] == 1


def test_rejections_tell_what_suggests_that_the_sender_speaks_for_someone_else() -> None:
    outcome = FoldRig().append_batch(LogRecord(0, 1, None, TICK))
    found = count(outcome._replace(rejections=["late", "foreign_tenant", "late", "hash_mismatch"]))
    assert found['rejected_total{reason="late",security="false"}'] == 2
    assert found['rejected_total{reason="foreign_tenant",security="true"}'] == 1
    assert found['state_hash_mismatches_total{source="agent"}'] == 1
    assert "errors_total" not in " ".join(found)


def test_a_snapshot_that_is_left_out_for_its_hash_is_a_mismatch() -> None:
    for content_hash, mismatches in (("0" * 64, 1), (None, 0)):
        rig, agent = FoldRig(), EventFactory()
        rig.start(agent)
        last = snapshot("last", "{}", agent.head)
        last = last if content_hash is None else last._replace(content_hash=content_hash)
        assert rig.send(agent, "session_terminated", snapshot=last) == "applied"
        assert rig.outcome is not None
        assert count(rig.outcome)['state_hash_mismatches_total{source="agent"}'] == mismatches


def test_a_timer_is_late_by_log_time_and_by_the_worker_s() -> None:
    rig, agent = FoldRig(), EventFactory()
    rig.start(agent, limits=Limits(max_duration_ms=40_000))
    rig.advance(39_000)
    rig.at += 1_500
    found = count(rig.append_batch(LogRecord(rig.offset, rig.at, None, TICK)))
    assert (found["timers_fired_total"], found["timer_lateness_seconds_sum"]) == (1, 0.5)
    assert found["timer_wall_lateness_seconds_sum"] == 1.0


def test_the_time_of_tags_is_estimated_from_a_sample_once_a_second(monkeypatch: pytest.MonkeyPatch) -> None:
    rig, agent = FoldRig(), EventFactory()
    assert rig.send(agent, "session_created", {"data_classes": ("financial", "personal")}) == "applied"
    outcome = rig.outcome
    assert outcome is not None
    assert outcome.counts.audited == 1
    monkeypatch.setattr(metrics_module, "_time_tagging", lambda records: 0.25 * len(records))
    timer = ComplianceTimer()
    assert timer.add_outcome(outcome) == 0.25
    timer._sampled_s += 3_600.0  # the second that this one is sampled for does not end in between
    assert timer.add_outcome(outcome) == timer.add_outcome(outcome) == 0, "within the same second"
    timer._sampled_s -= 3_601.0
    assert timer.add_outcome(outcome) == 0.75, "with those in between"
    monkeypatch.undo()
    timer._sampled_s -= 1.0
    assert 0 < timer.add_outcome(outcome) < 60
