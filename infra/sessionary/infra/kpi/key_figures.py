"""Asks ClickHouse for the key figures of the last time."""

from typing import Final, NamedTuple

from sessionary.infra.clickhouse_client import ClickHouseClient, Row
from sessionary.schemas.settings import ClickHouseSettings

_TIMEOUT_S: Final = 30.0
# A session that timed out so many seconds ago should be cleaned up; the target is 5 s on average.
LATE_S: Final = 30
_QUERY: Final = """
SELECT * FROM v_kpi_between(from = now('UTC') - {window_s}, to = now('UTC'), late_s = {late_s})
SETTINGS max_execution_time = {timeout_s}
"""


class Quantiles(NamedTuple):
    """Quantiles in seconds; None without a value."""

    p50_s: float | None
    p95_s: float | None
    p99_s: float | None


class KeyFigures(NamedTuple):
    """The figures of the view `v_kpi_between`; None without a row that they follow from.

    Attributes:
        reclaim_ratio: Timed-out sessions whose clean-up was confirmed, over all whose host lives.
        cleanup_average_s: Mean time from a timeout to its confirmed clean-up, in seconds.
        cleanup: Its quantiles.
        transition_latency: From an event or a deadline to the acknowledged audit record.
        audit_write_latency: From the start of a transaction to its acknowledgement.
        audit_io_ratio: Bytes of audit records over those of all records with a row. ClickHouse
            knows nothing of the changelog, so the share of all topics is smaller.
        timeout_retry_cost_ratio: Cost of retries after a timeout over all costs.
        session_context_bytes_max: The largest context that a session reported, in bytes.
    """

    reclaim_ratio: float | None
    cleanup_average_s: float | None
    cleanup: Quantiles
    transition_latency: Quantiles
    audit_write_latency: Quantiles
    audit_io_ratio: float | None
    timeout_retry_cost_ratio: float | None
    session_context_bytes_max: int | None


def ask_key_figures(settings: ClickHouseSettings, window_s: int, behind_s: float = 0.0) -> KeyFigures:
    """Return the figures of the last `window_s` seconds. Blocks for up to 30 s.

    `behind_s`: by how much the sink that is furthest behind is late; a clean-up whose confirmation
    it has not read yet is not one without.

    Raises what `ClickHouseClient` raises.
    """
    query = _QUERY.format(window_s=window_s, late_s=round(LATE_S + behind_s), timeout_s=round(_TIMEOUT_S))
    row = ClickHouseClient(settings, _TIMEOUT_S + 1).fetch_one(query)
    return KeyFigures(
        row["reclaim_ratio"],
        row["cleanup_avg_s"],
        _quantiles_of(row, "cleanup"),
        _quantiles_of(row, "transition_latency"),
        _quantiles_of(row, "audit_write_latency"),
        row["audit_io_ratio"],
        row["timeout_retry_cost_ratio"],
        row["session_context_bytes_max"],
    )


def _quantiles_of(row: Row, name: str) -> Quantiles:
    return Quantiles(*(row[f"{name}_{quantile}_s"] for quantile in ("p50", "p95", "p99")))
