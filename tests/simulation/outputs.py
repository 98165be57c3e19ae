"""What the transactions of a partition have written, and of which life of a session it tells."""

from collections.abc import Iterator
from typing import Any, NamedTuple

from sessionary.schemas.records import AuditRecord
from tests.auditor.decoding import SKIPS
from tests.simulation.adapter import BatchResult, LogRecord

TOMBSTONE_MS = 14 * 86_400_000
Life = tuple[bytes, int]


class Written(NamedTuple):
    """The outputs of one partition's transactions, in order."""

    outcomes: list[BatchResult]
    audits: list[tuple[bytes, AuditRecord]]
    rejected: list[tuple[bytes | None, Any]]
    cleanups: list[tuple[bytes, Any]]
    tasks: list[tuple[bytes, Any]]
    migrations: list[tuple[bytes, Any]]
    quotas: list[tuple[bytes, Any]]


def outputs_of(outcomes: list[BatchResult]) -> Written:
    return Written(
        outcomes,
        [pair for outcome in outcomes for pair in outcome.records_on("audit")],
        [pair for outcome in outcomes for pair in outcome.records_on("rejected")],
        [pair for outcome in outcomes for pair in outcome.records_on("cleanup")],
        [pair for outcome in outcomes for pair in outcome.records_on("tasks")],
        [pair for outcome in outcomes for pair in outcome.records_on("migrations")],
        [pair for outcome in outcomes for pair in outcome.records_on("quotas")],
    )


def decisions_in(outputs: Written) -> list[AuditRecord]:
    return [line for _, line in outputs.audits if line.kind == "decision" or line.event_type in SKIPS]


def folded_records(log: list[LogRecord], outputs: Written) -> list[LogRecord]:
    """Return the records without those that an operator had skipped."""
    skipped = {
        offset
        for line in decisions_in(outputs)
        if line.event_type in SKIPS and line.gap_first is not None and line.gap_last is not None
        for offset in range(line.gap_first, line.gap_last + 1)
    }
    return [record for record in log if record.offset not in skipped] if skipped else log


def lives_of(outputs: Written) -> Iterator[tuple[Life, AuditRecord]]:
    """Yield each line with its session's life: an id can be used again after its tombstone."""
    lives: dict[bytes, int] = {}
    gone_us: dict[bytes, int] = {}
    for key, line in outputs.audits:
        if line.transition == "T01" and line.appended_at >= gone_us.get(key, 1 << 62):
            lives[key] = lives.get(key, 0) + 1
        if line.transition == "T14":
            gone_us[key] = line.appended_at + TOMBSTONE_MS * 1_000
        if line.audit_seq:
            yield (key, lives.get(key, 0)), line
