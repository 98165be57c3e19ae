"""Alerts on the way of the records: clients, sinks, tables, disks; pure."""

from sessionary.infra.alerts.alert import Alert, AlertGroup, Severity, risen_counter

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
            "its other partitions go on.",
        ),
        Alert(
            "SessionaryDeadLetters",
            risen_counter("sessionary_sink_dead_letters_total", ["sink", "group"]),
            "",
            Severity.TICKET,
            "sink {{ $labels.sink }} could not store records",
            "The sink {{ $labels.sink }} ({{ $labels.group }}) put {{ $value | humanize }} records into the table of "
            "dead letters instead of their own.",
        ),
        Alert(
            "SessionaryDeduplicationWindow",
            "max by (sink, group) (sessionary_sink_deduplication_window_used) > $deduplication_window_ratio",
            "",
            Severity.TICKET,
            "a replay of sink {{ $labels.sink }} used {{ $value | humanizePercentage }} of the deduplication window",
            "The sink {{ $labels.sink }} ({{ $labels.group }}) wrote a block again after ClickHouse had taken "
            "{{ $value | humanizePercentage }} of the blocks that it remembers. Above 100 % rows are stored twice "
            "until they are merged.",
        ),
    ),
)
TABLE_ALERTS = AlertGroup(
    "sessionary-tables",
    (
        Alert(
            "SessionaryIntegrityFindings",
            "max by (table, kind) (sessionary_integrity_findings) > 0",
            "page_for_s",
            Severity.PAGE,
            "{{ $value }} findings in table {{ $labels.table }}: {{ $labels.kind }}",
            "The table {{ $labels.table }} is not what the batches say: {{ $value }} times {{ $labels.kind }}.",
        ),
        Alert(
            "SessionaryIntegrityUnchecked",
            "time() - max by (source) (sessionary_integrity_checked_timestamp_seconds) > $integrity_age_s",
            "",
            Severity.TICKET,
            "integrity was last checked {{ $value | humanizeDuration }} ago: {{ $labels.source }}",
            "The exporter asks for the integrity of the {{ $labels.source }} side, and had no answer for {{ $value | "
            "humanizeDuration }}. A missing row would not be noticed.",
        ),
        Alert(
            "SessionaryIntegrityNeverChecked",
            'absent(sessionary_integrity_checked_timestamp_seconds{source="tables"})\n'
            'or absent(sessionary_integrity_checked_timestamp_seconds{source="kafka"})',
            "ticket_for_s",
            Severity.TICKET,
            "no exporter has checked integrity: {{ $labels.source }}",
            "Prometheus knows of no answer to the question for the integrity of the {{ $labels.source }} side. A "
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
            "The records of one tenant in history, audit and rejected have {{ $value | humanize1024 }}B, as many as "
            "no other's; ${tenant_bytes} bytes are the limit of each tenant.",
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
            "its spool, and they become more: Kafka does not take them.",
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
            "{{ $labels.outcome }}. The audit trail shows each of them as a gap.",
        ),
    ),
)
