"""What became of a partition's last records, for callers that wait for one of them.

Almost all records are applied. So each record costs an offset and a hash of its key, and only a
refusal or a repetition has an entry of its own.
"""

from array import array
from bisect import bisect_left
from collections import deque
from typing import NamedTuple

from sessionary.schemas.types import RefusalReason

RECORDS_KEPT = 8_192  # 16 bytes each
EVENT_ID_KEPT = 128  # characters; a UUID has 36


class JudgedRecords:
    """The judged records of one batch, in the order of offsets; ticks are left out."""

    __slots__ = ("duplicates", "key_hashes", "offsets", "refusals")

    def __init__(self) -> None:
        self.offsets = array("q")
        self.key_hashes = array("q")  # of the records' keys, within this process
        self.refusals: dict[int, RefusalReason] = {}  # by offset
        self.duplicates: dict[int, str] = {}  # by offset: the event's id

    def add_duplicate(self, offset: int, event_id: str) -> None:
        """Add what `duplicates` holds; instead of a long id, '', so that memory is bounded."""
        self.duplicates[offset] = event_id if len(event_id) <= EVENT_ID_KEPT else ""


class RecordOutcome(NamedTuple):
    """What became of a record. Both are None: it was applied."""

    refusal: RefusalReason | None
    duplicate_of: str | None  # the id of the event that it repeats; '' if it is too long to be kept


class RecentOutcomes:
    """The outcomes of at least the last 8,192 records that this worker judged."""

    def __init__(self) -> None:
        self._batches: deque[JudgedRecords] = deque()
        self._records = 0

    def add_batch(self, judged: JudgedRecords) -> None:
        """Add a committed batch; the oldest ones go if enough records are left without them."""
        if not judged.offsets:
            return
        self._batches.append(judged)
        self._records += len(judged.offsets)
        while self._records - len(self._batches[0].offsets) >= RECORDS_KEPT:
            self._records -= len(self._batches.popleft().offsets)

    def find(self, offset: int, key: bytes) -> RecordOutcome | None:
        """Return what became of the record at `offset`; None if that is not kept.

        None too if the record there has another key.
        """
        for judged in reversed(self._batches):
            if offset < judged.offsets[0]:
                continue
            n = bisect_left(judged.offsets, offset)
            if n == len(judged.offsets) or judged.offsets[n] != offset or judged.key_hashes[n] != hash(key):
                return None
            return RecordOutcome(judged.refusals.get(offset), judged.duplicates.get(offset))
        return None
