"""Compares the rows of two folds of a log; when tombstones were packed makes no difference."""

from collections.abc import Iterator, Mapping
from typing import Any

from sessionary.schemas.records import RunTombstone, Tombstone, TombstoneChunk
from sessionary.schemas.rules import NEWEST_RULES
from sessionary.stream_processors.core.session.values import tombstone_end_ms
from sessionary.stream_processors.core.tombstones import (
    end_of_day,
    hash_key,
    is_chunk_key,
    key_hashes,
    split_hashes,
)
from sessionary.stream_processors.store.packed_rows import FamilyCodec


def row_key(key: bytes, partition: int) -> bytes:
    """Return a key for the rows of several partitions: each may have a chunk with the same key."""
    return key + b"%d" % partition if is_chunk_key(key) else key


def tombstone_ends(rows: Mapping[bytes, Any]) -> dict[bytes, int]:
    """Return when each tombstone vanishes, by the hash of its key; packed or not."""
    ends: dict[bytes, int] = {}
    for key, row in rows.items():
        if isinstance(row, TombstoneChunk):
            ends.update(dict.fromkeys(split_hashes(row.key_hashes), row.expires_at))
        elif isinstance(row, Tombstone):
            ends[hash_key(key)] = end_of_day(tombstone_end_ms(row))
        elif isinstance(row, RunTombstone):
            ends.update(dict.fromkeys(key_hashes(key), end_of_day(row.expires_at)))
    return ends


def row_differences(codec: FamilyCodec, ours: Mapping[bytes, Any], theirs: Mapping[bytes, Any]) -> Iterator[str]:
    """Yield each difference as a sentence."""
    packed = (Tombstone, TombstoneChunk, RunTombstone)
    for key in sorted(ours.keys() | theirs.keys()):
        left, right = ours.get(key), theirs.get(key)
        if isinstance(left, TombstoneChunk | None) and isinstance(right, packed):
            continue
        if isinstance(right, TombstoneChunk | None) and isinstance(left, packed):
            continue
        if _row_bytes(codec, left) != _row_bytes(codec, right):
            yield f"row {key!r}: {left} instead of {right}"
    our_ends, their_ends = tombstone_ends(ours), tombstone_ends(theirs)
    for hashed in our_ends.keys() | their_ends.keys():
        if our_ends.get(hashed) != their_ends.get(hashed):
            yield f"tombstone {hashed!r}: until {our_ends.get(hashed)} instead of {their_ends.get(hashed)}"


def _row_bytes(codec: FamilyCodec, row: Any) -> bytes | None:
    return None if row is None else codec.pack(row, NEWEST_RULES.version).value
