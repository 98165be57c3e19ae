"""Compares ClickHouse's tables with the topics, record by record."""

import hashlib
from collections import defaultdict
from collections.abc import Iterator
from typing import Literal, NamedTuple

from tests.auditor.decoding import LogEntry, Row
from tests.auditor.evidence import Evidence

# The columns that must be as the record has them; history's are its bytes.
_COLUMNS = {
    "audit": ("audit_id", "audit_seq", "kind"),
    "rejected": ("reason", "source_partition", "source_offset"),
    "batches": ("number", "first_offset", "last_offset"),
}


class RowFault(NamedTuple):
    """A record that has no row, several, or another one; or a row without a record."""

    table: str
    partition: int
    kind: Literal["lost", "doubled", "rows"]
    text: str


def find_row_faults(evidence: Evidence) -> Iterator[RowFault]:
    """Yield what is wrong with the rows of each record. Acknowledgements are not looked at."""
    wanted: dict[str, dict[tuple[int, int], Row]] = {
        "history": {entry[:2]: _history(entry) for entry in evidence.log},
    }
    for table, names in _COLUMNS.items():
        outputs = evidence.outputs[table]
        wanted[table] = {entry[:2]: {name: fields[name] for name in names} for entry, fields in outputs}
    for table, records in wanted.items():
        rows: dict[tuple[int, int], list[Row]] = defaultdict(list)
        for row in evidence.rows[table]:
            rows[row["partition"], row["offset"]].append(row)
        for place in sorted(records.keys() | rows.keys()):
            found = _compare(table, place, records.get(place), rows.get(place, []))
            if found is not None:
                yield found


def _compare(table: str, place: tuple[int, int], record: Row | None, stored: list[Row]) -> RowFault | None:
    partition = place[0]
    if record is None:
        text = f"{table} has a row for {place}, but the topic has no record there"
        return RowFault(table, partition, "rows", text)
    if not stored:
        return RowFault(table, partition, "lost", f"{table} has no row for {place}: {record}")
    if len(stored) > 1:
        return RowFault(table, partition, "doubled", f"{table} has {len(stored)} rows for {place}: {record}")
    if any(stored[0][name] != value for name, value in record.items()):
        return RowFault(table, partition, "rows", f"{table}'s row for {place} is {stored[0]}, not {record}")
    return None


def _history(entry: LogEntry) -> Row:
    return {"digest": hashlib.md5(entry.value or b"", usedforsecurity=False).hexdigest()}
