"""The dashboard of the sessions."""

from typing import Final

from docs.build.dashboards.panel import RATE_INTERVAL, Board, Panel, Query, Row, rate_of

CONTEXT_BYTES_MAX: Final = 200_000_000

_LIFE: Final = (
    Panel(
        "How many sessions are there?",
        "short",
        "Sessions in open partitions, by state.",
        (Query("sum by (state) (sessionary_processor_sessions)", "{{state}}"),),
    ),
    Panel(
        "What do sessions do?",
        "cps",
        "Transitions per second.",
        (
            Query(
                rate_of("sessionary_processor_transitions_total", "from_state", "to_state"),
                "{{from_state}} → {{to_state}}",
            ),
        ),
    ),
    Panel(
        "How many sessions begin, end and time out?",
        "cps",
        "Transitions per second into these states.",
        (
            Query(
                "sum by (to_state) (rate(sessionary_processor_transitions_total"
                f'{{to_state=~"Idle|Timeout|Error|Terminated"}}[{RATE_INTERVAL}]))',
                "{{to_state}}",
            ),
        ),
    ),
    Panel(
        "Which share of sessions ends by a timeout?",
        "percentunit",
        "Timeouts over all ends, of the last hour. A jump: agents die, or do not reach Kafka.",
        (
            Query(
                'sum(increase(sessionary_processor_transitions_total{to_state="Timeout"}[1h])) / '
                'sum(increase(sessionary_processor_transitions_total{to_state="Terminated"}[1h]))',
                "share",
            ),
        ),
    ),
    Panel(
        "Do timed-out sessions release what they hold?",
        "percentunit",
        "Confirmed clean-ups over timed-out sessions, of the last hour. Lost hosts are not counted.",
        (Query("min(sessionary_kpi_reclaim_ratio)", "reclaimed"),),
        limit=0.95,
        is_floor=True,
    ),
    Panel(
        "How long does a clean-up take?",
        "s",
        "From the timeout to the confirmation, of the last hour.",
        (Query("max by (quantile) (sessionary_kpi_cleanup_seconds)", "{{quantile}}"),),
        limit=5,
    ),
)
_STATE: Final = (
    Panel(
        "How much state do processors hold?",
        "bytes",
        "Bytes of rows, by layer: rows of sessions, separate contents, tombstones.",
        (Query("sum by (layer) (sessionary_processor_stored_bytes)", "{{layer}}"),),
    ),
    Panel(
        "How much does the largest tenant store?",
        "bytes",
        "Bytes of its records in ClickHouse: history, audit and rejected. `v_stored_bytes` names the tenant.",
        (Query("max(sessionary_clickhouse_tenant_bytes_max)", "largest tenant"),),
    ),
    Panel(
        "How large is the largest context?",
        "bytes",
        "The largest context that a session reported in the last hour.",
        (Query("max(sessionary_kpi_session_context_bytes_max)", "largest"),),
        limit=CONTEXT_BYTES_MAX,
    ),
    Panel(
        "How many sessions exceed their context limit?",
        "short",
        "Sessions in open partitions whose context is larger than their own limit.",
        (Query("sum(sessionary_processor_sessions_over_context_limit)", "sessions"),),
    ),
    Panel(
        "How many archived sessions are remembered?",
        "short",
        "Tombstones, which reveal late events of an archived session. They expire.",
        (Query("sum(sessionary_processor_tombstones)", "tombstones"),),
    ),
)
_RUNS: Final = (
    Panel(
        "How many runs are there?",
        "short",
        "Runs in open partitions, by state; finished ones for 30 days.",
        (Query("sum by (state) (sessionary_processor_runs)", "{{state}}"),),
    ),
    Panel(
        "What became of reserved tool calls?",
        "short",
        "Calls by state. unknown: the calls wait for people; `sessionary call unknown` shows them.",
        (Query("sum by (state) (sessionary_processor_tool_calls)", "{{state}}"),),
    ),
    Panel(
        "How many runs and sessions wait for quotas?",
        "short",
        "Claims by state. waiting: no slot is free; granted, taken: the claim holds a slot.",
        (
            Query("sum by (state) (sessionary_processor_quota_claims)", "runs {{state}}"),
            Query("sum by (state) (sessionary_processor_session_claims)", "sessions {{state}}"),
            Query("sum by (state) (sessionary_processor_token_accounts)", "tokens {{state}}"),
        ),
    ),
    Panel(
        "How many attached runs are open?",
        "short",
        "Each attached run holds a connection of its agent open.",
        (Query("sum(sessionary_processor_attached_runs)", "runs"),),
    ),
    Panel(
        "How long has the oldest attached run lasted?",
        "s",
        "Since it was started or resumed. Work that takes minutes belongs into a detached run.",
        (Query("max(sessionary_processor_attached_run_age_seconds)", "oldest"),),
    ),
)
SESSIONS: Final = Board(
    "sessions",
    "sessions",
    "How do sessions and their runs live and end, and what do they hold?",
    (Row("Life", _LIFE), Row("State", _STATE), Row("Runs", _RUNS)),
)
