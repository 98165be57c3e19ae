"""What a scrape shows, without Kafka."""

import threading

import pytest
from prometheus_client import CollectorRegistry, generate_latest

from sessionary.infra.kpi import collector, question_watch
from sessionary.infra.lag.exporter import LagExporter, run_exporter
from sessionary.infra.lag.lag_monitor import LagReport
from sessionary.infra.lag.lag_tracker import GroupState, PartitionLag, PartitionState
from sessionary.infra.lag.metrics import HELP, ExporterState, RowDelay, collect_families
from sessionary.infra.local.ports import free_port
from sessionary.infra.settings import LagSettings
from tests.support.metrics_page import metric_values, read_page
from tests.support.waiting import wait_until

GROUP, TOPIC = "p.sink.audit", "p.audit"
LAG = PartitionLag(GROUP, GroupState.STABLE, TOPIC, 0, PartitionState.STALL, 4, 0, 10, 6, 20.0, 3.0, 1.5, 4.0)
GONE = PartitionLag("p.processor", GroupState.ABSENT, "p.events", None, PartitionState.NO_TOPIC)


def _series(exporter: LagExporter) -> dict[str, float]:
    registry = CollectorRegistry()
    registry.register(exporter)
    lines = generate_latest(registry).decode().splitlines()
    return {name: float(value) for name, _, value in (line.rpartition(" ") for line in lines if line[0] != "#")}


def test_a_report_is_served_with_every_metric() -> None:
    exporter = LagExporter(lambda: (RowDelay("audit", 3, 0.25, 0.5, 1.5),))
    exporter.take_report(LagReport(1_000.0, 0.125, (LAG, GONE)))
    place = f'{{group="{GROUP}",partition="0",topic="{TOPIC}"}}'
    found = _series(exporter)
    assert found == {
        "sessionary_lag_broker_up": 1.0,
        "sessionary_lag_clickhouse_up": 1.0,
        'sessionary_lag_row_delay_seconds{quantile="0.5",table="audit"}': 0.25,
        'sessionary_lag_row_delay_seconds{quantile="0.95",table="audit"}': 0.5,
        'sessionary_lag_row_delay_seconds{quantile="1",table="audit"}': 1.5,
        "sessionary_lag_sample_seconds": 0.125,
        "sessionary_lag_sample_timestamp_seconds": 1_000.0,
        f"sessionary_lag_records{place}": 6.0,
        f"sessionary_lag_seconds{place}": 20.0,
        f"sessionary_lag_committed_offset{place}": 4.0,
        f"sessionary_lag_records_per_second{place}": 1.5,
        f"sessionary_lag_catch_up_seconds{place}": 4.0,
        f'sessionary_lag_partition_state{{group="{GROUP}",partition="0",state="stall",topic="{TOPIC}"}}': 1.0,
        'sessionary_lag_partition_state{group="p.processor",partition="",state="no_topic",topic="p.events"}': 1.0,
        f'sessionary_lag_group_state{{group="{GROUP}",state="stable"}}': 1.0,
        'sessionary_lag_group_state{group="p.processor",state="absent"}': 1.0,
        f'sessionary_lag_log_end_offset{{partition="0",topic="{TOPIC}"}}': 10.0,
        f'sessionary_lag_newest_record_age_seconds{{partition="0",topic="{TOPIC}"}}': 3.0,
    }
    assert exporter.readiness() == (True, "ok")


def test_a_partition_that_went_away_has_no_series_and_a_lag_of_unknown_age_none_either() -> None:
    exporter = LagExporter(lambda: ())
    exporter.take_report(LagReport(1_000.0, 0.1, (LAG._replace(lag_s=None), LAG._replace(partition=1))))
    assert sum("sessionary_lag_records{" in name for name in _series(exporter)) == 2
    assert sum("sessionary_lag_seconds{" in name for name in _series(exporter)) == 1
    exporter.take_report(LagReport(1_001.0, 0.1, (LAG,)))
    assert [name for name in _series(exporter) if 'partition="1"' in name] == []


def test_without_a_broker_there_are_no_lags_and_no_zeros() -> None:
    exporter = LagExporter(lambda: None)
    assert exporter.readiness() == (False, "there is no sample yet")
    exporter.take_report(LagReport(1_000.0, 0.1, (LAG,)))
    exporter.note_broker_away("Kafka does not answer")
    assert _series(exporter) == {"sessionary_lag_broker_up": 0.0, "sessionary_lag_clickhouse_up": 0.0}
    assert exporter.readiness() == (False, "Kafka does not answer")


def test_a_report_that_is_old_is_not_served() -> None:
    now_s = 0.0
    exporter = LagExporter(lambda: None, lambda: now_s)
    exporter.take_report(LagReport(1_000.0, 0.1, (LAG,)))
    now_s = 10.0
    assert _series(exporter)["sessionary_lag_broker_up"] == 1.0
    now_s = 10.5
    assert _series(exporter) == {"sessionary_lag_broker_up": 0.0, "sessionary_lag_clickhouse_up": 0.0}
    assert exporter.readiness() == (False, "the last sample is 10 s old")


def test_an_exporter_whose_samples_have_no_end_is_not_well() -> None:
    now_s = 0.0
    exporter = LagExporter(lambda: None, lambda: now_s)
    exporter.take_report(LagReport(1_000.0, 0.1, (LAG,)))
    now_s = 60.0
    assert exporter.health() == (True, "ok")
    exporter.note_broker_away("Kafka does not answer")
    now_s = 120.0
    assert exporter.health() == (True, "ok"), "a broker may be away"
    now_s = 120.5
    assert exporter.health() == (False, "a sample has had no end for 60 s")


def test_the_page_of_health_names_a_question_that_hangs(monkeypatch: pytest.MonkeyPatch) -> None:
    released, stop, port = threading.Event(), threading.Event(), free_port()
    monkeypatch.setattr(question_watch, "_HUNG_S", 0.1)
    monkeypatch.setattr(collector, "ask_disk_space", lambda _settings: released.wait(60) and ())
    away = f"127.0.0.1:{free_port()}"
    settings = LagSettings(bootstrap_servers=away, clickhouse_url=f"http://{away}", metrics_port=port)
    thread = threading.Thread(target=run_exporter, args=(settings, stop), name="lag-exporter")
    thread.start()
    page = f"http://127.0.0.1:{port}/healthz"
    try:
        wait_until(lambda: metric_values(port), 30, "the pages")
        reported = "disk-space: a question has had no end for "
        wait_until(lambda: read_page(page)[1].startswith(reported), 30, "the fault")
        assert read_page(page)[0] == 503
        released.set()
        wait_until(lambda: read_page(page) == (200, "ok\n"), 30, "the end of the fault")
    finally:
        released.set()
        stop.set()
        thread.join(60)
    assert not thread.is_alive()


def test_every_metric_is_listed_with_its_sentence() -> None:
    families = list(collect_families(ExporterState(LagReport(1.0, 0.1, (LAG,)), ())))
    assert sorted(family.name for family in families) == sorted(HELP)
    assert all(text.endswith(".") for text in HELP.values())


def test_fifty_groups_of_32_partitions_are_1600_series_per_metric() -> None:
    lags = tuple(
        LAG._replace(group=f"p.cleanup.acme:s{group}", partition=partition)
        for group in range(50)
        for partition in range(32)
    )
    exporter = LagExporter(lambda: None)
    exporter.take_report(LagReport(1_000.0, 0.1, lags))
    names = list(_series(exporter))
    assert sum(name.startswith("sessionary_lag_records{") for name in names) == 1_600
    assert sum(name.startswith("sessionary_lag_log_end_offset{") for name in names) == 32


def test_the_sink_that_is_furthest_behind_says_how_long_rows_may_be_missing() -> None:
    exporter = LagExporter(lambda: None)
    assert exporter.sinks_behind_s == 0.0
    processor = LAG._replace(group="p.processor", lag_s=500.0)
    landed = LAG._replace(group="p.sink.history", lag=0, lag_s=0.0)
    exporter.take_report(LagReport(1_000.0, 0.1, (LAG, processor, landed)))
    assert exporter.sinks_behind_s == 20.0
    exporter.take_report(LagReport(1_001.0, 0.1, (LAG._replace(lag_s=None), landed)))  # not known: as before
    assert exporter.sinks_behind_s == 20.0
    exporter.take_report(LagReport(1_002.0, 0.1, (LAG._replace(lag=0, lag_s=None), landed)))
    assert exporter.sinks_behind_s == 0.0
