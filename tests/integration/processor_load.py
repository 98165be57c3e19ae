"""Shared by the processor's tests: agents that write valid events, a load, and the final check.

The check folds the log again and compares each audit record, rejection and row with the topics.
"""

import itertools
import random
import threading
import time
import uuid
from collections import defaultdict
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from confluent_kafka import Consumer, KafkaError, Message, Producer, TopicPartition

from sessionary.infra.local.process import Child
from sessionary.schemas.codec import Decoder, Event, encode_event, encode_position, encode_record
from sessionary.schemas.events import (
    EVENT_TYPES,
    MessageAppended,
    Payload,
    SessionActivity,
    SessionCreated,
    SessionPhaseChanged,
)
from sessionary.schemas.events.session import SessionStarted
from sessionary.schemas.headers import event_headers
from sessionary.schemas.ids import SessionKey, new_session_id, partition_of
from sessionary.schemas.records import (
    AuditRecord,
    BatchAcknowledged,
    BatchRecord,
    CleanupRequest,
    Position,
    RejectedEvent,
)
from sessionary.schemas.settings import KafkaSettings
from sessionary.schemas.topics import EVENT_BYTES_MAX
from sessionary.schemas.types import Envelope, Limits, RuleSet
from sessionary.stream_processors.core.committed import PartitionSettings
from sessionary.stream_processors.core.judge import Judge
from sessionary.stream_processors.core.model import POSITION_KEY, LogRecord
from sessionary.stream_processors.store.cached_rows import CachedRows
from sessionary.stream_processors.store.packed_rows import FamilyCodec
from tests.integration.refold import find_differences, refold
from tests.support import Processes, environment, read_batches, read_records, read_topic, wait_until
from tests.support.event_factory import snapshot
from tests.support.judges import JUDGE
from tests.support.row_differences import row_key

OUTAGE_MS, OUTAGE_GRACE_MS = 3_000, 1_500
_SEND_S, _ASK_S = 120.0, 60.0


class OutgoingRecord(NamedTuple):
    """A record to be sent to the events topic."""

    key: bytes | None
    value: bytes | None
    headers: Sequence[tuple[str, bytes]] = ()


class Agent:
    """Writes one session's events, with sequence numbers."""

    def __init__(self, tenant_id: str = "acme", service_id: str = "billing") -> None:
        self.key = SessionKey(tenant_id, new_session_id())
        self.service_id = service_id
        self.producer_id = str(uuid.uuid4())
        self.seq = 0

    def event(
        self,
        payload: Payload,
        seq: int | None = None,
        tenant_id: str | None = None,
        epoch: int = 1,
        event_id: str | None = None,
        run_id: str | None = None,
        context_bytes: int | None = None,
    ) -> OutgoingRecord:
        """Return the next event; `seq`, `tenant_id` and `event_id` replace the correct values."""
        self.seq += seq is None
        envelope = Envelope(
            event_id=event_id or str(uuid.uuid4()),
            event_type=EVENT_TYPES[type(payload)],
            schema_version=1,
            tenant_id=tenant_id or self.key.tenant_id,
            session_id=self.key.session_id,
            user_id="u1",
            agent_id="agent-1",
            agent_role=None,
            service_id=self.service_id,
            actor=None,
            epoch=epoch,
            producer_id=self.producer_id,
            producer_seq=self.seq if seq is None else seq,
            run_id=run_id,
            run_seq=None,
            step_id=None,
            causation_id=None,
            occurred_at=time.time_ns() // 1_000,
            context_bytes=context_bytes,
        )
        return OutgoingRecord(self.key.encoded(), encode_event(Event(envelope, payload)), event_headers(envelope))

    def start(self, limits: Limits = Limits()) -> list[OutgoingRecord]:
        """Return the events up to Active."""
        return [
            self.event(SessionCreated(limits, snapshot("first"))),
            self.event(SessionPhaseChanged("validating")),
            self.event(SessionPhaseChanged("connecting")),
            self.event(SessionStarted()),
        ]

    def work(self) -> OutgoingRecord:
        """Return one activity."""
        return self.event(SessionActivity("llm", None))

    def message(self) -> OutgoingRecord:
        """Return a message."""
        return self.event(MessageAppended("user", "hello"))


def agent_of_partition(partition: int, partitions: int) -> Agent:
    """Return an agent whose session is in `partition`."""
    return next(agent for agent in iter(Agent, None) if partition_of(agent.key.encoded(), partitions) == partition)


class Sender:
    """A producer like an agent's; `places` has each record's (partition, offset)."""

    def __init__(self, kafka: KafkaSettings) -> None:
        self._topic = kafka.topics.events
        self._producer = Producer(
            {
                **kafka.client_config(),
                "partitioner": "murmur2_random",
                "enable.idempotence": True,
                "message.max.bytes": EVENT_BYTES_MAX,
                "linger.ms": 5,
            }
        )
        self.places: list[tuple[int, int]] = []
        self._errors: list[str] = []

    def send(self, *records: OutgoingRecord) -> None:
        """Queue records for sending."""
        for record in records:
            headers: list[tuple[str, str | bytes | None]] = list(record.headers)
            self._producer.produce(
                self._topic, record.value, record.key, headers=headers, on_delivery=self._on_delivery
            )
        self._producer.poll(0)

    def send_at(self, timestamp_ms: int, record: OutgoingRecord) -> None:
        """Queue a record with a time of the sender's choice; LogAppendTime overrides it."""
        self._producer.produce(
            self._topic, record.value, record.key, timestamp=timestamp_ms, on_delivery=self._on_delivery
        )

    def flush(self) -> list[tuple[int, int]]:
        """Wait for all acknowledgements; return the places of all records sent so far."""
        unsent = self._producer.flush(_SEND_S)
        # A callback's own error reaches `flush` without its text.
        assert (unsent, self._errors) == (0, []), (
            f"{unsent} records unsent after {_SEND_S:g} s, rejected: {self._errors}"
        )
        return self.places

    def _on_delivery(self, error: KafkaError | None, message: Message) -> None:
        partition, offset = message.partition(), message.offset()
        if error is not None or partition is None or offset is None:
            self._errors.append("no position in the log" if error is None else error.str())
        else:
            self.places.append((partition, offset))


class BackgroundLoad:
    """Sessions that send at a steady rate from a thread; some records are invalid or duplicates.

    Each partition has its share of the sessions. Ids are random, so without that a partition would
    now and then have none, and a test that waits for its batch would wait for ever.
    `messages` is the share of messages.
    """

    def __init__(
        self,
        kafka: KafkaSettings,
        sessions: int,
        rate: int,
        seed: int,
        limits: Limits = Limits(),
        messages: float = 0.0,
    ) -> None:
        self._sender = Sender(kafka)
        self._agents = [agent_of_partition(number % kafka.partitions, kafka.partitions) for number in range(sessions)]
        self._rate, self._random, self._limits, self._messages = rate, random.Random(seed), limits, messages
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self.sent = 0

    def __enter__(self) -> "BackgroundLoad":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._done.set()
        self._thread.join()
        self._sender.flush()

    def _run(self) -> None:
        for agent in self._agents:
            self._send(*agent.start(self._limits))
        while not self._done.wait(0.02):
            for _ in range(self._rate // 50):
                self._send(*self._next_records())

    def _send(self, *records: OutgoingRecord) -> None:
        self._sender.send(*records)
        self.sent += len(records)

    def _next_records(self) -> Iterator[OutgoingRecord]:
        agent, chance = self._random.choice(self._agents), self._random.random()
        if chance < 0.01:
            yield agent.event(SessionActivity("double", None), seq=1)
        elif chance < 0.02:
            yield agent.event(SessionStarted())  # illegal in Active
        elif chance < 0.03:
            yield OutgoingRecord(agent.key.encoded(), b"\xc3\x01 broken")
        elif chance < 0.03 + self._messages:
            yield agent.message()
        else:
            yield agent.work()


def start_processor(
    processes: Processes,
    kafka: KafkaSettings,
    name: str,
    module: str = "sessionary.stream_processors",
    **more: str,
) -> Child:
    """Start a worker of the pipeline; `more` are settings by field name."""
    fields = {
        "instance": name,
        "api_port": "0",
        "outage_ms": str(OUTAGE_MS),
        "outage_grace_ms": str(OUTAGE_GRACE_MS),
    } | more
    return processes.start(module, env=environment(kafka, **fields), name=name)


def begin_with(kafka: KafkaSettings, rules: RuleSet) -> None:
    """Let every partition be judged by `rules` from its first record on."""
    producer = Producer(kafka.client_config())
    for partition in range(kafka.partitions):
        value = encode_position(Position(0, 0, 0, 0, 0, rules=rules))
        producer.produce(kafka.topics.changelog, value, b"\x00position", partition=partition)
    assert producer.flush(_SEND_S) == 0


def count_judged(kafka: KafkaSettings) -> int:
    """Return how many records the committed batches have judged, without ticks."""
    return sum(batch.applied + batch.duplicate + batch.rejected + batch.fenced_beats for batch in read_batches(kafka))


def last_writers(kafka: KafkaSettings) -> dict[int, str]:
    """Return which worker wrote each partition's last batch."""
    return {batch.partition: batch.instance for batch in read_batches(kafka)}


def wait_for_writers(kafka: KafkaSettings, names: set[str], timeout_s: float) -> None:
    """Wait until these workers, and no other, wrote the partitions' last batches."""
    wait_until(lambda: set(last_writers(kafka).values()) == names, timeout_s, f"written by {names}", pause_s=0.2)


def wait_caught_up(kafka: KafkaSettings, timeout_s: float) -> None:
    """Wait until the processor's group is where the log ends now.

    Ticks follow each second, so that its lag may never be 0.
    """
    wait_group(kafka, f"{kafka.topic_prefix}.processor", kafka.topics.events, timeout_s)


def wait_group(kafka: KafkaSettings, group: str, topic: str, timeout_s: float) -> None:
    """Wait until a group has committed all offsets of a topic that are there now."""
    member = Consumer({**kafka.client_config(), "group.id": group})
    try:
        places = [TopicPartition(topic, partition) for partition in range(kafka.partitions)]
        ends = [member.get_watermark_offsets(place, timeout=_ASK_S)[1] for place in places]

        def has_caught_up() -> bool:
            committed = member.committed(places, timeout=_ASK_S)
            return all(max(0, place.offset) >= end for place, end in zip(committed, ends, strict=True))

        wait_until(has_caught_up, timeout_s, f"group {group} to reach the end of {topic}", pause_s=0.3)
    finally:
        member.close()


def wait_judged(kafka: KafkaSettings, records: int, timeout_s: float = 60.0) -> None:
    """Wait until this many records were judged, and the group has passed them."""
    wait_until(lambda: count_judged(kafka) >= records, timeout_s, f"{records} records judged", pause_s=0.3)
    assert count_judged(kafka) == records
    wait_caught_up(kafka, 10)


def changelog_of(kafka: KafkaSettings, judge: Judge = JUDGE) -> tuple[dict[bytes, Any], dict[int, Position]]:
    """Return rows and positions after compaction of the changelog."""
    codec = FamilyCodec(judge.families)
    shelf: dict[bytes, bytes] = {}
    positions: dict[int, Position] = {}
    for stored in read_topic(kafka, kafka.topics.changelog):
        key = row_key(stored.key or b"", stored.partition)
        if stored.value is None:
            shelf.pop(key, None)
            continue
        if key == POSITION_KEY:
            record = Decoder().decode_record(stored.value)
            assert isinstance(record, Position)
            positions[stored.partition] = record
        else:
            shelf[key] = codec.repack(stored.value, None)
    return dict(CachedRows(shelf, codec)), positions


def check_everything(
    kafka: KafkaSettings,
    judge: Judge = JUDGE,
    outage_ms: int = OUTAGE_MS,
    outage_grace_ms: int = OUTAGE_GRACE_MS,
    rules: RuleSet | None = None,
) -> list[AuditRecord]:
    """Assert that all outputs are exactly the judge's fold of the log; return the audit trail.

    No worker may be running.
    """
    rows, positions = changelog_of(kafka, judge)
    log: dict[int, list[LogRecord]] = defaultdict(list)
    for stored in read_topic(kafka, kafka.topics.events):
        if stored.offset < positions[stored.partition].next_offset:
            log[stored.partition].append(
                LogRecord(stored.offset, stored.timestamp_ms, stored.key, stored.value, stored.headers)
            )
    stored_audits = read_topic(kafka, kafka.topics.audit)
    reported = [record for record in read_records(kafka, kafka.topics.audit) if isinstance(record, AuditRecord)]
    stored_partitions = [stored.partition for stored in stored_audits]
    assert stored_partitions == [audit.source_partition for audit in reported]
    audits = [audit for audit in reported if audit.kind != "access"]  # what the API was asked for is in no log
    settings = PartitionSettings(kafka.topics.events, kafka.partitions, outage_ms, outage_grace_ms)
    expected = refold(log, settings, judge, audits, rules)
    assert find_differences(expected, rows, audits) == []
    assert len(audits) == len(expected.audits)  # none twice
    rejected = [record for record in read_records(kafka, kafka.topics.rejected) if isinstance(record, RejectedEvent)]
    assert sorted(map(_place, rejected)) == sorted(map(_place, expected.rejected))
    requests = [record for record in read_records(kafka, kafka.topics.cleanup) if isinstance(record, CleanupRequest)]
    assert sorted(map(encode_record, requests)) == sorted(map(encode_record, expected.cleanups))
    _check_batches(kafka, log)
    return audits


def _place(record: RejectedEvent) -> tuple[int, int, str, bytes | None]:
    return record.source_partition, record.source_offset, record.reason, record.value


def count_records(batch: BatchRecord) -> int:
    """Return how many records of the log a transaction folded."""
    return batch.applied + batch.duplicate + batch.rejected + batch.fenced_beats + batch.ticks


def _check_batches(kafka: KafkaSettings, log: dict[int, list[LogRecord]]) -> None:
    by_partition: dict[int, list[BatchRecord]] = defaultdict(list)
    for record in read_records(kafka, kafka.topics.batches):
        if not isinstance(record, BatchAcknowledged):
            assert isinstance(record, BatchRecord)
            by_partition[record.partition].append(record)
    for partition, batches in by_partition.items():
        assert [batch.number for batch in batches] == list(range(1, len(batches) + 1))
        offsets = [record.offset for record in log[partition]]
        assert sum(map(count_records, batches)) == len(offsets)
        folding = [batch for batch in batches if count_records(batch)]  # the others only announce rules
        assert (folding[0].first_offset, folding[-1].last_offset) == (offsets[0], offsets[-1])
        for former, batch in itertools.pairwise(batches):
            assert former.last_offset < batch.first_offset + (not count_records(former))
            assert former.rules <= batch.rules
            known = batch.previous_acknowledged_at
            assert known is None or known >= former.started_at
