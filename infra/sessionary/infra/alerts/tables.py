"""The alerts, a row for each, in groups: delivery, lag, processors, targets."""

from collections.abc import Sequence
from enum import StrEnum
from typing import NamedTuple

# The type of an alert; pure.
#
# The texts are templates. `$name` stands for the threshold of that name; in summary and
# description `{{ $labels.name }}` and `{{ $value }}` are Prometheus' own, for its series.


class Severity(StrEnum):
    """The receivers of an alert."""

    PAGE = "page"  # a person at once, at any hour
    TICKET = "ticket"  # a person on the next working day


class Alert(NamedTuple):
    """One alert rule. The heading of its section in the runbook is the alert's name."""

    name: str
    expr: str  # PromQL
    hold: str  # the threshold with the seconds that `expr` must last; empty: it fires at once
    severity: Severity
    summary: str  # a line
    description: str  # the meaning, with labels and value

    @property
    def anchor(self) -> str:
        """The anchor of the alert's section in the runbook."""
        return self.name.lower()


class AlertGroup(NamedTuple):
    """Alerts that Prometheus evaluates together."""

    name: str
    alerts: tuple[Alert, ...]


def risen_counter(selector: str, labels: Sequence[str], *, above: str = "0") -> str:
    """Return the condition that a counter rose by more than `above` within the window, by `labels`.

    A series that is younger than the window counts from 0: `increase` alone misses the first event
    of a series that is born with it.
    """
    by = ", ".join(labels)
    return (
        f"sum by ({by}) (increase({selector}[${{window_s}}s])) > {above}\n"
        f"or sum by ({by}) ({selector} unless {selector} offset ${{window_s}}s) > {above}"
    )


SINK_ALERTS = AlertGroup(
    "sessionary-sinks",
    (
        Alert(
            "SessionarySinkBlocked",
            # The sink clears it for each retry, which would start the alert's time again.
            "max by (sink, group, reason) (max_over_time(sessionary_sink_blocked[2m])) > 0",
            "page_for_s",
            Severity.PAGE,
            "sink {{ $labels.sink }} waits for an operator: {{ $labels.reason }}",
            "The sink {{ $labels.sink }} ({{ $labels.group }}) writes nothing. Its records wait in Kafka until their "
            "retention ends.",
        ),
        Alert(
            "SessionarySinkPartitionBlocked",
            "max by (sink, group, partition, reason) (sessionary_sink_partition_blocked) > 0",
            "page_for_s",
            Severity.PAGE,
            "partition {{ $labels.partition }} of sink {{ $labels.sink }} is blocked: {{ $labels.reason }}",
            "The sink {{ $labels.sink }} ({{ $labels.group }}) writes nothing of partition {{ $labels.partition }}; "
            "its other partitions continue.",
        ),
        Alert(
            "SessionaryDeadLetters",
            risen_counter("sessionary_sink_dead_letters_total", ["sink", "group"]),
            "",
            Severity.TICKET,
            "sink {{ $labels.sink }} could not store records",
            "The sink {{ $labels.sink }} ({{ $labels.group }}) wrote {{ $value | humanize }} records to the table of "
            "dead letters instead of their table.",
        ),
        Alert(
            "SessionaryDeduplicationWindow",
            "max by (sink, group) (sessionary_sink_deduplication_window_used) > $deduplication_window_ratio",
            "",
            Severity.TICKET,
            "a replay of sink {{ $labels.sink }} used {{ $value | humanizePercentage }} of the deduplication window",
            "The sink {{ $labels.sink }} ({{ $labels.group }}) wrote a block again after ClickHouse had taken "
            "{{ $value | humanizePercentage }} of the blocks of its window. Above 100 % rows are stored twice "
            "until they are merged.",
        ),
    ),
)
TABLE_ALERTS = AlertGroup(
    "sessionary-tables",
    (
        Alert(
            "SessionaryIntegrityFindings",
            'max by (table, kind) (sessionary_integrity_findings{table!~"cleanup|tasks|migrations|quotas"}) > 0',
            "page_for_s",
            Severity.PAGE,
            "{{ $value }} findings in table {{ $labels.table }}: {{ $labels.kind }}",
            "The table {{ $labels.table }} differs from the batches: {{ $value }} times {{ $labels.kind }}.",
        ),
        Alert(
            "SessionaryRequestsLost",
            'max by (table, kind) (sessionary_integrity_findings{table=~"cleanup|tasks|migrations|quotas"}) > 0',
            "page_for_s",
            Severity.PAGE,
            "{{ $value }} findings in topic {{ $labels.table }}: {{ $labels.kind }}",
            "The topic {{ $labels.table }} differs from what the transactions count: {{ $value }} times "
            "{{ $labels.kind }}. What is missing is not done before it is asked for again.",
        ),
        Alert(
            "SessionaryIntegrityUnchecked",
            "time() - max by (source) (sessionary_integrity_checked_timestamp_seconds) > $integrity_age_s",
            "",
            Severity.TICKET,
            "integrity was last checked {{ $value | humanizeDuration }} ago: {{ $labels.source }}",
            "The exporter checks the integrity of the {{ $labels.source }} side, and had no answer for {{ $value | "
            "humanizeDuration }}. A missing row would not be noticed.",
        ),
        Alert(
            "SessionaryIntegrityNeverChecked",
            'absent(sessionary_integrity_checked_timestamp_seconds{source="tables"})\n'
            'or absent(sessionary_integrity_checked_timestamp_seconds{source="kafka"})\n'
            'or absent(sessionary_integrity_checked_timestamp_seconds{source="requests"})',
            "ticket_for_s",
            Severity.TICKET,
            "no exporter has checked integrity: {{ $labels.source }}",
            "Prometheus has no result of an integrity check of the {{ $labels.source }} side. A "
            "missing row would not be noticed.",
        ),
        Alert(
            "SessionaryClickHouseDiskLow",
            "min by (disk) (sessionary_clickhouse_disk_free_ratio) < $disk_free_ratio",
            "page_for_s",
            Severity.PAGE,
            "disk {{ $labels.disk }} of ClickHouse has {{ $value | humanizePercentage }} left",
            "The sinks stop if the disk {{ $labels.disk }} is full; {{ $value | humanizePercentage }} are free.",
        ),
        Alert(
            "SessionaryArtifactsOverdue",
            "max(sessionary_clickhouse_artifacts_overdue) > $artifacts_overdue",
            "ticket_for_s",
            Severity.TICKET,
            "{{ $value }} artifacts have expired and are still served",
            "No sweep has marked {{ $value }} artifacts that expired a day ago or earlier: `sessionary artifact "
            "sweep` was not run, or not for their store.",
        ),
        Alert(
            "SessionaryTenantLarge",
            "max(sessionary_clickhouse_tenant_bytes_max) > $tenant_bytes",
            "ticket_for_s",
            Severity.TICKET,
            "a tenant stores {{ $value | humanize1024 }}B of records",
            "The records of one tenant in history, audit and rejected have {{ $value | humanize1024 }}B, more than "
            "any other's; the limit of each tenant is ${tenant_bytes} bytes.",
        ),
    ),
)
CLIENT_ALERTS = AlertGroup(
    "sessionary-clients",
    (
        Alert(
            "SessionarySpoolGrowing",
            "sum by (job, instance) (sessionary_client_spool_bytes) > $spool_bytes\n"
            "and sum by (job, instance) (deriv(sessionary_client_spool_bytes[${window_s}s])) > 0",
            "ticket_for_s",
            Severity.TICKET,
            "the spool of {{ $labels.instance }} grows",
            "The client {{ $labels.instance }} of {{ $labels.job }} keeps {{ $value | humanize1024 }}B of events in "
            "its spool, and their number grows: Kafka does not accept them.",
        ),
        Alert(
            "SessionaryEventsLost",
            risen_counter(
                'sessionary_client_events_total{outcome=~"dropped|failed|expired"}', ["job", "instance", "outcome"]
            ),
            "",
            Severity.PAGE,
            "events of {{ $labels.instance }} are lost: {{ $labels.outcome }}",
            "The client {{ $labels.instance }} of {{ $labels.job }} gave {{ $value | humanize }} events up: "
            "{{ $labels.outcome }}. The audit trail shows each loss as a gap.",
        ),
    ),
)


# Alerts on lag, and on targets that Prometheus cannot reach; pure.
#
# The groups of a service (clean-up handlers, task workers) have no members while it is off. That is
# no fault of the pipeline, so they get separate tickets.


_PIPELINE = 'group!~".+[.](cleanup|task-workers|migration)[.].+"'
_SERVICES = 'group=~".+[.](cleanup|task-workers|migration)[.].+"'
_CLEANUP = 'group=~".+[.]cleanup[.].+"'
_TASK_WORKERS = 'group=~".+[.]task-workers[.].+"'

LAG_ALERTS = AlertGroup(
    "sessionary-lag",
    (
        Alert(
            "SessionaryLagTime",
            f"max by (group, topic) (sessionary_lag_seconds{{{_PIPELINE}}}) > $lag_s",
            "page_for_s",
            Severity.PAGE,
            "{{ $labels.group }} is {{ $value | humanizeDuration }} behind",
            "The oldest record of {{ $labels.topic }} that {{ $labels.group }} has not committed is "
            "{{ $value | humanizeDuration }} old; the limit is ${lag_s} s.",
        ),
        Alert(
            "SessionaryLagGrowing",
            f"sum by (group, topic) (sessionary_lag_records{{{_PIPELINE}}}) > $lag_records\n"
            f"and sum by (group, topic) (deriv(sessionary_lag_records{{{_PIPELINE}}}[${{window_s}}s])) > 0",
            "ticket_for_s",
            Severity.TICKET,
            "{{ $labels.group }} falls behind",
            "{{ $labels.group }} has {{ $value }} unread records of {{ $labels.topic }}, and their number grows.",
        ),
        Alert(
            "SessionaryGroupNotStable",
            f'max by (group) (sessionary_lag_group_state{{{_PIPELINE}, state!="stable"}}) > 0',
            "page_for_s",
            Severity.PAGE,
            "{{ $labels.group }} has no members, or rebalances without end",
            "Kafka does not report {{ $labels.group }} as stable: no process reads for it, or none keeps its "
            "partitions.",
        ),
        Alert(
            "SessionaryPartitionStalled",
            "max by (group, topic, partition, state) "
            f'(sessionary_lag_partition_state{{{_PIPELINE}, state=~"stall|stop"}}) > 0',
            "page_for_s",
            Severity.PAGE,
            "partition {{ $labels.partition }} of {{ $labels.group }} makes no progress",
            "{{ $labels.group }} has unread records in partition {{ $labels.partition }} of {{ $labels.topic }} and "
            "commits nothing. State: {{ $labels.state }}.",
        ),
        Alert(
            "SessionaryLogLost",
            "max by (group, topic, partition, state) "
            f'(sessionary_lag_partition_state{{{_PIPELINE}, state=~"rewind|log_gap|log_truncated|no_topic"}}) > 0\n'
            "or max by (group, topic, partition, state) "
            # A log may discard unread records of a service that is off for longer than retention.
            f'(sessionary_lag_partition_state{{{_SERVICES}, state=~"log_truncated|no_topic"}}) > 0',
            "page_for_s",
            Severity.PAGE,
            "the log of {{ $labels.topic }} does not fit the commits of {{ $labels.group }}",
            "Records, the topic or a commit are gone: partition {{ $labels.partition }} of {{ $labels.topic }}, "
            "{{ $labels.group }}. State: {{ $labels.state }}.",
        ),
        Alert(
            "SessionaryCleanupLag",
            f"max by (group) (sessionary_lag_seconds{{{_CLEANUP}}}) > $cleanup_lag_s",
            "ticket_for_s",
            Severity.TICKET,
            "{{ $labels.group }} has not read clean-up requests for {{ $value | humanizeDuration }}",
            "No client of this service reads clean-up requests. The oldest unread one, of any service, is "
            "{{ $value | humanizeDuration }} old.",
        ),
        Alert(
            "SessionaryTaskWorkersAway",
            # A worker commits a request once its task has ended: with members, a lag is no fault.
            f"max by (group) (sessionary_lag_seconds{{{_TASK_WORKERS}}}) > $task_lag_s\n"
            'and on (group) sessionary_lag_group_state{state=~"empty|absent"} > 0',
            "ticket_for_s",
            Severity.TICKET,
            "{{ $labels.group }} has no worker, and has not read task requests for {{ $value | humanizeDuration }}",
            "No task worker of this service runs. The oldest unread request, of any service, is "
            "{{ $value | humanizeDuration }} old.",
        ),
    ),
)


def _down_alert(name: str, setting: str, role: str, effect: str) -> Alert:
    """Return the page for a role that Prometheus cannot reach, or does not know at all."""
    return Alert(
        name,
        f'up{{job="${setting}"}} == 0\nor absent(up{{job="${setting}"}})',
        "page_for_s",
        Severity.PAGE,
        f"{role} {{{{ $labels.instance }}}} is down",
        f"Prometheus cannot read the metrics of {{{{ $labels.job }}}} {{{{ $labels.instance }}}}, or has no such "
        f"target. {effect}",
    )


REACH_ALERTS = AlertGroup(
    "sessionary-reach",
    (
        _down_alert(
            "SessionaryProcessorDown",
            "processor_job",
            "processor",
            "If no other processor takes its partitions, no event is judged and no timeout fires.",
        ),
        _down_alert(
            "SessionarySinkDown",
            "sink_job",
            "sink",
            "If no other sink of its kind takes its partitions, its table gets no rows.",
        ),
        _down_alert(
            "SessionaryExporterDown",
            "lag_job",
            "lag exporter",
            "Without the exporter there is no lag, and no alert on lag, integrity or targets.",
        ),
        Alert(
            "SessionaryKafkaUnreachable",
            "max by (instance) (sessionary_lag_broker_up) == 0",
            "page_for_s",
            Severity.PAGE,
            "Kafka does not answer the lag exporter",
            "The exporter {{ $labels.instance }} gets no answer from Kafka, and serves no lag. Agents write to "
            "their spools.",
        ),
        Alert(
            "SessionaryClickHouseUnreachable",
            "max by (instance) (sessionary_lag_clickhouse_up) == 0",
            "page_for_s",
            Severity.PAGE,
            "ClickHouse does not answer the lag exporter",
            "The exporter {{ $labels.instance }} gets no answer from ClickHouse. The sinks wait; nothing is lost "
            "while Kafka keeps the records.",
        ),
    ),
)


# Alerts on the processors' own metrics; pure.


_IN_GRACE = "sessionary_processor_outage_grace_partitions > 0"
_DUE = "max by (instance, partition) (sessionary_processor_timers_due)"
_FIRED = "sum by (instance) (increase(sessionary_processor_timers_fired_total[2m])) > 0"
_UNKNOWN = 'sessionary_processor_tool_calls{state="unknown"}'

PROCESSOR_ALERTS = AlertGroup(
    "sessionary-processor",
    (
        Alert(
            "SessionaryPartitionHalted",
            "max by (instance, reason) (sessionary_processor_partitions_halted) > 0",
            "page_for_s",
            Severity.PAGE,
            "{{ $value }} partitions of {{ $labels.instance }} are halted: {{ $labels.reason }}",
            "The processor {{ $labels.instance }} cannot continue without a loss that an operator must accept. Events "
            "of these partitions wait in the log; the other partitions continue.",
        ),
        Alert(
            "SessionaryOpenTransaction",
            "max by (instance, partition) (sessionary_processor_held_records) > 0",
            "",
            Severity.PAGE,
            "an open transaction blocks partition {{ $labels.partition }}: {{ $value }} records wait",
            "Another producer has not ended its transaction on the events topic. Processors and sinks read "
            "no record of partition {{ $labels.partition }} behind it, so the partition's sessions stand still.",
        ),
        Alert(
            "SessionaryStateCorrupt",
            risen_counter('sessionary_processor_state_hash_mismatches_total{source!="agent"}', ["instance"])
            + "\nor sum by (instance) (sessionary_processor_partitions_halted"
            '{reason=~"changelog_incomplete|changelog_unreadable"}) > 0',
            "",
            Severity.PAGE,
            "{{ $labels.instance }} found state that differs from its checksum",
            "A local store or a changelog does not match its recorded checksum, or the changelog cannot "
            "be read. The processor {{ $labels.instance }} found {{ $value | humanize }} such faults.",
        ),
        Alert(
            "SessionarySnapshotDamaged",
            risen_counter('sessionary_processor_state_hash_mismatches_total{source="agent"}', ["instance"]),
            "",
            Severity.PAGE,
            "{{ $labels.instance }} received snapshots that differ from their hash",
            "Snapshots were damaged on their way, or their client is faulty. The processor keeps the last good "
            "snapshot of each session, and serves it. Damaged ones: {{ $value | humanize }}.",
        ),
        Alert(
            "SessionaryJudgeErrors",
            risen_counter('sessionary_processor_errors_total{kind="judge"}', ["instance"]),
            "",
            Severity.PAGE,
            "{{ $labels.instance }} failed to judge events",
            "The processor's own code failed at events; they are rejected as internal_error. Events: "
            "{{ $value | humanize }}.",
        ),
        Alert(
            "SessionarySecurityRejections",
            risen_counter(
                'sessionary_processor_rejected_total{security="true"}', ["reason"], above="$security_rejections"
            ),
            "",
            Severity.TICKET,
            "events were rejected for security: {{ $labels.reason }}",
            "Within ${window_s} s, {{ $value | humanize }} events were rejected with the reason {{ $labels.reason }}: "
            "their senders had no permission.",
        ),
        Alert(
            "SessionaryTimersStuck",
            f"(\n  {_DUE} > $timers_due\n  or ({_DUE} > 0 unless on (instance) {_FIRED})\n)\n"
            f"unless on (instance) {_IN_GRACE}",
            "page_for_s",
            Severity.PAGE,
            "{{ $value }} timeouts of partition {{ $labels.partition }} are due and do not fire",
            "Deadlines of partition {{ $labels.partition }} are past by the clock of {{ $labels.instance }}, and "
            "none fires, or too many wait. Dead sessions keep their resources.",
        ),
        Alert(
            "SessionaryTimersLate",
            "histogram_quantile(0.95, sum by (instance, le) "
            "(rate(sessionary_processor_timer_wall_lateness_seconds_bucket[${window_s}s]))) > $timer_lateness_s",
            "ticket_for_s",
            Severity.TICKET,
            "timeouts of {{ $labels.instance }} fire late",
            "One of twenty timeouts fires more than {{ $value | humanizeDuration }} after its deadline; the limit is "
            "${timer_lateness_s} s.",
        ),
        Alert(
            "SessionaryTimeoutGuard",
            "max by (instance) (sessionary_processor_outage_grace_partitions) > 0",
            "ticket_for_s",
            Severity.TICKET,
            "{{ $value }} partitions of {{ $labels.instance }} hold their timeouts back",
            "The log has outages, so the processor {{ $labels.instance }} cannot distinguish a dead agent from a "
            "broken connection. No session of these partitions times out meanwhile.",
        ),
        Alert(
            "SessionaryToolCallsUnresolved",
            f"sum(min_over_time({_UNKNOWN}[${{window_s}}s]) and {_UNKNOWN} offset ${{window_s}}s) > 0",
            "",
            Severity.TICKET,
            "{{ $value }} tool calls wait for people to record their outcome",
            "For ${window_s} s and longer, the outcome of {{ $value | humanize }} reserved tool calls has been "
            "unknown. A run with such a call is held until the call is resolved, if the call has a side effect.",
        ),
        Alert(
            "SessionaryClockLeap",
            "max by (instance, partition) (sessionary_processor_clock_ahead_seconds) > $clock_ahead_s",
            "",
            Severity.PAGE,
            "the clock of partition {{ $labels.partition }} is {{ $value | humanizeDuration }} ahead",
            "The broker stamps events of partition {{ $labels.partition }} ahead of the clock of "
            "{{ $labels.instance }}, by {{ $value | humanizeDuration }}. At 60 s the partition halts.",
        ),
        Alert(
            "SessionaryComplianceShare",
            "sum by (instance) (rate(sessionary_processor_compliance_seconds_total[${window_s}s]))\n"
            "/ sum by (instance) (rate(sessionary_processor_work_seconds_total[${window_s}s])) > $compliance_ratio",
            "ticket_for_s",
            Severity.TICKET,
            "compliance checks take {{ $value | humanizePercentage }} of the work",
            "The processor {{ $labels.instance }} spends {{ $value | humanizePercentage }} of its work on retention "
            "and compliance tags.",
        ),
        Alert(
            "SessionaryContextOverLimit",
            "sum(sessionary_processor_sessions_over_context_limit) > $sessions_over_context_limit",
            "ticket_for_s",
            Severity.TICKET,
            "{{ $value }} sessions hold more context than allowed",
            "{{ $value }} live sessions report a context above their own limit (context_limit_bytes). The audit trail "
            "names each session.",
        ),
        Alert(
            "SessionaryStateDiskLow",
            "min by (instance) (sessionary_processor_disk_free_bytes) < $disk_free_bytes",
            "page_for_s",
            Severity.PAGE,
            "the state folder of {{ $labels.instance }} is almost full",
            "{{ $value | humanize1024 }}B are free for the state of {{ $labels.instance }}. A full disk halts its "
            "partitions.",
        ),
        Alert(
            "SessionaryStateLarge",
            "sum by (instance) (sessionary_processor_stored_bytes) > $stored_bytes",
            "ticket_for_s",
            Severity.TICKET,
            "{{ $labels.instance }} stores {{ $value | humanize1024 }}B of state",
            "The rows of the partitions of {{ $labels.instance }} take {{ $value | humanize1024 }}B. A worker keeps "
            "its rows in memory or in RocksDB, and another worker must read them if this one dies.",
        ),
    ),
)


# Alerts on the targets that are required of the whole pipeline, as the exporter measures them;
# pure.


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
            "a share above ${reclaim_ratio} is required.",
        ),
        _target_alert(
            "SessionaryTransitionSlow",
            f"max(sessionary_kpi_transition_latency_seconds{{{_PERCENTILE}}}) > $transition_latency_s",
            "transitions take {{ $value | humanizeDuration }} to be recorded",
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
            "Audit records are {{ $value | humanizePercentage }} of the pipeline's bytes; a share below "
            "${audit_io_ratio} is required.",
        ),
        _target_alert(
            "SessionaryRetryCost",
            "max(sessionary_kpi_timeout_retry_cost_ratio) > $retry_cost_ratio",
            "retries after timeouts are {{ $value | humanizePercentage }} of the cost",
            "Agents spend {{ $value | humanizePercentage }} of their cost on work repeated after a timeout; a "
            "share below ${retry_cost_ratio} is required.",
        ),
    ),
)
