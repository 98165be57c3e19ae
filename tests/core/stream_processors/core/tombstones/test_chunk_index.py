"""The chunks of a partition: look-ups, ends and numbers, beside a plain set."""

import sys
import tracemalloc

from hypothesis import given
from hypothesis import strategies as st

from sessionary.schemas.records import TombstoneChunk
from sessionary.stream_processors.core.clock import NEVER_MS
from sessionary.stream_processors.core.tombstones import (
    CHUNK_PREFIX,
    DAY_MS,
    HASH_BYTES,
    ChunkIndex,
    chunk_key,
    end_of_day,
    hash_key,
    is_chunk_key,
    join_hashes,
    split_hashes,
)

DAY = 19_700 * DAY_MS


def chunk_of(expires_ms: int, *keys: bytes) -> TombstoneChunk:
    return TombstoneChunk(expires_ms, join_hashes(map(hash_key, keys)))


@given(st.lists(st.lists(st.binary(max_size=3), max_size=30), max_size=4), st.lists(st.binary(max_size=3)))
def test_a_key_is_found_if_it_is_in_any_chunk(chunks: list[list[bytes]], others: list[bytes]) -> None:
    index = ChunkIndex()
    for number, keys in enumerate(chunks):
        index.put_chunk(chunk_key(DAY, number), chunk_of(DAY, *keys))
    packed = {key for keys in chunks for key in keys}
    for key in [*packed, *others]:
        assert index.holds(key, DAY - 1) == (key in packed)
        assert not index.holds(key, DAY)
    assert len(index) == sum(map(len, chunks))


def test_a_removed_or_replaced_chunk_is_no_longer_searched() -> None:
    index, first, second = ChunkIndex(), chunk_key(DAY, 0), chunk_key(DAY + DAY_MS, 0)
    index.put_chunk(first, chunk_of(DAY, b"a"))
    index.put_chunk(second, chunk_of(DAY + DAY_MS, b"b"))
    assert index.earliest_ms == DAY
    assert [*index.expired_keys(DAY)] == [first]
    assert [expires_ms for expires_ms, _ in index.days_after(DAY)] == [DAY + DAY_MS]
    index.put_chunk(first, None)
    index.put_chunk(second, chunk_of(DAY + DAY_MS, b"c"))
    assert [index.holds(key, 0) for key in (b"a", b"b", b"c")] == [False, False, True]
    assert index.earliest_ms == DAY + DAY_MS
    index.put_chunk(second, None)
    assert index.earliest_ms == NEVER_MS


def test_a_number_is_above_those_of_the_same_day() -> None:
    index = ChunkIndex()
    assert index.next_number(DAY) == 0
    for number in (0, 300):
        index.put_chunk(chunk_key(DAY, number), chunk_of(DAY, b"a"))
    assert (index.next_number(DAY), index.next_number(DAY + DAY_MS)) == (301, 0)


def test_a_day_ends_at_midnight_and_a_key_of_a_chunk_is_no_text() -> None:
    assert (end_of_day(DAY), end_of_day(DAY + 1), end_of_day(DAY - 1)) == (DAY, DAY + DAY_MS, DAY)
    assert is_chunk_key(chunk_key(DAY, 0))
    assert CHUNK_PREFIX.decode("utf-8", "replace") != CHUNK_PREFIX.decode("latin-1")
    assert split_hashes(join_hashes([b"b" * HASH_BYTES, b"a" * HASH_BYTES])) == [b"a" * HASH_BYTES, b"b" * HASH_BYTES]


def test_hashes_that_begin_alike_are_distinguished() -> None:
    hashes = [b"same" + bytes(11) + bytes([n]) for n in (0, 2, 4)]
    index = ChunkIndex()
    index.put_chunk(chunk_key(DAY, 0), TombstoneChunk(DAY, join_hashes([*hashes, bytes(16), b"\xff" * 16])))
    ((_, day),) = index.days_after(0)
    chunk = index._days[DAY][chunk_key(DAY, 0)]
    assert split_hashes(day[chunk_key(DAY, 0)]) == sorted([*hashes, bytes(16), b"\xff" * 16])
    start = int.from_bytes(b"same")
    found = [chunk.has_hash(b"same" + bytes(11) + bytes([n]), start) for n in range(6)]
    assert found == [True, False, True, False, True, False]
    assert chunk.has_hash(b"\xff" * 16, (1 << 32) - 1)
    assert chunk.has_hash(bytes(16), 0)
    assert not chunk.has_hash(bytes(15) + b"\1", 0)


def test_a_packed_tombstone_takes_hardly_more_than_its_hash() -> None:
    chunks, keys = 20, 16_384
    tracemalloc.start()
    try:
        index, before = ChunkIndex(), tracemalloc.get_traced_memory()[0]
        for number in range(chunks):
            hashes = b"".join((number * keys + n).to_bytes(HASH_BYTES) for n in range(keys))
            index.put_chunk(chunk_key(DAY, number), TombstoneChunk(DAY, hashes))
        del hashes
        taken = tracemalloc.get_traced_memory()[0] - before
    finally:
        tracemalloc.stop()
    assert len(index) == chunks * keys
    assert taken / len(index) < 21
    assert sys.getsizeof(index) < 100
