"""The dashboard of the processors."""

from typing import Final

from docs.build.dashboards.panel import RATE_INTERVAL, Board, Panel, Query, Row, quantile_of, rate_of

_WORK: Final = (
    Panel(
        "What becomes of the records?",
        "cps",
        "Records of committed transactions per second, by outcome.",
        (Query(rate_of("sessionary_processor_records_total", "outcome"), "{{outcome}}"),),
    ),
    Panel(
        "Why are events rejected?",
        "cps",
        "Rejected events per second, by reason. `sessionary rejected list` shows them.",
        (Query(rate_of("sessionary_processor_rejected_total", "reason"), "{{reason}}"),),
    ),
    Panel(
        "Does a sender speak for another one?",
        "cps",
        "Rejected events per second that suggest an impersonation (security).",
        (Query(f'sum(rate(sessionary_processor_rejected_total{{security="true"}}[{RATE_INTERVAL}]))', "rejected"),),
    ),
    Panel(
        "How old is the input?",
        "s",
        "Age of the first uncommitted record, by the processors' own measure; the worst partition.",
        (Query("max by (instance) (sessionary_processor_lag_seconds)", "{{instance}}"),),
    ),
    Panel(
        "How long does a transaction take?",
        "s",
        "From the start to the acknowledgement: 19 of 20, and the median.",
        (
            Query(quantile_of(0.95, "sessionary_processor_commit_seconds"), "95 %"),
            Query(quantile_of(0.5, "sessionary_processor_commit_seconds"), "50 %"),
        ),
    ),
    Panel(
        "How large are transactions?",
        "short",
        "Records in one transaction: 19 of 20, and the median.",
        (
            Query(quantile_of(0.95, "sessionary_processor_batch_records"), "95 %"),
            Query(quantile_of(0.5, "sessionary_processor_batch_records"), "50 %"),
        ),
    ),
    Panel(
        "How much does a transaction write?",
        "bytes",
        "Bytes in one transaction: 19 of 20.",
        (Query(quantile_of(0.95, "sessionary_processor_transaction_bytes"), "95 %"),),
    ),
    Panel(
        "How much of the work is compliance?",
        "percentunit",
        "Time spent on retention and compliance tags over all time of folding and committing.",
        (
            Query(
                f"{rate_of('sessionary_processor_compliance_seconds_total')} / "
                f"{rate_of('sessionary_processor_work_seconds_total')}",
                "share",
            ),
        ),
        limit=0.05,
    ),
    Panel(
        "Does anything fail?",
        "cps",
        "Faults per second, by kind. judge: records that the processor failed to judge.",
        (
            Query(rate_of("sessionary_processor_errors_total", "kind"), "{{kind}}"),
            Query(rate_of("sessionary_processor_token_file_failures_total"), "token file"),
        ),
    ),
    Panel(
        "Who follows sessions?",
        "short",
        "Open streams of followers. own: of a session of the worker itself; passed_on: of another worker's, which "
        "counts it once more as its own.",
        (Query("sum by (instance, source) (sessionary_processor_followers)", "{{instance}} {{source}}"),),
    ),
)
_TIME: Final = (
    Panel(
        "How late do timeouts fire?",
        "s",
        "From a deadline until it fired, by the worker's clock and by the log's: 19 of 20.",
        (
            Query(quantile_of(0.95, "sessionary_processor_timer_wall_lateness_seconds"), "worker's clock"),
            Query(quantile_of(0.95, "sessionary_processor_timer_lateness_seconds"), "log's clock"),
        ),
    ),
    Panel(
        "How many deadlines are overdue?",
        "short",
        "Deadlines that have passed and did not fire.",
        (Query("sum by (instance) (sessionary_processor_timers_due)", "{{instance}}"),),
    ),
    Panel(
        "How many timeouts fire?",
        "cps",
        "Deadlines that fired per second.",
        (Query(rate_of("sessionary_processor_timers_fired_total", "instance"), "{{instance}}"),),
    ),
    Panel(
        "Is a false timeout being prevented?",
        "short",
        "Partitions in which no deadline fires after an outage of the log, and outages per minute.",
        (
            Query("sum(sessionary_processor_outage_grace_partitions)", "partitions"),
            Query("60 * " + rate_of("sessionary_processor_outages_total"), "outages a minute"),
        ),
    ),
    Panel(
        "Is the log's clock right?",
        "s",
        "By how much the log's clock is ahead of a worker's; a partition halts at a minute. Negative while old records "
        "are folded.",
        (Query("max by (instance) (sessionary_processor_clock_ahead_seconds)", "{{instance}}"),),
    ),
    Panel(
        "Do ticks and heartbeats arrive?",
        "s",
        "Time since the last acknowledged tick, and since the group answered a worker's heartbeat.",
        (
            Query("max by (instance) (sessionary_processor_tick_age_seconds)", "tick {{instance}}"),
            Query("max by (instance) (sessionary_processor_group_heartbeat_age_seconds)", "heartbeat {{instance}}"),
        ),
    ),
)
_PARTITIONS: Final = (
    Panel(
        "Which worker owns how many partitions?",
        "short",
        "Open or not. The sum should be the number of partitions.",
        (Query("sum by (instance) (sessionary_processor_partitions_owned)", "{{instance}}"),),
    ),
    Panel(
        "How far is a recovery?",
        "short",
        "Records of the changelog that are still to be read; only while a partition recovers.",
        (Query("max by (partition) (sessionary_processor_recovery_remaining_records)", "partition {{partition}}"),),
    ),
    Panel(
        "How long does a partition take to open?",
        "s",
        "From its assignment until it reads events: 19 of 20.",
        (Query(quantile_of(0.95, "sessionary_processor_partition_open_seconds"), "95 %"),),
    ),
    Panel(
        "How often does the group rebalance?",
        "short",
        "Assignments per minute.",
        (Query("60 * " + rate_of("sessionary_processor_rebalances_total", "instance"), "{{instance}}"),),
    ),
    Panel(
        "Does an open transaction hold records back?",
        "short",
        "Records that wait for the end of another producer's transaction.",
        (Query("sum by (partition) (sessionary_processor_held_records)", "partition {{partition}}"),),
    ),
    Panel(
        "Did a stored state prove damaged?",
        "short",
        "Contents, stores and changelogs that did not have the recorded hash, in the last hour.",
        (Query("sum by (source) (increase(sessionary_processor_state_hash_mismatches_total[1h]))", "{{source}}"),),
        limit=1,
    ),
    Panel(
        "How much changelog is written?",
        "Bps",
        "Bytes per second, before compression.",
        (Query(rate_of("sessionary_processor_changelog_bytes_total", "instance"), "{{instance}}"),),
    ),
    Panel(
        "How much room has the state on disk?",
        "bytes",
        "Free bytes of the file system with the state folder. No line with the store in memory.",
        (Query("min by (instance) (sessionary_processor_disk_free_bytes)", "{{instance}}"),),
    ),
)
PROCESSOR: Final = Board(
    "processor",
    "processor",
    "Do the processors judge every event in time, and fire every deadline?",
    (Row("Work", _WORK), Row("Time", _TIME), Row("Partitions", _PARTITIONS)),
)
