"""An independent oracle: what a processor should have written for a log, computed another way.

It has a mutable class per partition, dictionaries instead of classes, and a chain of conditions
instead of a table. It shares no code with the processor and reads bytes with fastavro itself, so a
fault would have to be made twice to go unnoticed.

    oracle = replay_log(entries, partitions=4)
    assert find_differences(oracle, audit_rows, rejected_rows) == []

`audit_rows` and `rejected_rows` are mappings with the Avro field names; times are µs or `datetime`.
"""

from collections.abc import Iterable, Mapping
from itertools import pairwise
from typing import Any

from tests.auditor.decoding import Decision, LogEntry, Row, microseconds
from tests.auditor.partition_oracle import PartitionOracle


class Oracle:
    """The oracles of all partitions."""

    def __init__(self, partitions: int) -> None:
        self.partitions = {number: PartitionOracle(number, partitions) for number in range(partitions)}

    def apply_record(self, entry: LogEntry) -> str:
        return self.partitions[entry.partition].apply_record(entry)

    def all_lines(self, field: str) -> list[Row]:
        """Return `audits`, `rejected`, `cleanups`, `tasks` or `migrations` of all partitions."""
        return [line for oracle in self.partitions.values() for line in getattr(oracle, field)]

    def all_faults(self) -> list[str]:
        """Return what is wrong with the decisions themselves."""
        return [fault for oracle in self.partitions.values() for fault in oracle.faults]

    def sessions(self) -> dict[bytes, Row]:
        return {key: row for oracle in self.partitions.values() for key, row in oracle.rows.items()}


def replay_log(entries: Iterable[LogEntry], partitions: int = 4, decisions: Iterable[Decision] = ()) -> Oracle:
    """Judge a whole log; entries and operators' decisions come in offset order per partition.

    If a log was cut, its entries come as they were appended: those that were lost, then those that
    took their offsets.
    """
    oracle = Oracle(partitions)
    for decision in decisions:
        oracle.partitions[decision.partition].decisions.append(decision)
    for entry in entries:
        oracle.apply_record(entry)
    for partition in oracle.partitions.values():
        partition.take_decisions(1 << 62)  # the rest stands after the last record
    return oracle


def _comparable(value: Any) -> Any:
    return list(value) if isinstance(value, tuple) else microseconds(value)


def _place(line: Mapping[str, Any]) -> tuple[int, int, int]:
    return line["source_partition"], line["source_offset"], line.get("source_n", 0)


def _key_of(line: Mapping[str, Any]) -> bytes:
    return f"{line['tenant_id']}:{line['session_id']}".encode()


def find_differences(
    oracle: Oracle,
    audit_rows: Iterable[Mapping[str, Any]],
    rejected_rows: Iterable[Mapping[str, Any]],
    cleanup_rows: Iterable[Mapping[str, Any]] | None = None,
    task_rows: Iterable[Mapping[str, Any]] | None = None,
    migration_rows: Iterable[Mapping[str, Any]] | None = None,
) -> list[str]:
    """Return every difference between the pipeline's output and the oracle's, as sentences."""
    found = oracle.all_faults()
    # What a caller of the control API asked for is in no log.
    written = sorted((line for line in audit_rows if line["kind"] != "access"), key=_place)
    places = [_place(line) for line in written]
    found += [f"audited twice: {place}" for place, after in pairwise(places) if place == after]
    expected = sorted(oracle.all_lines("audits"), key=_place)
    if len(written) != len(expected):
        found.append(f"{len(written)} audit lines instead of {len(expected)}")
    for line, wanted in zip(written, expected, strict=False):
        for field, value in wanted.items():
            if _comparable(line[field]) != value:
                found.append(f"audit {_place(line)} {wanted}: {field} is {_comparable(line[field])!r}, not {value!r}")
    rejected = {(line["source_partition"], line["source_offset"]): line["reason"] for line in rejected_rows}
    expected_reasons = {
        (line["source_partition"], line["source_offset"]): line["reason"] for line in oracle.all_lines("rejected")
    }
    found += [
        f"record {place}: rejected {rejected.get(place)}, expected {expected_reasons.get(place)}"
        for place in sorted(rejected.keys() | expected_reasons.keys())
        if rejected.get(place) != expected_reasons.get(place)
    ]
    if cleanup_rows is not None:
        asked = {line["cleanup_id"]: list(line["actions"]) for line in cleanup_rows}
        wanted_actions = {line["cleanup_id"]: line["actions"] for line in oracle.all_lines("cleanups")}
        found += [f"clean-ups {asked} instead of {wanted_actions}"] if asked != wanted_actions else []
    if task_rows is not None:
        requested = sorted((_key_of(line), line["run_id"], line["task_type"]) for line in task_rows)
        wanted_tasks = sorted((line["key"], line["run_id"], line["task_type"]) for line in oracle.all_lines("tasks"))
        found += [f"tasks {requested} instead of {wanted_tasks}"] if requested != wanted_tasks else []
    if migration_rows is not None:
        names = ("migration_id", "service_id", "step", "epoch", "version")
        reported = sorted((_key_of(line), *(line[name] for name in names)) for line in migration_rows)
        wanted_steps = sorted((line["key"], *(line[name] for name in names)) for line in oracle.all_lines("migrations"))
        found += [f"migrations {reported} instead of {wanted_steps}"] if reported != wanted_steps else []
    return found


__all__ = ["LogEntry", "Oracle", "PartitionOracle", "find_differences", "replay_log"]
