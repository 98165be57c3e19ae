"""A changelog of a partition's packed tombstones, as a processor would have written it.

The hashes are random: a processor does not look at more of a tombstone when it recovers.
"""

import os
import time
from collections.abc import Iterator

from confluent_kafka import Producer

from sessionary.schemas.codec import encode_position
from sessionary.schemas.records import Position, TombstoneChunk
from sessionary.schemas.rules import NEWEST_RULES
from sessionary.schemas.settings import KafkaSettings
from sessionary.schemas.topics import CHANGELOG_BYTES_MAX
from sessionary.stream_processors.core.families import SESSION_JUDGE
from sessionary.stream_processors.core.model import POSITION_KEY
from sessionary.stream_processors.core.session.rows import TOMBSTONE_MS
from sessionary.stream_processors.core.tombstones import (
    DAY_MS,
    HASH_BYTES,
    ChunkSizes,
    chunk_key,
    end_of_day,
    join_hashes,
    split_hashes,
)
from sessionary.stream_processors.store.packed_rows import DUE_HEADER, FamilyCodec, PackedRow, sum_rows

_ROWS = FamilyCodec(SESSION_JUDGE.families)


def tombstone_chunks(tombstones: int, now_ms: int) -> Iterator[tuple[bytes, PackedRow]]:
    """Yield key and row of the chunks of so many tombstones, as many on each of 14 days."""
    days = TOMBSTONE_MS // DAY_MS
    sizes = ChunkSizes()
    for day in range(days):
        expires_ms, left, number = end_of_day(now_ms) + day * DAY_MS, tombstones // days, 0
        while left:
            taken = min(left, sizes.chunk_keys * sizes.chunks_merged)
            hashes = join_hashes(split_hashes(os.urandom(taken * HASH_BYTES)))
            yield chunk_key(expires_ms, number), _ROWS.pack(TombstoneChunk(expires_ms, hashes), NEWEST_RULES.version)
            left, number = left - taken, number + 1


def preload_tombstones(kafka: KafkaSettings, tombstones: int) -> int:
    """Write the changelog of so many tombstones and the positions; return its bytes.

    The events topic must be empty. Blocks.
    """
    now_ms, size = time.time_ns() // 1_000_000, 0
    producer = Producer(
        {
            **kafka.client_config(),
            "transactional.id": f"{kafka.topic_prefix}-preload",
            "message.max.bytes": CHANGELOG_BYTES_MAX,
        }
    )
    producer.init_transactions(30)
    for partition in range(kafka.partitions):
        producer.begin_transaction()
        chunks = [*tombstone_chunks(tombstones // kafka.partitions, now_ms)]
        for key, packed in chunks:
            headers: list[tuple[str, bytes | str | None]] = [(DUE_HEADER, packed.due)]
            producer.produce(kafka.topics.changelog, packed.value, key, partition, headers=headers)
            size += len(key) + len(packed.value) + len(packed.due)
        counted = sum_rows((key, packed.stored) for key, packed in chunks)
        position = Position(0, now_ms, 0, 1, 0)._replace(row_count=counted.rows, row_checksum=counted.checksum)
        producer.produce(kafka.topics.changelog, encode_position(position), POSITION_KEY, partition)
        producer.commit_transaction(60)
    return size
