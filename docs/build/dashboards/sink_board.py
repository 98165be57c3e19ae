"""The dashboard of the sinks."""

from typing import Final

from docs.build.dashboards.panel import Board, Panel, Query, Row, quantile_of, rate_of

_WORK: Final = (
    Panel(
        "How many rows land?",
        "cps",
        "Rows per second that ClickHouse has acknowledged, by sink.",
        (Query(rate_of("sessionary_sink_rows_total", "sink"), "{{sink}}"),),
    ),
    Panel(
        "How many inserts is that?",
        "cps",
        "Blocks per second. Each becomes a part that ClickHouse has to merge.",
        (Query(rate_of("sessionary_sink_blocks_total", "sink"), "{{sink}}"),),
    ),
    Panel(
        "How long does an insert take?",
        "s",
        "19 of 20 inserts, by sink.",
        (Query(quantile_of(0.95, "sessionary_sink_insert_seconds", "sink"), "{{sink}}"),),
    ),
)
_LAG: Final = (
    Panel(
        "How long has each sink's oldest record waited?",
        "s",
        "Age of the oldest record without a stored row; the worst partition.",
        (Query("max by (sink) (sessionary_sink_lag_seconds)", "{{sink}}"),),
    ),
    Panel(
        "How many records is each sink behind?",
        "short",
        "Offsets from the landed offset to the log's end.",
        (Query("sum by (sink) (sessionary_sink_lag_records)", "{{sink}}"),),
    ),
    Panel(
        "How fast do offsets land?",
        "cps",
        "Landed offsets per second, by sink; ticks are records too.",
        (Query("sum by (sink) (deriv(sessionary_sink_landed_offset[5m]))", "{{sink}}"),),
    ),
)
_FAULTS: Final = (
    Panel(
        "Does a sink wait for an operator?",
        "short",
        "Blocked sinks, by reason.",
        (Query("sum by (sink, reason) (sessionary_sink_blocked)", "{{sink}}: {{reason}}"),),
        limit=1,
    ),
    Panel(
        "Does a partition wait for an operator?",
        "short",
        "Blocked partitions, by reason. The other partitions continue.",
        (
            Query(
                "sum by (sink, partition, reason) (sessionary_sink_partition_blocked)",
                "{{sink}} {{partition}}: {{reason}}",
            ),
        ),
        limit=1,
    ),
    Panel(
        "What is tried again?",
        "cps",
        "Failed attempts per second, by reason.",
        (Query(rate_of("sessionary_sink_retries_total", "sink", "reason"), "{{sink}}: {{reason}}"),),
    ),
    Panel(
        "Could a record not be stored?",
        "short",
        "Dead letters in the last hour. The table sink_dead_letters has their bytes.",
        (Query("sum by (sink) (increase(sessionary_sink_dead_letters_total[1h]))", "{{sink}}"),),
        limit=1,
    ),
    Panel(
        "Are blocks of former owners inserted again?",
        "short",
        "Replayed blocks in the last hour: after restarts and rebalances a few are normal.",
        (Query("sum by (sink) (increase(sessionary_sink_replays_total[1h]))", "{{sink}}"),),
    ),
    Panel(
        "Could a replay store rows twice?",
        "percentunit",
        "Blocks from a block's declaration to its replay, as a share of those that ClickHouse remembers. From 1 on a "
        "row may be stored twice.",
        (Query("max by (sink) (sessionary_sink_deduplication_window_used)", "{{sink}}"),),
        limit=1,
    ),
    Panel(
        "How old was the last replayed block?",
        "s",
        "Time from the block's declaration to its replay.",
        (Query("max by (sink) (sessionary_sink_replay_age_seconds)", "{{sink}}"),),
    ),
)
SINKS: Final = Board(
    "sinks",
    "sinks",
    "Does every record become a row, once and soon?",
    (Row("Work", _WORK), Row("Lag", _LAG), Row("Faults", _FAULTS)),
)
