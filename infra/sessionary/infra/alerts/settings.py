"""Thresholds and times of the alert rules that `sessionary alerts render` prints."""

from typing import Final

from pydantic import Field

from sessionary.schemas.settings import EnvSettings

_DEFAULT: Final = "; a default, no requirement names one"


class AlertSettings(EnvSettings):
    """What the alert rules compare with, and how long it must last."""

    alert_runbook_url: str = Field(
        "docs/runbook.md",
        description="address of the runbook, to which each alert links with its section; by default a path in the "
        "repository",
    )
    alert_processor_job: str = Field(
        "sessionary-processor", description="job label with which Prometheus scrapes the processors"
    )
    alert_sink_job: str = Field("sessionary-sink", description="job label with which Prometheus scrapes the sinks")
    alert_lag_job: str = Field("sessionary-lag", description="job label with which Prometheus scrapes lag-exporter")
    alert_page_for_s: int = Field(
        60, description=f"time in seconds that the condition of a page must last{_DEFAULT}", ge=0
    )
    alert_ticket_for_s: int = Field(
        300, description=f"time in seconds that the condition of a ticket must last{_DEFAULT}", ge=0
    )
    alert_window_s: int = Field(
        600, description=f"time in seconds over which alerts count events and measure growth{_DEFAULT}", ge=2
    )
    alert_lag_s: float = Field(
        60.0, description=f"age in seconds of the oldest unread record above which a page is due{_DEFAULT}", gt=0
    )
    alert_lag_records: int = Field(
        10_000, description=f"unread records above which a growing lag is a ticket{_DEFAULT}", ge=0
    )
    alert_cleanup_lag_s: float = Field(
        300.0, description=f"age in seconds of the oldest unread clean-up request of a service{_DEFAULT}", gt=0
    )
    alert_task_lag_s: float = Field(
        300.0,
        description=f"age in seconds of the oldest task request that a service without workers has not read{_DEFAULT}",
        gt=0,
    )
    alert_timers_due: int = Field(
        100, description=f"past deadlines of one partition that wait to fire, above which a page is due{_DEFAULT}", ge=0
    )
    alert_timer_lateness_s: float = Field(
        5.0, description=f"wall time in seconds by which one of twenty deadlines may fire late{_DEFAULT}", gt=0
    )
    alert_clock_ahead_s: float = Field(
        10.0,
        description="time in seconds by which a log clock may be ahead of its worker's clock; at 60 s the partition "
        f"halts{_DEFAULT}",
        gt=0,
    )
    alert_security_refusals: int = Field(
        0, description=f"security refusals of one reason within the window above which a ticket is due{_DEFAULT}", ge=0
    )
    alert_spool_bytes: int = Field(
        10_000_000, description=f"bytes in a client's spool above which its growth is a ticket{_DEFAULT}", ge=0
    )
    alert_sessions_over_context_limit: int = Field(
        0, description=f"live sessions with more context than their limit, above which a ticket is due{_DEFAULT}", ge=0
    )
    alert_deduplication_window_ratio: float = Field(
        0.5,
        description=f"share of ClickHouse's deduplication window that a replay used, above which a ticket is due"
        f"{_DEFAULT}",
        gt=0,
    )
    alert_disk_free_ratio: float = Field(
        0.1, description=f"free share of a ClickHouse disk below which a page is due{_DEFAULT}", ge=0, le=1
    )
    alert_disk_free_bytes: int = Field(
        2_000_000_000, description=f"free bytes of a worker's state folder below which a page is due{_DEFAULT}", ge=0
    )
    alert_stored_bytes: int = Field(
        8_000_000_000, description=f"bytes of state on one worker above which a ticket is due{_DEFAULT}", ge=0
    )
    alert_tenant_bytes: int = Field(
        100_000_000_000,
        description=f"bytes of the records of one tenant in ClickHouse above which a ticket is due{_DEFAULT}",
        ge=0,
    )
    alert_integrity_age_s: float = Field(
        900.0, description=f"age in seconds of the last integrity check above which a ticket is due{_DEFAULT}", gt=0
    )
    alert_artifacts_overdue: int = Field(
        0, description=f"expired artifacts without a mark for a day above which a ticket is due{_DEFAULT}", ge=0
    )
    alert_cleanup_s: float = Field(
        5.0, description="mean time in seconds from a timeout to the confirmed clean-up; required: below 5 s", gt=0
    )
    alert_reclaim_ratio: float = Field(
        0.95,
        description="share of timed-out sessions whose resources are released; required: above 0.95",
        ge=0,
        le=1,
    )
    alert_transition_latency_s: float = Field(
        0.1,
        description="time in seconds from a transition's start to its written audit record; required: below 0.1 s",
        gt=0,
    )
    alert_audit_write_latency_s: float = Field(
        0.1, description="time in seconds that the audit write of a batch takes; required: below 0.1 s", gt=0
    )
    alert_context_bytes: int = Field(
        200_000_000, description="bytes of the largest session context; required: below 200 MB", gt=0
    )
    alert_audit_io_ratio: float = Field(
        0.05, description="audit trail's share of all bytes written; required: below 0.05", ge=0, le=1
    )
    alert_retry_cost_ratio: float = Field(
        0.1, description="share of all cost that retries after a timeout cause; required: below 0.1", ge=0, le=1
    )
    alert_compliance_ratio: float = Field(
        0.05, description="share of a worker's work that compliance checks take; required: below 0.05", ge=0, le=1
    )


__all__ = ["AlertSettings"]
