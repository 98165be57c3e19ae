"""Asks for the number of integrity findings, in ClickHouse's tables and at the sinks' positions."""

import time
from collections import Counter
from collections.abc import Mapping
from contextlib import suppress
from typing import Final, NamedTuple

from sessionary.infra.clickhouse_client import ClickHouseClient
from sessionary.infra.settings import LagSettings
from sessionary.schemas.errors import Unavailable
from sessionary.schemas.settings import ClickHouseSettings

# ClickHouse plans this query for a second of a core, and for many on a busy machine.
_TIMEOUT_S: Final = 120.0
_END_TIMEOUT_S: Final = 30.0
_OVERLAP_S: Final = 600  # a transaction begins so long before it lands, at most
# Rows of a transaction are missed so many seconds after its own row, as `v_integrity` has it:
# ticks and heartbeats may wait for a minute.
LATE_S: Final = 120
_QUERY: Final = """
SELECT fault, count() AS findings
FROM {between}.v_integrity_between(from = now('UTC') - {window_s}, to = now('UTC') + INTERVAL 1 DAY, late_s = {late_s})
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
    late_s = round(LATE_S + behind_s)
    query = _QUERY.format(
        between=settings.between_database, window_s=window_s, late_s=late_s, timeout_s=round(_TIMEOUT_S)
    )
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


class RequestLook:
    """Compares the topics of requests with the transactions, a little at each look.

    A look reads what was written since the last one. One that finds a fault reads the whole window,
    as do the looks after it, until that has no fault: so the findings are those of `sessionary
    integrity check`, and one that is dismissed is gone.

    A window with more records than a look can read is halved before the first answer, and a fault
    is reported also if the window before it cannot be read.
    """

    def __init__(self, settings: LagSettings) -> None:
        """Ask nothing yet."""
        self._settings = settings
        self._reach_s = settings.integrity_window_s
        self._known_s: int | None = None  # no transaction that began before is unknown, or at fault

    def ask(self, behind_s: float) -> IntegrityFindings:
        """Return the findings in the topics; `behind_s`: the lag of the slowest sink.

        Blocks for up to two minutes, and for ClickHouse's answers. Raises `Unavailable` if Kafka
        does not let a topic be read, and as `ClickHouseClient` does.
        """
        from sessionary.sinks.integrity.topic_counts import REQUEST_TOPICS, count_faults  # takes time to load

        asked_at_s, late_s = time.time(), round(LATE_S + behind_s)
        window_s = int(asked_at_s) - self._reach_s
        since_s = window_s if self._known_s is None else max(window_s, self._known_s)
        faults, is_whole = self._compare(since_s, late_s), since_s == window_s
        if faults and not is_whole:
            with suppress(Unavailable):  # what was found is reported all the same
                faults, is_whole = self._compare(window_s, late_s), True
        if not faults:
            self._known_s = int(asked_at_s) - late_s - _OVERLAP_S
        elif is_whole:
            self._known_s = None
        return IntegrityFindings(asked_at_s, dict.fromkeys(count_faults(REQUEST_TOPICS), 0) | Counter(faults))

    def _compare(self, since_s: int, late_s: int) -> list[str]:
        from sessionary.sinks.integrity.topic_counts import REQUEST_TOPICS, compare_topics

        fetch_rows = ClickHouseClient(self._settings, _END_TIMEOUT_S).fetch_rows
        began_s = time.monotonic()
        compared = compare_topics(self._settings, fetch_rows, since_s, late_s, _TIMEOUT_S, REQUEST_TOPICS)
        if compared.unread:
            if self._known_s is None and time.monotonic() - began_s >= _TIMEOUT_S:
                self._reach_s = max(_OVERLAP_S, self._reach_s // 2)
            raise Unavailable("; ".join(compared.unread), _END_TIMEOUT_S)
        return [fault.fault for fault in compared.faults]


def table_of_fault(fault: str) -> str:
    """Return the table that a fault is about."""
    if fault == "chain_broken":
        return "audit"
    if fault == "run_events_missing":
        return "run_events"
    table = fault.partition("_")[0]
    return "batches" if table == "batch" else table
