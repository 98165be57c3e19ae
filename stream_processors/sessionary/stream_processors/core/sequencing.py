"""Sequence numbers and epochs: which events repeat, which are missing, which come too late.

Each producer (a client process) counts its events per session from 1. The checks, in this order: a
number inside a recorded gap is a late filler (rejected with its bytes); a number seen before is a
duplicate (counted only); after a jump the gap is recorded, and the event proceeds. An event's epoch
must be the session's: a lower one is stale, a higher one was never given out.

A ledger keeps hashes of the ids of a producer's last 32 events. If one of their numbers
comes with another id, it is no duplicate: two processes use one producer id. The event is rejected
with that reason and its bytes.

A ledger lists 64 producers. For the next one it forgets one: of a past epoch first, then the one
that is silent for longest. A hash of its id and its last number
remain, so that none of its events is applied twice: it continues after that number, and any event
up to it is a late filler, because the ledger no longer knows which of these were applied.

A ledger also has the offsets of its producer's last events. They show that a record was
judged by its number, so that a caller who waits for it gets its verdict from the row.
"""

import hashlib
from collections.abc import Iterator, Sequence
from typing import Final, final
from zlib import crc32

from sessionary.schemas.types import ForgottenProducer, ProducerLedger, RejectionReason, SeqRange

PRODUCERS_MAX = 64  # a test makes these two smaller, so they are not final for the compiler
FORGOTTEN_MAX = 1_024
RANGES_MAX: Final = 16
IDS_KEPT: Final = 32
_HASH_BYTES: Final = 2
_NO_EVENT: Final = bytes(_HASH_BYTES)
OFFSETS_KEPT: Final = 8  # per producer; about two bytes each, and five for the newest
OFFSET_DISTANCE_MAX: Final = 1 << 20  # between two of them, so that three bytes are enough
EPOCH_EXEMPT = frozenset({"session_created", "resources_released"})


@final
class LogMoment:
    """An event as a ledger keeps it: epoch, log time in ms, hash of its id, offset."""

    __slots__ = ("epoch", "id_hash", "now_ms", "offset")

    def __init__(self, epoch: int, now_ms: int, id_hash: bytes, offset: int) -> None:
        self.epoch = epoch
        self.now_ms = now_ms
        self.id_hash = id_hash
        self.offset = offset


@final
class SequenceCheck:
    """The outcome of a sequence number: the ledger after it; a gap, a rejection, a duplicate.

    `forgotten` is None if it did not change.
    """

    __slots__ = ("duplicate", "forgotten", "gap", "producers", "rejection")

    def __init__(
        self,
        producers: Sequence[ProducerLedger],
        gap: SeqRange | None = None,
        *,
        duplicate: bool = False,
        rejection: RejectionReason | None = None,
    ) -> None:
        self.producers = producers
        self.gap = gap
        self.duplicate = duplicate
        self.rejection = rejection
        self.forgotten: Sequence[ForgottenProducer] | None = None


def check_sequence(
    producers: Sequence[ProducerLedger],
    forgotten: Sequence[ForgottenProducer],
    producer_id: str,
    seq: int,
    at: LogMoment,
) -> SequenceCheck:
    """Judge sequence number `seq` (from 1) of a producer against the session's ledger.

    A full ledger forgets a producer, of which an entry in `forgotten` remains.
    """
    for place, known in enumerate(producers):
        if known.producer_id == producer_id:
            return _judge_number(producers, place, known, seq, at)
    if not forgotten and len(producers) < PRODUCERS_MAX:
        return _judge_number(producers, len(producers), ProducerLedger(producer_id, 0, ()), seq, at)
    id_hash = hash_producer(producer_id)
    known_before = next((entry for entry in forgotten if entry.id_hash == id_hash), None)
    ledger = ProducerLedger(producer_id, 0, ())
    if known_before is not None:
        if seq <= known_before.last_seq:
            return SequenceCheck(producers, rejection="late_filler")
        last = known_before.last_seq
        ledger = ProducerLedger(producer_id, last, (SeqRange(1, last),), inexact_to=last)
    listed: Sequence[ProducerLedger] = producers
    others = [entry for entry in forgotten if entry is not known_before]
    left: Sequence[ForgottenProducer] | None = others
    if len(producers) >= PRODUCERS_MAX:
        silent = min(producers, key=lambda known: (known.epoch == at.epoch, known.last_at))
        listed = [known for known in producers if known is not silent]
        entry = ForgottenProducer(hash_producer(silent.producer_id), silent.last_seq, silent.epoch)
        left = _remember(others, entry, at.epoch)
    if left is None:
        return SequenceCheck(producers, rejection="too_many_producers")
    check = _judge_number(listed, len(listed), ledger, seq, at)
    check.forgotten = tuple(left)
    return check


def _remember(
    forgotten: Sequence[ForgottenProducer], entry: ForgottenProducer, epoch: int
) -> Sequence[ForgottenProducer] | None:
    """Append an entry; None if there is no room.

    An entry of a past epoch makes room: its producer's events of that epoch are rejected anyway.
    """
    if len(forgotten) < FORGOTTEN_MAX:
        return [*forgotten, entry]
    oldest = min(forgotten, key=lambda known: known.epoch)
    if oldest.epoch >= epoch:
        return None
    return [*(known for known in forgotten if known is not oldest), entry]


def hash_producer(producer_id: str) -> int:
    """Return the hash that remains of a forgotten producer's id: 64 bits, signed."""
    return int.from_bytes(hashlib.sha256(producer_id.encode()).digest()[:8], "big", signed=True)


def _judge_number(
    producers: Sequence[ProducerLedger], place: int, ledger: ProducerLedger, seq: int, at: LogMoment
) -> SequenceCheck:
    """Judge a number against its producer's ledger, which is at `place`, or new there."""
    producer_id, last_seq, missing, _, _, _, recent_ids, offsets = ledger
    if seq <= last_seq:
        if any(first <= seq <= last for first, last in missing):
            return SequenceCheck(producers, rejection="late_filler")
        if _is_other_event(recent_ids or b"", last_seq - seq, at.id_hash):
            return SequenceCheck(producers, rejection="producer_conflict")
        return SequenceCheck(producers, duplicate=True)
    gap = SeqRange(last_seq + 1, seq - 1) if seq > last_seq + 1 else None
    inexact_to = _inexact_to(ledger, joined=gap is not None) if missing else 0
    left = missing if gap is None else _append_gap(missing, gap)
    ids = _append_id(recent_ids or b"", seq - last_seq - 1, at.id_hash)
    offsets = _put_offset(offsets, at.offset)
    moved = ProducerLedger(producer_id, seq, left, at.epoch, at.now_ms, inexact_to, ids, offsets)
    if len(producers) <= 1 and place == 0:
        return SequenceCheck((moved,), gap)  # as in almost every session
    return SequenceCheck((*producers[:place], moved, *producers[place + 1 :]), gap)


def hash_event_id(event_id: str) -> bytes:
    """Return the hash of an event's id in a ledger: two bytes, never both zero."""
    return (crc32(event_id.encode()) % 0xFFFF + 1).to_bytes(_HASH_BYTES, "big")


def _is_other_event(recent_ids: bytes, numbers_since: int, id_hash: bytes) -> bool:
    """Return whether a number is known to be another event's.

    `numbers_since`: how many numbers came after this one.
    """
    place = len(recent_ids) - _HASH_BYTES * (numbers_since + 1)
    if place < 0:
        return False
    return recent_ids[place : place + _HASH_BYTES] not in (id_hash, _NO_EVENT)


def _append_id(recent_ids: bytes, jumped: int, id_hash: bytes) -> bytes:
    """Append the hash of an event that comes after `jumped` missing numbers."""
    if jumped:
        recent_ids += _NO_EVENT * min(jumped, IDS_KEPT)
    return (recent_ids + id_hash)[-_HASH_BYTES * IDS_KEPT :]


def _put_offset(offsets: Sequence[int], offset: int) -> Sequence[int]:
    """Put the newest offset first; the others are kept as distances, unless they are far away."""
    if not offsets or offset - offsets[0] >= OFFSET_DISTANCE_MAX:
        return (offset,)
    newest = (offset, offset - offsets[0])
    return newest + tuple(offsets[1 : OFFSETS_KEPT - 1])


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
    return max(inexact_to, missing[1].last) if joined else inexact_to


def _append_gap(missing: Sequence[SeqRange], gap: SeqRange) -> Sequence[SeqRange]:
    """Append a gap.

    If the list is full, the two oldest become one; what lay between is rejected, not lost.
    """
    if len(missing) >= RANGES_MAX:
        missing = (SeqRange(missing[0].first, missing[1].last), *missing[2:])
    return (*missing, gap)


def epoch_rejection(current: int, claimed: int, event_type: str) -> RejectionReason | None:
    """Return why an event of epoch `claimed` is rejected at epoch `current`, or None."""
    if claimed == current or event_type in EPOCH_EXEMPT:
        return None
    return "stale_epoch" if claimed < current else "future_epoch"
