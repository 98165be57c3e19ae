"""What a session's row has of clients that were fenced off (`avro/common/fenced_beats.avsc`)."""

from collections.abc import Sequence
from typing import NamedTuple


class FencedBeats(NamedTuple):
    """Whose heartbeats were refused because their epoch is over.

    Attributes:
        epoch: The session's at the time.
        id_hashes: Of the producers of which one such heartbeat was rejected in this epoch, at most
            16: the first 8 bytes of SHA-256 of the id, big-endian and signed.
    """

    epoch: int
    id_hashes: Sequence[int]
