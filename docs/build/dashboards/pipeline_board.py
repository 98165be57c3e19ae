"""The dashboard of the whole pipeline: what to open first."""

from typing import Final

from docs.build.dashboards.panel import Board, Panel, Query, Row, rate_of

_LAG: Final = (
    Panel(
        "How long has each group's oldest record waited?",
        "s",
        "Age of the oldest record that the group has not committed; the worst partition.",
        (Query("max by (group) (sessionary_lag_seconds)", "{{group}}"),),
    ),
    Panel(
        "How many records is each group behind?",
        "short",
        "Offsets from the committed offset to the log's end. A partition without a commit counts in full.",
        (Query("sum by (group) (sessionary_lag_records)", "{{group}}"),),
    ),
    Panel(
        "When will each group have caught up?",
        "s",
        "Time until the lag ends at the present rates. No line: there is no lag, or it does not shrink.",
        (Query("max by (group) (sessionary_lag_catch_up_seconds)", "{{group}}"),),
    ),
    Panel(
        "How fast does each group get on?",
        "cps",
        "Offsets that the group commits per second.",
        (Query("sum by (group) (sessionary_lag_records_per_second)", "{{group}}"),),
    ),
    Panel(
        "Which partitions do not get on?",
        "short",
        "Partitions by state, without those that are well. stall: does not move; stop: no members; log_gap: records "
        "were deleted before they were read. docs/operate/lag.md has all states.",
        (
            Query(
                'count by (group, state) (sessionary_lag_partition_state{state!~"ok|observing"} == 1)',
                "{{group}} {{state}}",
            ),
        ),
    ),
    Panel(
        "How long until an event is a row?",
        "s",
        "From the event's stamp in the log to its row in ClickHouse: 19 of 20 rows of the last minute, by table.",
        (Query('max by (table) (sessionary_lag_row_delay_seconds{quantile="0.95"})', "{{table}}"),),
    ),
)
_TRUST: Final = (
    Panel(
        "Is a row missing or doubled?",
        "short",
        "Findings of v_integrity. `sessionary integrity check` names the rows, `integrity repair` restores them.",
        (Query("sum by (table) (sessionary_integrity_findings)", "{{table}}"),),
        limit=1,
    ),
    Panel(
        "How old is the last check of integrity?",
        "s",
        "The age grows while ClickHouse does not answer. Checks are five minutes apart by default.",
        (Query("time() - min(sessionary_integrity_checked_timestamp_seconds)", "age"),),
    ),
    Panel(
        "Do Kafka and ClickHouse answer?",
        "bool_yes_no",
        "Answers to the exporter's last query.",
        (
            Query("min(sessionary_lag_broker_up)", "Kafka"),
            Query("min(sessionary_lag_clickhouse_up)", "ClickHouse"),
        ),
    ),
    Panel(
        "How much of ClickHouse's disks is free?",
        "percentunit",
        "Free share of each disk. If none is left, sinks are blocked.",
        (Query("min by (disk) (sessionary_clickhouse_disk_free_ratio)", "{{disk}}"),),
    ),
    Panel(
        "Are expired artifacts still served?",
        "short",
        "Artifacts that expired a day ago, and that no sweep has marked: run `sessionary artifact sweep`.",
        (Query("max(sessionary_clickhouse_artifacts_overdue)", "artifacts"),),
        limit=1,
    ),
    Panel(
        "Which partitions does a processor hold up?",
        "short",
        "Halted partitions by reason. `sessionary partition list` has details, docs/operate/halts.md the remedies.",
        (Query("sum by (reason) (sessionary_processor_partitions_halted)", "{{reason}}"),),
        limit=1,
    ),
    Panel(
        "Does a sink wait for an operator?",
        "short",
        "Blocked sinks and partitions of sinks, by reason.",
        (
            Query("sum by (sink, reason) (sessionary_sink_blocked)", "{{sink}}: {{reason}}"),
            Query("sum by (sink, reason) (sessionary_sink_partition_blocked)", "{{sink}}, one partition: {{reason}}"),
        ),
        limit=1,
    ),
)
_CLIENTS: Final = (
    Panel(
        "What becomes of agents' events?",
        "cps",
        "Events per second by outcome, as the clients count them.",
        (Query(rate_of("sessionary_client_events_total", "outcome"), "{{outcome}}"),),
    ),
    Panel(
        "How much waits in the clients?",
        "bytes",
        "Bytes of spools. They grow while Kafka is away, and shrink when it is back.",
        (Query("sum(sessionary_client_spool_bytes)", "spools"),),
    ),
    Panel(
        "How long has the oldest event waited in a client?",
        "s",
        "Age of the oldest event that Kafka has not acknowledged.",
        (Query("max(sessionary_client_oldest_event_age_seconds)", "oldest"),),
    ),
    Panel(
        "Why do clients fail to deliver?",
        "cps",
        "Errors of delivery per second by reason, and events in damaged spools, which are lost.",
        (
            Query(rate_of("sessionary_client_delivery_errors_total", "reason"), "{{reason}}"),
            Query(rate_of("sessionary_client_spool_damaged_events_total"), "damaged spool"),
        ),
    ),
    Panel(
        "Which clients have no spool?",
        "short",
        "Clients by the policy in force: without the policy spool, a client that dies loses its unsent events.",
        (Query("sum by (policy) (sessionary_client_policy_clients)", "{{policy}}"),),
    ),
)
PIPELINE: Final = Board(
    "pipeline",
    "pipeline",
    "Is the pipeline keeping up, and is anything lost? Open this board first.",
    (Row("Lag", _LAG), Row("Trust", _TRUST), Row("Clients", _CLIENTS)),
)
