"""Asks for the number of integrity findings, in ClickHouse's tables and at the sinks' positions."""

import time
from collections import Counter
from collections.abc import Mapping
from typing import Final, NamedTuple

from sessionary.infra.clickhouse_client import ClickHouseClient
from sessionary.infra.settings import LagSettings
from sessionary.schemas.settings import ClickHouseSettings

# ClickHouse plans this query for a second of a core, and for many on a busy machine.
_TIMEOUT_S: Final = 120.0
_END_TIMEOUT_S: Final = 30.0
# Rows of a transaction are missed so many seconds after its own row, as `v_integrity` has it:
# ticks and heartbeats may wait for a minute.
LATE_S: Final = 120
_QUERY: Final = """
SELECT fault, count() AS findings
FROM v_integrity_between(from = now('UTC') - {window_s}, to = now('UTC') + INTERVAL 1 DAY, late_s = {late_s})
GROUP BY fault
SETTINGS max_execution_time = {timeout_s}
"""
_TABLES: Final = ("history", "rejected", "audit", "batches")  # the last one has no count of rows
# The faults that the view knows: each is reported with 0 while it has no finding. Those that only
# Kafka shows are `END_FAULTS` of `sessionary.sinks.integrity.landed_ends`.
KNOWN_FAULTS: Final = (
    *(f"{table}_rows_{what}" for table in _TABLES[:3] for what in ("missing", "unexpected", "doubled")),
    *("audit_missing", "audit_doubled", "chain_broken", "batch_missing", "batch_doubled", "run_events_missing"),
    *(f"{table}_dead_letters" for table in _TABLES),
)


class IntegrityFindings(NamedTuple):
    """The number of findings by fault, also of those without any, and the time of the count.

    `checked_at_s`: seconds since the epoch.
    """

    checked_at_s: float
    by_fault: Mapping[str, int]


def ask_integrity(settings: ClickHouseSettings, window_s: int, behind_s: float) -> IntegrityFindings:
    """Return the findings of transactions that began in the last `window_s` seconds.

    `behind_s`: the lag of the slowest sink; rows that it has not read yet are not missing. Blocks
    for up to two minutes. Raises as `ClickHouseClient` does.
    """
    query = _QUERY.format(window_s=window_s, late_s=round(LATE_S + behind_s), timeout_s=round(_TIMEOUT_S))
    asked_at_s = time.time()
    rows = ClickHouseClient(settings, _TIMEOUT_S + 1).fetch_rows(query)
    by_fault = dict.fromkeys(KNOWN_FAULTS, 0) | {row["fault"]: row["findings"] for row in rows}
    return IntegrityFindings(asked_at_s, by_fault)


def ask_landed_ends(settings: LagSettings) -> IntegrityFindings:
    """Return the findings at the sinks' positions: records written last that Kafka still has.

    So a loss without later records is found too. Blocks for up to a minute, and for ClickHouse's
    answers. Raises as `find_end_faults` and `ClickHouseClient` do.
    """
    from sessionary.sinks.integrity.landed_ends import END_FAULTS, find_end_faults  # takes time to load

    asked_at_s = time.time()
    faults = find_end_faults(settings, ClickHouseClient(settings, _END_TIMEOUT_S).fetch_rows)
    counts = Counter(fault.fault for fault in faults)
    return IntegrityFindings(asked_at_s, dict.fromkeys(END_FAULTS, 0) | counts)


def table_of_fault(fault: str) -> str:
    """Return the table that a fault is about."""
    if fault == "chain_broken":
        return "audit"
    if fault == "run_events_missing":
        return "run_events"
    table = fault.partition("_")[0]
    return "batches" if table == "batch" else table
