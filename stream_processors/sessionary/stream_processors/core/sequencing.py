"""Sequence numbers and epochs: which events repeat, which are missing, which come too late.

Each producer (a client process) counts its events per session from 1. The checks, in this order: a
number inside a recorded gap is a late filler (refused with its bytes); a number seen before is a
duplicate (counted only); after a jump the gap is recorded, and the event goes on. An event's epoch
must be the session's: a lower one is stale, a higher one was never given out.
"""

from collections.abc import Sequence
from typing import NamedTuple

from sessionary.schemas.types import ProducerLedger, RefusalReason, SeqRange

PRODUCERS_MAX = 64
RANGES_MAX = 16
EPOCH_EXEMPT = frozenset({"session_created", "resources_released"})


class SequenceCheck(NamedTuple):
    """What a sequence number comes to: the ledger after it; a gap, a refusal, a duplicate."""

    producers: Sequence[ProducerLedger]
    gap: SeqRange | None = None
    duplicate: bool = False
    refusal: RefusalReason | None = None


def check_sequence(producers: Sequence[ProducerLedger], producer_id: str, seq: int) -> SequenceCheck:
    """Judge sequence number `seq` (from 1) of a producer against the session's ledger."""
    place = len(producers)
    for n, known in enumerate(producers):
        if known.producer_id == producer_id:
            place, ledger = n, known
            break
    else:
        if place >= PRODUCERS_MAX:
            return SequenceCheck(producers, refusal="too_many_producers")
        ledger = ProducerLedger(producer_id, 0, ())
    if seq <= ledger.last_seq:
        if any(first <= seq <= last for first, last in ledger.missing):
            return SequenceCheck(producers, refusal="late_filler")
        return SequenceCheck(producers, duplicate=True)
    gap = SeqRange(ledger.last_seq + 1, seq - 1) if seq > ledger.last_seq + 1 else None
    moved = ProducerLedger(producer_id, seq, ledger.missing if gap is None else _append_gap(ledger.missing, gap))
    return SequenceCheck((*producers[:place], moved, *producers[place + 1 :]), gap=gap)


def _append_gap(missing: Sequence[SeqRange], gap: SeqRange) -> Sequence[SeqRange]:
    """Append a gap.

    If the list is full, the two oldest become one; what lay between is refused, not lost.
    """
    if len(missing) >= RANGES_MAX:
        missing = (SeqRange(missing[0].first, missing[1].last), *missing[2:])
    return (*missing, gap)


def epoch_refusal(current: int, claimed: int, event_type: str) -> RefusalReason | None:
    """Return why an event of epoch `claimed` is refused at epoch `current`, or None."""
    if claimed == current or event_type in EPOCH_EXEMPT:
        return None
    return "stale_epoch" if claimed < current else "future_epoch"


__all__ = ["EPOCH_EXEMPT", "PRODUCERS_MAX", "RANGES_MAX", "SequenceCheck", "check_sequence", "epoch_refusal"]
