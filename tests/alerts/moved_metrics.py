"""Which test moves each metric that an alert rule names, by work of the product itself.

A key is a selector as the rules have it, without the labels of `ALWAYS_LABELS`. A value is the id
of a test in which running parts of the product move a series that the selector takes.
"""

from collections.abc import Mapping
from typing import Final

# They choose among series that move together: their values need no test of their own.
ALWAYS_LABELS: Final = frozenset({"group", "quantile"})

_WORKER = "tests/integration/test_processor_metrics.py::test_a_worker_serves_every_metric_and_its_work_moves_them"
_HALTED = (
    "tests/integration/test_processor_metrics.py::"
    "test_the_series_of_a_partition_go_with_it_and_a_halted_one_leaves_its_worker_ready"
)
_SINK = "tests/integration/test_sink_metrics.py::test_a_sink_serves_every_metric_and_its_work_moves_them"
_LAG = "tests/integration/test_lag_metrics.py::test_an_exporter_serves_every_metric_and_the_pipeline_moves_them"
_STATES = "tests/integration/test_lag_metrics.py::test_the_exporter_tells_the_states_of_groups_and_partitions"
_NO_BROKER = "tests/integration/test_lag.py::test_the_exporter_shows_a_lag_and_no_lag_at_all_while_the_broker_is_away"
_NO_CLICKHOUSE = (
    "tests/integration/test_kpi_views.py::"
    "test_the_exporter_serves_what_is_known_and_nothing_of_a_clickhouse_that_is_away"
)
_FIGURES = "tests/integration/test_exporter_figures.py::test_every_figure_is_served_and_moved_by_rows"
_SPOOL = "tests/core/producers/test_metrics.py::test_the_spool_and_its_oldest_event_are_measured"

MOVED_BY: Final[Mapping[str, str]] = {
    "sessionary_lag_seconds": _LAG,
    "sessionary_lag_records": _LAG,
    'sessionary_lag_group_state{state!="stable"}': _STATES,
    'sessionary_lag_group_state{state=~"empty|absent"}': _STATES,
    'sessionary_lag_partition_state{state=~"stall|stop"}': _STATES,
    'sessionary_lag_partition_state{state=~"rewind|log_gap|log_truncated|no_topic"}': _STATES,
    'sessionary_lag_partition_state{state=~"log_truncated|no_topic"}': _STATES,
    "sessionary_lag_broker_up": _NO_BROKER,
    "sessionary_lag_clickhouse_up": _NO_CLICKHOUSE,
    "sessionary_processor_partitions_halted": _HALTED,
    'sessionary_processor_partitions_halted{reason=~"changelog_incomplete|changelog_unreadable"}': _HALTED,
    "sessionary_processor_held_records": "tests/integration/test_foreign_transactions.py::"
    "test_a_partition_that_an_open_transaction_holds_up_is_named_until_it_ends",
    'sessionary_processor_state_hash_mismatches_total{source!="agent"}': _WORKER,
    'sessionary_processor_state_hash_mismatches_total{source="agent"}': _WORKER,
    'sessionary_processor_errors_total{kind="judge"}': _WORKER,
    'sessionary_processor_rejected_total{security="true"}': _WORKER,
    "sessionary_processor_timers_due": _WORKER,
    "sessionary_processor_timers_fired_total": _WORKER,
    "sessionary_processor_timer_wall_lateness_seconds": _WORKER,
    "sessionary_processor_outage_grace_partitions": _WORKER,
    'sessionary_processor_tool_calls{state="unknown"}': "tests/integration/test_unknown_calls.py::"
    "test_a_call_that_a_person_resolves_lets_its_run_go_on",
    "sessionary_processor_clock_ahead_seconds": "tests/integration/test_clock_leaps.py::"
    "test_a_leap_of_ten_minutes_halts_before_a_deadline_fires_and_ends_in_no_false_timeout",
    "sessionary_processor_compliance_seconds_total": _WORKER,
    "sessionary_processor_work_seconds_total": _WORKER,
    "sessionary_processor_sessions_over_context_limit": _WORKER,
    "sessionary_processor_disk_free_bytes": _WORKER,
    "sessionary_processor_stored_bytes": _WORKER,
    "sessionary_sink_blocked": _SINK,
    "sessionary_sink_partition_blocked": _SINK,
    "sessionary_sink_dead_letters_total": _SINK,
    "sessionary_sink_deduplication_window_used": _SINK,
    'sessionary_integrity_findings{table!~"cleanup|tasks|migrations|quotas"}': _FIGURES,
    'sessionary_integrity_findings{table=~"cleanup|tasks|migrations|quotas"}': _LAG,
    "sessionary_integrity_checked_timestamp_seconds": _FIGURES,
    'sessionary_integrity_checked_timestamp_seconds{source="tables"}': _FIGURES,
    'sessionary_integrity_checked_timestamp_seconds{source="kafka"}': _LAG,
    'sessionary_integrity_checked_timestamp_seconds{source="requests"}': _LAG,
    "sessionary_clickhouse_disk_free_ratio": _FIGURES,
    "sessionary_clickhouse_artifacts_overdue": _FIGURES,
    "sessionary_clickhouse_tenant_bytes_max": _FIGURES,
    "sessionary_client_spool_bytes": _SPOOL,
    'sessionary_client_events_total{outcome=~"dropped|failed|expired"}': _SPOOL,
    "sessionary_kpi_cleanup_average_seconds": _FIGURES,
    "sessionary_kpi_reclaim_ratio": _FIGURES,
    "sessionary_kpi_transition_latency_seconds": _FIGURES,
    "sessionary_kpi_audit_write_latency_seconds": _FIGURES,
    "sessionary_kpi_session_context_bytes_max": _FIGURES,
    "sessionary_kpi_audit_io_ratio": _FIGURES,
    "sessionary_kpi_timeout_retry_cost_ratio": _FIGURES,
}
