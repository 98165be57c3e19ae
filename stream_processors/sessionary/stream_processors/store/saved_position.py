"""Up to where a store holds its changelog, and whether it may go on from there."""

import time
from typing import NamedTuple

from sessionary.schemas.records import Position

# Kafka keeps tombstones for one day (delete.retention.ms): an older store could miss a deletion.
SAVED_AGE_MAX_S = 43_200


class SavedPosition(NamedTuple):
    """Up to where a store holds the changelog.

    As the mark of a recovery that has not ended: how far it has read, the last position record that
    it has read (zeros if none), and since when it must find every tombstone, which is when it first
    began, or when that was saved which it went on from.
    """

    position: Position
    changelog_next: int  # the first changelog offset that the store does not hold
    saved_s: float  # when it was saved, seconds since the epoch


def is_usable(saved: SavedPosition | None, changelog_low: int, changelog_end: int, now_s: float | None = None) -> bool:
    """Return True if a store may be filled from its saved position on; otherwise it must be wiped.

    `changelog_low` and `changelog_end` are the first offset and the next one of the changelog.
    """
    if saved is None:
        return False
    age_s = (time.time() if now_s is None else now_s) - saved.saved_s
    return 0 <= age_s < SAVED_AGE_MAX_S and changelog_low <= saved.changelog_next <= changelog_end
