"""An engine's outputs for the events of a log, and the differences between two engines' outputs.

Outputs of ticks, behind the last event, are left out: an engine that runs for longer reads more
of them. Everything else must be equal, except the number of the transaction, which only our
processor has.
"""

from collections.abc import Mapping
from typing import NamedTuple

from sessionary.schemas.records import AuditRecord, CleanupRequest
from sessionary.schemas.settings import KafkaSettings
from tests.support.reading import read_records, read_topic

_SHOWN = 3
_Place = tuple[int, int, int]  # partition, offset of the cause, number among its outputs


class EngineOutputs(NamedTuple):
    """Audit records by their position in the log, clean-up requests by id, and rejected records."""

    audit: Mapping[_Place, AuditRecord]
    cleanups: Mapping[str, CleanupRequest]
    audits_written: int  # also those that have the same place
    rejected: int

    @property
    def transitions(self) -> int:
        """The number of transitions."""
        return sum(record.kind == "transition" for record in self.audit.values())


def read_outputs(kafka: KafkaSettings, ends: Mapping[int, int]) -> EngineOutputs:
    """Read what an engine committed; `ends`: where the events end, by partition. Blocks."""
    found = [
        record._replace(batch_number=0)
        for record in read_records(kafka, kafka.topics.audit)
        if isinstance(record, AuditRecord) and record.source_offset < ends[record.source_partition]
    ]
    audit = {(record.source_partition, record.source_offset, record.source_n): record for record in found}
    asked = {record.cleanup_id for record in found}
    cleanups = {
        record.cleanup_id: record
        for record in read_records(kafka, kafka.topics.cleanup)
        if isinstance(record, CleanupRequest) and record.cleanup_id in asked
    }
    return EngineOutputs(audit, cleanups, len(found), len(read_topic(kafka, kafka.topics.rejected)))


def find_differences(ours: EngineOutputs, theirs: EngineOutputs) -> list[str]:
    """Return, for people, how the outputs differ: counts first, then some records."""
    found = [
        f"{name}: {mine:,} of ours, {other:,} of theirs"
        for name, mine, other in (
            ("audit records", ours.audits_written, theirs.audits_written),
            ("transitions", ours.transitions, theirs.transitions),
            ("clean-up requests", len(ours.cleanups), len(theirs.cleanups)),
            ("rejected records", ours.rejected, theirs.rejected),
        )
        if mine != other
    ]
    different = sorted(
        place for place in ours.audit.keys() | theirs.audit.keys() if ours.audit.get(place) != theirs.audit.get(place)
    )
    found += [_describe_pair(ours.audit.get(place), theirs.audit.get(place)) for place in different[:_SHOWN]]
    if len(different) > _SHOWN:
        found.append(f"{len(different) - _SHOWN:,} more audit records differ")
    asked = ours.cleanups.keys() & theirs.cleanups.keys()
    wrong = [name for name in asked if ours.cleanups[name] != theirs.cleanups[name]]
    return [*found, f"{len(wrong):,} clean-up requests differ"] if wrong else found


def _describe_pair(mine: AuditRecord | None, other: AuditRecord | None) -> str:
    known = mine or other
    assert known is not None
    place = f"session {known.session_id}, offset {known.source_offset}"
    if mine is None or other is None:
        whose = "theirs" if mine is None else "ours"
        return f"{place}: only {whose} has {known.kind} {_move_of(known)}"
    fields = [name for name in AuditRecord._fields if getattr(mine, name) != getattr(other, name)]
    values = ", ".join(f"{name} {getattr(mine, name)!r} and {getattr(other, name)!r}" for name in fields)
    return f"{place}: {_move_of(mine)} and {_move_of(other)}: {values}"


def _move_of(record: AuditRecord) -> str:
    return f"{record.transition} from {record.from_state} to {record.to_state} by {record.event_type}"
