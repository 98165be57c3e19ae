"""Samples in the background, and serves the metrics: a scrape asks no broker."""

import threading
import time
from collections.abc import Callable, Iterable

from prometheus_client import CollectorRegistry
from prometheus_client.core import Metric
from prometheus_client.registry import Collector

from sessionary.infra.kpi.collector import KpiCollector, warn_of
from sessionary.infra.lag.lag_monitor import LagMonitor, LagReport
from sessionary.infra.lag.lag_tracker import is_sink_group
from sessionary.infra.lag.metrics import ExporterState, RowDelay, RowDelayWatch, collect_families
from sessionary.infra.settings import LagSettings
from sessionary.schemas.errors import SessionaryError
from sessionary.schemas.telemetry.role_logs import role_logger
from sessionary.sinks.metrics import serve_pages

# A sample that is older is no lag of today: the thread hangs, or the broker does.
_STALE_S = 10.0
_HUNG_S = 60.0  # a sample ends within 12 s, with an answer or without
_log = role_logger(__name__)


class LagExporter(Collector):
    """The last report. One thread sets it, scrapes read it."""

    def __init__(
        self,
        row_delays: Callable[[], tuple[RowDelay, ...] | None],
        clock_s: Callable[[], float] = time.monotonic,
    ) -> None:
        """`row_delays` returns what ClickHouse reported last. `clock_s` is monotonic."""
        self._row_delays = row_delays
        self._clock_s = clock_s
        self._report: LagReport | None = None
        self._reported_s = self._turned_s = clock_s()
        self._away: str | None = "there is no sample yet"
        self.sinks_behind_s = 0.0  # the longest time lag of a sink, by the last report

    def take_report(self, report: LagReport) -> None:
        """Serve this report from now on."""
        if self._away is not None:
            _log.info("lag exporter is ready: %(partitions)d partitions", partitions=len(report.partitions))
        self._report, self._away, self._reported_s = report, None, self._clock_s()
        self._turned_s = self._reported_s
        lags_s = [lag.lag_s for lag in report.partitions if is_sink_group(lag.group, lag.topic) and lag.lag]
        if None not in lags_s:
            self.sinks_behind_s = max((lag_s for lag_s in lags_s if lag_s is not None), default=0.0)

    def note_broker_away(self, why: str) -> None:
        """Serve no lags until there is a report again."""
        if self._away != why:
            _log.warning("no lag is known: %(why)s", why=why)
        self._report, self._away, self._turned_s = None, why, self._clock_s()

    def collect(self) -> Iterable[Metric]:
        """Return the metrics of the last report, unless it is stale."""
        return collect_families(ExporterState(self._report if self._age_s <= _STALE_S else None, self._row_delays()))

    def health(self) -> tuple[bool, str]:
        """Return whether samples are taken, and a line for people. A broker may be away."""
        age_s = self._clock_s() - self._turned_s
        return age_s <= _HUNG_S, "ok" if age_s <= _HUNG_S else f"a sample has had no end for {age_s:.0f} s"

    def readiness(self) -> tuple[bool, str]:
        """Return whether there is a current report, and a line for people."""
        if self._away is not None:
            return False, self._away
        if self._age_s > _STALE_S:
            return False, f"the last sample is {self._age_s:.0f} s old"
        return True, "ok"

    @property
    def _age_s(self) -> float:
        return self._clock_s() - self._reported_s


def run_exporter(settings: LagSettings, stop: threading.Event) -> None:
    """Sample, and serve the metrics until `stop` is set. Blocks.

    Raises `OSError` if the port is taken.
    """
    delays = RowDelayWatch(settings, warn_of("delays of rows"))
    registry, exporter = CollectorRegistry(), LagExporter(lambda: delays.answer)
    figures = KpiCollector(settings, lambda: exporter.sinks_behind_s)
    registry.register(exporter)
    registry.register(figures)
    address = (settings.metrics_host, settings.metrics_port)

    def health() -> tuple[bool, str]:
        found = (part.health() for part in (exporter, delays, figures))
        return next((one for one in found if not one[0]), (True, "ok"))

    with serve_pages(address, registry, health, exporter.readiness):
        _log.info("metrics are served at http://%(host)s:%(port)d/metrics", host=address[0], port=address[1])
        delays.start()
        figures.start()
        _watch_lag(settings, exporter, stop)
        delays.stop()
        figures.stop()


def _watch_lag(settings: LagSettings, exporter: LagExporter, stop: threading.Event) -> None:
    monitor = LagMonitor(settings, settings.lag_window_s, settings.sink_idle_seconds)
    pause_s = 0.0
    while not stop.wait(pause_s):
        began_s = time.monotonic()
        try:
            exporter.take_report(monitor.take_report())
        except SessionaryError as error:
            exporter.note_broker_away(str(error))
        pause_s = max(0.0, began_s + settings.lag_interval_s - time.monotonic())
    monitor.close()
