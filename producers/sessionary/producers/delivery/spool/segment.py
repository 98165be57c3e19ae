"""One spool file.

Segments are memory-mapped: a write is a copy, not a system call that would release the
interpreter's lock and compete for it again. Blocks are allocated in advance, so that a full disk
is an error at that moment, never a signal later. Nothing is fsynced: the spool survives the
process, not the machine.
"""

import errno
import os
import struct
import zlib
from bisect import bisect_left
from collections.abc import Iterator, Sequence
from contextlib import suppress
from mmap import mmap
from pathlib import Path
from typing import NamedTuple

from sessionary.producers.delivery.spool.file_lock import OPEN_FLAGS, FileId, file_id, is_same_file
from sessionary.producers.ports import OnReceipt
from sessionary.schemas.codec.compiled_helpers import new_instance

# The bytes of a segment: its head, its frames, and the search for frames after damage.
#
# Numbers are big-endian:
#
#     head    mark (8 bytes), number of the first frame, CRC-32 of these 12 bytes,
#             number of the next frame, its complement, 8 bytes of zeros
#     frame   mark (4 bytes), number, length of the body, CRC-32 of the body that begins with the
#             number, body
#
# A frame belongs to the segment if its number is at least the head's first one. A reader knows by
# the head how many frames there must be, and finds the next one behind damage by its mark.
#
# A body is the write time (ms since the epoch), the lengths of key and traceparent, key,
# traceparent, value.


HEAD_BYTES = 32
_MARK = b"sesspool"
_FIRST = struct.Struct(">8sII")
_NEXT = struct.Struct(">II")
_NEXT_AT = _FIRST.size
_COMPLEMENT = (1 << 32) - 1
FRAME_HEAD = struct.Struct(">4sIII")
_FRAME_MARK = b"\xf7spf"
_BODY = struct.Struct(">QHH")
_FRAME_HEAD_BYTES, _BODY_BYTES = FRAME_HEAD.size, _BODY.size


class Frame(NamedTuple):
    """The content of one frame."""

    written_ms: int  # ms since the epoch
    key: bytes
    traceparent: str | None
    value: bytes


class SegmentScan(NamedTuple):
    """The contents of a file."""

    offsets: list[int]  # offsets of the readable frames, in order
    end: int  # end of the last readable frame
    lost: int  # Number of frames that cannot be read; a lower bound if the head is damaged
    damage: str | None  # Where the damage begins, for people; None if there is none
    next_number: int


def encode_frame(number: int, frame: Frame) -> bytes:
    """Return the bytes of a frame."""
    written_ms, key, traceparent, value = frame
    trace = traceparent.encode() if traceparent else b""
    body = b"".join((_BODY.pack(written_ms, len(key), len(trace)), key, trace, value))
    return FRAME_HEAD.pack(_FRAME_MARK, number, len(body), zlib.crc32(body, number)) + body


def write_head(data: mmap | bytearray, first: int) -> None:
    """Write the head of a segment without frames; `first` is the number of the next one."""
    fields = _FIRST.pack(_MARK, first, 0)[:-4]
    data[:HEAD_BYTES] = (
        fields + struct.pack(">I", zlib.crc32(fields)) + _NEXT.pack(first, first ^ _COMPLEMENT) + bytes(8)
    )


def write_next(data: mmap | bytearray, number: int) -> None:
    """Write into the head that all frames below `number` are written."""
    _NEXT.pack_into(data, _NEXT_AT, number, number ^ _COMPLEMENT)


def segment_content(frames: Sequence[Frame]) -> bytes:
    """Return the bytes of a segment with some frames, without room for more."""
    head = bytearray(HEAD_BYTES)
    write_head(head, 0)
    write_next(head, len(frames))
    return b"".join((head, *(encode_frame(number, frame) for number, frame in enumerate(frames))))


def read_frame(data: mmap | bytes, offset: int) -> tuple[int, Frame] | None:
    """Return the end and the content of the frame at `offset`; None if none is intact there."""
    found = _frame(data, offset)
    if found is None:
        return None
    _, end, body = found
    written_ms, key_length, trace_length = _BODY.unpack_from(body)
    cut = _BODY_BYTES + key_length
    if not trace_length:
        return end, Frame(written_ms, body[_BODY_BYTES:cut], None, body[cut:])
    trace = body[cut : cut + trace_length].decode()
    return end, Frame(written_ms, body[_BODY_BYTES:cut], trace, body[cut + trace_length :])


def frame_key(data: mmap | bytes, offset: int) -> bytes:
    """Return the key of the intact frame at `offset`."""
    begin = offset + _FRAME_HEAD_BYTES
    _, length, _ = _BODY.unpack_from(data, begin)
    return data[begin + _BODY.size : begin + _BODY.size + length]


def written_ms(data: mmap | bytes, offset: int) -> int:
    """Return the write time of the frame at `offset`, in ms since the epoch."""
    at, _, _ = _BODY.unpack_from(data, offset + _FRAME_HEAD_BYTES)
    return int(at)


def scan_segment(data: mmap | bytes) -> SegmentScan:
    """Return all readable frames of a file. Never raises, whatever the bytes."""
    first, following = _read_head(data)
    offsets: list[int] = []
    offset, lost, expected = HEAD_BYTES, 0, first
    damage = "damaged in its head" if first is None or following is None else None
    while True:
        found = _frame(data, offset)
        if found is not None and (expected is None or found[0] == expected):
            offsets.append(offset)
            expected, offset = found[0] + 1, found[1]
            continue
        if following is not None and expected is not None and expected >= following:
            break
        again = _find_frame(data, offset, expected or 0)
        if again is None:
            break
        place, number = again
        damage = damage or f"damaged from byte {offset} to {place}"
        lost += 0 if expected is None else number - expected
        offset, expected = place, number
    if following is not None and (expected or 0) < following:
        lost += following - expected if expected is not None else 1
        damage = damage or f"damaged from byte {offset} on"
    if expected is None:
        lost = max(lost, 1)  # without a frame, their number is unknown
    return SegmentScan(offsets, offset if offsets else HEAD_BYTES, lost, damage, expected or 0)


def _frame(data: mmap | bytes, offset: int) -> tuple[int, int, bytes] | None:
    """Return number, end and body of an intact frame."""
    begin = offset + _FRAME_HEAD_BYTES
    if begin > len(data):
        return None
    mark, number, length, crc = FRAME_HEAD.unpack_from(data, offset)
    end = begin + length
    if mark != _FRAME_MARK or length < _BODY_BYTES or end > len(data):
        return None
    body = data[begin:end]
    return (number, end, body) if zlib.crc32(body, number) == crc else None


def _read_head(data: mmap | bytes) -> tuple[int | None, int | None]:
    """Return the numbers of the first and the next frame; None for one that is damaged."""
    if len(data) < HEAD_BYTES:
        return None, None
    mark, first, crc = _FIRST.unpack_from(data)
    following, complement = _NEXT.unpack_from(data, _NEXT_AT)
    intact = mark == _MARK and zlib.crc32(data[: _FIRST.size - 4]) == crc
    counted = following ^ complement == _COMPLEMENT
    return (first if intact else None), (following if counted else None)


def _find_frame(data: mmap | bytes, start: int, number_min: int) -> tuple[int, int] | None:
    """Return place and number of the next intact frame behind `start`."""
    place = data.find(_FRAME_MARK, start)
    while place >= 0:
        found = _frame(data, place)
        if found is not None and found[0] >= number_min:
            return place, found[0]
        place = data.find(_FRAME_MARK, place + 1)
    return None


_ZEROS = bytes(1 << 18)
_NOT_OFFERED = frozenset({errno.EOPNOTSUPP, errno.ENOTSUP, errno.ENOSYS, errno.EINVAL})


class Segment:
    """A file of frames. `outstanding` maps the offset of each frame in use to its receipt callback.

    `keys` has the keys of a dead process's frames by their offsets. A segment that is `in_memory`
    has no file, as none could be made: its frames go with the process. So it is if its file was
    removed, `is_removed`, and no other could be made yet. `is_passed_on` is one
    whose file is left to another heir of its dead process: its frames are sent, the file stays.
    """

    __slots__ = (
        "damaged",
        "file_id",
        "in_memory",
        "is_passed_on",
        "is_removed",
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

    def __init__(
        self, path: Path, mapped: mmap, file_id: FileId | None = None, scan: SegmentScan | None = None
    ) -> None:
        """Hold a mapped file, or memory; `scan` has the frames that a dead process left."""
        self.path = path
        self.file_id = file_id
        self.map = mapped
        self.orphan = scan is not None  # of a dead process
        self.in_memory = self.is_passed_on = self.is_removed = False
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

    @property
    def has_lost_file(self) -> bool:
        """True if the file was removed or replaced by others, and not written anew since."""
        if self.in_memory or self.file_id is None or self.is_passed_on:
            return self.is_removed and not self.is_passed_on
        return self.is_removed or not is_same_file(self.path, self.file_id)

    @property
    def needs_file(self) -> bool:
        """True if its frames are in no file that another process can find."""
        return not self.is_passed_on and (self.in_memory or self.has_lost_file)

    def restore_file(self, path: Path) -> None:
        """Write all bytes into a new file; the mapped ones outlive the removal of theirs.

        Raises `OSError`.
        """
        restored = create_segment(path, len(self.map) - HEAD_BYTES, self.map[: self.size])
        self.map.close()
        self.path, self.map, self.file_id = path, restored.map, restored.file_id
        self.in_memory = self.is_removed = False

    def remove_file(self) -> None:
        """Delete the file, or set it aside if a part of it could not be read."""
        self.map.close()  # first: Windows deletes no file that is mapped
        if self.in_memory or self.is_passed_on:
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


def create_segment(path: Path, capacity: int, content: bytes = b"") -> Segment:
    """Create a file with room for `capacity` bytes of frames. Raises `OSError`.

    `content` is that of another one, with its head. The file gets its name when it is complete, so
    that a file of that name without a head is damaged.
    """
    temporary = path.with_name(path.name + ".tmp")
    fd = os.open(temporary, OPEN_FLAGS | os.O_CREAT | os.O_EXCL, 0o600)
    try:
        try:
            allocate_blocks(fd, HEAD_BYTES + capacity)
            mapped, known = mmap(fd, HEAD_BYTES + capacity), file_id(fd)
        finally:
            os.close(fd)
        if content:
            mapped[: len(content)] = content
        else:
            write_head(mapped, 0)
        if os.name == "nt":  # no file can be renamed that is mapped
            mapped.close()
            temporary.replace(path)
            return Segment(path, *_map_known(path))
        temporary.replace(path)
    except OSError:
        with suppress(OSError):
            temporary.unlink()
        raise
    return Segment(path, mapped, known)


def memory_segment(path: Path, capacity: int) -> Segment:
    """Return a segment without a file, with room for `capacity` bytes of frames.

    `path` only names it. Raises `OSError` if there is no memory.
    """
    mapped = mmap(-1, HEAD_BYTES + capacity)
    write_head(mapped, 0)
    segment = Segment(path, mapped)
    segment.in_memory = True
    return segment


def map_file(path: Path) -> mmap:
    """Map an existing file. Raises `OSError`, `ValueError` if it is empty."""
    return _map_known(path)[0]


def _map_known(path: Path) -> tuple[mmap, FileId]:
    fd = os.open(path, OPEN_FLAGS)
    try:
        return mmap(fd, 0), file_id(fd)
    finally:
        os.close(fd)


def read_segment(path: Path) -> tuple[Segment | None, SegmentScan]:
    """Open the file of a dead process; None if it has no readable frame. Raises `OSError`."""
    if not path.stat().st_size:
        return None, scan_segment(b"")  # it was cut: a process names a file when it is complete
    mapped, known = _map_known(path)
    scan = scan_segment(mapped)
    segment = Segment(path, mapped, known, scan)
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
