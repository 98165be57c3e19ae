"""For each alert: series at which it fires, and series at which it does not.

Series are in promtool's notation, one sample each 15 s: `5x80` is 5 for 20 minutes, `0+1x80` rises
by 1 per sample, `_x40` is no sample.
"""

from collections.abc import Mapping
from typing import NamedTuple

GROUP, TOPIC = "sessionary.sink.audit", "sessionary.audit"
_SINK = f'sink="audit",group="{GROUP}"'
_PLACE = f'group="{GROUP}",topic="{TOPIC}",partition="2"'
_CLEANUP = 'group="sessionary.cleanup.acme:billing",topic="sessionary.cleanup",partition="2"'
_TASKS = 'group="sessionary.task-workers.acme:billing",topic="sessionary.tasks",partition="2"'
_W1 = 'instance="w1",job="sessionary-processor"'
_AGENT = 'instance="agent-1",job="agents"'


class RuleCase(NamedTuple):
    """20 minutes in which one alert fires, and 20 minutes in which it does not."""

    alert: str
    fires: Mapping[str, str]
    silent: Mapping[str, str]
    labels: Mapping[str, str]  # of the alert, without name and severity
    shows: str  # the value as the alert's texts show it


def _target_case(alert: str, metric: str, fires: str, silent: str, shows: str) -> RuleCase:
    return RuleCase(alert, {metric: f"{fires}x80"}, {metric: f"{silent}x80"}, {}, shows)


def _service_series(metric: str, values: str, *, state: str | None = None) -> dict[str, str]:
    """Return the series of a metric for both groups of a service."""
    more = "" if state is None else f',state="{state}"'
    return {f"{metric}{{{place}{more}}}": values for place in (_CLEANUP, _TASKS)}


_LAG = (
    RuleCase(
        "SessionaryLagTime",
        {f"sessionary_lag_seconds{{{_PLACE}}}": "130x80"},
        {f"sessionary_lag_seconds{{{_PLACE}}}": "60x80"} | _service_series("sessionary_lag_seconds", "130x80"),
        {"group": GROUP, "topic": TOPIC},
        "2m 10s",
    ),
    RuleCase(
        "SessionaryLagGrowing",
        {f"sessionary_lag_records{{{_PLACE}}}": "20000+100x80"},
        {f"sessionary_lag_records{{{_PLACE}}}": "28000-100x80"},
        {"group": GROUP, "topic": TOPIC},
        "28000",
    ),
    RuleCase(
        "SessionaryLagGrowing",
        {f"sessionary_lag_records{{{_PLACE}}}": "20000+100x80"},
        {f"sessionary_lag_records{{{_PLACE}}}": "0+100x80"},
        {"group": GROUP, "topic": TOPIC},
        "28000",
    ),
    RuleCase(
        "SessionaryGroupNotStable",
        {f'sessionary_lag_group_state{{group="{GROUP}",state="empty"}}': "1x80"},
        {
            f'sessionary_lag_group_state{{group="{GROUP}",state="stable"}}': "1x80",
            **_service_series("sessionary_lag_group_state", "1x80", state="empty"),
        },
        {"group": GROUP},
        "1",
    ),
    RuleCase(
        "SessionaryPartitionStalled",
        {f'sessionary_lag_partition_state{{{_PLACE},state="stall"}}': "1x80"},
        {
            f'sessionary_lag_partition_state{{{_PLACE},state="ok"}}': "1x80",
            **_service_series("sessionary_lag_partition_state", "1x80", state="stop"),
        },
        {"group": GROUP, "topic": TOPIC, "partition": "2", "state": "stall"},
        "1",
    ),
    RuleCase(
        "SessionaryLogLost",
        {f'sessionary_lag_partition_state{{{_PLACE},state="log_gap"}}': "1x80"},
        {
            f'sessionary_lag_partition_state{{{_PLACE},state="stall"}}': "1x80",
            **_service_series("sessionary_lag_partition_state", "1x80", state="log_gap"),
        },
        {"group": GROUP, "topic": TOPIC, "partition": "2", "state": "log_gap"},
        "1",
    ),
    RuleCase(
        "SessionaryLogLost",
        {f'sessionary_lag_partition_state{{{_TASKS},state="no_topic"}}': "1x80"},
        {f'sessionary_lag_partition_state{{{_TASKS},state="stop"}}': "1x80"},
        {
            "group": "sessionary.task-workers.acme:billing",
            "topic": "sessionary.tasks",
            "partition": "2",
            "state": "no_topic",
        },
        "1",
    ),
    RuleCase(
        "SessionaryCleanupLag",
        {f"sessionary_lag_seconds{{{_CLEANUP}}}": "600x80"},
        {f"sessionary_lag_seconds{{{_CLEANUP}}}": "300x80", f"sessionary_lag_seconds{{{_PLACE}}}": "600x80"},
        {"group": "sessionary.cleanup.acme:billing"},
        "10m 0s",
    ),
    RuleCase(
        "SessionaryTaskWorkersAway",
        {
            f"sessionary_lag_seconds{{{_TASKS}}}": "600x80",
            'sessionary_lag_group_state{group="sessionary.task-workers.acme:billing",state="empty"}': "1x80",
        },
        {
            f"sessionary_lag_seconds{{{_TASKS}}}": "600x80",
            'sessionary_lag_group_state{group="sessionary.task-workers.acme:billing",state="stable"}': "1x80",
            f"sessionary_lag_seconds{{{_CLEANUP}}}": "600x80",
            'sessionary_lag_group_state{group="sessionary.cleanup.acme:billing",state="empty"}': "1x80",
        },
        {"group": "sessionary.task-workers.acme:billing"},
        "10m 0s",
    ),
)


def _down_cases(alert: str, job: str) -> tuple[RuleCase, RuleCase]:
    up = f'up{{instance="one",job="{job}"}}'
    return (
        RuleCase(alert, {up: "0x80"}, {up: "1x80"}, {"instance": "one", "job": job}, "0"),
        RuleCase(alert, {'up{job="another"}': "1x80"}, {up: "1x80"}, {"job": job}, "1"),
    )


_REACH = (
    *_down_cases("SessionaryProcessorDown", "sessionary-processor"),
    *_down_cases("SessionarySinkDown", "sessionary-sink"),
    *_down_cases("SessionaryExporterDown", "sessionary-lag"),
    RuleCase(
        "SessionaryKafkaUnreachable",
        {'sessionary_lag_broker_up{instance="one"}': "0x80"},
        {'sessionary_lag_broker_up{instance="one"}': "1x80"},
        {"instance": "one"},
        "0",
    ),
    RuleCase(
        "SessionaryClickHouseUnreachable",
        {'sessionary_lag_clickhouse_up{instance="one"}': "0x80"},
        {'sessionary_lag_clickhouse_up{instance="one"}': "1x80"},
        {"instance": "one"},
        "0",
    ),
)
_DUE = f'sessionary_processor_timers_due{{{_W1},partition="2"}}'
_FIRED = f"sessionary_processor_timers_fired_total{{{_W1}}}"
_IN_GRACE = f"sessionary_processor_outage_grace_partitions{{{_W1}}}"
_HALTED = f"sessionary_processor_partitions_halted{{{_W1},reason="
_LATENESS = "sessionary_processor_timer_wall_lateness_seconds_bucket"
_PROCESSOR = (
    RuleCase(
        "SessionaryPartitionHalted",
        {f'{_HALTED}"log_gap"}}': "2x80"},
        {f'{_HALTED}"log_gap"}}': "0x80"},
        {"instance": "w1", "reason": "log_gap"},
        "2",
    ),
    RuleCase(
        "SessionaryStateCorrupt",
        {f'sessionary_processor_state_hash_mismatches_total{{{_W1},source="store"}}': "_x60 1x20"},
        {
            f'sessionary_processor_state_hash_mismatches_total{{{_W1},source="agent"}}': "_x60 1x20",
            f'{_HALTED}"log_gap"}}': "1x80",
        },
        {"instance": "w1"},
        "1",
    ),
    RuleCase(
        "SessionaryStateCorrupt",
        {f'{_HALTED}"changelog_incomplete"}}': "3x80"},
        {f'{_HALTED}"changelog_incomplete"}}': "0x80"},
        {"instance": "w1"},
        "3",
    ),
    RuleCase(
        "SessionarySnapshotDamaged",
        {f'sessionary_processor_state_hash_mismatches_total{{{_W1},source="agent"}}': "_x60 2x20"},
        {f'sessionary_processor_state_hash_mismatches_total{{{_W1},source="store"}}': "_x60 2x20"},
        {"instance": "w1"},
        "2",
    ),
    RuleCase(
        "SessionaryJudgeErrors",
        {f'sessionary_processor_errors_total{{{_W1},kind="judge"}}': "_x60 2x20"},
        {f'sessionary_processor_errors_total{{{_W1},kind="aborted"}}': "_x60 2x20"},
        {"instance": "w1"},
        "2",
    ),
    RuleCase(
        "SessionarySecurityRejections",
        {f'sessionary_processor_rejected_total{{{_W1},reason="foreign_tenant",security="true"}}': "_x60 4x20"},
        {
            f'sessionary_processor_rejected_total{{{_W1},reason="foreign_tenant",security="true"}}': "4x80",
            f'sessionary_processor_rejected_total{{{_W1},reason="late",security="false"}}': "0+1x80",
        },
        {"reason": "foreign_tenant"},
        "4",
    ),
    RuleCase(
        "SessionaryTimersStuck",
        {_DUE: "3x80", _FIRED: "7x80", _IN_GRACE: "0x80"},
        {_DUE: "3x80", _FIRED: "0+1x80", _IN_GRACE: "0x80"},
        {"instance": "w1", "partition": "2"},
        "3",
    ),
    RuleCase(
        "SessionaryTimersStuck",
        {_DUE: "101x80", _FIRED: "0+1x80"},
        {_DUE: "101x80", _FIRED: "0+1x80", _IN_GRACE: "4x80"},
        {"instance": "w1", "partition": "2"},
        "101",
    ),
    RuleCase(
        "SessionaryToolCallsUnresolved",
        {f'sessionary_processor_tool_calls{{{_W1},state="unknown"}}': "0x20 2x60"},
        {
            f'sessionary_processor_tool_calls{{{_W1},state="unknown"}}': "1x20 0 1x30 0 1x28",
            f'sessionary_processor_tool_calls{{{_W1},state="running"}}': "9x80",
        },
        {},
        "2",
    ),
    RuleCase(
        "SessionaryTimersLate",
        {
            f'{_LATENESS}{{{_W1},le="5"}}': "0x80",
            f'{_LATENESS}{{{_W1},le="10"}}': "0+1x80",
            f'{_LATENESS}{{{_W1},le="+Inf"}}': "0+1x80",
        },
        {
            f'{_LATENESS}{{{_W1},le="5"}}': "0+1x80",
            f'{_LATENESS}{{{_W1},le="10"}}': "0+1x80",
            f'{_LATENESS}{{{_W1},le="+Inf"}}': "0+1x80",
        },
        {"instance": "w1"},
        "9.75s",
    ),
    RuleCase("SessionaryTimeoutGuard", {_IN_GRACE: "4x80"}, {_IN_GRACE: "4x10 0x70"}, {"instance": "w1"}, "4"),
    RuleCase(
        "SessionaryOpenTransaction",
        {f'sessionary_processor_held_records{{{_W1},partition="2"}}': "40x80"},
        {f'sessionary_processor_held_records{{{_W1},partition="2"}}': "_x80"},
        {"instance": "w1", "partition": "2"},
        "40",
    ),
    RuleCase(
        "SessionaryClockLeap",
        {f'sessionary_processor_clock_ahead_seconds{{{_W1},partition="2"}}': "45x80"},
        {f'sessionary_processor_clock_ahead_seconds{{{_W1},partition="2"}}': "-45x80"},
        {"instance": "w1", "partition": "2"},
        "45s",
    ),
    RuleCase(
        "SessionaryComplianceShare",
        {
            f"sessionary_processor_compliance_seconds_total{{{_W1}}}": "0+1x80",
            f"sessionary_processor_work_seconds_total{{{_W1}}}": "0+4x80",
        },
        {
            f"sessionary_processor_compliance_seconds_total{{{_W1}}}": "0+1x80",
            f"sessionary_processor_work_seconds_total{{{_W1}}}": "0+25x80",
        },
        {"instance": "w1"},
        "25%",
    ),
    RuleCase(
        "SessionaryContextOverLimit",
        {f'sessionary_processor_sessions_over_context_limit{{instance="{name}"}}': "1x80" for name in ("w1", "w2")},
        {f"sessionary_processor_sessions_over_context_limit{{{_W1}}}": "0x80"},
        {},
        "2",
    ),
    RuleCase(
        "SessionaryStateDiskLow",
        {f"sessionary_processor_disk_free_bytes{{{_W1}}}": "1000000000x80"},
        {f"sessionary_processor_disk_free_bytes{{{_W1}}}": "9000000000x80"},
        {"instance": "w1"},
        "953.7Mi",
    ),
    RuleCase(
        "SessionaryStateLarge",
        {
            f'sessionary_processor_stored_bytes{{{_W1},layer="{layer}"}}': "5000000000x80"
            for layer in ("rows", "contents")
        },
        {f'sessionary_processor_stored_bytes{{{_W1},layer="rows"}}': "7000000000x80"},
        {"instance": "w1"},
        "9.313Gi",
    ),
)
_LETTERS = f"sessionary_sink_dead_letters_total{{{_SINK}}}"
_CHECKED = 'sessionary_integrity_checked_timestamp_seconds{source="kafka"}'
_SPOOL = f"sessionary_client_spool_bytes{{{_AGENT}}}"
_DELIVERY = (
    RuleCase(
        "SessionarySinkBlocked",
        {f'sessionary_sink_blocked{{{_SINK},reason="refused"}}': "1x80"},
        {f'sessionary_sink_blocked{{{_SINK},reason="refused"}}': "0x80"},
        {"sink": "audit", "group": GROUP, "reason": "refused"},
        "1",
    ),
    RuleCase(
        "SessionarySinkPartitionBlocked",
        {f'sessionary_sink_partition_blocked{{{_SINK},partition="2",reason="log_gap"}}': "1x80"},
        {f'sessionary_sink_partition_blocked{{{_SINK},partition="2",reason="log_gap"}}': "1x20 _x60"},
        {"sink": "audit", "group": GROUP, "partition": "2", "reason": "log_gap"},
        "1",
    ),
    RuleCase(
        "SessionaryDeadLetters",
        {_LETTERS: "0x60 5x20"},
        {_LETTERS: "5x80"},
        {"sink": "audit", "group": GROUP},
        "5",
    ),
    RuleCase(
        "SessionaryDeduplicationWindow",
        {f"sessionary_sink_deduplication_window_used{{{_SINK}}}": "0x60 0.75x20"},
        {f"sessionary_sink_deduplication_window_used{{{_SINK}}}": "0.5x80"},
        {"sink": "audit", "group": GROUP},
        "75%",
    ),
    RuleCase(
        "SessionaryIntegrityFindings",
        {'sessionary_integrity_findings{table="audit",kind="rows_missing"}': "7x80"},
        {'sessionary_integrity_findings{table="audit",kind="rows_missing"}': "0x80"},
        {"table": "audit", "kind": "rows_missing"},
        "7",
    ),
    RuleCase(
        "SessionaryRequestsLost",
        {'sessionary_integrity_findings{table="cleanup",kind="cleanup_missing"}': "1x80"},
        {'sessionary_integrity_findings{table="audit",kind="audit_missing"}': "1x80"},
        {"table": "cleanup", "kind": "cleanup_missing"},
        "1",
    ),
    RuleCase(
        "SessionaryIntegrityUnchecked",
        {_CHECKED: "0x80", _CHECKED.replace("kafka", "tables"): "600x80"},
        {_CHECKED: "600x80"},
        {"source": "kafka"},
        "20m 0s",
    ),
    RuleCase(
        "SessionaryIntegrityNeverChecked",
        {_CHECKED.replace("kafka", source): "600x80" for source in ("tables", "requests")},
        {_CHECKED.replace("kafka", source): "600x80" for source in ("kafka", "tables", "requests")},
        {"source": "kafka"},
        "1",
    ),
    RuleCase(
        "SessionaryClickHouseDiskLow",
        {'sessionary_clickhouse_disk_free_ratio{disk="default"}': "0.05x80"},
        {'sessionary_clickhouse_disk_free_ratio{disk="default"}': "0.1x80"},
        {"disk": "default"},
        "5%",
    ),
    _target_case("SessionaryArtifactsOverdue", "sessionary_clickhouse_artifacts_overdue", "3", "0", "3"),
    _target_case(
        "SessionaryTenantLarge", "sessionary_clickhouse_tenant_bytes_max", "200000000000", "100000000000", "186.3Gi"
    ),
    RuleCase(
        "SessionarySpoolGrowing",
        {_SPOOL: "18000000+100000x80"},
        {_SPOOL: "26000000-100000x80"},
        {"instance": "agent-1", "job": "agents"},
        "24.8Mi",
    ),
    RuleCase(
        "SessionaryEventsLost",
        {f'sessionary_client_events_total{{{_AGENT},outcome="dropped"}}': "_x60 6x20"},
        {f'sessionary_client_events_total{{{_AGENT},outcome="delivered"}}': "0+1x80"},
        {"instance": "agent-1", "job": "agents", "outcome": "dropped"},
        "6",
    ),
)
_P95 = '{quantile="0.95"}'
_TARGETS = (
    _target_case("SessionaryCleanupSlow", "sessionary_kpi_cleanup_average_seconds", "6", "5", "6s"),
    _target_case("SessionaryReclaimLow", "sessionary_kpi_reclaim_ratio", "0.9", "0.95", "90%"),
    _target_case(
        "SessionaryTransitionSlow", f"sessionary_kpi_transition_latency_seconds{_P95}", "0.25", "0.1", "250ms"
    ),
    _target_case(
        "SessionaryAuditWriteSlow", f"sessionary_kpi_audit_write_latency_seconds{_P95}", "0.25", "0.1", "250ms"
    ),
    _target_case(
        "SessionaryContextLarge", "sessionary_kpi_session_context_bytes_max", "300000000", "200000000", "286.1Mi"
    ),
    _target_case("SessionaryAuditIo", "sessionary_kpi_audit_io_ratio", "0.06", "0.05", "6%"),
    _target_case("SessionaryRetryCost", "sessionary_kpi_timeout_retry_cost_ratio", "0.11", "0.09", "11%"),
    _target_case("SessionaryRetryCost", "sessionary_kpi_timeout_retry_cost_ratio", "0.2", "0.1", "20%"),
)
RULE_CASES: tuple[RuleCase, ...] = (*_LAG, *_REACH, *_PROCESSOR, *_DELIVERY, *_TARGETS)
