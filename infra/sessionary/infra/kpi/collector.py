"""Asks for key figures, integrity and disks in the background, and hands them to a scrape."""

import logging
from collections.abc import Callable, Iterable
from functools import partial

from prometheus_client.core import Metric
from prometheus_client.registry import Collector

from sessionary.infra.kpi.disk_space import DiskSpace, ask_disk_space
from sessionary.infra.kpi.integrity import IntegrityFindings, ask_integrity
from sessionary.infra.kpi.key_figures import KeyFigures, ask_key_figures
from sessionary.infra.kpi.metrics import KpiState, collect_families
from sessionary.infra.kpi.question_watch import QuestionWatch
from sessionary.infra.settings import LagSettings

_log = logging.getLogger(__name__)


class KpiCollector(Collector):
    """The last answers of ClickHouse. Threads of its own ask; a scrape only reads."""

    def __init__(self, settings: LagSettings, behind_s: Callable[[], float]) -> None:
        """Ask nothing yet. `behind_s` returns by how many seconds the last sink is behind."""

        def warn_of(what: str) -> Callable[[str], None]:
            return partial(_log.warning, "no %s: %s", what)

        self._figures: QuestionWatch[KeyFigures] = QuestionWatch(
            "key-figures",
            lambda: ask_key_figures(settings, settings.kpi_window_s, behind_s()),
            settings.kpi_interval_s,
            warn_of("key figures"),
        )
        self._integrity: QuestionWatch[IntegrityFindings] = QuestionWatch(
            "integrity",
            lambda: ask_integrity(settings, settings.integrity_window_s, behind_s()),
            settings.integrity_interval_s,
            warn_of("check of integrity"),
        )
        self._disks: QuestionWatch[tuple[DiskSpace, ...]] = QuestionWatch(
            "disk-space", lambda: ask_disk_space(settings), settings.kpi_interval_s, warn_of("free space of disks")
        )

    def start(self) -> None:
        """Begin to ask."""
        for watch in (self._figures, self._integrity, self._disks):
            watch.start()

    def stop(self) -> None:
        """Ask no more. Never blocks."""
        for watch in (self._figures, self._integrity, self._disks):
            watch.stop()

    def collect(self) -> Iterable[Metric]:
        """Return the metrics whose values are known."""
        return collect_families(KpiState(self._figures.answer, self._integrity.answer, self._disks.answer))


__all__ = ["KpiCollector"]
