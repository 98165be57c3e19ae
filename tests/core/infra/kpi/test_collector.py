"""What the exporter asks ClickHouse, and by how much it lets the sinks be late."""

import threading
from typing import Any

import pytest

from sessionary.infra.kpi import collector as collector_module
from sessionary.infra.kpi.collector import KpiCollector
from sessionary.infra.kpi.integrity import KNOWN_FAULTS, IntegrityFindings, RequestLook, table_of_fault
from sessionary.infra.kpi.key_figures import DiskSpace, KeyFigures, Quantiles
from sessionary.infra.kpi.metrics import HELP, KpiState, collect_families
from sessionary.infra.settings import LagSettings
from sessionary.schemas.errors import Unavailable
from sessionary.sinks.integrity import topic_counts
from sessionary.sinks.integrity.landed_ends import END_FAULTS, EndFault
from sessionary.sinks.integrity.topic_counts import TopicComparison


def test_key_figures_and_integrity_wait_for_the_sink_that_is_furthest_behind(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: dict[str, Any] = {}
    all_asked = threading.Event()

    def note_call(name: str) -> Any:
        def ask(*given: object) -> None:
            asked[name] = given[1:] if name == "requests" else given[2:]
            if len(asked) == 4:
                all_asked.set()
            raise Unavailable("reported so", 1.0)

        return ask

    monkeypatch.setattr(collector_module, "ask_key_figures", note_call("key figures"))
    monkeypatch.setattr(collector_module, "ask_integrity", note_call("integrity"))
    monkeypatch.setattr(collector_module, "ask_landed_ends", note_call("landed ends"))
    monkeypatch.setattr(RequestLook, "ask", note_call("requests"))
    figures = KpiCollector(LagSettings(clickhouse_url="http://127.0.0.1:1"), lambda: 75.0)
    figures.start()
    try:
        assert all_asked.wait(60)
    finally:
        figures.stop()
    assert asked == {"key figures": (75.0,), "integrity": (75.0,), "landed ends": (), "requests": (75.0,)}


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


class FakeComparison:
    """Answers comparisons of topics; `asked`: how far each looked back (s)."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.faults: list[EndFault] = []
        self.unread: list[str] = []
        self.asked: list[int] = []
        self.readable_s = 1_000_000
        self.now_s = 1_000_000.0
        monkeypatch.setattr("sessionary.infra.kpi.integrity.time.time", lambda: self.now_s)
        monkeypatch.setattr(topic_counts, "compare_topics", self.compare)
        self.look = RequestLook(LagSettings(clickhouse_url="http://127.0.0.1:1", integrity_window_s=7_200))

    def compare(self, _s: object, _f: object, since_s: int, late_s: int, _t: float, topics: object) -> TopicComparison:
        assert topics == topic_counts.REQUEST_TOPICS
        self.asked.append(int(self.now_s) - since_s)
        unread = self.unread or ["the logs were not read in time"] * (self.asked[-1] > self.readable_s)
        return TopicComparison(self.faults, [*unread], unread)

    def ask(self, later_s: float = 0.0, behind_s: float = 0.0) -> dict[str, int]:
        """Let time pass; return the findings of the next look that are not 0."""
        self.now_s, self.asked = self.now_s + later_s, []
        return {kind: number for kind, number in self.look.ask(behind_s).by_fault.items() if number}


def test_a_look_at_the_requests_reads_only_what_is_new_until_there_is_a_fault(monkeypatch: pytest.MonkeyPatch) -> None:
    topics = FakeComparison(monkeypatch)
    assert (topics.ask(), topics.asked) == ({}, [7_200])
    assert (topics.ask(300, behind_s=60), topics.asked) == ({}, [300 + 120 + 600])
    topics.faults = [EndFault("cleanup_missing", 1, 4, 10, 19), EndFault("cleanup_missing", 2, 1, 0, 9)]
    assert (topics.ask(300), topics.asked) == ({"cleanup_missing": 2}, [300 + 180 + 600, 7_200])
    assert (topics.ask(300), topics.asked) == ({"cleanup_missing": 2}, [7_200])
    topics.faults = []  # dismissed, or out of the window
    assert (topics.ask(300), topics.asked) == ({}, [7_200])
    assert (topics.ask(300), topics.asked) == ({}, [300 + 120 + 600])
    assert (topics.ask(90_000), topics.asked) == ({}, [7_200])
    assert set(topics.look.ask(0.0).by_fault) == {*topic_counts.count_faults(topic_counts.REQUEST_TOPICS)}


def test_a_topic_that_cannot_be_read_is_no_topic_without_faults(monkeypatch: pytest.MonkeyPatch) -> None:
    topics = FakeComparison(monkeypatch)
    topics.ask()
    topics.unread = ["p.cleanup is not compared: Kafka did not answer"]
    with pytest.raises(Unavailable, match="cleanup is not compared"):
        topics.ask(300)
    topics.unread = []
    assert (topics.ask(300), topics.asked) == ({}, [600 + 120 + 600])


def test_a_window_that_takes_too_long_to_read_is_halved_before_the_first_answer(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("sessionary.infra.kpi.integrity._TIMEOUT_S", 0.0)
    topics = FakeComparison(monkeypatch)
    topics.readable_s = 2_000
    for reach_s in (7_200, 3_600):
        with pytest.raises(Unavailable, match="not read in time"):
            topics.ask(300)
        assert topics.asked == [reach_s]
    assert (topics.ask(300), topics.asked) == ({}, [1_800])
    assert (topics.ask(300), topics.asked) == ({}, [300 + 120 + 600])


def test_a_fault_is_found_also_if_the_whole_window_cannot_be_read(monkeypatch: pytest.MonkeyPatch) -> None:
    topics = FakeComparison(monkeypatch)
    topics.ask()
    topics.readable_s, topics.faults = 2_000, [EndFault("tasks_missing", 1, 4, 10, 19)]
    assert (topics.ask(300), topics.asked) == ({"tasks_missing": 1}, [1_020, 7_200])
    assert (topics.ask(300), topics.asked) == ({"tasks_missing": 1}, [1_320, 7_200])
    topics.faults = []
    assert (topics.ask(300), topics.asked) == ({}, [1_620])


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
