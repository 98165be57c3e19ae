"""Spools of processes that live, die and start again, for the tests of this folder."""

from pathlib import Path

from sessionary.producers.delivery.spool.segment import Frame, FramePosition
from sessionary.producers.delivery.spool.spool import Spool

BYTES_MAX = 1 << 20


def frame(n: int, size: int = 20, key: bytes = b"tenant:session") -> Frame:
    return Frame(1_000 + n, key, None if n % 2 else "00-trace", f"{n:08d}".encode() * (size // 8))


def number_of(one: Frame) -> int:
    return int(one.value[:8])


def new_spool(folder: Path, name: str = "one", bytes_max: int = BYTES_MAX) -> Spool:
    return Spool(folder, name, bytes_max)


def leave_dead(own: Spool) -> None:
    """Leave a spool as `kill -9` does: the locks are gone, the files stay."""
    own.abandon()


def read_all(own: Spool) -> list[tuple[FramePosition, Frame]]:
    """Send all that may be sent now."""
    found: list[tuple[FramePosition, Frame]] = []
    while batch := own.read_frames(7):
        for place, one in batch:
            assert one is not None
            own.mark_sent(place)
            found.append((place, one))
    return found


def drain_all(own: Spool) -> list[Frame]:
    """Send all, and have it acknowledged."""
    found: list[Frame] = []
    while batch := read_all(own):
        for place, one in batch:
            own.mark_done(place)
            found.append(one)
    return found


def segment_files(folder: Path) -> list[Path]:
    return sorted(folder.glob("*.seg"))
