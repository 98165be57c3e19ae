"""Reads topics to their end with a plain read-committed consumer, without the product's readers."""

import time
from collections.abc import Sequence
from contextlib import suppress
from typing import NamedTuple

from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaError, KafkaException, TopicPartition

from sessionary.schemas.codec import Decoder, Event, Record
from sessionary.schemas.records import BatchRecord, QuotaVerdict, RulesActivation, Tick
from sessionary.schemas.settings import KafkaSettings
from tests.support.waiting import wait_until


class Stored(NamedTuple):
    """A record of a partition."""

    partition: int
    offset: int
    timestamp_ms: int
    key: bytes | None
    value: bytes | None
    headers: Sequence[tuple[str, bytes]]


def read_topic(kafka: KafkaSettings, topic: str, timeout_s: float = 120.0) -> list[Stored]:
    """Return the committed records, ordered by partition and offset; newer ones may be among them.

    Raises AssertionError after `timeout_s`.
    """
    consumer = Consumer(
        {
            **kafka.client_config(),
            "group.id": "read-to-end",
            "isolation.level": "read_committed",
            "enable.auto.commit": False,
            "enable.partition.eof": True,
            "auto.offset.reset": "earliest",
        }
    )
    try:
        return _to_the_end(consumer, topic, timeout_s)
    finally:
        consumer.close()


def _to_the_end(consumer: Consumer, topic: str, timeout_s: float) -> list[Stored]:
    deadline = time.monotonic() + timeout_s
    partitions = list(consumer.list_topics(topic, timeout=timeout_s).topics[topic].partitions)
    # Where records come faster than an empty answer does, a partition's end is never reported.
    ends = {each: _end_of(consumer, TopicPartition(topic, each), deadline) for each in partitions}
    consumer.assign([TopicPartition(topic, partition, OFFSET_BEGINNING) for partition in partitions])
    unread, found = set(partitions), list[Stored]()
    while unread:
        assert time.monotonic() < deadline, f"{topic}: partitions {sorted(unread)} not read within {timeout_s:g} s"
        message = consumer.poll(0.2)
        if message is None:
            continue
        error = message.error()
        if error is not None:
            if error.code() != KafkaError._PARTITION_EOF:
                raise KafkaException(error)
            unread.discard(_known(message.partition()))
            continue
        raw = message.headers() or []
        pairs = raw.items() if isinstance(raw, dict) else raw
        headers = [(name, _bytes(value) or b"") for name, value in pairs]
        place = _known(message.partition()), _known(message.offset())
        if place[1] >= ends[place[0]] - 1:
            unread.discard(place[0])
        found.append(Stored(*place, message.timestamp()[1], _bytes(message.key()), _bytes(message.value()), headers))
    return sorted(found, key=lambda record: (record.partition, record.offset))


def _end_of(consumer: Consumer, place: TopicPartition, deadline: float) -> int:
    """Ask until a leader answers: a partition may have none just now."""

    def ask_watermarks() -> tuple[int, int] | None:
        with suppress(KafkaException):
            return consumer.get_watermark_offsets(place, timeout=max(0.1, deadline - time.monotonic()))
        return None

    what = f"{place.topic}: the end of partition {place.partition}"
    return wait_until(ask_watermarks, deadline - time.monotonic(), what, pause_s=0.2)[1]


def _known(number: int | None) -> int:
    assert number is not None
    return number


def _bytes(value: str | bytes | None) -> bytes | None:
    return value.encode() if isinstance(value, str) else value


def read_records(kafka: KafkaSettings, topic: str, timeout_s: float = 120.0) -> list[Record]:
    """Return the decoded records of a processor's topic, without deletions."""
    decoder, found = Decoder(), read_topic(kafka, topic, timeout_s)
    return [decoder.decode_record(stored.value) for stored in found if stored.value is not None]


def read_batches(kafka: KafkaSettings) -> list[BatchRecord]:
    """Return the records of the committed batches, ordered by partition and offset."""
    return [record for record in read_records(kafka, kafka.topics.batches) if isinstance(record, BatchRecord)]


def read_events(kafka: KafkaSettings) -> list[Event | Tick | RulesActivation | QuotaVerdict]:
    """Return the decoded events and ticks of the events topic; other bytes raise DecodeError."""
    decoder = Decoder()
    return [decoder.decode_event(stored.value) for stored in read_topic(kafka, kafka.topics.events)]
