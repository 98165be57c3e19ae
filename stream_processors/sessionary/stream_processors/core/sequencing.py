"""Sequence numbers and epochs: which events repeat, which are missing, which come too late.

Each producer (a client process) counts its events per session from 1. The checks, in this order: a
number inside a recorded gap is a late filler (refused with its bytes); a number seen before is a
duplicate (counted only); after a jump the gap is recorded, and the event goes on. An event's epoch
must be the session's: a lower one is stale, a higher one was never given out.

A ledger lists 64 producers. By rules 1 it refuses the next one. By rules 2 it forgets one: of a
past epoch first, then the one that is silent for longest. A hash of its id and its last number
remain, so that none of its events is applied twice: it goes on after that number, and what it sends
up to it is a late filler, because the ledger no longer knows which of these were applied.

By rules 2 a ledger also has the offsets of its producer's last events. They show that a record was
judged by its number, so that a caller who waits for it gets its verdict from the row.
"""

import hashlib
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from sessionary.schemas.types import ForgottenProducer, ProducerLedger, RefusalReason, SeqRange

PRODUCERS_MAX = 64
FORGOTTEN_MAX = 1_024
RANGES_MAX = 16
OFFSETS_KEPT = 8  # per producer; about two bytes each, and five for the newest
EPOCH_EXEMPT = frozenset({"session_created", "resources_released"})


class LogMoment(NamedTuple):
    """When an event is judged: the session's epoch, log time in ms, its offset.

    Rules 1 keep none of them; then the offset is -1.
    """

    epoch: int = 0
    now_ms: int = 0
    offset: int = -1


UNKNOWN_MOMENT = LogMoment()


class SequenceCheck(NamedTuple):
    """What a sequence number comes to: the ledger after it; a gap, a refusal, a duplicate.

    `forgotten` is None if it did not change.
    """

    producers: Sequence[ProducerLedger]
    gap: SeqRange | None = None
    duplicate: bool = False
    refusal: RefusalReason | None = None
    forgotten: Sequence[ForgottenProducer] | None = None


def check_sequence(
    producers: Sequence[ProducerLedger], producer_id: str, seq: int, at: LogMoment = UNKNOWN_MOMENT
) -> SequenceCheck:
    """Judge sequence number `seq` (from 1) of a producer against the session's ledger."""
    for place, known in enumerate(producers):
        if known.producer_id == producer_id:
            return _judge_number(producers, place, known, seq, at)
    if len(producers) >= PRODUCERS_MAX:
        return SequenceCheck(producers, refusal="too_many_producers")
    return _judge_number(producers, len(producers), ProducerLedger(producer_id, 0, ()), seq, at)


def check_with_memory(
    producers: Sequence[ProducerLedger],
    forgotten: Sequence[ForgottenProducer],
    producer_id: str,
    seq: int,
    at: LogMoment,
) -> SequenceCheck:
    """Judge sequence number `seq` as `check_sequence`; a full ledger forgets a producer."""
    if not forgotten and len(producers) < PRODUCERS_MAX:
        return check_sequence(producers, producer_id, seq, at)
    for place, known in enumerate(producers):
        if known.producer_id == producer_id:
            return _judge_number(producers, place, known, seq, at)
    id_hash = hash_producer(producer_id)
    known_before = next((entry for entry in forgotten if entry.id_hash == id_hash), None)
    ledger = ProducerLedger(producer_id, 0, ())
    if known_before is not None:
        if seq <= known_before.last_seq:
            return SequenceCheck(producers, refusal="late_filler")
        last = known_before.last_seq
        ledger = ProducerLedger(producer_id, last, (SeqRange(1, last),), inexact_to=last)
    listed: Sequence[ProducerLedger] = producers
    others = [entry for entry in forgotten if entry is not known_before]
    left: Sequence[ForgottenProducer] | None = others
    if len(producers) >= PRODUCERS_MAX:
        silent = min(producers, key=lambda known: (known.epoch == at.epoch, known.last_at))
        listed = [known for known in producers if known is not silent]
        # An entry that rules 1 made may be of the current epoch.
        entry = ForgottenProducer(hash_producer(silent.producer_id), silent.last_seq, silent.epoch or at.epoch)
        left = _remember(others, entry, at.epoch)
    if left is None:
        return SequenceCheck(producers, refusal="too_many_producers")
    return _judge_number(listed, len(listed), ledger, seq, at)._replace(forgotten=tuple(left))


def _remember(
    forgotten: Sequence[ForgottenProducer], entry: ForgottenProducer, epoch: int
) -> Sequence[ForgottenProducer] | None:
    """Append an entry; None if there is no room.

    An entry of a past epoch makes room: what its producer sent then is refused for its epoch.
    """
    if len(forgotten) < FORGOTTEN_MAX:
        return [*forgotten, entry]
    oldest = min(forgotten, key=lambda known: known.epoch)
    if oldest.epoch >= epoch:
        return None
    return [*(known for known in forgotten if known is not oldest), entry]


def hash_producer(producer_id: str) -> int:
    """Return what remains of the id of a forgotten producer: 64 bits, signed."""
    return int.from_bytes(hashlib.sha256(producer_id.encode()).digest()[:8], "big", signed=True)


def _judge_number(
    producers: Sequence[ProducerLedger], place: int, ledger: ProducerLedger, seq: int, at: LogMoment
) -> SequenceCheck:
    """Judge a number against its producer's ledger, which is at `place`, or new there."""
    producer_id, last_seq, missing, _, _, _, offsets = ledger
    if seq <= last_seq:
        if any(first <= seq <= last for first, last in missing):
            return SequenceCheck(producers, refusal="late_filler")
        return SequenceCheck(producers, duplicate=True)
    gap = SeqRange(last_seq + 1, seq - 1) if seq > last_seq + 1 else None
    inexact_to = _inexact_to(ledger, joined=gap is not None) if missing and at is not UNKNOWN_MOMENT else 0
    left = missing if gap is None else _append_gap(missing, gap)
    epoch, now_ms, offset = at
    if offset < 0:
        offsets = ()
    elif offsets:
        offsets = (offset, offset - offsets[0], *offsets[1 : OFFSETS_KEPT - 1])
    else:
        offsets = (offset,)
    moved = ProducerLedger(producer_id, seq, left, epoch, now_ms, inexact_to, offsets)
    return SequenceCheck((*producers[:place], moved, *producers[place + 1 :]), gap=gap)


def last_offsets(ledger: ProducerLedger) -> Iterator[int]:
    """Yield the offsets of a producer's last events, as far as they are kept, newest first."""
    offset = 0
    for place, distance in enumerate(ledger.offsets):
        offset = offset - distance if place else distance
        yield offset


def fill_gap(producers: Sequence[ProducerLedger], producer_id: str, seq: int) -> Sequence[ProducerLedger] | None:
    """Take a number out of the producer's gaps; None if it is in none, or may have been applied."""
    for place, known in enumerate(producers):
        if known.producer_id == producer_id:
            filled = _without_number(known, seq)
            return None if filled is None else (*producers[:place], filled, *producers[place + 1 :])
    return None


def _without_number(ledger: ProducerLedger, seq: int) -> ProducerLedger | None:
    inexact_to = _inexact_to(ledger, joined=False)
    if seq <= inexact_to or not any(first <= seq <= last for first, last in ledger.missing):
        return None
    left: list[SeqRange] = []
    for first, last in ledger.missing:
        pieces = [(first, seq - 1), (seq + 1, last)] if first <= seq <= last else [(first, last)]
        left += [SeqRange(*piece) for piece in pieces if piece[0] <= piece[1]]
    if len(left) > RANGES_MAX:
        left = [SeqRange(left[0].first, left[1].last), *left[2:]]
        inexact_to = max(inexact_to, left[0].last)
    return ledger._replace(missing=tuple(left), inexact_to=inexact_to)


def _inexact_to(ledger: ProducerLedger, *, joined: bool) -> int:
    """Return up to which number a ledger's gaps may hold applied ones.

    `joined`: is a gap about to be appended, which joins the two oldest of a full list?
    """
    inexact_to, missing = ledger.inexact_to, ledger.missing
    if len(missing) < RANGES_MAX:
        return inexact_to
    if joined:
        return max(inexact_to, missing[1].last)
    # Rules 1 joined ranges without a note.
    return max(inexact_to, missing[0].last) if ledger.epoch == 0 else inexact_to


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


__all__ = [
    "EPOCH_EXEMPT",
    "FORGOTTEN_MAX",
    "OFFSETS_KEPT",
    "PRODUCERS_MAX",
    "RANGES_MAX",
    "LogMoment",
    "SequenceCheck",
    "check_sequence",
    "check_with_memory",
    "epoch_refusal",
    "fill_gap",
    "hash_producer",
    "last_offsets",
]
