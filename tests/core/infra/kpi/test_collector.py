"""What the exporter asks ClickHouse, and by how much it lets the sinks be late."""

import threading
from typing import Any

import pytest

from sessionary.infra.kpi import collector as collector_module
from sessionary.infra.kpi.collector import KpiCollector
from sessionary.infra.settings import LagSettings
from sessionary.schemas.errors import Unavailable


def test_key_figures_and_integrity_wait_for_the_sink_that_is_furthest_behind(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: dict[str, Any] = {}
    all_asked = threading.Event()

    def note_call(name: str) -> Any:
        def ask(*given: object) -> None:
            asked[name] = given[2:]
            if len(asked) == 3:
                all_asked.set()
            raise Unavailable("told so", 1.0)

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
