"""The files of dead processes in a spool's folder, and how they are taken over."""

import time
import uuid
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from sessionary.producers.delivery.spool.file_lock import FileLock, create_locked, read_note, try_lock
from sessionary.producers.delivery.spool.segment import (
    HEAD_BYTES,
    Frame,
    Segment,
    SegmentScan,
    create_segment,
    frame_key,
    map_file,
    read_frame,
    read_segment,
    scan_segment,
    segment_content,
    set_aside,
    written_ms,
)
from sessionary.producers.errors import SpoolDamaged, SpoolUnusable

Clusters = frozenset[str | None]
"""Ids of clusters that dead processes have noted; None stands for one that has noted none."""

_LEFT_S = 3_600.0  # A temporary lock file that is older was left by a process that was killed


class Claim(NamedTuple):
    """The files that were taken over. Their locks are held."""

    locks: list[FileLock]
    segments: list[Segment]  # In order, with at least one readable frame each
    damages: list[SpoolDamaged]
    more: bool  # Others are left, because these have as many bytes as were asked for
    old: int = 0  # Number of spools with older events than were asked for; these are left


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


def claim_orphans(folders: Mapping[Path, Clusters | None], bytes_max: int, oldest_ms: int = 0) -> Claim:
    """Lock and read the spools of dead processes in some folders, the longest dead first.

    Takes those of a folder that are for one of its clusters, or all: None. Takes no further one
    once they have `bytes_max` bytes. Leaves the events that were written before `oldest_ms` (ms
    since the epoch). Raises `OSError`.
    """
    claim = Claim([], [], [], more=False)
    size = old = 0
    try:
        for lock in _free_locks(folders):
            if size >= bytes_max:
                lock.release()
                return claim._replace(more=True, old=old)
            found = _read_spool(lock)
            if _leave_old(found, lock, oldest_ms):
                old += 1
            if not found.locks:
                claim.damages.extend(damage for damage in found.damages if not damage.path.exists())  # set aside
                continue
            claim.damages.extend(found.damages)
            if not found.segments:  # it died without an event, or all of them are lost
                lock.remove()
                continue
            claim.segments.extend(found.segments)
            claim.locks.append(lock)
            size += sum(segment.size for segment in found.segments)
    except OSError:
        release_claim(claim)
        raise
    return claim._replace(old=old)


def _leave_old(found: Claim, lock: FileLock, oldest_ms: int) -> bool:
    """Leave the old events of a spool to a later claim; return whether there are any.

    If there are young ones too, the old ones get a spool of their own, with the suffix `-old`.
    Without room for it, and without a young one, the whole spool is left, and released.
    """
    old = {one: [at for at in one.offsets if one.written_ms(at) < oldest_ms] for one in found.segments}
    if not any(old.values()):
        return False
    has_young = any(len(offsets) < len(one.offsets) for one, offsets in old.items())
    if not has_young or not _move_old(old, lock):
        release_claim(found)
        found.segments.clear()
        found.locks.clear()
        return True
    for segment, offsets in old.items():
        for offset in offsets:
            del segment.outstanding[offset], segment.keys[offset]
        if not segment.outstanding:
            found.segments.remove(segment)
            segment.remove_file()
    return True


def _move_old(old: Mapping[Segment, list[int]], lock: FileLock) -> bool:
    """Copy old events of a spool whose lock is held into another one; False if it cannot be."""
    written: list[Path] = []
    aside: FileLock | None = None
    try:
        aside = _lock_spool(lock.path.parent, f"{owner_of(lock.path)}-old", lock)
        if aside is None:  # another process looks at it just now
            return False
        for segment, offsets in old.items():
            if frames := [frame for at in offsets if (frame := segment.read_frame(at)[1]) is not None]:
                written.append(_add_frames(aside, frames))
    except OSError:
        for path in written:
            path.unlink(missing_ok=True)
        return False
    finally:
        if aside is not None and segment_paths(lock.path.parent, owner_of(aside.path)):
            aside.release()
        elif aside is not None:
            aside.remove()
    return True


def _lock_spool(folder: Path, owner: str, like: FileLock | None = None) -> FileLock | None:
    """Lock a spool, a new one if there is none; None if another process has locked it."""
    path = folder / f"{owner}.lock"
    try:
        return create_locked(path, like)
    except FileExistsError:
        return try_lock(path)


def _add_frames(lock: FileLock, frames: Sequence[Frame]) -> Path:
    """Write frames into a new segment of a spool whose lock is held; return it."""
    owner, content = owner_of(lock.path), segment_content(frames)
    paths = segment_paths(lock.path.parent, owner)
    number = int(paths[-1].name.split(".")[1]) + 1 if paths else 1
    path = lock.path.with_name(f"{owner}.{number:08d}.seg")
    create_segment(path, len(content) - HEAD_BYTES, content).map.close()
    return path


def _read_spool(lock: FileLock) -> Claim:
    """Read the spool of a dead process, whose lock is held. Raises `OSError`."""
    found = Claim([lock], [], [], more=False)
    try:
        for path in segment_paths(lock.path.parent, owner_of(lock.path)):
            _read_orphan(path, found)
    except OSError:
        release_claim(found)
        raise
    return found


def release_claim(claim: Claim) -> None:
    """Leave all of it to the next process."""
    for segment in claim.segments:
        segment.map.close()
    for lock in claim.locks:
        lock.release()


def _free_locks(folders: Mapping[Path, Clusters | None]) -> Iterator[FileLock]:
    """Lock all free spools, the oldest first, whichever folder they are in.

    Segments without a lock file get one, so that they are found.
    """
    for folder in folders:
        _remove_left(folder)
    for path in sorted((path for folder in folders for path in folder.glob("*.lock")), key=_created_ns):
        wanted = folders[path.parent]
        if wanted is not None and read_note(path) not in wanted:
            continue
        if (lock := try_lock(path)) is not None:
            for temporary in path.parent.glob(f"{owner_of(path)}.*.seg.tmp"):  # it was killed meanwhile
                temporary.unlink(missing_ok=True)
            yield lock
    for folder, wanted in folders.items():
        for owner in sorted(segment_owners(folder)) if wanted is None or None in wanted else ():
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


# The contents of spool folders, for people: read only, while processes may be alive.


_LOOKS_MAX = 3


class SpoolSummary(NamedTuple):
    """The spool of one process. A living one's events may be acknowledged already."""

    folder: Path
    producer_id: str
    alive: bool
    events: int  # readable ones
    bytes: int  # size of the files
    oldest_age_s: float | None  # age of the oldest event; None without one
    damaged: int  # Events that cannot be read
    set_aside: int  # Files that were kept as .damaged earlier
    old: int  # Events that were written before the moment that was asked about
    expired: int  # Events that were given up: too old, or none that can be sent
    cluster_id: str | None  # That it has reached; None if none is known


class SegmentFinding(NamedTuple):
    """One file, read to its end."""

    path: Path
    alive: bool
    events: int
    lost: int  # Events that cannot be read
    damage: str | None  # Where; None if it is intact


def spool_folders(spool_dir: Path) -> list[Path]:
    """Return the folders of all clusters and prefixes below a spool directory."""
    return sorted(path for path in spool_dir.iterdir() if path.is_dir()) if spool_dir.is_dir() else []


def summarize_folder(folder: Path, oldest_ms: int = 0) -> list[SpoolSummary]:
    """Return each process's spool in a folder. Reads every file.

    `oldest_ms`: events that were written before it, in ms since the epoch, count as old. Raises
    `OSError`, `SpoolUnusable` for segments of an older form.
    """
    refuse_older_form(folder)
    aside = [owner_of(path) for path in folder.glob("*.damaged")]
    others = {owner_of(path) for pattern in ("*.lock", "*.expired") for path in folder.glob(pattern)}
    owners = segment_owners(folder) | others | set(aside)
    return [_summarize_spool(folder, owner, aside.count(owner), oldest_ms) for owner in sorted(owners)]


def verify_folder(folder: Path) -> Iterator[SegmentFinding]:
    """Read every segment in a folder, and those that are set aside.

    Raises `OSError`, `SpoolUnusable` for segments of an older form.
    """
    refuse_older_form(folder)
    for owner in sorted(segment_owners(folder)):
        alive = _is_alive(folder, owner)
        for path in segment_paths(folder, owner):
            if (scan := _scan_file(path)) is not None:
                yield SegmentFinding(path, alive, len(scan.offsets), scan.lost, scan.damage)
    for path in sorted(folder.glob("*.expired")):
        frames, end = read_expired(path)
        damage = None if end == path.stat().st_size else f"damaged from byte {end} on"
        alive = _is_alive(folder, owner_of(path))
        yield SegmentFinding(path, alive, len(frames), 0 if damage is None else 1, damage)
    for path in sorted(folder.glob("*.damaged")):
        if (scan := _scan_file(path)) is not None:
            yield SegmentFinding(
                path, alive=False, events=len(scan.offsets), lost=scan.lost, damage=scan.damage or "set aside"
            )


def _summarize_spool(folder: Path, owner: str, set_aside: int, oldest_ms_asked: int) -> SpoolSummary:
    events = size = lost = old = 0
    oldest_ms: int | None = None
    for path in segment_paths(folder, owner):
        scan = _scan_file(path)
        if scan is None:
            continue
        events, lost, size = events + len(scan.offsets), lost + scan.lost, size + path.stat().st_size
        if scan.offsets:
            mapped = map_file(path)
            written = [written_ms(mapped, offset) for offset in scan.offsets]
            mapped.close()
            old += sum(at < oldest_ms_asked for at in written)
            oldest_ms = written[0] if oldest_ms is None else oldest_ms
    age_s = None if oldest_ms is None else max(time.time() - oldest_ms / 1e3, 0.0)
    expired = len(read_expired(folder / f"{owner}.expired")[0])
    alive, cluster_id = _is_alive(folder, owner), read_note(folder / f"{owner}.lock")
    return SpoolSummary(folder, owner, alive, events, size, age_s, lost, set_aside, old, expired, cluster_id)


# Events that were given up, in the file of their process: frames one after the other.


def read_expired(path: Path) -> tuple[list[Frame], int]:
    """Return the readable frames of a file, and where they end; none if there is no file."""
    try:
        data = path.read_bytes()
    except FileNotFoundError:
        return [], 0
    frames: list[Frame] = []
    end = 0
    while (found := read_frame(data, end)) is not None:
        end, frame = found
        frames.append(frame)
    return frames, end


def revive_expired(folder: Path) -> int:
    """Make the given-up events of dead processes ones that are sent again; return their number.

    A rest that cannot be read is set aside. Raises `OSError`.
    """
    revived = 0
    for path in sorted(folder.glob("*.expired")):
        if _is_alive(folder, owner_of(path)):
            continue
        frames, end = read_expired(path)
        if frames:
            lock = create_locked(folder / f"{owner_of(path)}-{uuid.uuid4().hex[:8]}.lock")
            try:
                _add_frames(lock, frames)
            finally:
                lock.release()
        revived += len(frames)
        if end == path.stat().st_size:
            path.unlink()
        else:
            set_aside(path)
    return revived


def _is_alive(folder: Path, owner: str) -> bool:
    """Return True if the process holds its lock. It is taken for a moment, which delays an heir."""
    path = folder / f"{owner}.lock"
    lock = try_lock(path)
    if lock is not None:
        lock.release()
    return lock is None and path.exists()


def _scan_file(path: Path) -> SegmentScan | None:
    """Read a file; None if it is gone. A living process may change it meanwhile: look again."""
    scan: SegmentScan | None = None
    for _ in range(_LOOKS_MAX):
        try:
            mapped = map_file(path)
        except FileNotFoundError:
            return None
        except ValueError:  # it is empty
            return scan_segment(b"")
        scan = scan_segment(mapped)
        mapped.close()
        if scan.damage is None:
            break
    return scan
