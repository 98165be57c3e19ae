"""Folds a log again from scratch and compares it with what a processor wrote: rows, audit records, refusals."""

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from sessionary.schemas.codec import Decoder, encode_record
from sessionary.schemas.records import AuditRecord, RejectedEvent
from sessionary.stream_processors.core.committed import PartitionSettings
from sessionary.stream_processors.core.model import LogRecord
from sessionary.stream_processors.core.partition import PartitionState
from sessionary.stream_processors.core.session.effects import SessionRow
from tests.support.machines import MACHINES


class Refolded(NamedTuple):
    """What a log comes to; audits and refusals in log order, partition by partition."""

    rows: dict[bytes, SessionRow]
    audits: list[AuditRecord]
    rejected: list[RejectedEvent]
    timers: int


def refold(log: Mapping[int, Sequence[LogRecord]], settings: PartitionSettings) -> Refolded:
    """Fold each partition's records, in batches of a size that no processor uses."""
    result = Refolded({}, [], [], 0)
    odd = settings._replace(records_max=37)
    timers = 0
    for partition, records in sorted(log.items()):
        fold = PartitionState(partition, odd, Decoder(), MACHINES)
        fold.finish_loading()
        waiting = list(reversed(records))
        while waiting:
            batch = fold.begin()
            while waiting and batch.apply(waiting[-1]):
                waiting.pop()
            outcome = batch.finish()
            fold.merge(batch)
            result.audits.extend(record for _, record in outcome.records_on("audit"))
            result.rejected.extend(record for _, record in outcome.records_on("rejected"))
            timers += outcome.counts.timers
        result.rows.update(fold.rows)
    return result._replace(timers=timers)


def differing(expected: Refolded, rows: Mapping[bytes, SessionRow], audits: Iterable[AuditRecord]) -> list[str]:
    """Return, for people, every row and audit record that differs; batch numbers alone may."""
    faults = [
        f"row {key!r}: {rows.get(key)} instead of {expected.rows.get(key)}"
        for key in expected.rows.keys() | rows.keys()
        if _bytes(rows.get(key)) != _bytes(expected.rows.get(key))
    ]
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


def _bytes(row: SessionRow | None) -> bytes | None:
    return None if row is None else encode_record(row)


def _place(record: AuditRecord) -> tuple[int, int, int]:
    return (record.source_partition, record.source_offset, record.source_n)
