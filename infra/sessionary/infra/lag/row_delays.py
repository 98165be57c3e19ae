"""Asks ClickHouse how long events took to become rows: from the log's stamp to the insert."""

from collections.abc import Callable
from typing import NamedTuple

from sessionary.infra.clickhouse_client import ClickHouseClient
from sessionary.infra.kpi.question_watch import QuestionWatch
from sessionary.schemas.settings import ClickHouseSettings

_TIMEOUT_S = 2.0
_EVERY_S = 10.0
# Rows of the last minute, found by the time of their event: parts without any of the last hour are
# not opened. Events that landed even later show in the time lag.
_QUERY = """
SELECT name AS `table`, found AS rows, delays[1] AS p50, delays[2] AS p95, delays[3] AS p100
FROM ({selects})
WHERE found > 0
ORDER BY name
"""
_SELECT = """
SELECT '{table}' AS name, count() AS found,
    quantilesExact(0.5, 0.95, 1)(greatest(0, dateDiff('millisecond', appended_at, landed_at)) / 1e3) AS delays
FROM {table}
WHERE appended_at > now() - INTERVAL 1 HOUR AND landed_at > now() - INTERVAL 1 MINUTE
"""
_TABLES = ("audit", "history", "rejected")


class RowDelay(NamedTuple):
    """The delays of the rows of a table that landed within the last minute, in seconds."""

    table: str
    rows: int
    p50_s: float
    p95_s: float
    max_s: float


def ask_row_delays(settings: ClickHouseSettings) -> tuple[RowDelay, ...]:
    """Return the delays by table; a table in which no row landed has none. Blocks for up to 2 s.

    Raises what `ClickHouseClient` raises.
    """
    selects = "UNION ALL".join(_SELECT.format(table=table) for table in _TABLES)
    rows = ClickHouseClient(settings, _TIMEOUT_S).fetch_rows(_QUERY.format(selects=selects))
    return tuple(RowDelay(row["table"], row["rows"], row["p50"], row["p95"], row["p100"]) for row in rows)


class RowDelayWatch(QuestionWatch[tuple[RowDelay, ...]]):
    """Asks every 10 s on a thread of its own."""

    def __init__(
        self, settings: ClickHouseSettings, on_fault: Callable[[Exception], None] = lambda _error: None
    ) -> None:
        """Ask nothing yet. `on_fault` is called on the thread, once per outage."""
        super().__init__("row-delays", lambda: ask_row_delays(settings), _EVERY_S, on_fault)
