"""Reads a time of a sink's topic from Kafka again, and inserts the records that have no row.

Records that the sink itself has not written yet are left to it. Two repairs at once insert a row
once: both compare the same windows of offsets, and name a window's missing records by one token.
"""

import hashlib
import time
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple

from confluent_kafka import Consumer, KafkaError, KafkaException, TopicPartition

from sessionary.schemas.codec.from_settings import decoder_for
from sessionary.schemas.errors import Unavailable
from sessionary.schemas.kafka.clients import AdminConnection, ask_topic_id
from sessionary.sinks.clickhouse.connection import connect, run_statement
from sessionary.sinks.core.intent import RecordBlock
from sessionary.sinks.core.rows.shared import RawRecord
from sessionary.sinks.core.sink_kinds import SINKS, SinkKind
from sessionary.sinks.errors import BadRow, OperatorError
from sessionary.sinks.integrity.landed_ends import FetchRows, group_consumer, tables_of
from sessionary.sinks.metrics import SinkMetrics
from sessionary.sinks.runtime.block_writer import BlockWriter
from sessionary.sinks.runtime.kafka_client import records_from_messages
from sessionary.sinks.settings import SinkSettings

_WINDOW: Final = 20_000  # offsets of a partition that are compared at once; each begins at a multiple
_BYTES: Final = 16 << 20
_SILENT_S: Final = 30.0  # nothing arrives for so long: Kafka does not answer
_NAMED: Final = 5_000  # numbers that one query names: a server reads 256 KiB of a query by default
_ATTEMPTS: Final = 16  # tokens under which missing records are inserted


class RepairedPartition(NamedTuple):
    """The result of a repair for one partition of one table.

    Attributes:
        sink: The sink; `run_events` for the table that ClickHouse fills from history.
        partition: The partition.
        read: Records of the time that were read again, and of its neighbourhood.
        repaired: How many of them had no row, and have one now.
        copies: How many of them have no row because another record's row has their identity. Kafka
            has such a record twice, and it gets no second row.
        first_offset: The offset of the first record that was repaired; None if none was.
        last_offset: The offset of the last one.
        log_start: Where Kafka's log begins if that is within the time, so that records before it
            may be gone; else None.
    """

    sink: str
    partition: int
    read: int
    repaired: int
    copies: int
    first_offset: int | None
    last_offset: int | None
    log_start: int | None


class _Range(NamedTuple):
    first: int
    end: int
    log_start: int | None


class _Tally:
    """What was done in a partition."""

    def __init__(self) -> None:
        self.read = self.repaired = self.copies = 0
        self.first: int | None = None
        self.last: int | None = None

    def add_repaired(self, records: Sequence[RawRecord]) -> None:
        """Count records, in the order of their offsets, that have rows now."""
        self.repaired += len(records)
        self.first = records[0].offset if self.first is None else self.first
        self.last = records[-1].offset


def repair_rows(
    settings: SinkSettings, kind: SinkKind, since_ms: int, until_ms: int | None, fetch_rows: FetchRows
) -> list[RepairedPartition]:
    """Insert a sink's missing rows, of records appended from `since_ms` to `until_ms`.

    Times are ms since the epoch; `until_ms` None: up to what the sink has written. Records less
    than 20,000 offsets beside the time are repaired too. Records that became dead letters stay so.
    May be repeated, and run beside another repair. Blocks. Raises `Unavailable`, `Transient` or
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
        self._metrics = SinkMetrics(kind, "repair")
        self._decoder = decoder_for(settings)
        self._tallies: dict[int, _Tally] = defaultdict(_Tally)
        self._identities: dict[str, list[str]] = {}

    def run(self, since_ms: int, until_ms: int | None) -> list[RepairedPartition]:
        """Return one result for each partition that has records of the time."""
        consumer = group_consumer(self._settings, self._kind)
        try:
            ranges = self._find_ranges(consumer, since_ms, until_ms)
            self._read_ranges(consumer, ranges)
        finally:
            consumer.close()
        results = []
        for partition, found in sorted(ranges.items()):
            one = self._tallies[partition]
            counts = one.read, one.repaired, one.copies, one.first, one.last
            results.append(RepairedPartition(self._kind, partition, *counts, found.log_start))
        return results

    def _find_ranges(self, consumer: Consumer, since_ms: int, until_ms: int | None) -> dict[int, _Range]:
        """Return whole windows, up to where the sink has written: those of any other repair."""

        def offsets_at(at_ms: int) -> dict[int, int]:
            places = [TopicPartition(self._topic, number, at_ms) for number in range(self._settings.partitions)]
            return {place.partition: place.offset for place in consumer.offsets_for_times(places, timeout=10.0)}

        places = [TopicPartition(self._topic, number) for number in range(self._settings.partitions)]
        firsts, lasts = offsets_at(since_ms), offsets_at(until_ms) if until_ms is not None else {}
        ranges: dict[int, _Range] = {}
        for place in consumer.committed(places, timeout=10.0):
            low, high = consumer.get_watermark_offsets(place, timeout=10.0) or (0, 0)
            first, last = firsts[place.partition], lasts.get(place.partition, -1)
            end = min(place.offset, high, high if last < 0 else -(-last // _WINDOW) * _WINDOW)
            if 0 <= first < end:
                start = max(low, first - first % _WINDOW)
                ranges[place.partition] = _Range(start, end, low if first == low > 0 else None)
        return ranges

    def _read_ranges(self, consumer: Consumer, ranges: Mapping[int, _Range]) -> None:
        consumer.assign([TopicPartition(self._topic, number, found.first) for number, found in ranges.items()])
        waiting: dict[int, list[Any]] = {number: [] for number in ranges}
        sizes: dict[int, int] = defaultdict(int)
        unread, heard_s = set(ranges), time.monotonic()

        def compare(partition: int) -> None:
            self._compare(partition, records_from_messages(self._topic, partition, waiting[partition]))
            waiting[partition], sizes[partition] = [], 0

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
                    held = waiting[partition]
                    if held and held[-1].offset() // _WINDOW != offset // _WINDOW:
                        compare(partition)
                    waiting[partition].append(message)
                    sizes[partition] += len(message.value() or b"")
                if error is not None or offset >= ranges[partition].end - 1:
                    unread.discard(partition)
                    consumer.pause([TopicPartition(self._topic, partition)])
                if sizes[partition] >= _BYTES or partition not in unread:
                    compare(partition)

    def _compare(self, partition: int, records: list[RawRecord]) -> None:
        if not records:
            return
        tally = self._tallies[partition]
        tally.read += len(records)
        lacking = self._without_row(partition, records)
        missing = self._without_copies(lacking)
        tally.copies += len(lacking) - len(missing)
        if missing:
            self._insert(partition, missing)
            tally.add_repaired(missing)

    def _without_row(self, partition: int, records: Sequence[RawRecord]) -> list[RawRecord]:
        """Return the records, in the order of their offsets, whose place no row has."""
        first, last = records[0].offset, records[-1].offset
        query = " UNION ALL ".join(
            f"SELECT src_offset FROM {table} WHERE src_partition = {partition} "
            f"AND src_offset BETWEEN {first} AND {last} AND topic_id IN ('', '{self._topic_id or ''}'){condition}"
            for table, condition in tables_of(self._definition)
        )
        stored = {int(row["src_offset"]) for row in self._fetch_rows(query)}
        return [record for record in records if record.offset not in stored]

    def _without_copies(self, records: Sequence[RawRecord]) -> list[RawRecord]:
        """Return the records whose identity no row has, and the first one of each identity.

        ClickHouse merges rows of one identity, and keeps the place of one. Of a record that Kafka
        has twice, the other place has no row then: that is no loss.
        """
        if not records or self._kind == "history":  # there, the identity is the place
            return list(records)
        by_table: dict[str, list[tuple[tuple[str, ...], RawRecord]]] = defaultdict(list)
        kept = []
        for record in records:
            side = self._definition.side
            is_aside = side is not None and record.value is not None and record.value[:10] in side.headers
            target = side if side is not None and is_aside else self._definition
            try:
                row = target.build_row(record, self._decoder)
            except BadRow:  # it becomes a dead letter
                kept.append(record)
                continue
            names = self._identity_of(target.table.name)
            values = dict(zip(target.table.columns, row, strict=True))
            by_table[target.table.name].append((tuple(str(values[name]) for name in names), record))
        for table, found in by_table.items():
            seen = self._stored_identities(table, [identity for identity, _ in found])
            for identity, record in found:
                if identity not in seen:
                    seen.add(identity)
                    kept.append(record)
        return sorted(kept, key=lambda record: record.offset)

    def _identity_of(self, table: str) -> list[str]:
        """Return the columns that rows of a table are merged by, without the topic's id."""
        if table not in self._identities:
            query = f"SELECT sorting_key FROM system.tables WHERE database = currentDatabase() AND name = '{table}'"
            (row,) = self._fetch_rows(query)
            self._identities[table] = [name for name in str(row["sorting_key"]).split(", ") if name != "topic_id"]
        return self._identities[table]

    def _stored_identities(self, table: str, identities: Sequence[tuple[str, ...]]) -> set[tuple[str, ...]]:
        names = self._identity_of(table)
        number = "source_offset" if "source_offset" in names else "number"
        sought = sorted({int(identity[names.index(number)]) for identity in identities})
        stored: set[tuple[str, ...]] = set()
        for part in _parts(sought):
            query = (
                f"SELECT DISTINCT {', '.join(names)} FROM {table} WHERE {number} IN ({_list(part)}) "
                f"AND topic_id IN ('', '{self._topic_id or ''}')"
            )
            stored |= {tuple(str(row[name]) for name in names) for row in self._fetch_rows(query)}
        return stored

    def _insert(self, partition: int, records: Sequence[RawRecord]) -> None:
        """Insert records; another repair that inserts the same ones has the same tokens.

        A server that knows a token keeps nothing. If an earlier repair had it, and its rows were
        lost since, the records are inserted under the next one.
        """
        left = list(records)
        for attempt in range(_ATTEMPTS):
            group = f"repair:{_digest(record.offset for record in left)}:{attempt}"
            writer = BlockWriter(self._definition, self._settings, self._metrics, self._decoder, group=group)
            try:
                block = RecordBlock(left[0].offset, left[-1].offset, left, None, None, self._topic_id)
                writer.write_block(partition, block)
            except OperatorError as error:
                if error.reason != "short_write":  # as of a block whose token is known
                    raise
            finally:
                writer.close()
            left = self._without_row(partition, left)
            if not left:
                return
        raise OperatorError(
            "block_not_kept",
            f"{len(left)} records of {self._topic}-{partition}, from offset {left[0].offset} on, were inserted "
            f"{_ATTEMPTS} times, and have no row: read ClickHouse's log",
        )


def _digest(offsets: Iterator[int] | Sequence[int]) -> str:
    return hashlib.sha256(_list(offsets).encode()).hexdigest()[:32]


def _list(numbers: Iterator[int] | Sequence[int]) -> str:
    return ", ".join(map(str, numbers))


def _parts(numbers: Sequence[int]) -> Iterator[Sequence[int]]:
    return (numbers[first : first + _NAMED] for first in range(0, len(numbers), _NAMED))


# Rows of run_events, which a materialized view makes of those of history as they are inserted. A
# table that was emptied, or restored from another moment than history, lacks rows for good.


_FILLED: Final = "run_events"
_FILLS: Final = "run_events_of_history"
# Rows of history whose rows in run_events may not be deleted yet: see the TTL of that table.
_KEPT: Final = (
    "retain_until > now() + INTERVAL 1 DAY "
    "AND appended_at > now() - toIntervalDay(multiIf(subject = 'tool_call', 29, subject = 'artifact', 36500, 89))"
)


def repair_run_events(
    settings: SinkSettings, since_ms: int, until_ms: int | None, fetch_rows: FetchRows
) -> list[RepairedPartition]:
    """Insert rows of run_events that history's rows of a time call for. Repair history first.

    Times are as for `repair_rows`, and so is the rest. Raises `Transient`, `OperatorError`, and the
    errors of `fetch_rows`.
    """
    (view,) = fetch_rows(
        f"SELECT as_select FROM system.tables WHERE database = currentDatabase() AND name = '{_FILLS}'"
    )
    names = fetch_rows(f"SELECT name FROM system.columns WHERE database = currentDatabase() AND table = '{_FILLED}'")
    columns, select = ", ".join(str(row["name"]) for row in names), str(view["as_select"])
    period = f"appended_at >= fromUnixTimestamp64Milli(toInt64({since_ms}), 'UTC')"
    if until_ms is not None:
        period += f" AND appended_at < fromUnixTimestamp64Milli(toInt64({until_ms}), 'UTC')"
    found = left = _find_unfilled(fetch_rows, select, period)
    client = connect(settings, settings.sink_insert_timeout_s)
    try:
        for attempt in range(_ATTEMPTS):
            lacking = [(one, part) for one in left for part in _parts(one.missing)]
            if not lacking:
                break
            for one, part in lacking:
                # As for a sink's rows: what another repair inserts too has the same token.
                token = f"repair:{one.topic_id}:{one.partition}:{_digest(part)}:{attempt}"
                place = f"topic_id = '{one.topic_id}' AND source_partition = {one.partition}"
                run_statement(
                    client,
                    f"INSERT INTO {settings.clickhouse_database}.{_FILLED} ({columns}) "
                    f"SELECT {columns} FROM ({select}) WHERE {place} AND source_offset IN ({_list(part)}) ORDER BY ALL "
                    f"SETTINGS insert_deduplicate = 1, insert_deduplication_token = '{token}'",
                )
            left = _find_unfilled(fetch_rows, select, period)
        else:
            raise OperatorError(
                "block_not_kept", f"rows of {_FILLED} were inserted {_ATTEMPTS} times, and are not there: {lacking[0]}"
            )
    finally:
        client.close()
    results = []
    for one in found:
        first, last = (one.missing[0], one.missing[-1]) if one.missing else (None, None)
        results.append(RepairedPartition(_FILLED, one.partition, one.wanted, len(one.missing), 0, first, last, None))
    return results


class _Unfilled(NamedTuple):
    """How many rows history calls for in a partition, and the offsets of those that are missing."""

    topic_id: str
    partition: int
    wanted: int
    missing: list[int]


def _find_unfilled(fetch_rows: FetchRows, select: str, period: str) -> list[_Unfilled]:
    """`select`: the query of the view; `period`: a condition on `appended_at`."""
    columns = "topic_id, source_partition, toUInt64(source_offset) AS place"
    found = fetch_rows(
        "SELECT topic_id, source_partition, bitmapCardinality(wanted) AS wanted_rows, "
        "bitmapToArray(bitmapAndnot(wanted, stored)) AS missing FROM "
        "(SELECT topic_id, source_partition, groupBitmapStateIf(place, NOT is_stored) AS wanted, "
        "groupBitmapStateIf(place, is_stored) AS stored FROM "
        f"(SELECT {columns}, false AS is_stored FROM ({select}) WHERE {period} AND {_KEPT} "
        f"UNION ALL SELECT {columns}, true FROM {_FILLED} WHERE {period}) "
        "GROUP BY topic_id, source_partition) WHERE wanted_rows > 0 ORDER BY source_partition, topic_id"
    )
    return [
        _Unfilled(
            *(str(row["topic_id"]), int(row["source_partition"]), int(row["wanted_rows"])),
            sorted(map(int, row["missing"])),
        )
        for row in found
    ]
