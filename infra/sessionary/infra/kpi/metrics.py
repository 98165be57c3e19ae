"""The exporter's metrics of key figures, integrity and disks.

`HELP` lists every metric with the sentence that explains it and names its unit. A series exists
only while its value is known: without an answer of ClickHouse there are none, and no zeros either.
"""

from collections.abc import Iterable, Iterator, Mapping
from typing import Final, Literal, NamedTuple

from prometheus_client.core import GaugeMetricFamily

from sessionary.infra.kpi.disk_space import DiskSpace
from sessionary.infra.kpi.integrity import IntegrityFindings, table_of_fault
from sessionary.infra.kpi.key_figures import KeyFigures, Quantiles

MetricName = Literal[
    "sessionary_integrity_findings",
    "sessionary_integrity_checked_timestamp_seconds",
    "sessionary_kpi_reclaim_ratio",
    "sessionary_kpi_cleanup_average_seconds",
    "sessionary_kpi_cleanup_seconds",
    "sessionary_kpi_transition_latency_seconds",
    "sessionary_kpi_audit_write_latency_seconds",
    "sessionary_kpi_audit_io_ratio",
    "sessionary_kpi_timeout_retry_cost_ratio",
    "sessionary_kpi_session_context_bytes_max",
    "sessionary_clickhouse_disk_free_ratio",
]

HELP: Final[Mapping[MetricName, str]] = {
    "sessionary_integrity_findings": "Findings of v_integrity of the last SESSIONARY_INTEGRITY_WINDOW_S seconds, by "
    "table and kind (the view's fault); 0 if all is well.",
    "sessionary_integrity_checked_timestamp_seconds": "Time of the last check of integrity, in seconds since the "
    "epoch.",
    "sessionary_kpi_reclaim_ratio": "Share of sessions timed out in the last SESSIONARY_KPI_WINDOW_S seconds whose "
    "clean-up was confirmed, from 0 to 1; without those whose host is lost.",
    "sessionary_kpi_cleanup_average_seconds": "Mean seconds from a timeout to its confirmed clean-up, of the last "
    "SESSIONARY_KPI_WINDOW_S seconds.",
    "sessionary_kpi_cleanup_seconds": "Seconds from a timeout to its confirmed clean-up, of the last "
    "SESSIONARY_KPI_WINDOW_S seconds, by quantile (0.5, 0.95, 0.99).",
    "sessionary_kpi_transition_latency_seconds": "Seconds from an event or a deadline to the acknowledgement of its "
    "audit record, of the last SESSIONARY_KPI_WINDOW_S seconds, by quantile (0.5, 0.95, 0.99).",
    "sessionary_kpi_audit_write_latency_seconds": "Seconds from the start of a transaction to the acknowledgement of "
    "its audit records, of the last SESSIONARY_KPI_WINDOW_S seconds, by quantile (0.5, 0.95, 0.99).",
    "sessionary_kpi_audit_io_ratio": "Share of the bytes of all topics that audit records take, of the last "
    "SESSIONARY_KPI_WINDOW_S seconds, from 0 to 1.",
    "sessionary_kpi_timeout_retry_cost_ratio": "Share of the reported costs that retries after a timeout took, of "
    "the last SESSIONARY_KPI_WINDOW_S seconds, from 0 to 1.",
    "sessionary_kpi_session_context_bytes_max": "Bytes of the largest context that a session reported in the last "
    "SESSIONARY_KPI_WINDOW_S seconds.",
    "sessionary_clickhouse_disk_free_ratio": "Share of a disk of ClickHouse that is free, from 0 to 1, by disk.",
}


class KpiState(NamedTuple):
    """What is known. None: nothing, because ClickHouse is away or refuses the question."""

    key_figures: KeyFigures | None = None
    integrity: IntegrityFindings | None = None
    disks: tuple[DiskSpace, ...] | None = None


def collect_families(state: KpiState) -> Iterator[GaugeMetricFamily]:
    """Yield the metrics that have a value, each with the series whose value is known."""
    if state.integrity is not None:
        yield from _integrity_families(state.integrity)
    if state.key_figures is not None:
        yield from _figure_families(state.key_figures)
    if state.disks is not None:
        free = _family("sessionary_clickhouse_disk_free_ratio", "disk")
        for disk in state.disks:
            free.add_metric((disk.disk,), disk.free_ratio)
        yield free


def _integrity_families(integrity: IntegrityFindings) -> Iterable[GaugeMetricFamily]:
    findings = _family("sessionary_integrity_findings", "table", "kind")
    for fault, number in integrity.by_fault.items():
        findings.add_metric((table_of_fault(fault), fault), number)
    checked = _family("sessionary_integrity_checked_timestamp_seconds")
    checked.add_metric((), integrity.checked_at_s)
    return findings, checked


def _figure_families(figures: KeyFigures) -> Iterator[GaugeMetricFamily]:
    singles: Mapping[MetricName, float | None] = {
        "sessionary_kpi_reclaim_ratio": figures.reclaim_ratio,
        "sessionary_kpi_cleanup_average_seconds": figures.cleanup_average_s,
        "sessionary_kpi_audit_io_ratio": figures.audit_io_ratio,
        "sessionary_kpi_timeout_retry_cost_ratio": figures.timeout_retry_cost_ratio,
        "sessionary_kpi_session_context_bytes_max": figures.session_context_bytes_max,
    }
    for name, value in singles.items():
        family = _family(name)
        if value is not None:
            family.add_metric((), value)
        yield family
    by_quantile: Mapping[MetricName, Quantiles] = {
        "sessionary_kpi_cleanup_seconds": figures.cleanup,
        "sessionary_kpi_transition_latency_seconds": figures.transition_latency,
        "sessionary_kpi_audit_write_latency_seconds": figures.audit_write_latency,
    }
    for name, quantiles in by_quantile.items():
        family = _family(name, "quantile")
        for quantile, value in zip(("0.5", "0.95", "0.99"), quantiles, strict=True):
            if value is not None:
                family.add_metric((quantile,), value)
        yield family


def _family(name: MetricName, *labels: str) -> GaugeMetricFamily:
    return GaugeMetricFamily(name, HELP[name], labels=labels)


__all__ = ["HELP", "KpiState", "MetricName", "collect_families"]
