"""One spool file.

Segments are memory-mapped: a write is a copy, not a system call that would release the
interpreter's lock and compete for it again. Blocks are allocated in advance, so that a full disk
is an error at that moment, never a signal later. Nothing is fsynced: the spool survives the
process, not the machine.
"""

import errno
import mmap
import os
from bisect import bisect_left
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from sessionary.producers.delivery.spool.file_lock import OPEN_FLAGS
from sessionary.producers.delivery.spool.frames import (
    HEAD_BYTES,
    Frame,
    SegmentScan,
    read_frame,
    scan_segment,
    write_head,
    write_next,
    written_ms,
)
from sessionary.producers.ports import OnReceipt
from sessionary.schemas.codec.compiled_helpers import new_instance

_ZEROS = bytes(1 << 18)
_NOT_OFFERED = frozenset({errno.EOPNOTSUPP, errno.ENOTSUP, errno.ENOSYS, errno.EINVAL})


class Segment:
    """A file of frames. `outstanding` maps the offset of each frame in use to its receipt callback.

    `keys` has the keys of a dead process's frames by their offsets. A segment that is `in_memory`
    has no file, as none could be made: its frames go with the process.
    """

    __slots__ = (
        "damaged",
        "in_memory",
        "keys",
        "map",
        "number",
        "offsets",
        "orphan",
        "outstanding",
        "path",
        "sealed",
        "size",
    )

    def __init__(self, path: Path, mapped: mmap.mmap, scan: SegmentScan | None = None) -> None:
        """Hold a mapped file; `scan` is what a dead process left in it."""
        self.path = path
        self.map = mapped
        self.orphan = scan is not None  # of a dead process
        self.in_memory = False
        self.sealed = self.orphan
        self.damaged = scan is not None and scan.damage is not None
        self.offsets: list[int] = [] if scan is None else scan.offsets
        self.size = HEAD_BYTES if scan is None else scan.end
        self.number = 0 if scan is None else scan.next_number
        self.outstanding: dict[int, OnReceipt | None] = dict.fromkeys(self.offsets)
        self.keys: dict[int, bytes] = {}

    def write_frame(self, data: bytes, on_receipt: OnReceipt | None) -> "FramePosition":
        """Write a frame at the end, where it must have room; return its position.

        `data` is of `encode_frame`, with this segment's `number`.
        """
        start = self.size
        self.size = end = start + len(data)
        self.map[start:end] = data
        self.number = number = self.number + 1
        # Last: until then a reader takes the frame for one that was never there.
        write_next(self.map, number)
        self.offsets.append(start)
        self.outstanding[start] = on_receipt
        return new_instance(FramePosition, (self, start, end))

    def open_offsets(self, start: int) -> Iterator[int]:
        """Yield the offsets of the frames that are not done, from `start` on."""
        for place in range(bisect_left(self.offsets, start), len(self.offsets)):
            offset = self.offsets[place]
            if offset in self.outstanding:
                yield offset

    def read_frame(self, offset: int) -> tuple[int, Frame | None]:
        """Return the end and the content of a frame; None if it is damaged by now."""
        found = read_frame(self.map, offset)
        if found is not None:
            return found
        self.damaged = True
        place = bisect_left(self.offsets, offset + 1)
        return (self.offsets[place] if place < len(self.offsets) else self.size), None

    def written_ms(self, offset: int) -> int:
        """Return the write time of the frame at `offset`, in ms since the epoch."""
        return written_ms(self.map, offset)

    def clear_frames(self) -> None:
        """Make the segment empty; all its frames are done."""
        write_head(self.map, self.number)
        self.size = HEAD_BYTES
        self.offsets.clear()

    def remove_file(self) -> None:
        """Delete the file, or set it aside if a part of it could not be read."""
        self.map.close()  # first: Windows deletes no file that is mapped
        if self.in_memory:
            return
        # If it fails, the next process sends the events again: they are known as duplicates.
        with suppress(OSError):
            if self.damaged:
                set_aside(self.path)
            else:
                self.path.unlink(missing_ok=True)


class FramePosition(NamedTuple):
    """Position of a frame. For a cursor `offset` is `end`: the next frame begins there."""

    segment: Segment
    offset: int
    end: int


def create_segment(path: Path, capacity: int) -> Segment:
    """Create a file with room for `capacity` bytes of frames. Raises `OSError`.

    It gets its name when it is complete, so that a file of that name without a head is damaged.
    """
    temporary = path.with_name(path.name + ".tmp")
    fd = os.open(temporary, OPEN_FLAGS | os.O_CREAT | os.O_EXCL, 0o600)
    try:
        allocate_blocks(fd, HEAD_BYTES + capacity)
        mapped = mmap.mmap(fd, HEAD_BYTES + capacity)
    except OSError:
        os.close(fd)
        temporary.unlink()
        raise
    os.close(fd)
    write_head(mapped, 0)
    if os.name == "nt":  # no file can be renamed that is mapped
        mapped.close()
        temporary.rename(path)
        return Segment(path, map_file(path))
    temporary.rename(path)
    return Segment(path, mapped)


def memory_segment(path: Path, capacity: int) -> Segment:
    """Return a segment without a file, with room for `capacity` bytes of frames.

    `path` only names it. Raises `OSError` if there is no memory.
    """
    mapped = mmap.mmap(-1, HEAD_BYTES + capacity)
    write_head(mapped, 0)
    segment = Segment(path, mapped)
    segment.in_memory = True
    return segment


def map_file(path: Path) -> mmap.mmap:
    """Map an existing file. Raises `OSError`, `ValueError` if it is empty."""
    fd = os.open(path, OPEN_FLAGS)
    try:
        return mmap.mmap(fd, 0)
    finally:
        os.close(fd)


def read_segment(path: Path) -> tuple[Segment | None, SegmentScan]:
    """Open the file of a dead process; None if it has no readable frame. Raises `OSError`."""
    if not path.stat().st_size:
        return None, scan_segment(b"")  # it was cut: a process names a file when it is complete
    mapped = map_file(path)
    scan = scan_segment(mapped)
    segment = Segment(path, mapped, scan)
    if not scan.offsets:
        segment.map.close()
        return None, scan
    return segment, scan


def set_aside(path: Path) -> Path:
    """Rename a damaged file such that no process reads it again; return its name."""
    return path.rename(path.with_name(path.name + ".damaged"))


def allocate_blocks(fd: int, length: int) -> None:
    """Make the file `length` bytes long, with blocks on disk. Raises `OSError` if it is full."""
    allocate = getattr(os, "posix_fallocate", None)  # macOS and Windows have none
    if allocate is not None:
        try:
            allocate(fd, 0, length)
        except OSError as error:
            if error.errno not in _NOT_OFFERED:  # by this file system
                raise
        else:
            return
    left = length
    while left > 0:
        left -= os.write(fd, _ZEROS[:left])
