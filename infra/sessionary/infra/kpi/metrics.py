"""The exporter's metrics of key figures, integrity, disks, artifacts and bytes.

`HELP` lists every metric with the sentence that explains it and names its unit. A series exists
only while its value is known: without an answer of ClickHouse there is no series, and no zero
either.
"""

from collections.abc import Iterator, Mapping
from types import MappingProxyType
from typing import Final, Literal, NamedTuple

from prometheus_client.core import GaugeMetricFamily

from sessionary.infra.kpi.integrity import IntegrityFindings, table_of_fault
from sessionary.infra.kpi.key_figures import DiskSpace, KeyFigures, Quantiles

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
    "sessionary_clickhouse_artifacts_overdue",
    "sessionary_clickhouse_tenant_bytes_max",
]

HELP: Final[Mapping[MetricName, str]] = {
    "sessionary_integrity_findings": "Findings of v_integrity of the last SESSIONARY_INTEGRITY_WINDOW_S seconds, and "
    "of the sinks' last rows and the topics of requests, by table or topic and kind (the fault of sessionary integrity "
    "check); 0 without faults. Dismissed faults do not count.",
    "sessionary_integrity_checked_timestamp_seconds": "Time of the last check of integrity, in seconds since the "
    "epoch, by source: tables (v_integrity), kafka (the sinks' last rows) or requests (the topics of requests).",
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
    "sessionary_kpi_audit_io_ratio": "Share of audit records in the bytes of all records with a row "
    "(history, audit, rejected, batches), which exceeds their share of all topics, of the last "
    "SESSIONARY_KPI_WINDOW_S seconds, from 0 to 1.",
    "sessionary_kpi_timeout_retry_cost_ratio": "Share of retries after a timeout in the reported costs, of "
    "the last SESSIONARY_KPI_WINDOW_S seconds, from 0 to 1.",
    "sessionary_kpi_session_context_bytes_max": "Bytes of the largest context that a session reported in the last "
    "SESSIONARY_KPI_WINDOW_S seconds.",
    "sessionary_clickhouse_disk_free_ratio": "Free share of a disk of ClickHouse, from 0 to 1, by disk.",
    "sessionary_clickhouse_artifacts_overdue": "Artifacts that expired a day ago or earlier, and that no sweep has "
    "marked.",
    "sessionary_clickhouse_tenant_bytes_max": "Bytes of the largest tenant's records in history, audit and rejected.",
}


class KpiState(NamedTuple):
    """The known answers. None: ClickHouse is away or refuses the question."""

    key_figures: KeyFigures | None = None
    integrity: IntegrityFindings | None = None  # by the tables
    landed_ends: IntegrityFindings | None = None  # by what Kafka has
    disks: tuple[DiskSpace, ...] | None = None
    artifacts_overdue: int | None = None
    # When integrity was checked last, also if the findings are too old; by source.
    checked_at_s: Mapping[str, float] = MappingProxyType({})
    tenant_bytes_max: int | None = None
    requests: IntegrityFindings | None = None  # by the topics that no sink reads


def collect_families(state: KpiState) -> Iterator[GaugeMetricFamily]:
    """Yield the metrics that have a value, each with the series whose value is known."""
    answers = (state.integrity, state.landed_ends, state.requests)
    if any(answer is not None for answer in answers):
        yield _finding_family(*answers)
    if state.checked_at_s:
        checked = _family("sessionary_integrity_checked_timestamp_seconds", "source")
        for source, at_s in state.checked_at_s.items():
            checked.add_metric((source,), at_s)
        yield checked
    if state.key_figures is not None:
        yield from _figure_families(state.key_figures)
    if state.disks is not None:
        free = _family("sessionary_clickhouse_disk_free_ratio", "disk")
        for disk in state.disks:
            free.add_metric((disk.disk,), disk.free_ratio)
        yield free
    if state.artifacts_overdue is not None:
        overdue = _family("sessionary_clickhouse_artifacts_overdue")
        overdue.add_metric((), state.artifacts_overdue)
        yield overdue
    if state.tenant_bytes_max is not None:
        largest = _family("sessionary_clickhouse_tenant_bytes_max")
        largest.add_metric((), state.tenant_bytes_max)
        yield largest


def _finding_family(*answers: IntegrityFindings | None) -> GaugeMetricFamily:
    findings = _family("sessionary_integrity_findings", "table", "kind")
    for answer in answers:
        for fault, number in ({} if answer is None else answer.by_fault).items():
            findings.add_metric((table_of_fault(fault), fault), number)
    return findings


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
