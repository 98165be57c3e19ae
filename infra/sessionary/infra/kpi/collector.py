"""Asks ClickHouse for its own figures in the background; a scrape reads the answers."""

from collections.abc import Callable, Iterable
from typing import Any

from prometheus_client.core import Metric
from prometheus_client.registry import Collector

from sessionary.infra.kpi.integrity import IntegrityFindings, RequestLook, ask_integrity, ask_landed_ends
from sessionary.infra.kpi.key_figures import (
    DiskSpace,
    KeyFigures,
    ask_disk_space,
    ask_key_figures,
    ask_overdue_artifacts,
    ask_tenant_bytes_max,
)
from sessionary.infra.kpi.metrics import KpiState, collect_families
from sessionary.infra.kpi.question_watch import QuestionWatch
from sessionary.infra.settings import LagSettings
from sessionary.schemas.errors import SessionaryError
from sessionary.schemas.telemetry.role_logs import error_fields, role_logger

_log = role_logger(__name__)


def warn_of(what: str) -> Callable[[Exception], None]:
    """Return a logger of missing answers' reasons; with a trace if the error is a fault of ours."""

    def warn(error: Exception) -> None:
        trace = None if isinstance(error, SessionaryError) else error
        _log.warning(f"no {what}: %(error)s", exc_info=trace, **error_fields(error))

    return warn


class KpiCollector(Collector):
    """The last answers of ClickHouse. Dedicated threads ask; a scrape only reads."""

    def __init__(self, settings: LagSettings, behind_s: Callable[[], float]) -> None:
        """Ask nothing yet. `behind_s` returns by how many seconds the last sink is behind."""
        self._figures: QuestionWatch[KeyFigures] = QuestionWatch(
            "key-figures",
            lambda: ask_key_figures(settings, settings.kpi_window_s, behind_s()),
            settings.kpi_interval_s,
            warn_of("key figures"),
        )
        self._integrity: QuestionWatch[IntegrityFindings] = QuestionWatch(
            "integrity",
            lambda: self._check_integrity(settings, behind_s()),
            settings.integrity_interval_s,
            warn_of("check of integrity"),
        )
        # A separate watch: while Kafka is away, ClickHouse's answers stay known.
        self._ends: QuestionWatch[IntegrityFindings] = QuestionWatch(
            "landed-ends",
            lambda: self._check_ends(settings),
            settings.integrity_interval_s,
            warn_of("check of what the sinks wrote last"),
        )
        look = RequestLook(settings)
        self._requests: QuestionWatch[IntegrityFindings] = QuestionWatch(
            "requests",
            lambda: self._check_requests(look, behind_s()),
            settings.integrity_interval_s,
            warn_of("check of the topics of requests"),
        )
        self._disks: QuestionWatch[tuple[DiskSpace, ...]] = QuestionWatch(
            "disk-space", lambda: ask_disk_space(settings), settings.kpi_interval_s, warn_of("free space of disks")
        )
        days = settings.retention_artifacts_days
        self._artifacts: QuestionWatch[int] = QuestionWatch(
            "overdue-artifacts",
            lambda: ask_overdue_artifacts(settings, days),
            settings.kpi_interval_s,
            warn_of("count of overdue artifacts"),
        )
        self._bytes: QuestionWatch[int] = QuestionWatch(
            "tenant-bytes",
            lambda: ask_tenant_bytes_max(settings),
            settings.kpi_interval_s,
            warn_of("bytes of the largest tenant"),
        )
        self._checked_at_s: dict[str, float] = {}

    def _check_integrity(self, settings: LagSettings, behind_s: float) -> IntegrityFindings:
        found = ask_integrity(settings, settings.integrity_window_s, behind_s)
        self._checked_at_s["tables"] = found.checked_at_s
        return found

    def _check_ends(self, settings: LagSettings) -> IntegrityFindings:
        found = ask_landed_ends(settings)
        self._checked_at_s["kafka"] = found.checked_at_s
        return found

    def _check_requests(self, look: RequestLook, behind_s: float) -> IntegrityFindings:
        found = look.ask(behind_s)
        self._checked_at_s["requests"] = found.checked_at_s
        return found

    @property
    def _watches(self) -> tuple[QuestionWatch[Any], ...]:
        of_integrity = self._integrity, self._ends, self._requests
        return self._figures, *of_integrity, self._disks, self._artifacts, self._bytes

    def start(self) -> None:
        """Begin to ask."""
        for watch in self._watches:
            watch.start()

    def stop(self) -> None:
        """Ask no more. Never blocks."""
        for watch in self._watches:
            watch.stop()

    def health(self) -> tuple[bool, str]:
        """Return whether all questions are asked, and a line for people."""
        return next((found for watch in self._watches if not (found := watch.health())[0]), (True, "ok"))

    def collect(self) -> Iterable[Metric]:
        """Return the metrics whose values are known."""
        return collect_families(
            KpiState(
                key_figures=self._figures.answer,
                integrity=self._integrity.answer,
                landed_ends=self._ends.answer,
                requests=self._requests.answer,
                disks=self._disks.answer,
                artifacts_overdue=self._artifacts.answer,
                checked_at_s=dict(self._checked_at_s),
                tenant_bytes_max=self._bytes.answer,
            )
        )
