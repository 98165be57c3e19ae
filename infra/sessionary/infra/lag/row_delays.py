"""Asks ClickHouse how long events took to become rows: from the log's stamp to the insert."""

import threading
from collections.abc import Callable
from typing import NamedTuple

from sessionary.infra.clickhouse_client import ClickHouseClient
from sessionary.schemas.errors import SessionaryError
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


class RowDelayWatch:
    """Asks every 10 s on a thread of its own: a ClickHouse that is away holds up nothing."""

    def __init__(self, settings: ClickHouseSettings, on_fault: Callable[[str], None] = lambda _why: None) -> None:
        """Ask nothing yet. `on_fault` is called on the thread, once per outage."""
        self._settings = settings
        self._on_fault = on_fault
        self._stopping, self._first = threading.Event(), threading.Event()
        self.answer: tuple[RowDelay, ...] | None = None  # the last one; None if ClickHouse is away
        self.fault: str | None = None  # why there is none

    def start(self) -> None:
        """Begin to ask. The thread ends with the process, or soon after `stop`."""
        threading.Thread(target=self._run_watch, name="row-delays", daemon=True).start()

    def wait_answer(self, timeout_s: float) -> None:
        """Block until ClickHouse has answered once or was found to be away."""
        self._first.wait(timeout_s)

    def stop(self) -> None:
        """Ask no more. Never blocks."""
        self._stopping.set()

    def _run_watch(self) -> None:
        while not self._stopping.is_set():
            try:
                self.answer, self.fault = ask_row_delays(self._settings), None
            except SessionaryError as error:
                if self.fault is None:
                    self._on_fault(str(error))
                self.answer, self.fault = None, str(error)
            self._first.set()
            self._stopping.wait(_EVERY_S)


__all__ = ["RowDelay", "RowDelayWatch", "ask_row_delays"]
