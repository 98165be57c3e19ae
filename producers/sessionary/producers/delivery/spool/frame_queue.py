"""A queue of segments with a read cursor: the oldest segment first."""

from collections import deque
from collections.abc import Container

from sessionary.producers.delivery.spool.frames import HEAD_BYTES, Frame
from sessionary.producers.delivery.spool.segment import FramePosition, Segment

StoredFrame = tuple[FramePosition, Frame | None]
"""A frame and its place; None if its bytes are damaged."""


class FrameQueue:
    """Segments in order. A segment that is sealed gets no more frames, and goes once it is done.

    Not thread-safe.
    """

    def __init__(self) -> None:
        self.segments: deque[Segment] = deque()
        self.outstanding = 0  # Frames that are not done
        self.bytes_held = 0  # Of the frames in all segments
        self.bytes_sent = 0  # Of the frames that are sent and not done
        self.cursor: FramePosition | None = None

    @property
    def at_end(self) -> bool:
        """True if no frame waits behind the cursor."""
        cursor = self.cursor
        return cursor is None or (cursor.end >= cursor.segment.size and cursor.segment is self.segments[-1])

    def add_segment(self, segment: Segment) -> None:
        """Add a segment at the end, with the frames that it has."""
        follows = self.at_end
        self.segments.append(segment)
        self.outstanding += len(segment.outstanding)
        self.bytes_held += segment.size - HEAD_BYTES
        if follows:
            self.cursor = _before_first(segment)

    def read_frames(self, frames_max: int, held: Container[bytes] = ()) -> list[StoredFrame]:
        """Return up to `frames_max` frames from the cursor on, and none behind one of a `held` key.

        Does not advance the cursor past a returned frame: call `mark_sent`.
        """
        while self.cursor is not None:
            segment = self.cursor.segment
            found: list[StoredFrame] = []
            for offset in segment.open_offsets(self.cursor.end):
                end, frame = segment.read_frame(offset)
                if frame is not None and frame.key in held:
                    return found
                found.append((FramePosition(segment, offset, end), frame))
                if len(found) >= frames_max:
                    break
            if found:
                return found
            if segment is self.segments[-1]:
                self.cursor = FramePosition(segment, segment.size, segment.size)
                break
            self.cursor = _before_first(self._next_segment(segment))
        return []

    def mark_sent(self, position: FramePosition) -> None:
        """Move the cursor behind a frame that was queued for Kafka."""
        self.cursor = position
        self.bytes_sent += position.end - position.offset

    def rewind_cursor(self) -> None:
        """Move the cursor back to the oldest frame that is not done."""
        self.bytes_sent = 0
        if not self.segments:
            return
        for segment in self.segments:
            if segment.outstanding:
                first = next(iter(segment.outstanding))
                self.cursor = FramePosition(segment, first, first)
                return
        last = self.segments[-1]
        self.cursor = FramePosition(last, last.size, last.size)

    def remove_if_done(self, segment: Segment) -> bool:
        """Remove a sealed segment, and its file, if all its frames are done."""
        if segment.outstanding or not segment.sealed:
            return False
        if self.cursor is not None and self.cursor.segment is segment:
            last = segment is self.segments[-1]
            self.cursor = None if last else _before_first(self._next_segment(segment))
        self.segments.remove(segment)
        if self.cursor is None and self.segments:
            last_one = self.segments[-1]
            self.cursor = FramePosition(last_one, last_one.size, last_one.size)
        self.bytes_held -= segment.size - HEAD_BYTES
        segment.remove_file()
        return True

    def clear_last(self) -> None:
        """Clear the last segment if all frames in it are done, and none was damaged."""
        last = self.segments[-1]
        if last.size > HEAD_BYTES and not last.outstanding and not last.damaged and self.at_end:
            self.bytes_held -= last.size - HEAD_BYTES
            last.clear_frames()
            self.cursor = _before_first(last)

    def oldest_ms(self) -> int | None:
        """Return when the oldest frame that is not done was written, in ms since the epoch."""
        firsts = ((segment, next(iter(segment.outstanding), None)) for segment in self.segments)
        return min((segment.written_ms(first) for segment, first in firsts if first is not None), default=None)

    def _next_segment(self, segment: Segment) -> Segment:
        return self.segments[self.segments.index(segment) + 1]


def _before_first(segment: Segment) -> FramePosition:
    return FramePosition(segment, HEAD_BYTES, HEAD_BYTES)
