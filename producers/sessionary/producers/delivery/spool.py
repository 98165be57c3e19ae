"""The spool: a write-ahead file of events that Kafka has not acknowledged, in segments, per producer id.

    <producer id>.lock            held (flock) while its client lives; a free one marks orphans
    <producer id>.<n>.wal         frames, oldest segment first; removed once every frame in it is done
    <producer id>.expired         frames too old to be replayed, kept for people

A frame is length and CRC-32 of its body (4 bytes each, big-endian), then the body: when it was written (ms since the
epoch), the lengths of key and traceparent, key, traceparent, value. A length of 0 or a torn frame ends a file.

Segments are memory-mapped: a write is a copy, without a system call in which the agent would have to give up the
interpreter's lock and fight for it again. Their blocks are allocated beforehand, so that a full disk is an error there
and never a signal later. Nothing is fsynced: the spool outlives the process, not the machine. Not thread-safe:
`spooled` holds one lock around it.
"""

import fcntl
import mmap
import os
import struct
import zlib
from collections import deque
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from sessionary.producers.errors import SettingsError
from sessionary.producers.ports import OnReceipt

_HEAD = struct.Struct(">II")
_BODY = struct.Struct(">QHH")
_SEGMENT_BYTES = 4 << 20
_SEGMENTS_PER_SPOOL_MIN = 8
_END = bytes(_HEAD.size)
_TRUNCATE_BYTES = 64 << 10
AGE_LIMIT_MS = 7 * 86_400_000  # Gravestones stay for the topic's retention and this


class Frame(NamedTuple):
    """What one frame says."""

    written_ms: int
    key: bytes
    traceparent: str | None
    value: bytes


class Segment:
    """One file: its frames that are not done, by offset, with who waits for each."""

    __slots__ = ("map", "outstanding", "path", "sealed", "size")

    def __init__(self, path: Path, capacity: int = 0) -> None:
        """Make the file with room for `capacity` bytes, or open the one that is there. Raises `OSError`."""
        self.path = path
        self.size = 0
        self.sealed = not capacity
        self.outstanding: dict[int, OnReceipt | None] = {}
        made = os.O_CREAT | os.O_EXCL if capacity else 0
        fd = os.open(path, os.O_RDWR | os.O_CLOEXEC | made, 0o600)
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

    def room_for(self, length: int) -> bool:
        """Whether a frame of `length` bytes fits, and the end mark behind it."""
        return self.size + length + _HEAD.size <= len(self.map)

    def write(self, data: bytes) -> int:
        """Write a frame at the end, return its offset."""
        start, end = self.size, self.size + len(data)
        self.map[end : end + _HEAD.size] = _END  # first: what was there once must never be read as the next frame
        self.map[start:end] = data
        self.size = end
        return start

    def clear(self) -> None:
        """Forget what was written."""
        self.map[: _HEAD.size] = _END
        self.size = 0


class Place(NamedTuple):
    """Where a frame stands, or the cursor (then `offset` is `end`)."""

    segment: Segment
    offset: int
    end: int


def _frame(frame: Frame) -> bytes:
    trace = frame.traceparent.encode() if frame.traceparent else b""
    body = b"".join((_BODY.pack(frame.written_ms, len(frame.key), len(trace)), frame.key, trace, frame.value))
    return _HEAD.pack(len(body), zlib.crc32(body)) + body


def _frames(data: mmap.mmap, start: int, size: int) -> Iterator[tuple[int, int, Frame]]:
    """Yield (offset, end, frame) from `start` up to `size`, or up to the end mark or the first torn frame."""
    offset = start
    while offset + _HEAD.size <= size:
        length, crc = _HEAD.unpack_from(data, offset)
        begin, end = offset + _HEAD.size, offset + _HEAD.size + length
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


def _start(segment: Segment) -> Place:
    return Place(segment, 0, 0)


def _made_ns(lock: Path) -> int:
    try:
        return lock.stat().st_mtime_ns
    except FileNotFoundError:  # its owner finished just now
        return 0


def _locked(path: Path, *, create: bool) -> int | None:
    """Return the locked file, or None where somebody holds it or it is gone."""
    try:
        fd = os.open(path, os.O_RDWR | os.O_CLOEXEC | (os.O_CREAT if create else 0), 0o600)
    except FileNotFoundError:
        return None
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(fd)
        return None
    return fd


class Spool:
    """The segments of this process, behind those of dead ones it took over: one queue, read by a cursor."""

    def __init__(self, folder: Path, producer_id: str, bytes_max: int) -> None:
        """Take over the folder's orphans. Raises `SettingsError` where the folder cannot be used."""
        self._folder = folder
        self._producer_id = producer_id
        self._bytes_max = bytes_max
        self._segment_bytes = min(_SEGMENT_BYTES, bytes_max // _SEGMENTS_PER_SPOOL_MIN)
        self._number = 0
        self._bytes = 0
        self._segments: deque[Segment] = deque()
        self._locks: dict[Path, int] = {}
        self.torn: list[str] = []  # Orphans whose tail could not be read
        self.outstanding = 0
        self.taken_over = 0  # Frames of dead processes
        try:
            folder.mkdir(parents=True, exist_ok=True, mode=0o700)
            own = _locked(folder / f"{producer_id}.lock", create=True)
            for lock in sorted(folder.glob("*.lock"), key=_made_ns):
                self._take_over(lock)
            self._locks[folder / f"{producer_id}.lock"] = -1 if own is None else own
            self._tail = self._opened(0)
        except OSError as error:
            raise SettingsError(f"SESSIONARY_SPOOL_DIR: {folder} cannot be used: {error}") from None
        self._cursor = _start(self._segments[0])

    @property
    def drained(self) -> bool:
        """Whether the cursor stands at the end: what is appended next may be sent directly."""
        return self._cursor.segment is self._tail and self._cursor.end >= self._tail.size

    def append(self, frame: Frame, on_receipt: OnReceipt | None) -> Place:
        """Write one frame. Raises `OSError` where the spool or the disk is full; then nothing was written."""
        data = _frame(frame)
        if self._bytes + len(data) > self._bytes_max:
            raise OSError(f"the spool holds {self._bytes} bytes, its limit is {self._bytes_max}")
        if not self._tail.room_for(len(data)):
            self._rotate(len(data))
        tail = self._tail
        offset = tail.write(data)
        self._bytes += len(data)
        tail.outstanding[offset] = on_receipt
        self.outstanding += 1
        return Place(tail, offset, tail.size)

    def read(self, frames_max: int) -> list[tuple[Place, Frame]]:
        """Return up to `frames_max` frames that are not done, from the cursor on; the cursor moves by `sent` only."""
        while True:
            segment = self._cursor.segment
            found: list[tuple[Place, Frame]] = []
            for offset, end, frame in _frames(segment.map, self._cursor.end, segment.size):
                if offset in segment.outstanding:
                    found.append((Place(segment, offset, end), frame))
                    if len(found) >= frames_max:
                        break
            if found:
                return found
            if segment is self._tail:
                self._cursor = Place(segment, segment.size, segment.size)
                return []
            self._cursor = _start(self._after(segment))

    def sent(self, place: Place) -> None:
        """Move the cursor behind a frame that was handed on."""
        if place.segment in self._segments:  # it may be done, and its file gone, already
            self._cursor = place

    def rewind(self) -> None:
        """Move the cursor back to the oldest frame that is not done."""
        for segment in self._segments:
            if segment.outstanding:
                first = next(iter(segment.outstanding))
                self._cursor = Place(segment, first, first)
                return
        self._cursor = Place(self._tail, self._tail.size, self._tail.size)

    def done(self, place: Place) -> OnReceipt | None:
        """Forget a frame; return who waits for it. Raises `KeyError` if it was done before."""
        segment = place.segment
        on_receipt = segment.outstanding.pop(place.offset)
        self.outstanding -= 1
        if not segment.outstanding:
            if segment.sealed:
                self._remove_if_done(segment)
            elif segment.size >= _TRUNCATE_BYTES:
                self.truncate()
        return on_receipt

    def truncate(self) -> None:
        """Empty the last segment where everything in it is done."""
        tail = self._tail
        if tail.size and not tail.outstanding and self.drained:
            self._bytes -= tail.size
            tail.clear()
            self._cursor = _start(tail)

    def expire(self, frame: Frame) -> Path:
        """Keep a frame aside that is too old to be sent; return the file."""
        path = self._folder / f"{self._producer_id}.expired"
        with path.open("ab") as kept:
            kept.write(_frame(frame))
        return path

    def close(self) -> None:
        """Remove what is done, leave the rest to the next client, give up the locks."""
        for segment in list(self._segments):
            segment.sealed = True
            if not self._remove_if_done(segment):
                segment.map.close()
        left = {path.name.split(".")[0] for path in self._folder.glob("*.wal")}
        for lock, fd in self._locks.items():
            if lock.stem not in left:
                lock.unlink(missing_ok=True)
            if fd >= 0:
                os.close(fd)
        self._locks.clear()
        self._segments.clear()

    def _opened(self, length: int) -> Segment:
        """Add a segment that has room for a frame of `length` bytes. Raises `OSError`."""
        self._number += 1
        path = self._folder / f"{self._producer_id}.{self._number:08d}.wal"
        segment = Segment(path, max(self._segment_bytes, length + _HEAD.size))
        self._segments.append(segment)
        return segment

    def _rotate(self, length: int) -> None:
        former, follows = self._tail, self.drained
        self._tail = self._opened(length)
        former.sealed = True
        if follows:
            self._cursor = _start(self._tail)
        self._remove_if_done(former)

    def _after(self, segment: Segment) -> Segment:
        return self._segments[self._segments.index(segment) + 1]

    def _remove_if_done(self, segment: Segment) -> bool:
        if segment.outstanding or not segment.sealed:
            return False
        if self._cursor.segment is segment and segment is not self._tail:
            self._cursor = _start(self._after(segment))
        segment.path.unlink(missing_ok=True)
        segment.map.close()
        self._segments.remove(segment)
        self._bytes -= segment.size
        return True

    def _take_over(self, lock: Path) -> None:
        """Queue a dead process's segments, in order, if its lock is free."""
        fd = _locked(lock, create=False)
        if fd is None:
            return
        self._locks[lock] = fd
        for path in sorted(self._folder.glob(f"{lock.stem}.*.wal")):
            if not path.stat().st_size:  # its owner died while it made the file
                path.unlink()
                continue
            segment = Segment(path)
            for offset, end, _ in _frames(segment.map, 0, len(segment.map)):
                segment.outstanding[offset] = None
                segment.size = end
            if segment.map[segment.size : segment.size + _HEAD.size].strip(b"\0"):
                self.torn.append(f"{path}: torn at byte {segment.size}")
            if not segment.outstanding:
                segment.map.close()
                path.unlink()
                continue
            self._segments.append(segment)
            self._bytes += segment.size
            self.outstanding += len(segment.outstanding)
            self.taken_over += len(segment.outstanding)


__all__ = ["AGE_LIMIT_MS", "Frame", "Place", "Segment", "Spool"]
