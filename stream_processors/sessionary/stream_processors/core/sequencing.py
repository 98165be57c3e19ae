"""Sequence numbers and epochs: who may still speak, and what was heard before.

Each producer (a client process) counts its events per session from 1. In this order: a number inside a recorded gap is
a late filler (refused with its bytes), a number seen before is a duplicate (counted, nothing else), a jump is recorded
as a gap and the event goes on. Then the epoch: lower is stale, higher comes from a future that does not exist.
"""

from collections.abc import Sequence
from typing import NamedTuple

from sessionary.schemas.types import ProducerLedger, RefusalReason, SeqRange

PRODUCERS_MAX = 64
RANGES_MAX = 16
EPOCH_EXEMPT = frozenset({"session_created", "resources_released"})


class Heard(NamedTuple):
    """The verdict on a sequence number: the ledger afterwards, a new gap, or why not. `duplicate`: seen before."""

    producers: Sequence[ProducerLedger]
    gap: SeqRange | None = None
    duplicate: bool = False
    refusal: RefusalReason | None = None


def heard(producers: Sequence[ProducerLedger], producer_id: str, seq: int) -> Heard:
    """Judge sequence number `seq` (from 1) of a producer against the session's ledger."""
    place = len(producers)
    for n, known in enumerate(producers):
        if known.producer_id == producer_id:
            place, ledger = n, known
            break
    else:
        if place >= PRODUCERS_MAX:
            return Heard(producers, refusal="too_many_producers")
        ledger = ProducerLedger(producer_id, 0, ())
    if seq <= ledger.last_seq:
        if any(first <= seq <= last for first, last in ledger.missing):
            return Heard(producers, refusal="late_filler")
        return Heard(producers, duplicate=True)
    gap = SeqRange(ledger.last_seq + 1, seq - 1) if seq > ledger.last_seq + 1 else None
    moved = ProducerLedger(producer_id, seq, ledger.missing if gap is None else _with_range(ledger.missing, gap))
    return Heard((*producers[:place], moved, *producers[place + 1 :]), gap=gap)


def _with_range(missing: Sequence[SeqRange], gap: SeqRange) -> Sequence[SeqRange]:
    """Append a gap. Where the list is full the two oldest become one: what lay between is then refused, not lost."""
    if len(missing) >= RANGES_MAX:
        missing = (SeqRange(missing[0].first, missing[1].last), *missing[2:])
    return (*missing, gap)


def epoch_refusal(current: int, claimed: int, event_type: str) -> RefusalReason | None:
    """Return why an event of epoch `claimed` is refused at epoch `current`, or None."""
    if claimed == current or event_type in EPOCH_EXEMPT:
        return None
    return "stale_epoch" if claimed < current else "future_epoch"


__all__ = ["EPOCH_EXEMPT", "PRODUCERS_MAX", "RANGES_MAX", "Heard", "epoch_refusal", "heard"]
