"""Reads a time of a sink's topic from Kafka again, and inserts the records that have no row.

Records that the sink itself has not written yet are left to it. Two repairs at once insert a row
once: both compare the same windows of offsets, and name a window's missing records by one token. A
part of a window may be missing because the parts of the other's block become visible one by one:
then a repair looks again.
"""

import hashlib
import time
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence, Set
from typing import Any, Final, NamedTuple

from confluent_kafka import Consumer, KafkaError, KafkaException, Message, TopicPartition

from sessionary.schemas.codec.from_settings import decoder_for
from sessionary.schemas.errors import Unavailable
from sessionary.schemas.kafka.clients import AdminConnection, ask_topic_id
from sessionary.sinks.clickhouse.connection import connect, run_statement
from sessionary.sinks.core.intent import RecordBlock
from sessionary.sinks.core.rows.shared import RawRecord
from sessionary.sinks.core.sink_kinds import SINKS, SinkKind, tables_of
from sessionary.sinks.errors import BadRow, OperatorError
from sessionary.sinks.integrity.landed_ends import SILENT_S, FetchRows, group_consumer
from sessionary.sinks.metrics import SinkMetrics
from sessionary.sinks.runtime.block_writer import BlockWriter
from sessionary.sinks.runtime.kafka_client import records_from_messages
from sessionary.sinks.settings import SinkSettings

_WINDOW: Final = 20_000  # offsets of a partition that are compared at once; each begins at a multiple
_BYTES: Final = 16 << 20
_NAMED: Final = 5_000  # numbers that one query names: a server reads 256 KiB of a query by default
_LEADING: Final = 500  # values of a column that a query names besides
_TEXTS: Final = ("tenant_id", "session_id", "source_topic")  # columns of identities that are texts
_SETTLE_S: Final = 2.0  # longer than it takes until all parts of a block are visible
# Transactions are of the time in which they began, by their processor's clock.
_MARGIN_MS: Final = 300_000
# Faults that a repair of a sink's table may mend.
_MISSING_OF: Final[Mapping[SinkKind, tuple[str, ...]]] = {
    "history": ("history_rows_missing",),
    "rejected": ("rejected_rows_missing",),
    "audit": ("audit_rows_missing", "audit_missing"),
    "batches": ("batch_missing",),
}
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
        behind_s: For how long Kafka has had the first record that the sink has not written yet; 0
            if there is none.
        lost: How many rows cannot be made, because their contents have expired in history.
    """

    sink: str
    partition: int
    read: int
    repaired: int
    copies: int
    first_offset: int | None
    last_offset: int | None
    log_start: int | None
    behind_s: int
    lost: int


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
    settings: SinkSettings,
    kind: SinkKind,
    since_ms: int,
    until_ms: int | None,
    fetch_rows: FetchRows,
    faults: Sequence[Mapping[str, Any]] = (),
) -> list[RepairedPartition]:
    """Insert a sink's missing rows, of records appended from `since_ms` to `until_ms`.

    Times are ms since the epoch; `until_ms` None: up to what the sink has written. Records less
    than 20,000 offsets beside the time are repaired too. Records that became dead letters stay so.
    `faults`: rows of `v_integrity`; what they name is read as well. Partitions without a record of
    the time are left out, unless the sink is behind. May be repeated, and run beside another
    repair. Blocks. Raises `Unavailable`, `Transient` or `OperatorError`, and the errors of
    `fetch_rows`.
    """
    own = [fault for fault in faults if fault["fault"] in _MISSING_OF[kind]]
    if own:
        since_ms, until_ms = max(0, since_ms - _MARGIN_MS), None if until_ms is None else until_ms + _MARGIN_MS
    named: dict[int, list[int]] = defaultdict(list)
    for fault in own if kind == "history" else ():  # the others' offsets are those of the events topic
        named[int(fault["partition"])] += [int(fault["first_offset"]), int(fault["last_offset"]) + 1]
    offsets = {partition: (min(found), max(found)) for partition, found in named.items()}
    try:
        return _Repair(settings, kind, fetch_rows).run(since_ms, until_ms, offsets)
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

    def run(
        self, since_ms: int, until_ms: int | None, offsets: Mapping[int, tuple[int, int]]
    ) -> list[RepairedPartition]:
        """Return one result for each partition with records of the time, or whose sink is behind.

        `offsets`: by partition, the first offset and the end of what is read besides the time.
        """
        consumer = group_consumer(self._settings, self._kind)
        try:
            ranges, unread = self._find_ranges(consumer, since_ms, until_ms, offsets)
            self._read_ranges(consumer, ranges)
            behind_ms = self._find_unwritten(consumer, unread)
        finally:
            consumer.close()
        results = []
        for partition in sorted({*ranges, *behind_ms}):
            one, found = self._tallies[partition], ranges.get(partition)
            counts = one.read, one.repaired, one.copies, one.first, one.last
            behind_s = round(max(0.0, time.time() - behind_ms[partition] / 1_000)) if partition in behind_ms else 0
            log_start = None if found is None else found.log_start
            results.append(RepairedPartition(self._kind, partition, *counts, log_start, behind_s, 0))
        return results

    def _find_ranges(
        self, consumer: Consumer, since_ms: int, until_ms: int | None, offsets: Mapping[int, tuple[int, int]]
    ) -> tuple[dict[int, _Range], dict[int, _Range]]:
        """Return whole windows, up to where the sink has written, and what it has not written yet.

        Any other repair has the same windows.
        """

        def offsets_at(at_ms: int) -> dict[int, int]:
            places = [TopicPartition(self._topic, number, at_ms) for number in range(self._settings.partitions)]
            return {place.partition: place.offset for place in consumer.offsets_for_times(places, timeout=10.0)}

        places = [TopicPartition(self._topic, number) for number in range(self._settings.partitions)]
        firsts, lasts = offsets_at(since_ms), offsets_at(until_ms) if until_ms is not None else {}
        ranges: dict[int, _Range] = {}
        unread: dict[int, _Range] = {}
        for place in consumer.committed(places, timeout=10.0):
            low, high = consumer.get_watermark_offsets(place, timeout=10.0) or (0, 0)
            written = min(max(place.offset, low), high)
            if written < high:
                unread[place.partition] = _Range(written, high, None)
            first, last = firsts[place.partition], lasts.get(place.partition, -1)
            first = high if first < 0 else first  # nothing was appended that late
            end = high if last < 0 else last
            if place.partition in offsets:
                named_first, named_end = offsets[place.partition]
                first, end = min(first, max(low, named_first)), max(end, named_end)
            end = min(written, -(-end // _WINDOW) * _WINDOW)
            if first < end:
                start = max(low, first - first % _WINDOW)
                ranges[place.partition] = _Range(start, end, low if first == low > 0 else None)
        return ranges, unread

    def _find_unwritten(self, consumer: Consumer, unread: Mapping[int, _Range]) -> dict[int, int]:
        """Return when the first unwritten record of each partition was appended, in ms.

        A log may end with markers of transactions: then there is none.
        """
        places = [TopicPartition(self._topic, number, found.first) for number, found in unread.items()]
        consumer.assign(places)
        consumer.resume(places)  # `_read_ranges` paused them, which an assignment does not end
        left, appended_ms = set(unread), dict[int, int]()
        for partition, offset, message in self._consume(consumer, left):
            if partition not in left:
                continue
            if (error := message.error()) is None:
                appended_ms[partition] = message.timestamp()[1]
            elif error.code() != KafkaError._PARTITION_EOF:
                raise KafkaException(error)
            elif offset < unread[partition].end:
                continue  # a follower that is behind ends its log here
            left.discard(partition)
            consumer.pause([TopicPartition(self._topic, partition)])
        return appended_ms

    def _consume(self, consumer: Consumer, left: Set[int]) -> Iterator[tuple[int, int, Message]]:
        """Yield partition, offset and message until no partition is left; the caller removes them.

        Raises `Unavailable` if nothing arrives.
        """
        heard_s = time.monotonic()
        while left:
            messages = consumer.consume(2_000, 0.5)
            if messages:
                heard_s = time.monotonic()
            elif time.monotonic() - heard_s > SILENT_S:
                raise Unavailable(f"partitions {sorted(left)} of {self._topic}: nothing for {SILENT_S:g} s", 2.0)
            for message in messages:
                yield message.partition() or 0, message.offset() or 0, message
                heard_s = time.monotonic()  # the caller's comparison is no silence of Kafka's

    def _read_ranges(self, consumer: Consumer, ranges: Mapping[int, _Range]) -> None:
        consumer.assign([TopicPartition(self._topic, number, found.first) for number, found in ranges.items()])
        waiting: dict[int, list[Any]] = {number: [] for number in ranges}
        sizes: dict[int, int] = defaultdict(int)
        unread = set(ranges)

        def compare(partition: int) -> None:
            self._compare(partition, records_from_messages(self._topic, partition, waiting[partition]))
            waiting[partition], sizes[partition] = [], 0

        for partition, offset, message in self._consume(consumer, unread):
            error = message.error()
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
            # A follower that is behind ends its log before the range's end.
            if offset >= ranges[partition].end - (error is None):
                unread.discard(partition)
                consumer.pause([TopicPartition(self._topic, partition)])
            if sizes[partition] >= _BYTES or partition not in unread:
                compare(partition)

    def _compare(self, partition: int, records: list[RawRecord]) -> None:
        if not records:
            return
        tally = self._tallies[partition]
        tally.read += len(records)
        lacking = self._find_settled(partition, records)
        missing = self._without_copies(lacking)
        tally.copies += len(lacking) - len(missing)
        if missing:
            self._insert(partition, missing)
            tally.add_repaired(missing)

    def _find_settled(self, partition: int, records: Sequence[RawRecord]) -> list[RawRecord]:
        """Return the records without a row, once no other repair is making rows of the others."""
        lacking = self._without_row(partition, records)
        while 0 < len(lacking) < len(records):
            time.sleep(_SETTLE_S)
            left = self._without_row(partition, lacking)
            if len(left) == len(lacking):
                break
            lacking = left
        return lacking

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
        # Columns before the number: without them a query reads the whole table.
        leading = ""
        for n, name in enumerate(names[: names.index(number)]):
            values = sorted({identity[n] for identity in identities})
            if len(values) <= _LEADING:
                leading += f" AND {name} IN ({', '.join(map(_quote_text, values) if name in _TEXTS else values)})"
        stored: set[tuple[str, ...]] = set()
        for part in _parts(sought):
            query = (
                f"SELECT DISTINCT {', '.join(names)} FROM {table} WHERE {number} IN ({_list(part)}){leading} "
                f"AND topic_id IN ('', '{self._topic_id or ''}')"
            )
            stored |= {tuple(str(row[name]) for name in names) for row in self._fetch_rows(query)}
        return stored

    def _insert(self, partition: int, records: Sequence[RawRecord]) -> None:
        """Insert records; another repair that inserts the same ones has the same tokens.

        A server that knows a token keeps nothing. If an earlier repair had it, and its rows were
        lost since, the records are inserted under the next one. A token is known before its rows
        are visible.
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
            if left:
                time.sleep(_SETTLE_S)
                left = self._without_row(partition, left)
            if not left:
                return
        raise _not_kept(f"{len(left)} records of {self._topic}-{partition}, from offset {left[0].offset} on,")


def _not_kept(what: str) -> OperatorError:
    return OperatorError(
        "block_not_kept", f"{what} were inserted {_ATTEMPTS} times, and have no row: read ClickHouse's log"
    )


def _digest(offsets: Iterator[int] | Sequence[int]) -> str:
    return hashlib.sha256(_list(offsets).encode()).hexdigest()[:32]


def _list(numbers: Iterator[int] | Sequence[int]) -> str:
    return ", ".join(map(str, numbers))


def _quote_text(text: str) -> str:
    """Return a text as a literal of ClickHouse."""
    return "'" + text.replace("\\", "\\\\").replace("'", "\\'") + "'"


def _parts(numbers: Sequence[int]) -> Iterator[Sequence[int]]:
    return (numbers[first : first + _NAMED] for first in range(0, len(numbers), _NAMED))


# Rows of run_events, which a materialized view makes of those of history as they are inserted. A
# table that was emptied, or restored from another moment than history, lacks rows for good.


_FILLED: Final = "run_events"
_FILLS: Final = "run_events_of_history"
# Rows of history whose rows in run_events may not be deleted yet: see the TTL of that table, which
# `db migrate` changes by a setting.
_DAYS: Final = "(SELECT if(count() = 0, 90, argMax(days, applied_at)) FROM retention_days WHERE table_name = 'runs')"
_KEPT: Final = (
    "retain_until > now() + INTERVAL 1 DAY AND appended_at > now64(3) - toIntervalDay("
    f"multiIf(subject = 'tool_call', 29, subject = 'artifact', 36500, {_DAYS} - 1))"
)


def repair_run_events(
    settings: SinkSettings, since_ms: int, until_ms: int | None, late_s: int, fetch_rows: FetchRows
) -> list[RepairedPartition]:
    """Insert rows of run_events that history's rows of a time call for. Repair history first.

    Rows of history that landed less than `late_s` ago are left to the view. Those whose contents
    have expired cannot be repaired. Times are as for `repair_rows`, and so is the rest. Raises
    `Transient`, `OperatorError`, and the errors of `fetch_rows`.
    """
    (view,) = fetch_rows(
        f"SELECT as_select FROM system.tables WHERE database = currentDatabase() AND name = '{_FILLS}'"
    )
    names = fetch_rows(f"SELECT name FROM system.columns WHERE database = currentDatabase() AND table = '{_FILLED}'")
    columns, select = ", ".join(str(row["name"]) for row in names), str(view["as_select"])
    period = f"appended_at >= fromUnixTimestamp64Milli(toInt64({since_ms}), 'UTC')"
    if until_ms is not None:
        period += f" AND appended_at < fromUnixTimestamp64Milli(toInt64({until_ms}), 'UTC')"
    found = left = _find_unfilled(fetch_rows, select, period, late_s)
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
            left = _find_unfilled(fetch_rows, select, period, late_s)
            if any(one.missing for one in left):  # as above
                time.sleep(_SETTLE_S)
                left = _find_unfilled(fetch_rows, select, period, late_s)
        else:
            one, part = lacking[0]
            raise _not_kept(f"{len(part)} rows of {_FILLED}-{one.partition}, from offset {part[0]} on,")
    finally:
        client.close()
    results = []
    for one in found:
        first, last = (one.missing[0], one.missing[-1]) if one.missing else (None, None)
        counts = one.wanted, len(one.missing), 0
        results.append(RepairedPartition(_FILLED, one.partition, *counts, first, last, None, 0, one.lost))
    return results


class _Unfilled(NamedTuple):
    """What history calls for in a partition.

    Attributes:
        topic_id: Kafka's id of the topic.
        partition: The partition.
        wanted: The number of rows.
        missing: The offsets of those that are not there.
        lost: How many more are not there, and cannot be made.
    """

    topic_id: str
    partition: int
    wanted: int
    missing: list[int]
    lost: int


def _find_unfilled(fetch_rows: FetchRows, select: str, period: str, late_s: int) -> list[_Unfilled]:
    """`select`: the query of the view; `period`: a condition on `appended_at`."""
    place = "topic_id, source_partition, source_offset"
    late = f"SELECT {place} FROM history WHERE {period} AND landed_at > now64(3) - toIntervalSecond({late_s})"
    columns = "topic_id, source_partition, toUInt64(source_offset) AS place"
    found = fetch_rows(
        "SELECT topic_id, source_partition, bitmapCardinality(wanted) AS wanted_rows, "
        "bitmapToArray(bitmapAndnot(wanted, stored)) AS missing, "
        "bitmapCardinality(bitmapAndnot(expired, stored)) AS lost FROM "
        "(SELECT topic_id, source_partition, groupBitmapStateIf(place, NOT is_stored AND NOT is_expired) AS wanted, "
        "groupBitmapStateIf(place, NOT is_stored AND is_expired) AS expired, "
        "groupBitmapStateIf(place, is_stored) AS stored FROM "
        f"(SELECT {columns}, false AS is_stored, personal_expires <= now() AS is_expired "
        f"FROM ({select}) WHERE {period} AND {_KEPT} AND ({place}) NOT IN ({late}) "
        f"UNION ALL SELECT {columns}, true, false FROM {_FILLED} WHERE {period}) "
        "GROUP BY topic_id, source_partition) WHERE wanted_rows > 0 OR lost > 0 "
        "ORDER BY source_partition, topic_id"
    )
    return [
        _Unfilled(
            *(str(row["topic_id"]), int(row["source_partition"]), int(row["wanted_rows"])),
            sorted(map(int, row["missing"])),
            int(row["lost"]),
        )
        for row in found
    ]
