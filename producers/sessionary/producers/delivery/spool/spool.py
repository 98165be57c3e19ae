"""The spool: a write-ahead queue of events that Kafka has not acknowledged, in files.

    <producer id>.lock            locked while its client lives; a free one marks orphans; notes
                                  the cluster's id once it is known
    <producer id>.<n>.seg         a segment, oldest first; removed once all its frames are done
    <segment>.damaged             a segment with bytes that could not be read; for people
    <producer id>-old.*           frames of a dead process that wait, as they seem too old
    <producer id>.expired         frames that were too old or cannot be sent, kept for inspection

Not thread-safe: `transport` holds one lock around it.
"""

import time
from collections import Counter, deque
from collections.abc import Container, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Literal, NamedTuple

from sessionary.producers.delivery.spool.file_lock import FileLock, create_locked
from sessionary.producers.delivery.spool.orphans import (
    Claim,
    Clusters,
    claim_orphans,
    owner_of,
    refuse_older_form,
    segment_owners,
)
from sessionary.producers.delivery.spool.segment import (
    HEAD_BYTES,
    Frame,
    FramePosition,
    Segment,
    create_segment,
    encode_frame,
    memory_segment,
)
from sessionary.producers.errors import SpoolDamaged, SpoolUnusable
from sessionary.producers.ports import OnReceipt
from sessionary.producers.process.clocks import awake_and_asleep_s

# A queue of segments with a read cursor: the oldest segment first.


StoredFrame = tuple[FramePosition, Frame | None]
"""A frame and its place; None if its bytes are damaged."""


class FrameQueue:
    """Segments in order. A sealed segment gets no more frames, and is removed once it is done.

    Not thread-safe.
    """

    def __init__(self) -> None:
        self.segments: deque[Segment] = deque()
        self.outstanding = 0  # Frames that are not done
        self.bytes_held = 0  # bytes of the frames in all segments
        self.bytes_sent = 0  # bytes of the frames that are sent and not done
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


def _known_owners(folder: Path) -> set[str] | None:
    """Return the producer ids of a folder's segments; None if it cannot be read now."""
    try:
        return segment_owners(folder)
    except OSError:
        return None


_SEGMENT_BYTES = 4 << 20
_SEGMENTS_PER_SPOOL_MIN = 8
_TRUNCATE_BYTES = 64 << 10
_DISK_RETRY_S = 1.0
# Orphans that are sent and not acknowledged. Own events wait behind these in librdkafka's queue.
_ORPHAN_BYTES_SENT_MAX = 4 << 20
# The processor keeps tombstones for the topic's retention plus this, so that a replayed
# `session_created` never revives an archived session.
AGE_LIMIT_MS = 7 * 86_400_000
# The clock that says so may be ahead: then it is noticed within a day, and no event is given up.
OLD_WAIT_S = 86_400.0
_OLD_LOOK_S = 600.0  # between two looks whether they are still too old
_LOOK_S = 5.0  # between two looks for processes that have died beside this one
OldEvents = Literal["wait", "send", "expire"]
"""The treatment of dead processes' events that seem older than the limit."""


def now_ms() -> int:
    """Return the time in ms since the epoch."""
    return time.time_ns() // 1_000_000


class WatchedFiles(NamedTuple):
    """The segments and locks whose files others may remove."""

    segments: list[Segment]
    locks: list[FileLock]

    def find_lost(self) -> bool:
        """Return whether a file is missing, or a segment has none."""
        return any(one.needs_file for one in self.segments) or any(lock.is_lost for lock in self.locks)

    def count_removed(self) -> int:
        """Return how many files were removed by others."""
        segments = sum(one.has_lost_file for one in self.segments)
        return segments + sum(lock.is_lost for lock in self.locks)


class Spool:
    """The queue of this process's events, and that of the events of dead processes.

    Each queue has its own budget of bytes, and both are read in turn. One rule connects them: an
    event waits until no orphan of its session is left, so that a session's events keep their order.
    The event waits at the head of the own queue, so the own events behind it, of any session, wait
    too.
    """

    def __init__(
        self, folder: Path, producer_id: str, bytes_max: int, memory_bytes_max: int = 0, old: OldEvents = "expire"
    ) -> None:
        """Take over the orphans in `folder`. Raises `SpoolUnusable`.

        If no further file can be made later, up to `memory_bytes_max` of frames go to memory.
        Orphans that seem too `old` are taken over at once, or after a day: `wait`.
        """
        self._folder = folder
        self._other_folders: dict[Path, Clusters] = {}  # by another spelling of the servers
        self._claimed_folders = self._other_folders  # at the last claim
        self._cluster_ids: set[str] = set()  # That this process has reached
        self._old = old
        self._began_s = self._looked_s = awake_and_asleep_s()
        self.old_left = 0  # Number of spools that wait, because their events seem too old
        self._producer_id = producer_id
        self._name = producer_id  # of lock and segments; another one once a process took them over
        self._renamed = 0
        self._is_closed = False
        self._bytes_max = bytes_max
        self._memory_bytes_max = 0  # The first segment has to be a file
        self._disk_retry_s = 0.0
        self.disk_error: OSError | None = None  # Why the last segment is in memory; None if it is a file
        self._segment_bytes = min(_SEGMENT_BYTES, bytes_max // _SEGMENTS_PER_SPOOL_MIN)
        self._number = 0
        self._own = FrameQueue()
        self._orphans = FrameQueue()
        self._orphan_locks: list[FileLock] = []
        self._orphans_next = True
        self._held_keys: Counter[bytes] = Counter()  # keys of the orphans that are not done
        self.damages: list[SpoolDamaged] = []
        self.taken_over = 0  # Number of frames of dead processes
        self._more_orphans = False  # There were too many to take over at once
        lock: FileLock | None = None
        refuse_older_form(folder)
        try:
            folder.mkdir(parents=True, exist_ok=True, mode=0o700)
            lock = create_locked(folder / f"{producer_id}.lock")
            self._tail = self._add_segment(0)
            self.take_over(self.claim_orphans())
        except OSError as error:
            if lock is not None:
                self._undo_start(lock)
            raise SpoolUnusable(f"SESSIONARY_SPOOL_DIR: {folder} cannot be used: {error}") from None
        self._lock = lock
        self._memory_bytes_max = memory_bytes_max

    @property
    def at_end(self) -> bool:
        """True if no frame waits to be sent."""
        return self._own.at_end and self._orphans.at_end

    @property
    def outstanding(self) -> int:
        """Number of frames that are not done."""
        return self._own.outstanding + self._orphans.outstanding

    @property
    def bytes_held(self) -> int:
        """Bytes of the frames in all segments; done frames count until their segment is cleared."""
        return self._own.bytes_held + self._orphans.bytes_held

    @property
    def may_take_over(self) -> bool:
        """True if further dead processes have left events, and those taken over are done."""
        return self._more_orphans and not self._orphans.outstanding

    @property
    def own_at_end(self) -> bool:
        """True if no frame of this process waits to be sent."""
        return self._own.at_end

    @property
    def orphans_wait(self) -> bool:
        """True if a frame of a dead process waits to be sent."""
        return not self._orphans.at_end

    def holds_orphans_of(self, key: bytes) -> bool:
        """Return True if a frame of a dead process with this key is not done."""
        return key in self._held_keys

    def may_send(self, key: bytes, *, follows: bool = False) -> bool:
        """Return True if the next frame of the session `key` may be sent directly.

        `follows`: behind others that may be, which are not sent yet.
        """
        return key not in self._held_keys and (follows or self._own.at_end)

    def oldest_ms(self) -> int | None:
        """Return when the oldest frame that is not done was written, in ms since the epoch."""
        return min((at for queue in (self._own, self._orphans) if (at := queue.oldest_ms()) is not None), default=None)

    def append_frame(self, frame: Frame, on_receipt: OnReceipt | None) -> FramePosition:
        """Write one frame, to memory if no file can be made.

        Raises `OSError` if the spool, or disk and memory, are full; then nothing was written.
        """
        own, tail = self._own, self._tail
        data = encode_frame(tail.number, frame)
        length = len(data)
        if own.bytes_held + length > self._bytes_max:
            raise OSError(f"the spool holds {own.bytes_held} bytes, its limit is {self._bytes_max}")
        if tail.size + length > len(tail.map) or (self.disk_error is not None and self._may_retry_disk(tail)):
            tail = self._rotate_segment(length)
            data = encode_frame(tail.number, frame)
        position = tail.write_frame(data, on_receipt)
        own.bytes_held += length
        own.outstanding += 1
        return position

    def read_frames(self, frames_max: int) -> list[StoredFrame]:
        """Return up to `frames_max` frames that are not done, of one of the queues in turn.

        None may be sent now although some wait. Call `mark_sent` for each that is sent.
        """
        for _ in range(2):
            self._orphans_next = not self._orphans_next
            if not self._orphans_next:
                found = self._own.read_frames(frames_max, self._held_keys)
            elif self._orphans.bytes_sent < _ORPHAN_BYTES_SENT_MAX:
                found = self._orphans.read_frames(frames_max)
            else:
                continue
            if found:
                return found
        return []

    def mark_sent(self, position: FramePosition) -> None:
        """Move the cursor behind a frame that was queued for Kafka."""
        if position.segment.orphan:
            self._orphans.mark_sent(position)
        else:
            self._own.cursor = position

    def rewind_cursor(self) -> None:
        """Move the cursors back to the oldest frames that are not done."""
        self._own.rewind_cursor()
        self._orphans.rewind_cursor()

    def mark_done(self, position: FramePosition) -> OnReceipt | None:
        """Remove a frame; return its receipt callback. Raises `KeyError` if it is done already."""
        segment = position.segment
        on_receipt = segment.outstanding.pop(position.offset)
        if segment.orphan:
            self._settle_orphan(position)
            return None
        self._own.outstanding -= 1
        if not segment.outstanding:
            if segment.sealed:
                self._own.remove_if_done(segment)
            elif segment.size >= _TRUNCATE_BYTES:
                self.truncate_tail()
        return on_receipt

    def truncate_tail(self) -> None:
        """Clear the last segment if all frames in it are done."""
        self._own.clear_last()

    def claim_orphans(self) -> Claim:
        """Lock and read the spools of dead processes, within the budget of orphans.

        Changes nothing here, and may take long: it reads files. Raises `OSError`.
        """
        self._looked_s = awake_and_asleep_s()
        may_wait = self._old == "wait" and self._looked_s - self._began_s < OLD_WAIT_S
        oldest_ms = now_ms() - AGE_LIMIT_MS if may_wait else 0
        others = self._claimed_folders = dict(self._other_folders)
        return claim_orphans({self._folder: None, **others}, self._bytes_max, oldest_ms)

    def look_again(self) -> bool:
        """Return True if it is time to look for dead processes again.

        One may have died since, or the clock may be right now, by which those that wait are too
        old: their files are read each time, so that is rare.
        """
        pause_s = min(_OLD_LOOK_S, OLD_WAIT_S) if self.old_left else _LOOK_S
        if awake_and_asleep_s() - self._looked_s >= pause_s:
            self._more_orphans = True
            self.old_left = 0
            return True
        return False

    def add_folders(self, folders: Mapping[Path, Clusters]) -> None:
        """Take over orphans in other folders too, if they are for one of the clusters there."""
        before = self._other_folders
        added = {path: clusters for path, clusters in folders.items() if path != self._folder}
        # A new object: a claim may be reading the former one.
        self._other_folders = before | {path: one | before.get(path, frozenset()) for path, one in added.items()}
        self._more_orphans = self._more_orphans or self._other_folders != before

    def note_cluster(self, cluster_id: str) -> None:
        """Note for heirs which cluster the own events are for; nothing if it has changed."""
        self._cluster_ids.add(cluster_id)
        with suppress(OSError):  # then only clients with the same spelling take them over
            self._lock.write_note(cluster_id if len(self._cluster_ids) == 1 else None)

    def is_expired(self, segment: Segment, frame: Frame) -> bool:
        """Return True if a frame is too old to be sent, by the clock and by this client's life.

        An own event is no older than its process, and an orphan has waited for a day.
        """
        if self._old == "send" or now_ms() - frame.written_ms <= AGE_LIMIT_MS:
            return False
        least_s = OLD_WAIT_S if segment.orphan else AGE_LIMIT_MS / 1_000
        return self._old == "expire" or awake_and_asleep_s() - self._began_s >= least_s

    def take_over(self, claim: Claim) -> int:
        """Queue the claimed frames; return their number."""
        before = self._orphans.outstanding
        for segment in claim.segments:
            self._orphans.add_segment(segment)
            self._held_keys.update(segment.keys.values())
        self._orphan_locks += claim.locks
        self.damages += claim.damages
        # Folders that were added while the claim was made are not in it.
        self._more_orphans = claim.more or self._claimed_folders != self._other_folders
        self.old_left = claim.old
        taken = self._orphans.outstanding - before
        self.taken_over += taken
        return taken

    def store_aside(self, frame: Frame) -> Path:
        """Append a frame that is given up to the file for these; return it. Raises `OSError`."""
        path = self._folder / f"{self._producer_id}.expired"
        with path.open("ab") as kept:
            kept.write(encode_frame(0, frame))
        return path

    def watched_files(self) -> "WatchedFiles":
        """Return the segments and locks whose files others may remove; none once it is closed."""
        if self._is_closed:
            return WatchedFiles([], [])
        segments = [*self._orphans.segments, *self._own.segments]
        return WatchedFiles(segments, [self._lock, *self._orphan_locks])

    def restore_locks(self) -> None:
        """Make the folder, and locks whose files were removed, again. Raises `OSError`.

        The locks keep their times, so that heirs take the spools over in the former order. If
        another process has taken the own segments over meanwhile, they get another name. A dead
        process's segments are left to another heir: it sends the events too, and they are known as
        duplicates.
        """
        if self._is_closed:
            return
        self._folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        for place, lock in enumerate(self._orphan_locks):
            if lock.is_lost:
                lock.release()
                lock.path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
                with suppress(FileExistsError):
                    self._orphan_locks[place] = create_locked(lock.path, lock)
                    continue
                self._pass_on(lock)
        self._orphan_locks = [lock for lock in self._orphan_locks if not lock.is_released]
        if self._lock.is_lost:
            self._lock.release()
            try:
                self._lock = create_locked(self._lock.path, self._lock)
            except FileExistsError:
                name = f"{self._producer_id}-{self._renamed + 1}"
                self._lock = create_locked(self._folder / f"{name}.lock", self._lock)
                self._name, self._renamed = name, self._renamed + 1
                for segment in self._own.segments:
                    segment.is_removed = segment.is_removed or not segment.in_memory

    def _pass_on(self, lock: FileLock) -> None:
        """Leave the files of a dead process to another heir."""
        for segment in self._orphans.segments:
            if segment.path.parent == lock.path.parent and owner_of(segment.path) == owner_of(lock.path):
                segment.in_memory, segment.is_passed_on = False, True

    def restore_segment(self, segment: Segment) -> int:
        """Write a segment that has no file into a new one; return the number of its events.

        Raises `OSError`.
        """
        queue = self._orphans if segment.orphan else self._own
        if segment not in queue.segments or not segment.needs_file:
            return 0  # it is done meanwhile
        path = segment.path
        if not segment.orphan:
            path = self._folder / f"{self._name}.{path.name.split('.', 1)[1]}"
        segment.restore_file(path)
        if segment is self._tail:
            self.disk_error = None
        return len(segment.outstanding)

    def keep_in_memory(self, failure: OSError) -> int:
        """Note that segments without a file stay so for now; return the number of their events."""
        left = [one for one in self.watched_files().segments if one.needs_file]
        for segment in left:
            segment.is_removed = segment.has_lost_file
            segment.in_memory = True
        if self._tail.in_memory:
            self.disk_error, self._disk_retry_s = failure, time.monotonic() + _DISK_RETRY_S
        return sum(len(segment.outstanding) for segment in left)

    def close(self) -> list[OnReceipt | None]:
        """Remove segments that are done, leave the rest to the next client, release the locks.

        Returns the receipt callbacks of the frames in memory, which are lost.
        """
        self._is_closed = True
        lost: list[OnReceipt | None] = []
        for queue in (self._own, self._orphans):
            for segment in list(queue.segments):
                segment.sealed = True
                if segment.in_memory:
                    lost += segment.outstanding.values()
                if not queue.remove_if_done(segment):
                    segment.map.close()
            queue.segments.clear()
        self._release_locks([*self._orphan_locks, self._lock])
        self._orphan_locks.clear()
        return lost

    def abandon(self) -> None:
        """Close maps and descriptors, and leave files and locks as they are.

        For a forked child: its parent keeps using the spool. Takes no lock of any thread. The
        object is of no use afterwards.
        """
        for queue in (self._own, self._orphans):
            for segment in queue.segments:
                segment.map.close()
        for lock in (self._lock, *self._orphan_locks):
            lock.release()

    def _settle_orphan(self, position: FramePosition) -> None:
        """Release an orphan that is done; its session's own events may follow the last one."""
        orphans, segment = self._orphans, position.segment
        orphans.outstanding -= 1
        orphans.bytes_sent -= position.end - position.offset
        key = segment.keys.pop(position.offset)
        self._held_keys[key] -= 1
        if not self._held_keys[key]:
            del self._held_keys[key]
        if not segment.outstanding:
            orphans.remove_if_done(segment)
            if not orphans.segments:
                self._release_orphans()

    def _release_orphans(self) -> None:
        self._release_locks(self._orphan_locks)
        self._orphan_locks.clear()

    def _release_locks(self, locks: list[FileLock]) -> None:
        """Free locks; a file stays if it has segments, which the next process finds by it."""
        owners = {folder: _known_owners(folder) for folder in {lock.path.parent for lock in locks}}
        for lock in locks:
            found = owners[lock.path.parent]
            if found is None or owner_of(lock.path) in found or lock.is_lost:
                lock.release()
            else:
                lock.remove()

    def _undo_start(self, lock: FileLock) -> None:
        self._lock = lock
        self.close()

    def _add_segment(self, length: int) -> Segment:
        """Add a segment with room for a frame of `length` bytes. Raises `OSError`."""
        self._number += 1
        path = self._folder / f"{self._name}.{self._number:08d}.seg"
        capacity = max(self._segment_bytes, length)
        try:
            segment = create_segment(path, capacity)
        except OSError as error:
            # One whose file was removed has its bytes on disk as long as it is mapped.
            in_memory = (one for one in self._own.segments if one.in_memory and not one.is_removed)
            held = sum(len(one.map) for one in in_memory if one.outstanding)
            capacity = max(min(capacity, self._memory_bytes_max - held), length)
            if held + capacity > self._memory_bytes_max:
                raise
            segment, self.disk_error = memory_segment(path, capacity), error
            self._disk_retry_s = time.monotonic() + _DISK_RETRY_S
        else:
            self.disk_error = None
        self._own.add_segment(segment)
        return segment

    def _may_retry_disk(self, tail: Segment) -> bool:
        """Return True if it is time to leave a segment in memory that is empty."""
        return not tail.outstanding and time.monotonic() >= self._disk_retry_s

    def _rotate_segment(self, length: int) -> Segment:
        former = self._tail
        self._tail = self._add_segment(length)
        former.sealed = True
        self._own.remove_if_done(former)
        return self._tail
