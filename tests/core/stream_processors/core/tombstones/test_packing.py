"""Which tombstones become a chunk, and which chunks become one."""

import heapq

from sessionary.schemas.records import TombstoneChunk
from sessionary.stream_processors.core.tombstones import (
    DAY_MS,
    ROUNDS_MAX,
    Changes,
    ChunkIndex,
    ChunkSizes,
    Waiting,
    chunk_key,
    count_hashes,
    end_of_day,
    hash_key,
    is_chunk_key,
    join_hashes,
    merge_chunks,
    pack_tombstones,
    split_hashes,
)

SIZES = ChunkSizes(chunk_keys=10, chunks_merged=4)
DAY = 19_700 * DAY_MS


def waiting_rows(*counts: int) -> Waiting:
    """Return rows that vanish, so many on each day."""
    rows = [(DAY + day * DAY_MS - n, b"%d-%d" % (day, n)) for day, count in enumerate(counts) for n in range(count)]
    heapq.heapify(rows)
    return rows


def pack(waiting: Waiting, index: ChunkIndex, sizes: ChunkSizes = SIZES) -> Changes:
    ends = {key: end_of_day(due_ms) for due_ms, key in waiting}
    return pack_tombstones(waiting, index, sizes, ends.get)


def put_changes(index: ChunkIndex, changes: Changes) -> None:
    for key, chunk in changes.items():
        if is_chunk_key(key):
            index.put_chunk(key, chunk)


def test_tombstones_wait_until_they_fill_a_chunk() -> None:
    waiting = waiting_rows(9)
    assert pack(waiting, ChunkIndex()) == {}
    assert len(waiting) == 9


def test_those_of_one_day_become_one_chunk_and_their_rows_go() -> None:
    changes = pack(waiting := waiting_rows(7, 3), index := ChunkIndex())
    assert waiting == []
    assert {key for key in changes if not is_chunk_key(key)} == {key for _, key in waiting_rows(7, 3)}
    chunks = {key: chunk for key, chunk in changes.items() if chunk is not None}
    assert {key: (chunk.expires_at, count_hashes(chunk.key_hashes)) for key, chunk in chunks.items()} == {
        chunk_key(DAY, 0): (DAY, 7),
        chunk_key(DAY + DAY_MS, 0): (DAY + DAY_MS, 3),
    }
    put_changes(index, changes)
    assert all(index.holds(key, DAY - 1) for _, key in waiting_rows(7, 3))
    assert chunk_key(DAY, 1) in pack(waiting_rows(10), index)


def test_one_transaction_packs_a_bounded_number_the_earliest_first() -> None:
    waiting = waiting_rows(5_000)
    changes = pack(waiting, ChunkIndex())
    assert len(waiting) == 5_000 - ROUNDS_MAX * SIZES.chunk_keys
    assert sum(chunk is not None for chunk in changes.values()) == ROUNDS_MAX
    assert {b"0-%d" % n for n in range(4_960, 5_000)} == {key for key in changes if not is_chunk_key(key)}


def test_a_key_that_waits_twice_or_is_no_tombstone_any_more_is_packed_once_or_never() -> None:
    waiting = [(DAY, b"twice"), (DAY, b"twice"), (DAY, b"gone"), *((DAY, b"%d" % n) for n in range(7))]
    changes = pack_tombstones(waiting, ChunkIndex(), SIZES, lambda key: None if key == b"gone" else DAY)
    assert b"gone" not in changes
    assert waiting == [(DAY, b"gone")]  # if it is a row that is never packed, it still vanishes
    (chunk,) = (chunk for chunk in changes.values() if chunk is not None)
    assert chunk.key_hashes == join_hashes(map(hash_key, {b"twice", *(b"%d" % n for n in range(7))}))


def index_with(*chunks: tuple[int, int]) -> ChunkIndex:
    """Return chunks of so many tombstones on so many days after the first."""
    index, number = ChunkIndex(), 0
    for day, count in chunks:
        ends, number = DAY + day * DAY_MS, number + 1
        hashes = join_hashes(hash_key(b"%d %d" % (number, n)) for n in range(count))
        index.put_chunk(chunk_key(ends, number), TombstoneChunk(ends, hashes))
    return index


def all_hashes(index: ChunkIndex) -> set[bytes]:
    return {one for _, day in index.days_after(0) for hashes in day.values() for one in split_hashes(hashes)}


def test_so_many_small_chunks_of_a_day_become_one_and_a_large_one_stays() -> None:
    assert merge_chunks(index_with((0, 10), (0, 10), (0, 10)), SIZES, 0) == {}
    index = index_with((0, 40), *[(0, 10)] * 5)
    before = all_hashes(index)
    put_changes(index, merge_chunks(index, SIZES, 0))
    ((_, day),) = index.days_after(0)
    assert sorted(map(count_hashes, day.values())) == [10, 40, 40]
    assert all_hashes(index) == before
    assert merge_chunks(index, SIZES, 0) == {}


def test_the_small_chunks_of_a_day_become_one_when_a_later_day_begins() -> None:
    index = index_with((0, 3), (0, 4), (1, 3), (1, 4))
    before = all_hashes(index)
    put_changes(index, merge_chunks(index, SIZES, 0))
    assert [[count_hashes(hashes) for hashes in day.values()] for _, day in index.days_after(0)] == [[7], [3, 4]]
    assert all_hashes(index) == before
    assert merge_chunks(index, SIZES, 0) == {}
    assert merge_chunks(index_with((0, 3), (0, 4), (1, 3)), SIZES, DAY) == {}


def test_a_tombstone_is_written_about_twice() -> None:
    index, sizes, total, written = ChunkIndex(), ChunkSizes(), 100_000, 0
    for first in range(0, total, sizes.chunk_keys):
        waiting = [(DAY, b"%d" % n) for n in range(first, min(total, first + sizes.chunk_keys))]
        merged, packed = merge_chunks(index, sizes, 0), pack_tombstones(waiting, index, sizes, lambda _: DAY)
        for changes in (packed, merged):
            put_changes(index, changes)
            written += sum(len(chunk.key_hashes) + 100 for chunk in changes.values() if chunk is not None)
    kept = sum(len(hashes) + 100 for _, day in index.days_after(0) for hashes in day.values())
    packed_keys = len(index)
    assert total - packed_keys < sizes.chunk_keys
    assert kept / packed_keys < 17
    assert written / packed_keys < 34
