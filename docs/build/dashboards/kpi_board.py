"""The dashboard of the figures that have a target."""

from typing import Final

from docs.build.dashboards.panel import Board, Panel, Query, Row, rate_of
from docs.build.dashboards.session_board import CONTEXT_BYTES_MAX

_SESSIONS: Final = (
    Panel(
        "Are timed-out sessions reclaimed?",
        "percentunit",
        "Confirmed clean-ups over timed-out sessions without those of lost hosts. Target: above 95 %.",
        (Query("min(sessionary_kpi_reclaim_ratio)", "reclaimed"),),
        limit=0.95,
        is_floor=True,
    ),
    Panel(
        "Are they reclaimed in time?",
        "s",
        "From a timeout to its confirmed clean-up. Target: below 5 s on average.",
        (
            Query("max(sessionary_kpi_cleanup_average_seconds)", "average"),
            Query("max by (quantile) (sessionary_kpi_cleanup_seconds)", "{{quantile}}"),
        ),
        limit=5,
    ),
    Panel(
        "How large is the largest context?",
        "bytes",
        "The largest context that a session reported. Target: below 200 MB.",
        (Query("max(sessionary_kpi_session_context_bytes_max)", "largest"),),
        limit=CONTEXT_BYTES_MAX,
    ),
)
_AUDIT: Final = (
    Panel(
        "Is a transition on record in time?",
        "s",
        "From an event or a deadline to the acknowledgement of its audit record. Target: 19 of 20 below 0.1 s.",
        (Query("max by (quantile) (sessionary_kpi_transition_latency_seconds)", "{{quantile}}"),),
        limit=0.1,
    ),
    Panel(
        "Is an audit record written in time?",
        "s",
        "From the start of its transaction to the acknowledgement. Target: 19 of 20 below 0.1 s.",
        (Query("max by (quantile) (sessionary_kpi_audit_write_latency_seconds)", "{{quantile}}"),),
        limit=0.1,
    ),
    Panel(
        "What do audit records add to the traffic?",
        "percentunit",
        "Share of audit records in the bytes of all topics that sinks read. Target: below 5 %.",
        (Query("max(sessionary_kpi_audit_io_ratio)", "audit"),),
        limit=0.05,
    ),
)
_COST: Final = (
    Panel(
        "What do retries after a timeout cost?",
        "percentunit",
        "Share of retries in the costs that agents report. Target: below 10 %.",
        (Query("max(sessionary_kpi_timeout_retry_cost_ratio)", "retries"),),
        limit=0.1,
    ),
    Panel(
        "What does compliance cost?",
        "percentunit",
        "Time spent on retention and compliance tags over all time of folding and committing. Target: below 5 %.",
        (
            Query(
                f"{rate_of('sessionary_processor_compliance_seconds_total')} / "
                f"{rate_of('sessionary_processor_work_seconds_total')}",
                "compliance",
            ),
        ),
        limit=0.05,
    ),
)
KPIS: Final = Board(
    "kpis",
    "key figures",
    "Are the targets met? Each figure is of the last hour; the line is the target.",
    (Row("Timed-out sessions, memory", _SESSIONS), Row("Audit trail", _AUDIT), Row("Cost", _COST)),
)
