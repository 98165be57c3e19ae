"""One spool file and the frames in it.

A frame is the length and CRC-32 of its body (4 bytes each, big-endian), then the body: write time
(ms since the epoch), the lengths of key and traceparent, key, traceparent, value. A length of 0 or
a torn frame ends a file.

Segments are memory-mapped: a write is a copy, not a system call that would release the
interpreter's lock and compete for it again. Blocks are allocated in advance, so that a full disk
is an error at that moment, never a signal later. Nothing is fsynced: the spool survives the
process, not the machine.
"""

import mmap
import os
import struct
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from sessionary.producers.ports import OnReceipt

HEAD = struct.Struct(">II")
_BODY = struct.Struct(">QHH")
_END = bytes(HEAD.size)


class Frame(NamedTuple):
    """The content of one frame."""

    written_ms: int  # ms since the epoch
    key: bytes
    traceparent: str | None
    value: bytes


class Segment:
    """A spool file. `outstanding` maps the offset of each frame in use to its receipt callback."""

    __slots__ = ("map", "outstanding", "path", "sealed", "size")

    def __init__(self, path: Path, capacity: int = 0) -> None:
        """Create the file with room for `capacity` bytes, or open it if 0. Raises `OSError`."""
        self.path = path
        self.size = 0
        self.sealed = not capacity
        self.outstanding: dict[int, OnReceipt | None] = {}
        create = os.O_CREAT | os.O_EXCL if capacity else 0
        fd = os.open(path, os.O_RDWR | os.O_CLOEXEC | create, 0o600)
        try:
            if capacity:
                os.posix_fallocate(fd, 0, capacity)
            self.map = mmap.mmap(fd, capacity)
        except OSError:
            if capacity:
                path.unlink()
            raise
        finally:
            os.close(fd)

    def has_room(self, length: int) -> bool:
        """Return True if a frame of `length` bytes fits, with the end mark behind it."""
        return self.size + length + HEAD.size <= len(self.map)

    def write_frame(self, data: bytes) -> int:
        """Write an encoded frame at the end, return its offset."""
        start, end = self.size, self.size + len(data)
        # The end mark first: bytes of an earlier use must never be read as the next frame.
        self.map[end : end + HEAD.size] = _END
        self.map[start:end] = data
        self.size = end
        return start

    def written_ms(self, offset: int) -> int:
        """Return the write time of the frame at `offset`, in ms since the epoch."""
        written_ms, _, _ = _BODY.unpack_from(self.map, offset + HEAD.size)
        return int(written_ms)

    def clear_frames(self) -> None:
        """Make the segment empty."""
        self.map[: HEAD.size] = _END
        self.size = 0


class FramePosition(NamedTuple):
    """Position of a frame. For a cursor `offset` is `end`: the next frame begins there."""

    segment: Segment
    offset: int
    end: int


def encode_frame(frame: Frame) -> bytes:
    """Return the frame as it is stored."""
    trace = frame.traceparent.encode() if frame.traceparent else b""
    body = b"".join((_BODY.pack(frame.written_ms, len(frame.key), len(trace)), frame.key, trace, frame.value))
    return HEAD.pack(len(body), zlib.crc32(body)) + body


def iter_frames(data: mmap.mmap, start: int, size: int) -> Iterator[tuple[int, int, Frame]]:
    """Yield (offset, end, frame) from `start` to `size`, the end mark or the first torn frame."""
    offset = start
    while offset + HEAD.size <= size:
        length, crc = HEAD.unpack_from(data, offset)
        begin, end = offset + HEAD.size, offset + HEAD.size + length
        if length < _BODY.size or end > size:
            return
        body = data[begin:end]
        if zlib.crc32(body) != crc:
            return
        written_ms, key_length, trace_length = _BODY.unpack_from(body)
        cut = _BODY.size + key_length
        trace = body[cut : cut + trace_length].decode() or None
        yield offset, end, Frame(written_ms, body[_BODY.size : cut], trace, body[cut + trace_length :])
        offset = end


def segment_start(segment: Segment) -> FramePosition:
    """Return the cursor before the first frame."""
    return FramePosition(segment, 0, 0)


__all__ = ["HEAD", "Frame", "FramePosition", "Segment", "encode_frame", "iter_frames", "segment_start"]
