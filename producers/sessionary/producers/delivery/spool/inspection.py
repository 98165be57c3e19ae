"""What lies in spool folders, for people: read only, beside living processes."""

import time
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from sessionary.producers.delivery.spool.file_lock import try_lock
from sessionary.producers.delivery.spool.frames import SegmentScan, scan_segment, written_ms
from sessionary.producers.delivery.spool.orphans import owner_of, refuse_older_form, segment_owners, segment_paths
from sessionary.producers.delivery.spool.segment import map_file

_LOOKS_MAX = 3


class SpoolSummary(NamedTuple):
    """The spool of one process. A living one's events may be acknowledged already."""

    folder: Path
    producer_id: str
    alive: bool
    events: int  # That can be read
    bytes: int  # Of the files
    oldest_age_s: float | None  # Of the oldest event; None without one
    damaged: int  # Events that cannot be read
    set_aside: int  # Files that were kept as .damaged earlier


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


def summarize_folder(folder: Path) -> list[SpoolSummary]:
    """Return each process's spool in a folder. Reads every file.

    Raises `OSError`, `SpoolUnusable` for segments of an older form.
    """
    refuse_older_form(folder)
    aside = [owner_of(path) for path in folder.glob("*.damaged")]
    owners = segment_owners(folder) | {owner_of(path) for path in folder.glob("*.lock")} | set(aside)
    return [_summarize_spool(folder, owner, aside.count(owner)) for owner in sorted(owners)]


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
    for path in sorted(folder.glob("*.damaged")):
        if (scan := _scan_file(path)) is not None:
            yield SegmentFinding(
                path, alive=False, events=len(scan.offsets), lost=scan.lost, damage=scan.damage or "set aside"
            )


def _summarize_spool(folder: Path, owner: str, set_aside: int) -> SpoolSummary:
    events = size = lost = 0
    oldest_ms: int | None = None
    for path in segment_paths(folder, owner):
        scan = _scan_file(path)
        if scan is None:
            continue
        events, lost, size = events + len(scan.offsets), lost + scan.lost, size + path.stat().st_size
        if scan.offsets and oldest_ms is None:
            mapped = map_file(path)
            oldest_ms = written_ms(mapped, scan.offsets[0])
            mapped.close()
    age_s = None if oldest_ms is None else max(time.time() - oldest_ms / 1e3, 0.0)
    return SpoolSummary(folder, owner, _is_alive(folder, owner), events, size, age_s, lost, set_aside)


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
