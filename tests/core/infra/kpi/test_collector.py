"""What the exporter asks ClickHouse, and by how much it lets the sinks be late."""

import threading
from typing import Any

import pytest

from sessionary.infra.kpi import collector as collector_module
from sessionary.infra.kpi.collector import KpiCollector
from sessionary.infra.kpi.integrity import KNOWN_FAULTS, IntegrityFindings, table_of_fault
from sessionary.infra.kpi.key_figures import DiskSpace, KeyFigures, Quantiles
from sessionary.infra.kpi.metrics import HELP, KpiState, collect_families
from sessionary.infra.settings import LagSettings
from sessionary.schemas.errors import Unavailable
from sessionary.sinks.integrity.landed_ends import END_FAULTS


def test_key_figures_and_integrity_wait_for_the_sink_that_is_furthest_behind(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: dict[str, Any] = {}
    all_asked = threading.Event()

    def note_call(name: str) -> Any:
        def ask(*given: object) -> None:
            asked[name] = given[2:]
            if len(asked) == 3:
                all_asked.set()
            raise Unavailable("reported so", 1.0)

        return ask

    monkeypatch.setattr(collector_module, "ask_key_figures", note_call("key figures"))
    monkeypatch.setattr(collector_module, "ask_integrity", note_call("integrity"))
    monkeypatch.setattr(collector_module, "ask_landed_ends", note_call("landed ends"))
    figures = KpiCollector(LagSettings(clickhouse_url="http://127.0.0.1:1"), lambda: 75.0)
    figures.start()
    try:
        assert all_asked.wait(60)
    finally:
        figures.stop()
    assert asked == {"key figures": (75.0,), "integrity": (75.0,), "landed ends": ()}


FIGURES = KeyFigures(
    0.9, 1.25, Quantiles(1.0, 2.0, 3.0), Quantiles(0.1, 0.2, 0.3), Quantiles(0.01, 0.02, 0.03), 0.04, 0.09, 1_000
)
_NONE = Quantiles(None, None, None)
EMPTY = KeyFigures(None, None, _NONE, _NONE, _NONE, None, None, None)


def _series(state: KpiState) -> dict[tuple[str, ...], float]:
    return {
        (sample.name, *sample.labels.values()): sample.value
        for family in collect_families(state)
        for sample in family.samples
    }


def test_every_metric_is_listed_with_its_sentence() -> None:
    families = collect_families(KpiState(FIGURES, IntegrityFindings(1.0, {}), None, (), 0, {"tables": 1.0}, 0))
    assert sorted(family.name for family in families) == sorted(HELP)
    assert all(text.endswith(".") for text in HELP.values())


def test_known_figures_have_a_series_each() -> None:
    tables, kafka = IntegrityFindings(5.0, {"batch_missing": 2}), IntegrityFindings(7.0, {"audit_end_missing": 1})
    disks, checked = (DiskSpace("default", 0.25),), {"tables": 5.0, "kafka": 7.0}
    found = _series(KpiState(FIGURES, tables, kafka, disks, 3, checked, 70))
    assert len(found) == 5 + 3 * 3 + 4 + 1 + 1 + 1
    assert found["sessionary_kpi_reclaim_ratio",] == 0.9
    assert found["sessionary_kpi_cleanup_average_seconds",] == 1.25
    assert found["sessionary_kpi_cleanup_seconds", "0.95"] == 2.0
    assert found["sessionary_kpi_audit_write_latency_seconds", "0.99"] == 0.03
    assert found["sessionary_integrity_findings", "batches", "batch_missing"] == 2
    assert found["sessionary_integrity_findings", "audit", "audit_end_missing"] == 1
    assert found["sessionary_integrity_checked_timestamp_seconds", "tables"] == 5.0
    assert found["sessionary_integrity_checked_timestamp_seconds", "kafka"] == 7.0
    assert found["sessionary_clickhouse_disk_free_ratio", "default"] == 0.25
    assert found["sessionary_clickhouse_artifacts_overdue",] == 3
    assert found["sessionary_clickhouse_tenant_bytes_max",] == 70


def test_what_is_unknown_has_no_series_and_no_zero() -> None:
    assert _series(KpiState()) == {}
    assert _series(KpiState(EMPTY)) == {}
    # How long ago the last check was is known without a finding too: an alert is about that.
    assert _series(KpiState(checked_at_s={"kafka": 5.0})) == {
        ("sessionary_integrity_checked_timestamp_seconds", "kafka"): 5.0
    }
    assert list(_series(KpiState(EMPTY._replace(reclaim_ratio=0.0)))) == [("sessionary_kpi_reclaim_ratio",)]


def test_each_fault_belongs_to_a_table() -> None:
    tables = {"history", "rejected", "audit", "batches"}
    assert {table_of_fault(fault) for fault in KNOWN_FAULTS} == {*tables, "run_events"}
    assert {table_of_fault(fault) for fault in END_FAULTS} == tables
    assert [table_of_fault(fault) for fault in ("batch_doubled", "chain_broken", "rejected_dead_letters")] == [
        *("batches", "audit", "rejected")
    ]
