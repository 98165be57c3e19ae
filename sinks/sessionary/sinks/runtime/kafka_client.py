"""The Kafka consumer of a sink: its configuration, and its messages as records."""

import logging
from itertools import repeat
from operator import itemgetter
from typing import Final

from confluent_kafka import Consumer, Message

from sessionary.schemas.topics import FETCH_BYTES_MAX
from sessionary.sinks.core.rows.raw_record import RawRecord
from sessionary.sinks.core.sink_kinds import SinkDefinition
from sessionary.sinks.runtime.ports import ErrorCallback, KafkaConsumer
from sessionary.sinks.settings import SinkSettings

_timestamp_ms: Final = itemgetter(1)  # of (type, time)
_new: Final = tuple.__new__  # as a NamedTuple's own constructor, in half the time
_log = logging.getLogger(__name__)


def consumer_config(definition: SinkDefinition, settings: SinkSettings) -> dict[str, str | int | float | bool]:
    """Return the librdkafka configuration of one sink's consumer."""
    config: dict[str, str | int | float | bool] = {
        # Committed records only. Processors write in transactions, and other producers may write
        # events in transactions: what was aborted is in no table.
        **settings.reader_config_of(settings.group_id(definition.kind)),
        # A log without the next offset lost records: the loop blocks the partition.
        "auto.offset.reset": "error",
        # Every rebalance assigns all partitions again, so that every buffer is dropped each time.
        "partition.assignment.strategy": "range",
        "session.timeout.ms": settings.sink_session_timeout_ms,
        "heartbeat.interval.ms": max(500, settings.sink_session_timeout_ms // 6),
        "topic.metadata.refresh.interval.ms": 10_000,
        "queued.max.messages.kbytes": 65_536,
        "fetch.max.bytes": FETCH_BYTES_MAX,
        # How long to wait before a partition with a full queue is fetched again; by default 1 s.
        "fetch.queue.backoff.ms": 5,
        # A batch that was damaged on a disk or on the way is an error, not other records.
        "check.crcs": True,
    }
    if settings.instance is not None:
        config["group.instance.id"] = f"{settings.group_id(definition.kind)}.{settings.instance}"
    return config


def open_consumer(definition: SinkDefinition, settings: SinkSettings, on_error: ErrorCallback) -> KafkaConsumer:
    """Return a consumer of one sink; it connects in the background."""
    return Consumer({**consumer_config(definition, settings), "error_cb": on_error}, logger=_log)


def records_from_messages(topic: str, partition: int, messages: list[Message]) -> list[RawRecord]:
    """Return the messages of one partition as records.

    Loops in C: a loop in Python would take half as long again.
    """
    fields = zip(
        repeat(topic),
        repeat(partition),
        map(Message.offset, messages),
        map(_timestamp_ms, map(Message.timestamp, messages)),
        map(Message.key, messages),
        map(Message.value, messages),
        messages,
        strict=False,  # the first two never end
    )
    return list(map(_new, repeat(RawRecord), fields))


def partition_and_kind(message: Message) -> tuple[int, bool]:
    """Return a message's partition, and whether it is a record."""
    return message.partition() or 0, message.error() is None


__all__ = ["consumer_config", "open_consumer", "partition_and_kind", "records_from_messages"]
