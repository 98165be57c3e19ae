"""Records that were small while they were compressed, on a real broker: the processor goes on."""

import pytest
from confluent_kafka import KafkaError, KafkaException, Producer

from sessionary.schemas.codec.record_sizes import batch_bytes
from sessionary.schemas.events.session import SessionStarted
from sessionary.schemas.ids import partition_of
from sessionary.schemas.records import AuditRecord, RejectedEvent
from sessionary.schemas.rules import REJECTED_BYTES_MAX
from sessionary.schemas.settings import KafkaSettings
from tests.integration.processor_load import Agent, OutgoingRecord, Sender, count_judged, start_processor
from tests.integration.test_processor_road import LASTING
from tests.support import Processes, read_records, wait_until


def test_a_batch_has_the_size_that_the_broker_compares_with_a_topics_limit(kafka: KafkaSettings) -> None:
    producer = Producer({**kafka.client_config(), "message.max.bytes": 2 * REJECTED_BYTES_MAX})
    key = b"k" * 70
    room = REJECTED_BYTES_MAX - batch_bytes(key, b"v" * REJECTED_BYTES_MAX) + REJECTED_BYTES_MAX
    errors: list[KafkaError | None] = []
    for size in (room, room + 1):
        producer.produce(kafka.topics.rejected, b"v" * size, key, 0, on_delivery=lambda error, _: errors.append(error))
        assert producer.flush(120) == 0
    assert errors[0] is None
    with pytest.raises(KafkaException, match="MSG_SIZE_TOO_LARGE"):
        raise KafkaException(errors[1])


def test_records_of_any_size_are_judged(kafka: KafkaSettings, processes: Processes) -> None:
    agent, sender = Agent(), Sender(kafka)
    key = agent.key.encoded()
    sender.send(*agent.start(LASTING))
    sender.flush()
    large = Producer(
        {**kafka.client_config(), "compression.type": "gzip", "message.max.bytes": 64 << 20, "linger.ms": 0}
    )
    unreadable = [OutgoingRecord(key, b"A" * size) for size in (3_000_000, 20_000_000)]
    long_id = agent.event(SessionStarted(), event_id="x" * 1_200_000)
    for record in (*unreadable, OutgoingRecord(b"\xff" * 600_000, b"x"), long_id):
        large.produce(kafka.topics.events, record.value, record.key, partition_of(key, kafka.partitions))
        assert large.flush(120) == 0
    sender.send(agent.work())
    sender.flush()
    start_processor(processes, kafka, "w1")
    wait_until(lambda: count_judged(kafka) == 9, 40, "all records judged")
    letters = [record for record in read_records(kafka, kafka.topics.rejected) if isinstance(record, RejectedEvent)]
    assert [letter.reason for letter in letters] == ["undecodable", "undecodable", "bad_key", "invalid_value"]
    assert [letter.value for letter in letters] == [None, None, b"x", long_id.value]
    audits = [record for record in read_records(kafka, kafka.topics.audit) if isinstance(record, AuditRecord)]
    assert [audit.reason_code for audit in audits if audit.kind == "rejection"] == [letter.reason for letter in letters]
