"""Alerts on lag, and on what Prometheus cannot reach; pure.

The groups of a service (clean-up handlers, task workers) have no members while it is off. That is
no fault of the pipeline, so they get tickets of their own.
"""

from sessionary.infra.alerts.alert import Alert, AlertGroup, Severity

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
            "{{ $labels.group }} has {{ $value }} unread records of {{ $labels.topic }}, and they become more.",
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
            "partition {{ $labels.partition }} of {{ $labels.group }} does not move",
            "{{ $labels.group }} has unread records in partition {{ $labels.partition }} of {{ $labels.topic }} and "
            "commits nothing. State: {{ $labels.state }}.",
        ),
        Alert(
            "SessionaryLogLost",
            "max by (group, topic, partition, state) "
            f'(sessionary_lag_partition_state{{{_PIPELINE}, state=~"rewind|log_gap|log_truncated|no_topic"}}) > 0\n'
            "or max by (group, topic, partition, state) "
            # The log may go on without a service that is off for longer than its retention.
            f'(sessionary_lag_partition_state{{{_SERVICES}, state=~"log_truncated|no_topic"}}) > 0',
            "page_for_s",
            Severity.PAGE,
            "the log of {{ $labels.topic }} does not fit what {{ $labels.group }} has committed",
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
            "Without it there is no lag, and no alert on lag, integrity or targets.",
        ),
        Alert(
            "SessionaryKafkaUnreachable",
            "max by (instance) (sessionary_lag_broker_up) == 0",
            "page_for_s",
            Severity.PAGE,
            "Kafka does not answer the lag exporter",
            "The exporter {{ $labels.instance }} gets no answer from Kafka, so it serves no lag. Agents write to "
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
