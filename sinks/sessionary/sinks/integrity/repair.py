"""Reads a time of a sink's topic from Kafka again, and inserts the records that have no row.

Records that the sink itself has not written yet are left to it.
"""

import time
import uuid
from collections import defaultdict
from collections.abc import Mapping
from typing import Any, Final, NamedTuple

from confluent_kafka import Consumer, KafkaError, KafkaException, TopicPartition

from sessionary.schemas.codec.from_settings import decoder_for
from sessionary.schemas.errors import Unavailable
from sessionary.schemas.kafka.clients import AdminConnection, ask_topic_id
from sessionary.sinks.core.intent import RecordBlock
from sessionary.sinks.core.rows.shared import RawRecord
from sessionary.sinks.core.sink_kinds import SINKS, SinkKind
from sessionary.sinks.integrity.landed_ends import FetchRows, group_consumer, tables_of
from sessionary.sinks.metrics import SinkMetrics
from sessionary.sinks.runtime.block_writer import BlockWriter
from sessionary.sinks.runtime.kafka_client import records_from_messages
from sessionary.sinks.settings import SinkSettings

_RECORDS: Final = 20_000  # of a partition that are compared at once
_BYTES: Final = 16 << 20
_SILENT_S: Final = 30.0  # nothing arrives for so long: Kafka does not answer


class RepairedPartition(NamedTuple):
    """The result of a repair for one partition of one sink's table.

    Attributes:
        sink: The sink.
        partition: The partition.
        read: Records of the time that were read again.
        repaired: How many of them had no row, and have one now.
        first_offset: The offset of the first record without a row; None if all had one.
        last_offset: The offset of the last one.
        log_start: Where Kafka's log begins if that is within the time, so that records before it
            may be gone; else None.
    """

    sink: SinkKind
    partition: int
    read: int
    repaired: int
    first_offset: int | None
    last_offset: int | None
    log_start: int | None


class _Range(NamedTuple):
    first: int
    end: int
    log_start: int | None


def repair_rows(
    settings: SinkSettings, kind: SinkKind, since_ms: int, until_ms: int | None, fetch_rows: FetchRows
) -> list[RepairedPartition]:
    """Insert a sink's missing rows, of records appended from `since_ms` to `until_ms`.

    Times are ms since the epoch; `until_ms` None: up to what the sink has written. Records that
    became dead letters stay so. May be repeated. Blocks. Raises `Unavailable`, `Transient` or
    `OperatorError`, and the errors of `fetch_rows`.
    """
    try:
        return _Repair(settings, kind, fetch_rows).run(since_ms, until_ms)
    except KafkaException as error:
        raise Unavailable(f"{settings.bootstrap_servers}: {error.args[0].str()}", 2.0) from error


class _Repair:
    def __init__(self, settings: SinkSettings, kind: SinkKind, fetch_rows: FetchRows) -> None:
        self._settings, self._kind, self._fetch_rows = settings, kind, fetch_rows
        self._definition = SINKS[kind]
        self._topic: str = getattr(settings.topics, self._definition.topic)
        self._topic_id = ask_topic_id(AdminConnection(settings), self._topic, 10.0)
        # A separate token: ClickHouse may know those of the sink, and would keep nothing.
        group = f"repair-{uuid.uuid4()}"
        metrics = SinkMetrics(kind, group)
        self._writer = BlockWriter(self._definition, settings, metrics, decoder_for(settings), group=group)
        self._read: dict[int, int] = defaultdict(int)
        self._missing: dict[int, list[int]] = defaultdict(list)  # number, first and last offset

    def run(self, since_ms: int, until_ms: int | None) -> list[RepairedPartition]:
        """Return one result for each partition that has records of the time."""
        consumer = group_consumer(self._settings, self._kind)
        try:
            ranges = self._find_ranges(consumer, since_ms, until_ms)
            self._read_ranges(consumer, ranges)
        finally:
            consumer.close()
            self._writer.close()
        results = []
        for partition, found in sorted(ranges.items()):
            count, first, last = self._missing[partition] or (0, None, None)
            results.append(
                RepairedPartition(
                    self._kind, partition, self._read[partition], count or 0, first, last, found.log_start
                )
            )
        return results

    def _find_ranges(self, consumer: Consumer, since_ms: int, until_ms: int | None) -> dict[int, _Range]:
        def offsets_at(at_ms: int) -> dict[int, int]:
            places = [TopicPartition(self._topic, number, at_ms) for number in range(self._settings.partitions)]
            return {place.partition: place.offset for place in consumer.offsets_for_times(places, timeout=10.0)}

        places = [TopicPartition(self._topic, number) for number in range(self._settings.partitions)]
        firsts, lasts = offsets_at(since_ms), offsets_at(until_ms) if until_ms is not None else {}
        ranges: dict[int, _Range] = {}
        for place in consumer.committed(places, timeout=10.0):
            low, high = consumer.get_watermark_offsets(place, timeout=10.0) or (0, 0)
            first, last = firsts[place.partition], lasts.get(place.partition, -1)
            end = min(place.offset, high, high if last < 0 else last)
            if 0 <= first < end:
                ranges[place.partition] = _Range(first, end, low if first == low > 0 else None)
        return ranges

    def _read_ranges(self, consumer: Consumer, ranges: Mapping[int, _Range]) -> None:
        consumer.assign([TopicPartition(self._topic, number, found.first) for number, found in ranges.items()])
        waiting: dict[int, list[Any]] = {number: [] for number in ranges}
        sizes: dict[int, int] = defaultdict(int)
        unread, heard_s = set(ranges), time.monotonic()
        while unread:
            messages = consumer.consume(2_000, 0.5)
            if messages:
                heard_s = time.monotonic()
            elif time.monotonic() - heard_s > _SILENT_S:
                raise Unavailable(f"partitions {sorted(unread)} of {self._topic}: nothing for {_SILENT_S:g} s", 2.0)
            for message in messages:
                partition, offset, error = message.partition() or 0, message.offset() or 0, message.error()
                if error is not None and error.code() != KafkaError._PARTITION_EOF:
                    raise KafkaException(error)
                if partition not in unread:
                    continue
                if error is None and offset < ranges[partition].end:
                    waiting[partition].append(message)
                    sizes[partition] += len(message.value() or b"")
                if error is not None or offset >= ranges[partition].end - 1:
                    unread.discard(partition)
                    consumer.pause([TopicPartition(self._topic, partition)])
                if len(waiting[partition]) >= _RECORDS or sizes[partition] >= _BYTES or partition not in unread:
                    self._compare(partition, records_from_messages(self._topic, partition, waiting[partition]))
                    waiting[partition], sizes[partition] = [], 0

    def _compare(self, partition: int, records: list[RawRecord]) -> None:
        if not records:
            return
        self._read[partition] += len(records)
        first, last = records[0].offset, records[-1].offset
        query = " UNION ALL ".join(
            f"SELECT src_offset FROM {table} WHERE src_partition = {partition} "
            f"AND src_offset BETWEEN {first} AND {last} AND topic_id IN ('', '{self._topic_id or ''}'){condition}"
            for table, condition in tables_of(self._definition)
        )
        stored = {int(row["src_offset"]) for row in self._fetch_rows(query)}
        missing = [record for record in records if record.offset not in stored]
        if not missing:
            return
        block = RecordBlock(missing[0].offset, missing[-1].offset, missing, None, None, self._topic_id)
        self._writer.write_block(partition, block)
        count, earliest, _ = self._missing[partition] or (0, block.first, None)
        self._missing[partition] = [count + len(missing), earliest, block.last]
