"""The files of dead processes in a spool's folder, and how they are taken over."""

import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from sessionary.producers.delivery.spool.file_lock import FileLock, create_locked, try_lock
from sessionary.producers.delivery.spool.frames import frame_key
from sessionary.producers.delivery.spool.segment import Segment, read_segment, set_aside
from sessionary.producers.errors import SpoolDamaged, SpoolUnusable

_LEFT_S = 3_600.0  # A temporary lock file that is older was left by a process that was killed


class Claim(NamedTuple):
    """What was taken over. The locks are held."""

    locks: list[FileLock]
    segments: list[Segment]  # In order, with at least one readable frame each
    damages: list[SpoolDamaged]
    more: bool  # Others are left, because these have as many bytes as were asked for


def segment_paths(folder: Path, owner: str) -> list[Path]:
    """Return the segments of a process, oldest first."""
    return sorted(folder.glob(f"{owner}.*.seg"))


def owner_of(path: Path) -> str:
    """Return the producer id that a lock or segment is named for."""
    return path.name.partition(".")[0]


def segment_owners(folder: Path) -> set[str]:
    """Return the producer ids of all segments in a folder."""
    return {owner_of(path) for path in folder.glob("*.seg")}


def refuse_older_form(folder: Path) -> None:
    """Raise `SpoolUnusable` if the folder has segments of a form that is not read any more."""
    if older := sorted(folder.glob("*.wal")):
        raise SpoolUnusable(
            f"SESSIONARY_SPOOL_DIR: {folder} has {older[0].name}, a segment of an older form that this version does "
            "not read: deliver its events with the version that wrote it, or move it elsewhere"
        )


def claim_orphans(folder: Path, bytes_max: int) -> Claim:
    """Lock and read the spools of dead processes, the longest dead first.

    Takes no further one once they have `bytes_max` bytes. Raises `OSError`.
    """
    claim = Claim([], [], [], more=False)
    size = 0
    _remove_left(folder)
    for lock in _free_locks(folder):
        if size >= bytes_max:
            lock.release()
            return claim._replace(more=True)
        claimed = len(claim.segments)
        try:
            for path in segment_paths(folder, owner_of(lock.path)):
                _read_orphan(path, claim)
        except OSError:
            release_claim(claim)
            lock.release()
            raise
        if len(claim.segments) == claimed:  # it died without an event, or all of them are lost
            lock.remove()
            continue
        claim.locks.append(lock)
        size += sum(segment.size for segment in claim.segments[claimed:])
    return claim


def release_claim(claim: Claim) -> None:
    """Leave all of it to the next process."""
    for segment in claim.segments:
        segment.map.close()
    for lock in claim.locks:
        lock.release()


def _free_locks(folder: Path) -> Iterator[FileLock]:
    """Lock what is free. Segments whose lock file was deleted get one: nothing else finds them."""
    for path in sorted(folder.glob("*.lock"), key=_created_ns):
        if (lock := try_lock(path)) is not None:
            for temporary in folder.glob(f"{owner_of(path)}.*.seg.tmp"):  # it was killed meanwhile
                temporary.unlink(missing_ok=True)
            yield lock
    for owner in sorted(segment_owners(folder)):
        path = folder / f"{owner}.lock"
        if not path.exists():
            with suppress(FileExistsError):  # another starter was faster
                yield create_locked(path)


def _read_orphan(path: Path, claim: Claim) -> None:
    try:
        segment, scan = read_segment(path)
    except FileNotFoundError:
        return
    if scan.damage is not None:
        claim.damages.append(SpoolDamaged(path, scan.lost, scan.damage))
    if segment is None:
        if scan.damage is None:
            path.unlink(missing_ok=True)
        else:
            set_aside(path)
        return
    shared: dict[bytes, bytes] = {}
    for offset in segment.offsets:
        key = frame_key(segment.map, offset)
        segment.keys[offset] = shared.setdefault(key, key)
    claim.segments.append(segment)


def _remove_left(folder: Path) -> None:
    """Delete temporary lock files of processes that were killed while they started."""
    for path in folder.glob("*.lock.*.tmp"):
        if time.time() - _created_ns(path) / 1e9 > _LEFT_S:
            path.unlink(missing_ok=True)


def _created_ns(path: Path) -> int:
    try:
        return path.stat().st_mtime_ns
    except FileNotFoundError:  # its owner closed just now
        return 0
