"""Asks ClickHouse for the key figures, and for the lag exporter's other figures."""

from typing import Final, NamedTuple

from sessionary.infra.clickhouse_client import ClickHouseClient, Row
from sessionary.schemas.settings import ClickHouseSettings

_TIMEOUT_S: Final = 30.0
# A session that timed out so many seconds ago should be cleaned up; the target is 5 s on average.
LATE_S: Final = 30
_QUERY: Final = """
SELECT * FROM {between}.v_kpi_between(from = now('UTC') - {window_s}, to = now('UTC'), late_s = {late_s})
SETTINGS max_execution_time = {timeout_s}
"""


class Quantiles(NamedTuple):
    """Quantiles in seconds; None without a value."""

    p50_s: float | None
    p95_s: float | None
    p99_s: float | None


class KeyFigures(NamedTuple):
    """The figures of the view `v_kpi_between`; None without a row to compute them from.

    Attributes:
        reclaim_ratio: Timed-out sessions whose clean-up was confirmed, over all whose host lives.
        cleanup_average_s: Mean time from a timeout to its confirmed clean-up, in seconds.
        cleanup: The quantiles of this time.
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

    `behind_s`: the lag of the slowest sink; a clean-up whose confirmation it has not read yet does
    not count as unconfirmed.

    Raises as `ClickHouseClient` does.
    """
    between, late_s = settings.between_database, round(LATE_S + behind_s)
    query = _QUERY.format(between=between, window_s=window_s, late_s=late_s, timeout_s=round(_TIMEOUT_S))
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


# Asks ClickHouse for the number of artifacts that should be marked as deleted, and are not.


_ROWS_TIMEOUT_S: Final = 30.0
# The artifacts that a sweep of yesterday would have marked.
_OVERDUE: Final = """
SELECT count() AS overdue FROM v_artifacts
WHERE state IN ('open', 'complete')
    AND (time <= now64(3, 'UTC') - toIntervalDay({days:UInt16} + 1) OR personal_expires <= now64(3, 'UTC'))
SETTINGS max_execution_time = {timeout_s:UInt16}
"""


def ask_overdue_artifacts(settings: ClickHouseSettings, days: int) -> int:
    """Return how many artifacts expired a day ago or earlier, `days` after their last event.

    Those that are marked do not count. Blocks for up to 30 s. Raises what `ClickHouseClient`
    raises.
    """
    client = ClickHouseClient(settings, _ROWS_TIMEOUT_S + 1)
    return int(client.fetch_one(_OVERDUE, days=days, timeout_s=round(_ROWS_TIMEOUT_S))["overdue"])


# Asks ClickHouse for the bytes of the largest tenant.


# The layers of `v_stored_bytes` without `state`, whose bytes are in history already. Without FINAL,
# which would read and sort the whole tables: a row that is stored twice counts twice until a merge.
_TENANT_BYTES: Final = """
SELECT max(bytes) AS bytes
FROM
(
    SELECT tenant, sum(bytes) AS bytes
    FROM
    (
        SELECT toString(tenant_id) AS tenant, sum(toUInt64(value_size)) AS bytes
        FROM history WHERE tenant_id != '' GROUP BY tenant_id
        UNION ALL
        SELECT toString(tenant_id), sum(toUInt64(value_size)) FROM audit WHERE tenant_id != '' GROUP BY tenant_id
        UNION ALL
        SELECT assumeNotNull(toString(tenant_id)), sum(toUInt64(value_size))
        FROM rejected WHERE tenant_id != '' AND retain_until > now64(6) GROUP BY tenant_id
    )
    GROUP BY tenant
)
SETTINGS max_execution_time = {timeout_s:UInt16}
"""


def ask_tenant_bytes_max(settings: ClickHouseSettings) -> int:
    """Return the bytes of the records of the largest tenant; 0 without a tenant.

    Blocks for up to 30 s. Raises as `ClickHouseClient` does.
    """
    client = ClickHouseClient(settings, _ROWS_TIMEOUT_S + 1)
    return int(client.fetch_one(_TENANT_BYTES, timeout_s=round(_ROWS_TIMEOUT_S))["bytes"])


# Asks ClickHouse for the free space of its disks.


_DISKS_TIMEOUT_S: Final = 5.0
# A disk without an end, such as a store of objects, has no share that is free.
_DISK_SPACE: Final = """
SELECT name, free_space / total_space AS free_ratio
FROM system.disks
WHERE total_space > 0 AND total_space < 1e18
ORDER BY name
"""


class DiskSpace(NamedTuple):
    """A disk of ClickHouse, and the share of it that is free."""

    disk: str
    free_ratio: float


def ask_disk_space(settings: ClickHouseSettings) -> tuple[DiskSpace, ...]:
    """Return the disks. Blocks for up to 5 s. Raises as `ClickHouseClient` does."""
    rows = ClickHouseClient(settings, _DISKS_TIMEOUT_S).fetch_rows(_DISK_SPACE)
    return tuple(DiskSpace(row["name"], row["free_ratio"]) for row in rows)
