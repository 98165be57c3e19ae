"""The spool: a write-ahead queue of events that Kafka has not acknowledged, in files.

    <producer id>.lock            held (flock) while its client lives; a free one marks orphans
    <producer id>.<n>.wal         a segment, oldest first; removed once all its frames are done
    <producer id>.expired         frames that were too old to be replayed, kept for inspection

Not thread-safe: `transport` holds one lock around it.
"""

import fcntl
import os
from collections import deque
from pathlib import Path

from sessionary.producers.delivery.spool.segment import (
    HEAD,
    Frame,
    FramePosition,
    Segment,
    encode_frame,
    iter_frames,
    segment_start,
)
from sessionary.producers.errors import SettingsError
from sessionary.producers.ports import OnReceipt

_SEGMENT_BYTES = 4 << 20
_SEGMENTS_PER_SPOOL_MIN = 8
_TRUNCATE_BYTES = 64 << 10
# The processor keeps gravestones for the topic's retention plus this, so that a replayed
# `session_created` never revives an archived session.
AGE_LIMIT_MS = 7 * 86_400_000


def _created_ns(lock: Path) -> int:
    try:
        return lock.stat().st_mtime_ns
    except FileNotFoundError:  # its owner closed just now
        return 0


def _try_lock(path: Path, *, create: bool) -> int | None:
    """Return the file, locked; None if another process holds it or it is gone."""
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
    """One queue with a cursor: segments of dead processes first, then those of this process."""

    def __init__(self, folder: Path, producer_id: str, bytes_max: int) -> None:
        """Take over the orphans in `folder`. Raises `SettingsError` if the folder is not usable."""
        self._folder = folder
        self._producer_id = producer_id
        self._bytes_max = bytes_max
        self._segment_bytes = min(_SEGMENT_BYTES, bytes_max // _SEGMENTS_PER_SPOOL_MIN)
        self._number = 0
        self._bytes = 0
        self._segments: deque[Segment] = deque()
        self._locks: dict[Path, int] = {}
        self.torn: list[str] = []  # Orphans with an unreadable tail, for people
        self.outstanding = 0
        self.taken_over = 0  # Number of frames of dead processes
        try:
            folder.mkdir(parents=True, exist_ok=True, mode=0o700)
            own = _try_lock(folder / f"{producer_id}.lock", create=True)
            for lock in sorted(folder.glob("*.lock"), key=_created_ns):
                self._take_over(lock)
            self._locks[folder / f"{producer_id}.lock"] = -1 if own is None else own
            self._tail = self._add_segment(0)
        except OSError as error:
            raise SettingsError(f"SESSIONARY_SPOOL_DIR: {folder} cannot be used: {error}") from None
        self._cursor = segment_start(self._segments[0])

    @property
    def at_end(self) -> bool:
        """True if the cursor is at the end: the next frame may be sent directly."""
        return self._cursor.segment is self._tail and self._cursor.end >= self._tail.size

    @property
    def bytes_held(self) -> int:
        """Bytes of the frames in all segments; done frames count until their segment is cleared."""
        return self._bytes

    def oldest_ms(self) -> int | None:
        """Return when the oldest frame that is not done was written, in ms since the epoch."""
        firsts = ((segment, next(iter(segment.outstanding), None)) for segment in self._segments)
        return min((segment.written_ms(first) for segment, first in firsts if first is not None), default=None)

    def append_frame(self, frame: Frame, on_receipt: OnReceipt | None) -> FramePosition:
        """Write one frame. Raises `OSError` if spool or disk is full; then nothing was written."""
        data = encode_frame(frame)
        if self._bytes + len(data) > self._bytes_max:
            raise OSError(f"the spool holds {self._bytes} bytes, its limit is {self._bytes_max}")
        if not self._tail.has_room(len(data)):
            self._rotate_segment(len(data))
        tail = self._tail
        offset = tail.write_frame(data)
        self._bytes += len(data)
        tail.outstanding[offset] = on_receipt
        self.outstanding += 1
        return FramePosition(tail, offset, tail.size)

    def read_frames(self, frames_max: int) -> list[tuple[FramePosition, Frame]]:
        """Return up to `frames_max` frames that are not done, from the cursor on.

        Does not advance the cursor past a returned frame: call `mark_sent`.
        """
        while True:
            segment = self._cursor.segment
            found: list[tuple[FramePosition, Frame]] = []
            for offset, end, frame in iter_frames(segment.map, self._cursor.end, segment.size):
                if offset in segment.outstanding:
                    found.append((FramePosition(segment, offset, end), frame))
                    if len(found) >= frames_max:
                        break
            if found:
                return found
            if segment is self._tail:
                self._cursor = FramePosition(segment, segment.size, segment.size)
                return []
            self._cursor = segment_start(self._next_segment(segment))

    def mark_sent(self, position: FramePosition) -> None:
        """Move the cursor behind a frame that was queued for Kafka."""
        if position.segment in self._segments:  # else it is done already, and its file is gone
            self._cursor = position

    def rewind_cursor(self) -> None:
        """Move the cursor back to the oldest frame that is not done."""
        for segment in self._segments:
            if segment.outstanding:
                first = next(iter(segment.outstanding))
                self._cursor = FramePosition(segment, first, first)
                return
        self._cursor = FramePosition(self._tail, self._tail.size, self._tail.size)

    def mark_done(self, position: FramePosition) -> OnReceipt | None:
        """Remove a frame; return its receipt callback. Raises `KeyError` if it is done already."""
        segment = position.segment
        on_receipt = segment.outstanding.pop(position.offset)
        self.outstanding -= 1
        if not segment.outstanding:
            if segment.sealed:
                self._remove_if_done(segment)
            elif segment.size >= _TRUNCATE_BYTES:
                self.truncate_tail()
        return on_receipt

    def truncate_tail(self) -> None:
        """Clear the last segment if all frames in it are done."""
        tail = self._tail
        if tail.size and not tail.outstanding and self.at_end:
            self._bytes -= tail.size
            tail.clear_frames()
            self._cursor = segment_start(tail)

    def store_expired(self, frame: Frame) -> Path:
        """Append a frame that is too old to be sent to the file for these; return its path."""
        path = self._folder / f"{self._producer_id}.expired"
        with path.open("ab") as kept:
            kept.write(encode_frame(frame))
        return path

    def close(self) -> None:
        """Remove segments that are done, leave the rest to the next client, release the locks."""
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

    def _add_segment(self, length: int) -> Segment:
        """Add a segment with room for a frame of `length` bytes. Raises `OSError`."""
        self._number += 1
        path = self._folder / f"{self._producer_id}.{self._number:08d}.wal"
        segment = Segment(path, max(self._segment_bytes, length + HEAD.size))
        self._segments.append(segment)
        return segment

    def _rotate_segment(self, length: int) -> None:
        former, follows = self._tail, self.at_end
        self._tail = self._add_segment(length)
        former.sealed = True
        if follows:
            self._cursor = segment_start(self._tail)
        self._remove_if_done(former)

    def _next_segment(self, segment: Segment) -> Segment:
        return self._segments[self._segments.index(segment) + 1]

    def _remove_if_done(self, segment: Segment) -> bool:
        if segment.outstanding or not segment.sealed:
            return False
        if self._cursor.segment is segment and segment is not self._tail:
            self._cursor = segment_start(self._next_segment(segment))
        segment.path.unlink(missing_ok=True)
        segment.map.close()
        self._segments.remove(segment)
        self._bytes -= segment.size
        return True

    def _take_over(self, lock: Path) -> None:
        """Queue the segments of a dead process, in order, if its lock is free."""
        fd = _try_lock(lock, create=False)
        if fd is None:
            return
        self._locks[lock] = fd
        for path in sorted(self._folder.glob(f"{lock.stem}.*.wal")):
            if not path.stat().st_size:  # its owner died while it created the file
                path.unlink()
                continue
            segment = Segment(path)
            for offset, end, _ in iter_frames(segment.map, 0, len(segment.map)):
                segment.outstanding[offset] = None
                segment.size = end
            if segment.map[segment.size : segment.size + HEAD.size].strip(b"\0"):
                self.torn.append(f"{path}: torn at byte {segment.size}")
            if not segment.outstanding:
                segment.map.close()
                path.unlink()
                continue
            self._segments.append(segment)
            self._bytes += segment.size
            self.outstanding += len(segment.outstanding)
            self.taken_over += len(segment.outstanding)


__all__ = ["AGE_LIMIT_MS", "Spool"]
