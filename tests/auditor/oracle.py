"""An independent account of a log: what the judge ought to have said, worked out in another way.

One mutable class per partition, dictionaries instead of classes, a plain chain of questions instead of a table. It
shares no code with the processor and reads bytes with fastavro itself, so that a fault would have to be made twice.

    account = account_of(entries, partitions=4)
    assert differences(account, audit_rows, rejected_rows) == []

`audit_rows` and `rejected_rows` are mappings with the Avro field names; times may be µs or `datetime`.
"""

from collections.abc import Iterable, Mapping
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from typing import Any

from tests.auditor.decoding import LogEntry, Row
from tests.auditor.partition_oracle import PartitionOracle


class Oracle:
    """The books of all partitions."""

    def __init__(self, partitions: int) -> None:
        self.partitions = {number: PartitionOracle(number, partitions) for number in range(partitions)}

    def apply_record(self, entry: LogEntry) -> str:
        return self.partitions[entry.partition].apply_record(entry)

    def all_lines(self, field: str) -> list[Row]:
        """`audits`, `rejected` or `cleanups` of every partition."""
        return [line for book in self.partitions.values() for line in getattr(book, field)]

    def sessions(self) -> dict[bytes, Row]:
        return {key: row for book in self.partitions.values() for key, row in book.rows.items()}


def replay_log(entries: Iterable[LogEntry], partitions: int = 4) -> Oracle:
    """Work out the whole log; each partition's entries in offset order."""
    account = Oracle(partitions)
    for entry in entries:
        account.apply_record(entry)
    return account


def _comparable(value: Any) -> Any:
    if isinstance(value, datetime):
        aware = value if value.tzinfo else value.replace(tzinfo=UTC)
        return (aware - datetime(1970, 1, 1, tzinfo=UTC)) // timedelta(microseconds=1)
    return list(value) if isinstance(value, tuple) else value


def _place(line: Mapping[str, Any]) -> tuple[int, int, int]:
    return line["source_partition"], line["source_offset"], line.get("source_n", 0)


def find_differences(
    account: Oracle,
    audit_rows: Iterable[Mapping[str, Any]],
    rejected_rows: Iterable[Mapping[str, Any]],
    cleanup_rows: Iterable[Mapping[str, Any]] | None = None,
) -> list[str]:
    """Every disagreement, as a sentence; empty where the pipeline and this account tell the same story."""
    found: list[str] = []
    told = sorted(audit_rows, key=_place)
    places = [_place(line) for line in told]
    found += [f"audited twice: {place}" for place, after in pairwise(places) if place == after]
    expected = sorted(account.all_lines("audits"), key=_place)
    if len(told) != len(expected):
        found.append(f"{len(told)} audit lines instead of {len(expected)}")
    for line, wanted in zip(told, expected, strict=False):
        for field, value in wanted.items():
            if _comparable(line[field]) != value:
                found.append(f"audit {_place(line)} {wanted}: {field} is {_comparable(line[field])!r}, not {value!r}")
    refused = {(line["source_partition"], line["source_offset"]): line["reason"] for line in rejected_rows}
    should = {
        (line["source_partition"], line["source_offset"]): line["reason"] for line in account.all_lines("rejected")
    }
    found += [
        f"record {place}: refused {refused.get(place)}, expected {should.get(place)}"
        for place in sorted(refused.keys() | should.keys())
        if refused.get(place) != should.get(place)
    ]
    if cleanup_rows is not None:
        asked = {line["cleanup_id"]: list(line["actions"]) for line in cleanup_rows}
        wanted_actions = {line["cleanup_id"]: line["actions"] for line in account.all_lines("cleanups")}
        found += [f"clean-ups {asked} instead of {wanted_actions}"] if asked != wanted_actions else []
    return found


__all__ = ["LogEntry", "Oracle", "PartitionOracle", "find_differences", "replay_log"]
