"""A changelog full of sessions that live but are silent, as a processor would have written it.

Each one is a session of a recorded run half way: Active, with its content, snapshot and sequence
ledger; its deadlines are 30 days away. Rows are encoded once per template; a session's ids are then
replaced in the bytes. Among the benchmarks only this module knows the format of a changelog: packed
rows by session key, a header with the next deadline of each, and a position record per partition.
"""

import random
import struct
import time
import uuid
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from confluent_kafka import Producer

from benchmarks.workload.events import Template
from sessionary.schemas.codec import encode_position
from sessionary.schemas.events import SessionCreated, StateUpdated
from sessionary.schemas.ids import partition_of
from sessionary.schemas.records import Position, SessionState
from sessionary.schemas.rules import NEWEST_RULES
from sessionary.schemas.settings import KafkaSettings
from sessionary.schemas.topics import CHANGELOG_BYTES_MAX
from sessionary.schemas.types import ProducerLedger, SessionLimits
from sessionary.stream_processors.core.families import SESSION_JUDGE
from sessionary.stream_processors.core.model import POSITION_KEY
from sessionary.stream_processors.store.packed_rows import (
    DUE_HEADER,
    FamilyCodec,
    PackedRow,
    RowSum,
    nothing_stored,
)

FAR_MS = 30 * 86_400_000
_LIMITS = SessionLimits(**dict.fromkeys(SessionLimits._fields, FAR_MS))._replace(context_limit_bytes=200_000_000)
_NO_ID = str(uuid.UUID(int=0))
_NO_PRODUCER = str(uuid.UUID(int=1))
_TRANSACTION_RECORDS = 50_000
_ROWS = FamilyCodec(SESSION_JUDGE.families)
_STREAMS_CLOCK = struct.Struct(">qq")


class LiveRow(NamedTuple):
    """A row of the changelog and its key."""

    key: bytes
    packed: PackedRow


def _half_way_row(template: Template, now_ms: int) -> LiveRow:
    """Return a template's row in the middle of its run; its key is the tenant's prefix only."""
    lines = template.lines[: len(template.lines) // 2]
    created = template.lines[0].payload
    assert isinstance(created, SessionCreated)
    updates = [line.payload for line in lines if isinstance(line.payload, StateUpdated)]
    envelope = template.envelope
    state = SessionState(
        tenant_id=envelope.tenant_id,
        session_id=_NO_ID,
        user_id=envelope.user_id,
        agent_id=envelope.agent_id,
        owner_service=envelope.service_id,
        state="Active",
        phase="processing",
        epoch=1,
        version=1 + len(updates),
        reason_code="started",
        limits=_LIMITS,
        created_at=now_ms,
        entered_at=now_ms,
        last_event_at=now_ms,
        last_work_at=now_ms,
        max_due_at=now_ms + FAR_MS,
        released_at=None,
        recovery_attempts=0,
        error_class=None,
        state_schema_version=1,
        state_json=updates[-1].state_json if updates else created.snapshot.state_json,
        snapshot=created.snapshot,
        audit_seq=2,
        data_classes=envelope.data_classes,
        context_bytes=None,
        context_exceeded=False,
        late_epoch=0,
        producers=(ProducerLedger(_NO_PRODUCER, len(lines)),),
    )
    return LiveRow(f"{envelope.tenant_id}:".encode(), _ROWS.pack(state, NEWEST_RULES.version))


def session_rows(templates: Sequence[Template], sessions: int, seed: int, now_ms: int) -> Iterator[LiveRow]:
    """Yield the rows of `sessions` sessions."""
    rng = random.Random(f"live {seed}")
    # Sessions that ended before they were Active have no middle.
    rows = [_half_way_row(template, now_ms) for template in templates if template.outcome != "failed_start"]
    no_id, no_producer = _NO_ID.encode(), _NO_PRODUCER.encode()
    for _ in range(sessions):
        key, packed = rng.choice(rows)
        session_id, producer_id = (str(uuid.UUID(int=rng.getrandbits(128), version=4)).encode() for _ in range(2))
        value = packed.value.replace(no_id, session_id).replace(no_producer, producer_id)
        yield LiveRow(key + session_id, PackedRow(packed.due, value))


def preload_sessions(kafka: KafkaSettings, templates: Sequence[Template], sessions: int, seed: int = 1) -> int:
    """Write the changelog of `sessions` sessions and the positions; return its bytes.

    The positions count the rows. The events topic must be empty. Blocks.
    """
    now_ms = time.time_ns() // 1_000_000
    producer = _changelog_producer(kafka)
    topic, size = kafka.topics.changelog, 0
    producer.begin_transaction()
    counted = [RowSum()] * kafka.partitions
    for n, (key, packed) in enumerate(session_rows(templates, sessions, seed, now_ms), 1):
        partition = partition_of(key, kafka.partitions)
        counted[partition] = counted[partition].replace_rows({key: packed.stored}, nothing_stored)
        producer.produce(topic, packed.value, key, partition, headers=[(DUE_HEADER, packed.due)])
        size += len(key) + len(packed.value)
        if not n % _TRANSACTION_RECORDS:
            producer.commit_transaction(60)
            producer.begin_transaction()
    for partition, (rows, checksum) in enumerate(counted):
        position = Position(0, now_ms, 0, 1, 0, row_count=rows, row_checksum=checksum)
        producer.produce(topic, encode_position(position), POSITION_KEY, partition)
    producer.commit_transaction(60)
    return size


def preload_engines(
    kafka: KafkaSettings, templates: Sequence[Template], sessions: int, streams_changelogs: Sequence[str], seed: int = 1
) -> int:
    """Write the same rows for a processor and for programs on Kafka Streams.

    Return the bytes of one changelog. The events should follow within five seconds: all clocks are
    set to the end of the rows, so that the first event ends no silence of the log. A program's
    clock is two numbers of 8 bytes: its time, and until when the grace after an outage lasts.
    Blocks.
    """
    began_ms = time.time_ns() // 1_000_000
    producer, size = _changelog_producer(kafka), 0
    producer.begin_transaction()
    for n, (key, packed) in enumerate(session_rows(templates, sessions, seed, began_ms), 1):
        partition = partition_of(key, kafka.partitions)
        producer.produce(kafka.topics.changelog, packed.value, key, partition, headers=[(DUE_HEADER, packed.due)])
        for topic in streams_changelogs:
            producer.produce(topic, packed.value, key, partition)
        size += len(key) + len(packed.value)
        if not n % _TRANSACTION_RECORDS:
            producer.commit_transaction(60)
            producer.begin_transaction()
    producer.commit_transaction(60)
    clock_ms = time.time_ns() // 1_000_000
    producer.begin_transaction()
    for partition in range(kafka.partitions):
        position = encode_position(Position(0, clock_ms, 0, 1, 0))
        producer.produce(kafka.topics.changelog, position, POSITION_KEY, partition)
        for topic in streams_changelogs:
            producer.produce(topic, _STREAMS_CLOCK.pack(clock_ms, 0), POSITION_KEY, partition)
    producer.commit_transaction(60)
    return size


def _changelog_producer(kafka: KafkaSettings) -> Producer:
    """Return a producer that can begin transactions. Blocks."""
    producer = Producer(
        {
            **kafka.client_config(),
            "transactional.id": f"{kafka.topic_prefix}-preload",
            "linger.ms": 20,
            "queue.buffering.max.messages": 4 * _TRANSACTION_RECORDS,
            "queue.buffering.max.kbytes": 1 << 20,
            "message.max.bytes": CHANGELOG_BYTES_MAX,
        }
    )
    producer.init_transactions(30)
    return producer
