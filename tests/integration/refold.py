"""Folds a log again from scratch and compares the result with a processor's output."""

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Literal, NamedTuple

from sessionary.schemas.codec import Decoder, encode_record
from sessionary.schemas.records import AuditRecord, CleanupRequest, Position, RejectedEvent
from sessionary.schemas.types import RuleSet
from sessionary.stream_processors.core.committed import PartitionSettings
from sessionary.stream_processors.core.judge import Judge
from sessionary.stream_processors.core.model import ClockSetting, LogRecord, SkippedOffsets
from sessionary.stream_processors.core.partition import PartitionState
from sessionary.stream_processors.core.uncommitted_batch import UncommittedBatch
from sessionary.stream_processors.store.packed_rows import FamilyCodec
from tests.support.judges import JUDGE
from tests.support.row_differences import row_differences, row_key
from tests.support.signing import KEYS

_ANNOUNCED = re.compile(
    r"rules (\d+) begin, after rules \d+; rows have at most (\d+) bytes, outputs (\d+), rejected records (\d+); "
    r"finished runs are kept for (\d+) days?, and failed ones may be resumed for (\d+) ms"
    r"(?:; runs ask for quotas)?(?:; sessions ask for quotas)?(?:; tokens count for quotas)?$"
)
_SKIPS: dict[str, Literal["records_skipped", "log_gap_accepted", "log_truncation_accepted"]] = {
    "records_skipped": "records_skipped",
    "log_gap_accepted": "log_gap_accepted",
    "log_truncation_accepted": "log_truncation_accepted",
}


class RefoldResult(NamedTuple):
    """The result of a fold with this judge: rows, and the records in log order by partition."""

    judge: Judge
    rows: dict[bytes, Any]
    audits: list[AuditRecord]
    rejected: list[RejectedEvent]
    cleanups: list[CleanupRequest]
    timers: int


def refold(
    log: Mapping[int, Sequence[LogRecord]],
    settings: PartitionSettings,
    judge: Judge = JUDGE,
    audits: Iterable[AuditRecord] = (),
    rules: RuleSet | None = None,
) -> RefoldResult:
    """Fold each partition's records, with a batch size that no processor uses.

    `audits`: the audit trail, for what operators decided, each at its place, and on which records
    the judge failed; no log has that. `rules`: those of the first record; default: this release's.
    """
    trail = list(audits)
    failures = {
        (line.source_partition, line.source_offset): line.reason
        for line in trail
        if line.reason_code == "internal_error"
    }
    decisions = sorted(
        (line for line in trail if line.kind == "decision" or line.event_type in _SKIPS), key=_place, reverse=True
    )
    result = RefoldResult(judge, {}, [], [], [], 0)
    odd = settings._replace(records_max=37, keys=KEYS)
    timers = 0
    for partition, records in sorted(log.items()):
        fold = PartitionState(partition, odd, Decoder(), judge)
        if rules is not None:
            fold.load_position(Position(0, 0, 0, 0, 0, rules=rules))
        fold.finish_loading()
        waiting = list(reversed(records))
        decided = [decision for decision in decisions if decision.source_partition == partition]
        while waiting or decided:
            batch = fold.begin()
            if decided and decided[-1].source_offset == fold.position.next_offset:
                _decide_again(batch, decided.pop(), waiting)
            else:
                stop = decided[-1].source_offset if decided else None
                while waiting and (stop is None or waiting[-1].offset < stop):
                    if not batch.apply(waiting[-1], failures.get((partition, waiting[-1].offset))):
                        break
                    waiting.pop()
                at = (batch.final_position.next_offset, batch.final_position.outputs_written)
                assert at > fold.position[0:1] + fold.position[4:5], f"partition {partition} stands still before {stop}"
            outcome = batch.finish()
            fold.merge(batch)
            result.audits.extend(record for _, record in outcome.records_on("audit"))
            result.rejected.extend(record for _, record in outcome.records_on("rejected"))
            result.cleanups.extend(record for _, record in outcome.records_on("cleanup"))
            timers += outcome.counts.timers
        result.rows.update({row_key(key, partition): row for key, row in fold.rows.items()})
    return result._replace(timers=timers)


def _decide_again(batch: UncommittedBatch, decision: AuditRecord, waiting: list[LogRecord]) -> None:
    """Repeat a decision, as the audit trail tells of it."""
    if decision.event_type in _SKIPS:
        skip_again(batch, decision, waiting)
    elif decision.event_type == "clock_repaired":
        set_clock_again(batch, decision)
    else:
        announce_again(batch, decision)


def announce_again(batch: UncommittedBatch, decision: AuditRecord) -> None:
    """Repeat an announcement of rules, as the audit trail tells of it."""
    match = _ANNOUNCED.match(decision.reason)
    assert match is not None, decision.reason
    assert decision.source_n == 0, "rules are announced before a record, not among its outcomes"
    assert decision.actor is not None
    version, row_bytes, output_bytes, rejected_bytes, days, resume_ms = map(int, match.groups())
    of_runs, of_sessions = (f"; {who} ask for quotas" in decision.reason for who in ("runs", "sessions"))
    rules = RuleSet(version, row_bytes, days, output_bytes, rejected_bytes, of_runs, of_sessions, resume_ms)
    of_tokens = "; tokens count for quotas" in decision.reason
    batch.announce_rules(rules._replace(token_quotas=of_tokens), decision.actor)


def set_clock_again(batch: UncommittedBatch, decision: AuditRecord) -> None:
    """Set a clock again, as the audit trail tells of it."""
    assert decision.actor is not None
    until_offset = decision.source_offset if decision.gap_last is None else decision.gap_last + 1
    reason = re.sub(r"^.*? ms \(.*? s\)(; the stamps of offsets \d+ to \d+ do not move it)?: ", "", decision.reason)
    batch.set_clock(ClockSetting(decision.appended_at // 1_000, until_offset, reason, decision.actor))


def skip_again(batch: UncommittedBatch, line: AuditRecord, waiting: list[LogRecord]) -> None:
    """Skip what an audit record says was skipped; `waiting` has the next record as its last one.

    In a log that was cut, only what was folded is known here: the records that took the offsets of
    others are rejected in the original run alone.
    """
    assert line.gap_first is not None
    assert line.gap_last is not None
    assert line.actor is not None
    records: list[LogRecord] = []
    if line.event_type == "log_truncation_accepted":
        replaced = (line.gap_first, line.gap_last)
        reason, clock_ms = line.reason.partition(": ")[2], line.appended_at // 1_000
        batch.skip_offsets(
            SkippedOffsets(_SKIPS[line.event_type], line.source_offset, clock_ms, reason, line.actor, records, replaced)
        )
        return
    while waiting and waiting[-1].offset <= line.gap_last:
        records.append(waiting.pop())
    _, _, reason = line.reason.partition(": ")
    clock_ms = line.appended_at // 1_000
    batch.skip_offsets(
        SkippedOffsets(_SKIPS[line.event_type], line.gap_last + 1, clock_ms, reason, line.actor, records)
    )


def find_differences(expected: RefoldResult, rows: Mapping[bytes, Any], audits: Iterable[AuditRecord]) -> list[str]:
    """Return each difference in rows and audit records as a sentence; batch numbers are ignored."""
    faults = [*row_differences(FamilyCodec(expected.judge.families), rows, expected.rows)]
    found = {_place(record): record._replace(batch_number=0) for record in audits}
    wanted = {_place(record): record._replace(batch_number=0) for record in expected.audits}
    faults += [f"audit {place}: not written" for place in wanted.keys() - found.keys()]
    faults += [f"audit {place}: not due" for place in found.keys() - wanted.keys()]
    faults += [
        f"audit {place}: {found[place]} instead of {wanted[place]}"
        for place in wanted.keys() & found.keys()
        if encode_record(found[place]) != encode_record(wanted[place])
    ]
    return faults


def _place(record: AuditRecord) -> tuple[int, int, int]:
    return (record.source_partition, record.source_offset, record.source_n)
