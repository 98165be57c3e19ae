"""Alerts on the targets that are required of the whole pipeline, as the exporter measures them;
pure.
"""

from sessionary.infra.alerts.alert import Alert, AlertGroup, Severity

_PERCENTILE = 'quantile="0.95"'


def _target_alert(name: str, expr: str, summary: str, description: str) -> Alert:
    return Alert(name, expr, "ticket_for_s", Severity.TICKET, summary, description)


TARGET_ALERTS = AlertGroup(
    "sessionary-targets",
    (
        _target_alert(
            "SessionaryCleanupSlow",
            "max(sessionary_kpi_cleanup_average_seconds) > $cleanup_s",
            "clean-up takes {{ $value | humanizeDuration }}",
            "A clean-up takes {{ $value | humanizeDuration }} on average, from the timeout to its confirmation; below "
            "${cleanup_s} s is required.",
        ),
        _target_alert(
            "SessionaryReclaimLow",
            "min(sessionary_kpi_reclaim_ratio) < $reclaim_ratio",
            "only {{ $value | humanizePercentage }} of timed-out sessions were cleaned up",
            "The resources of {{ $value | humanizePercentage }} of the timed-out sessions are confirmed as released; "
            "more than ${reclaim_ratio} of them is required.",
        ),
        _target_alert(
            "SessionaryTransitionSlow",
            f"max(sessionary_kpi_transition_latency_seconds{{{_PERCENTILE}}}) > $transition_latency_s",
            "transitions take {{ $value | humanizeDuration }} to be on record",
            "One of twenty transitions takes more than {{ $value | humanizeDuration }} until its audit record is "
            "written; below ${transition_latency_s} s is required.",
        ),
        _target_alert(
            "SessionaryAuditWriteSlow",
            f"max(sessionary_kpi_audit_write_latency_seconds{{{_PERCENTILE}}}) > $audit_write_latency_s",
            "an audit write takes {{ $value | humanizeDuration }}",
            "One of twenty audit writes takes more than {{ $value | humanizeDuration }}; below "
            "${audit_write_latency_s} s is required.",
        ),
        _target_alert(
            "SessionaryContextLarge",
            "max(sessionary_kpi_session_context_bytes_max) > $context_bytes",
            "a session holds {{ $value | humanize1024 }}B of context",
            "The largest session context has {{ $value | humanize1024 }}B; below ${context_bytes} bytes is required.",
        ),
        _target_alert(
            "SessionaryAuditIo",
            "max(sessionary_kpi_audit_io_ratio) > $audit_io_ratio",
            "the audit trail is {{ $value | humanizePercentage }} of all bytes",
            "Audit records are {{ $value | humanizePercentage }} of what the pipeline writes; a share below "
            "${audit_io_ratio} is required.",
        ),
        _target_alert(
            "SessionaryRetryCost",
            "max(sessionary_kpi_timeout_retry_cost_ratio) > $retry_cost_ratio",
            "retries after timeouts are {{ $value | humanizePercentage }} of the cost",
            "Agents spend {{ $value | humanizePercentage }} of their cost on work that they repeat after a timeout; a "
            "share below ${retry_cost_ratio} is required.",
        ),
    ),
)
