"""Which gravestones become a chunk, and which chunks become one.

The changelog is compacted, so what a gravestone costs there is what it costs in its last chunk, and
the writing of the chunks before. So gravestones wait as rows until there are `chunk_keys` of them,
and the chunks of a day become one when there are `chunks_merged` of them, or when the day is full:
each hash is written about twice. When this happens decides no verdict.
"""

import heapq
from collections import defaultdict
from collections.abc import Callable, Mapping
from typing import NamedTuple

from sessionary.schemas.records import GravestoneChunk
from sessionary.stream_processors.core.gravestones.chunk_index import (
    ChunkIndex,
    chunk_key,
    count_hashes,
    is_chunk_key,
    join_hashes,
    key_hashes,
    split_hashes,
)

ROUNDS_MAX = 4  # of `chunk_keys` gravestones in one transaction


class ChunkSizes(NamedTuple):
    """How many gravestones become a chunk, and how many chunks of a day become one."""

    chunk_keys: int = 512
    chunks_merged: int = 32


Waiting = list[tuple[int, bytes]]  # a heap of the rows that vanish: when (not later than that), key
Changes = Mapping[bytes, GravestoneChunk | None]


def plan_packing(
    waiting: Waiting, index: ChunkIndex, sizes: ChunkSizes, now_ms: int, expiry_ms: Callable[[bytes], int | None]
) -> Changes:
    """Return the rows that one transaction changes to pack gravestones, if enough wait.

    The arguments are those of `pack_gravestones` and `merge_chunks`.
    """
    if len(waiting) < sizes.chunk_keys:
        return {}
    merged = merge_chunks(index, sizes, now_ms)
    return {**pack_gravestones(waiting, index, sizes, expiry_ms), **merged}


def wait_again(waiting: Waiting, changes: Changes) -> None:
    """Let gravestones wait that were to be packed."""
    for key in changes:
        if not is_chunk_key(key):
            heapq.heappush(waiting, (0, key))


def pack_gravestones(
    waiting: Waiting, index: ChunkIndex, sizes: ChunkSizes, expiry_ms: Callable[[bytes], int | None]
) -> Changes:
    """Return the rows that packing changes: chunks, and None for each gravestone in them.

    What is packed is taken out of `waiting`. `expiry_ms` returns when a row's gravestone vanishes,
    at the end of a day; None if the row is none.
    """
    changes: dict[bytes, GravestoneChunk | None] = {}
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
            changes[chunk_key(expires_ms, number)] = GravestoneChunk(expires_ms, hashes)
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
            return {**dict.fromkeys(merged), merged[0]: GravestoneChunk(expires_ms, hashes)}
    return {}
