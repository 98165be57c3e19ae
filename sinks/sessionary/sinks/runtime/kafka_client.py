"""The Kafka consumer of a sink: its configuration, and its messages as records."""

import logging
import os
import socket
import time
from collections.abc import Collection, Iterator, Mapping
from functools import partial
from itertools import groupby, repeat
from operator import is_, itemgetter
from typing import Any, Final

from confluent_kafka import Consumer, KafkaError, KafkaException, Message, TopicPartition

from sessionary.schemas.kafka.clients import AdminConnection, close_in_background, take_answer
from sessionary.schemas.topics import FETCH_BYTES_MAX
from sessionary.sinks.core.rows.shared import RawRecord
from sessionary.sinks.core.sink_kinds import SinkDefinition
from sessionary.sinks.errors import OperatorError, Transient
from sessionary.sinks.runtime.ports import ErrorCallback, KafkaConsumer
from sessionary.sinks.settings import SinkSettings

_ASK_S: Final = 3.0
_SILENT_S: Final = 10.0  # nothing arrives for so long: Kafka does not answer
_timestamp_ms: Final = itemgetter(1)  # of (type, time)
_is_none: Final = partial(is_, None)
_new: Final = tuple.__new__  # as a NamedTuple's own constructor, in half the time
_log = logging.getLogger(__name__)


def consumer_config(definition: SinkDefinition, settings: SinkSettings) -> dict[str, str | int | float | bool]:
    """Return the librdkafka configuration of one sink's consumer."""
    config: dict[str, str | int | float | bool] = {
        # Committed records only. Processors write in transactions, and other producers may write
        # events in transactions: aborted records are in no table.
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
        config["group.instance.id"] = _member_name(definition, settings)
        config["client.id"] = _own_process()  # the group shows it
    return config


def _member_name(definition: SinkDefinition, settings: SinkSettings) -> str:
    return f"{settings.group_id(definition.kind)}.{settings.instance}"


def _own_process() -> str:
    return f"sessionary-{socket.gethostname()}-{os.getpid()}"


def find_former(connection: AdminConnection, definition: SinkDefinition, settings: SinkSettings) -> str | None:
    """Return the process that is a member by this sink's instance name, and its address.

    None if there is none, if it is this process, if it has ended on this host, or if Kafka does not
    tell. It may have ended a moment ago on another host. Kafka goes on to show the process that had
    the name first. Blocks for up to 4 s.
    """
    group, name = settings.group_id(definition.kind), _member_name(definition, settings)
    try:
        asked = connection.open_client().describe_consumer_groups([group], request_timeout=_ASK_S)
        members = take_answer(asked[group], _ASK_S).members
    except (KafkaException, TimeoutError):  # the consumer says what is wrong
        connection.end_client()
        return None
    return next((text for one in members if one.group_instance_id == name and (text := _describe(one))), None)


def _describe(member: Any) -> str | None:
    host, _, pid = member.client_id.removeprefix("sessionary-").rpartition("-")
    if member.client_id == _own_process() or (host == socket.gethostname() and not _runs(pid)):
        return None
    return f"{host}-{pid} at {member.host.lstrip('/')}" if host else f"a process at {member.host.lstrip('/')}"


def _runs(pid: str) -> bool:
    try:
        os.kill(int(pid), 0)
    except (ProcessLookupError, ValueError):
        return False
    except PermissionError:  # another user's
        return True
    return True


def open_consumer(definition: SinkDefinition, settings: SinkSettings, on_error: ErrorCallback) -> KafkaConsumer:
    """Return a consumer of one sink; it connects in the background."""
    return Consumer({**consumer_config(definition, settings), "error_cb": on_error}, logger=_log)


def read_ranges(
    definition: SinkDefinition, settings: SinkSettings, topic: str, ranges: Mapping[int, tuple[int, int]]
) -> dict[int, list[RawRecord]]:
    """Return the records of a topic, by partition from the first offset to the last one.

    Joins no group. Blocks. Raises `Transient`; `OperatorError` if the log lacks a part of a range,
    unless the settings accept this gap for the partition.
    """
    config = {**consumer_config(definition, settings), "auto.offset.reset": "earliest"}
    config.pop("group.instance.id", None)
    consumer = Consumer(config)
    found: dict[int, list[Message]] = {partition: [] for partition in ranges}
    try:
        for partition, (first, _) in ranges.items():
            low, _high = consumer.get_watermark_offsets(TopicPartition(topic, partition), _SILENT_S) or (0, 0)
            if low > first and partition not in settings.accepted_gaps:
                raise _range_error("log_gap", topic, partition, f"the log begins at {low}, after offset {first}")
        consumer.assign([TopicPartition(topic, partition, first) for partition, (first, _) in ranges.items()])
        _collect_ranges(consumer, settings.accepted_gaps, topic, ranges, found)
    except KafkaException as error:
        raise Transient("kafka", str(error)) from error
    finally:
        close_in_background(consumer)
    return {partition: records_from_messages(topic, partition, taken) for partition, taken in found.items()}


def _collect_ranges(
    consumer: Consumer,
    accepted_gaps: Collection[int],
    topic: str,
    ranges: Mapping[int, tuple[int, int]],
    found: dict[int, list[Message]],
) -> None:
    unread, heard_s, ends = set(ranges), time.monotonic(), dict[int, int]()
    while unread:
        for message in consumer.consume(2_000, 0.1):
            partition, offset, error = message.partition() or 0, message.offset() or 0, message.error()
            if error is not None and error.code() != KafkaError._PARTITION_EOF:
                raise KafkaException(error)
            last = ranges[partition][1]
            if error is None and offset <= last and partition in unread:
                found[partition].append(message)
                heard_s = time.monotonic()
            if error is not None:
                ends[partition] = offset
            if partition in unread and (offset > last or (error is None and offset == last)):
                unread.discard(partition)
                consumer.pause([TopicPartition(topic, partition)])  # the others may take a while
        if unread and time.monotonic() - heard_s > _SILENT_S:
            # A new leader may report an earlier end for a while; a log that lost records keeps it.
            for partition in sorted(unread):
                if partition not in ends:
                    raise Transient("kafka", f"partition {partition} of {topic}: nothing for {_SILENT_S:g} s")
                if partition not in accepted_gaps:
                    what = f"the log ends at {ends[partition]}, before offset {ranges[partition][1]}"
                    raise _range_error("log_truncated", topic, partition, what)
            return


def _range_error(reason: str, topic: str, partition: int, what: str) -> OperatorError:
    return OperatorError(
        reason,
        f"partition {partition} of {topic}: {what}, but a block that was declared has it. To give it up, restart this "
        f"sink once with SESSIONARY_SINK_ACCEPT_GAPS={partition}",
    )


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


def split_messages(messages: list[Message]) -> Iterator[tuple[int, bool, list[Message]]]:
    """Yield messages that follow each other and are of one partition and kind.

    Yields the partition, whether they are records, and the messages. Loops in C, as above.
    """
    kinds = zip(map(Message.partition, messages), map(_is_none, map(Message.error, messages)), strict=True)
    end = 0
    for (partition, is_record), found in groupby(kinds):
        start, end = end, end + len(list(found))
        yield partition or 0, is_record, messages[start:end]
