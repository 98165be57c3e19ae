"""Packed tombstones: the chunks of a partition, the look-up of a key in them, and their making.

A chunk has 16 bytes for each tombstone and nothing else. A look-up searches an array of the first
four bytes of each, which is made without a loop in Python: so a recovery takes 70 ns of CPU for a
tombstone.

The changelog is compacted, so a tombstone costs its bytes in its last chunk, and the writing of the
chunks before. So tombstones wait as rows until there are `chunk_keys` of them, and the chunks of a
day become one when there are `chunks_merged` of them, or when the day is full: each hash is written
about twice. The time of packing changes no verdict.
"""

import hashlib
import heapq
import struct
from array import array
from bisect import bisect_left
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import NamedTuple

from sessionary.schemas.ids import SessionKey, is_run_key, is_task_id, split_run_key, task_key
from sessionary.schemas.records import TombstoneChunk
from sessionary.stream_processors.core.clock import NEVER_MS

# With this the key of each chunk begins. It is no UTF-8, so no key of a session does.
CHUNK_PREFIX = b"\xfftombstones"
HASH_BYTES = 16
DAY_MS = 86_400_000
_PLACE = struct.Struct(">IQ")  # the day, and the chunk's number in it
_START_BYTES = 4  # of a hash, that are searched first
_IS_LITTLE_ENDIAN = struct.pack("=I", 1)[0] == 1  # whether an array's numbers are


def hash_key(key: bytes) -> bytes:
    """Return the hash of a key in a chunk."""
    return hashlib.blake2b(key, digest_size=HASH_BYTES).digest()


def key_hashes(key: bytes) -> tuple[bytes, ...]:
    """Return the hashes of a row's key in a chunk: a task has a second one, to find its id."""
    if not is_run_key(key):
        return (hash_key(key),)
    tenant_id, session_id, run_id = split_run_key(key)
    if not is_task_id(run_id, SessionKey(tenant_id, session_id)):
        return (hash_key(key),)
    return hash_key(key), hash_key(task_key(tenant_id, run_id))


def end_of_day(moment_ms: int) -> int:
    """Return the end of the day (UTC) of a moment; both are ms of log time."""
    return -(-moment_ms // DAY_MS) * DAY_MS


def chunk_key(expires_ms: int, number: int) -> bytes:
    """Return the key of a day's chunk; `number` counts from 0."""
    return CHUNK_PREFIX + _PLACE.pack(expires_ms // DAY_MS, number)


def is_chunk_key(key: bytes) -> bool:
    """Return whether a row's key is that of a chunk."""
    return key.startswith(CHUNK_PREFIX)


def count_hashes(hashes: bytes) -> int:
    """Return how many tombstones a chunk has."""
    return len(hashes) // HASH_BYTES


def join_hashes(hashes: Iterable[bytes]) -> bytes:
    """Return a chunk's bytes of hashes in any order."""
    return b"".join(sorted(hashes))


def split_hashes(hashes: bytes) -> list[bytes]:
    """Return the hashes of a chunk."""
    return [hashes[start : start + HASH_BYTES] for start in range(0, len(hashes), HASH_BYTES)]


class _SearchedChunk(NamedTuple):
    """A chunk's hashes, and the numbers with which they begin, both sorted."""

    hashes: bytes
    starts: "array[int]"

    def has_hash(self, wanted: bytes, start: int) -> bool:
        """Return whether a hash is in the chunk; `start` is the number with which it begins."""
        hashes, starts = self
        place = bisect_left(starts, start)
        while place < len(starts) and starts[place] == start:
            if hashes.startswith(wanted, place * HASH_BYTES):
                return True
            place += 1
        return False


class ChunkIndex:
    """The committed chunks of a partition. A look-up takes some 2 µs for each chunk."""

    def __init__(self) -> None:
        self._days: dict[int, dict[bytes, _SearchedChunk]] = {}  # when they vanish → key → chunk
        self.earliest_ms = NEVER_MS  # when the first chunk vanishes, ms of log time

    def put_chunk(self, key: bytes, chunk: TombstoneChunk | None) -> None:
        """Take a chunk that was written; None removes it."""
        expires_ms = _PLACE.unpack_from(key, len(CHUNK_PREFIX))[0] * DAY_MS
        day = self._days.setdefault(expires_ms, {})
        if chunk is None:
            day.pop(key, None)
        else:
            day[key] = _SearchedChunk(chunk.key_hashes, _starts_of(chunk.key_hashes))
        if not day:
            del self._days[expires_ms]
        self.earliest_ms = min(self._days, default=NEVER_MS)

    def holds(self, key: bytes, now_ms: int) -> bool:
        """Return whether the tombstone of a row with this key is in a chunk, and not over."""
        if not self._days:
            return False
        wanted = hash_key(key)
        start = int.from_bytes(wanted[:_START_BYTES])
        return any(
            chunk.has_hash(wanted, start)
            for expires_ms, day in self._days.items()
            if expires_ms > now_ms
            for chunk in day.values()
        )

    def expired_keys(self, now_ms: int) -> Iterator[bytes]:
        """Yield the keys of the chunks that are over."""
        return (key for expires_ms, day in self._days.items() if expires_ms <= now_ms for key in day)

    def days_after(self, now_ms: int) -> list[tuple[int, Mapping[bytes, bytes]]]:
        """Return the chunks that are not over, by key, for each time at which they vanish."""
        days = sorted(expires_ms for expires_ms in self._days if expires_ms > now_ms)
        return [(day, {key: chunk.hashes for key, chunk in self._days[day].items()}) for day in days]

    def next_number(self, expires_ms: int) -> int:
        """Return a number above those of all chunks that vanish at this time."""
        start = len(CHUNK_PREFIX)
        return max((_PLACE.unpack_from(key, start)[1] + 1 for key in self._days.get(expires_ms, ())), default=0)

    def __len__(self) -> int:
        """Count the tombstones."""
        return sum(len(chunk.starts) for day in self._days.values() for chunk in day.values())


def _starts_of(hashes: bytes) -> "array[int]":
    words = array("I", hashes)  # of four bytes each
    if _IS_LITTLE_ENDIAN:
        words.byteswap()
    return words[:: HASH_BYTES // _START_BYTES]


ROUNDS_MAX = 4  # of `chunk_keys` tombstones in one transaction


class ChunkSizes(NamedTuple):
    """How many tombstones become a chunk, and how many chunks of a day become one."""

    chunk_keys: int = 512
    chunks_merged: int = 32


Waiting = list[tuple[int, bytes]]  # a heap of the rows that vanish: when (not later than that), key
Changes = Mapping[bytes, TombstoneChunk | None]


def plan_packing(
    waiting: Waiting, index: ChunkIndex, sizes: ChunkSizes, now_ms: int, expiry_ms: Callable[[bytes], int | None]
) -> Changes:
    """Return the rows that one transaction changes to pack tombstones, if enough wait.

    The arguments are those of `pack_tombstones` and `merge_chunks`.
    """
    if len(waiting) < sizes.chunk_keys:
        return {}
    merged = merge_chunks(index, sizes, now_ms)
    return {**pack_tombstones(waiting, index, sizes, expiry_ms), **merged}


def wait_again(waiting: Waiting, changes: Changes) -> None:
    """Let tombstones of a planned packing wait again."""
    for key in changes:
        if not is_chunk_key(key):
            heapq.heappush(waiting, (0, key))


def pack_tombstones(
    waiting: Waiting, index: ChunkIndex, sizes: ChunkSizes, expiry_ms: Callable[[bytes], int | None]
) -> Changes:
    """Return the rows that packing changes: chunks, and None for each tombstone in them.

    Packed tombstones leave `waiting`. `expiry_ms` returns when a row's tombstone vanishes, at the
    end of a day; None if the row is no tombstone.
    """
    changes: dict[bytes, TombstoneChunk | None] = {}
    numbers: dict[int, int] = {}
    others: Waiting = []  # a row that is never packed still waits for its end
    for _ in range(ROUNDS_MAX):
        if len(waiting) < sizes.chunk_keys:
            break
        days: dict[int, list[bytes]] = defaultdict(list)
        for _ in range(sizes.chunk_keys):
            due_ms, key = heapq.heappop(waiting)
            expires_ms = expiry_ms(key)
            if expires_ms is None:
                others.append((due_ms, key))
            elif key not in changes:
                days[expires_ms].append(key)
                changes[key] = None
        for expires_ms, keys in days.items():
            number = numbers.get(expires_ms, index.next_number(expires_ms))
            numbers[expires_ms] = number + 1
            hashes = join_hashes(one for key in keys for one in key_hashes(key))
            changes[chunk_key(expires_ms, number)] = TombstoneChunk(expires_ms, hashes)
    for entry in others:
        heapq.heappush(waiting, entry)
    return changes


def merge_chunks(index: ChunkIndex, sizes: ChunkSizes, now_ms: int) -> Changes:
    """Return the rows that change if a day's small chunks become one; at most one day's.

    The chunks of the last day wait for others; an earlier day gets no more.
    """
    days = index.days_after(now_ms)
    for expires_ms, day in days:
        small = {key: hashes for key, hashes in day.items() if count_hashes(hashes) <= sizes.chunk_keys}
        few = sizes.chunks_merged if expires_ms == days[-1][0] else 2
        if len(small) >= few:
            merged = [*small][: sizes.chunks_merged]
            hashes = join_hashes({one for key in merged for one in split_hashes(small[key])})
            return {**dict.fromkeys(merged), merged[0]: TombstoneChunk(expires_ms, hashes)}
    return {}
