"""Looks up the last record that each sink has written: Kafka has it, so its table must have it.

This finds losses that tables cannot show by themselves: an emptied ClickHouse, and a loss after
which nothing followed.
"""

import threading
import time
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final, NamedTuple

from confluent_kafka import Consumer, KafkaError, KafkaException, TopicPartition

from sessionary.schemas.errors import SettingsError, Unavailable
from sessionary.schemas.kafka.clients import AdminConnection, ask_topic_id, is_unreadable_batch
from sessionary.schemas.telemetry.role_logs import error_fields, role_logger
from sessionary.sinks.clickhouse.connection import connect, run_statement
from sessionary.sinks.core.intent import parse_metadata
from sessionary.sinks.core.sink_kinds import SINKS, SinkDefinition, SinkKind, tables_of
from sessionary.sinks.errors import OperatorError
from sessionary.sinks.settings import SinkGroupSettings, SinkSettings

_WINDOW: Final = 20  # offsets that are read before the committed one; then eight times as many
_WINDOW_GROWTH: Final = 8
_ASK_S: Final = 10.0  # for one question to Kafka
SILENT_S: Final = 30.0  # nothing arrives for so long: Kafka does not answer
_AGE_MS_MAX: Final = 22 * 86_400_000  # rows may expire 30 days after their record
# Runs a query and returns its rows by column names.
FetchRows = Callable[[str], Iterable[Mapping[str, Any]]]


class EndFault(NamedTuple):
    """A fault, with the columns of `v_integrity`. Offsets are those of the sink's topic."""

    fault: str
    partition: int
    rows: int
    first_offset: int
    last_offset: int
    tenant_id: str = ""
    session_id: str = ""


class LandedEnd(NamedTuple):
    """Where a sink stands in a partition.

    Attributes:
        partition: The partition.
        committed: The offset below which it has written all records.
        log_start: The first offset that Kafka still has.
        log_end: The next offset that Kafka gives.
        last_offset: The offset of the last record below `committed` of the last 22 days, or None.
        former_id: The id of the topic to which `committed` belongs, if another one has its name.
            The log is then not the one that was read, and nothing of it is compared.
    """

    partition: int
    committed: int
    log_start: int
    log_end: int
    last_offset: int | None = None
    former_id: str | None = None


# The faults that `find_end_faults` may find, for each sink.
END_FAULTS: Final = tuple(
    f"{kind}_{what}" for kind in SINKS for what in ("deleted_unread", "log_shorter", "end_missing", "topic_replaced")
)


class TimeLimit:
    """The remaining time of a search."""

    def __init__(self, settings: SinkGroupSettings, seconds: float) -> None:
        self._end_s, self._servers, self._seconds = time.monotonic() + seconds, settings.bootstrap_servers, seconds

    def left_s(self) -> float:
        """Return the seconds for one question. Raises `Unavailable` if there are none left."""
        left_s = self._end_s - time.monotonic()
        if left_s <= 0:
            raise Unavailable(f"{self._servers}: the logs were not read in {self._seconds:g} s", 2.0)
        return min(left_s, _ASK_S)


def find_end_faults(settings: SinkGroupSettings, fetch_rows: FetchRows, timeout_s: float = 60.0) -> list[EndFault]:
    """Return the faults at the committed offset of each sink and partition that are not dismissed.

    Blocks for up to `timeout_s`, besides the time of `fetch_rows`. Raises `Unavailable` if Kafka
    does not answer, and the errors of `fetch_rows`.
    """
    limit = TimeLimit(settings, timeout_s)
    faults: list[EndFault] = []
    for kind in SINKS:
        try:
            faults += _find_sink_faults(settings, kind, fetch_rows, limit)
        except KafkaException as error:
            raise Unavailable(f"{settings.bootstrap_servers}: {error.args[0].str()}", 2.0) from error
    return without_dismissed(faults, fetch_rows)


def without_dismissed(faults: list[EndFault], fetch_rows: FetchRows) -> list[EndFault]:
    """Return the faults that no dismissed one includes, as `v_integrity` does."""
    if not faults:
        return []
    dismissed = [
        (str(row["fault"]), int(row["partition"]), int(row["rows"]), int(row["first"]), int(row["last"]))
        for row in fetch_rows(
            "SELECT fault, partition, rows, first_offset AS first, last_offset AS last FROM dismissed_faults "
            "WHERE partition IS NOT NULL AND first_offset IS NOT NULL AND last_offset IS NOT NULL"
        )
    ]
    return [
        fault
        for fault in faults
        if not any(
            (kind, partition) == (fault.fault, fault.partition)
            and rows >= fault.rows
            and first <= fault.first_offset
            and fault.last_offset <= last
            for kind, partition, rows, first, last in dismissed
        )
    ]


def group_consumer(settings: SinkGroupSettings, kind: SinkKind) -> Consumer:
    """Return a consumer that reads a sink's topic and its group's offsets, and joins no group."""
    return Consumer({**settings.reader_config_of(settings.group_id(kind)), "auto.offset.reset": "earliest"})


def read_landed_ends(
    settings: SinkGroupSettings, kind: SinkKind, topic_id: str | None = None, timeout_s: float = 60.0
) -> list[LandedEnd]:
    """Return where a sink stands in each partition in which it has written something.

    `topic_id`: of its topic; None if it has none. Blocks for up to `timeout_s`. Raises
    `Unavailable`.
    """
    try:
        return _read_ends(settings, kind, topic_id, TimeLimit(settings, timeout_s))
    except KafkaException as error:
        raise Unavailable(f"{settings.bootstrap_servers}: {error.args[0].str()}", 2.0) from error


def _find_sink_faults(
    settings: SinkGroupSettings, kind: SinkKind, fetch_rows: FetchRows, limit: TimeLimit
) -> list[EndFault]:
    topic: str = getattr(settings.topics, SINKS[kind].topic)
    topic_id = ask_topic_id(AdminConnection(settings), topic, limit.left_s())
    ends = _read_ends(settings, kind, topic_id, limit)
    replaced = {end.partition: end.committed for end in ends if end.former_id is not None}
    if topic_id is not None and len(ends) < settings.partitions:
        known = {end.partition for end in ends}
        reported = _find_reported(settings.group_id(kind), kind, topic_id, fetch_rows)
        replaced |= {partition: committed for partition, committed in reported.items() if partition not in known}
    lasts = {end.partition: end.last_offset for end in ends if end.last_offset is not None}
    stored = _find_stored(SINKS[kind], lasts, topic_id, fetch_rows)
    compared = [end for end in ends if end.former_id is None]
    return [
        *(
            EndFault(f"{kind}_topic_replaced", partition, committed, 0, committed - 1)
            for partition, committed in sorted(replaced.items())
        ),
        *(_outside_log(kind, end) for end in compared if not end.log_start <= end.committed <= end.log_end),
        *(
            EndFault(f"{kind}_end_missing", partition, 1, offset, offset)
            for partition, offset in sorted(lasts.items())
            if (partition, offset) not in stored
        ),
    ]


def _find_reported(group: str, kind: SinkKind, topic_id: str, fetch_rows: FetchRows) -> dict[int, int]:
    """Return, by partition, up to where the sink reported that it had read a topic of another id.

    With a topic, Kafka deletes the groups' offsets for it.
    """
    query = (
        f"SELECT partition, committed FROM landed_ends FINAL WHERE sink = '{kind}' AND consumer_group = '{group}' "
        f"AND topic_id NOT IN ('', '{topic_id}') AND committed > 0"
    )
    return {int(row["partition"]): int(row["committed"]) for row in fetch_rows(query)}


def _outside_log(kind: SinkKind, end: LandedEnd) -> EndFault:
    if end.committed < end.log_start:
        unread = end.log_start - end.committed
        return EndFault(f"{kind}_deleted_unread", end.partition, unread, end.committed, end.log_start - 1)
    return EndFault(f"{kind}_log_shorter", end.partition, end.committed - end.log_end, end.log_end, end.committed - 1)


def _read_ends(settings: SinkGroupSettings, kind: SinkKind, topic_id: str | None, limit: TimeLimit) -> list[LandedEnd]:
    """Raises `KafkaException`, `Unavailable`."""
    topic: str = getattr(settings.topics, SINKS[kind].topic)
    consumer = group_consumer(settings, kind)
    try:
        ends = dict[int, LandedEnd]()
        places = [TopicPartition(topic, partition) for partition in range(settings.partitions)]
        for place in consumer.committed(places, timeout=limit.left_s()):
            if place.offset >= 0:  # else it has written nothing yet
                low, high = consumer.get_watermark_offsets(place, timeout=limit.left_s()) or (0, 0)
                former = parse_metadata(place.metadata).topic_id
                is_other = None not in (former, topic_id) and former != topic_id
                ends[place.partition] = LandedEnd(
                    place.partition, place.offset, low, high, former_id=former if is_other else None
                )
        searched = {
            end.partition: end
            for end in ends.values()
            if end.former_id is None and end.log_start < end.committed <= end.log_end
        }
        committed = {partition: end.committed for partition, end in searched.items()}
        lows = {partition: end.log_start for partition, end in searched.items()}
        for partition, offset in _read_last_records(consumer, topic, committed, lows, limit).items():
            ends[partition] = ends[partition]._replace(last_offset=offset)
    finally:
        consumer.close()
    return list(ends.values())


def _read_last_records(
    consumer: Consumer, topic: str, ends: Mapping[int, int], lows: Mapping[int, int], limit: TimeLimit
) -> dict[int, int]:
    """Return, by partition, the offset of the last record before its end, if there is one.

    A partition is left out if a batch that cannot be read comes before that record: librdkafka does
    not get past it. Then some later record will be the last one.
    """
    found, unreadable = dict[int, int](), set[int]()
    searched, window = dict(ends), _WINDOW
    while searched:
        starts = {partition: max(lows[partition], end - window) for partition, end in searched.items()}
        read = _read_records(consumer, topic, starts, {partition: ends[partition] for partition in starts}, limit)
        found |= read.last
        unreadable |= read.unreadable
        # Offsets without a record are markers of transactions.
        searched = {
            partition: start
            for partition, start in starts.items()
            if partition not in found and partition not in unreadable and start > lows[partition]
        }
        window *= _WINDOW_GROWTH
    return found


class _ReadRecords(NamedTuple):
    """The last records that were read, and the partitions in which a batch cannot be read."""

    last: Mapping[int, int]
    unreadable: set[int]


def _read_records(
    consumer: Consumer, topic: str, starts: Mapping[int, int], ends: Mapping[int, int], limit: TimeLimit
) -> _ReadRecords:
    consumer.assign([TopicPartition(topic, partition, start) for partition, start in starts.items()])
    unread, last, unreadable = set(starts), dict[int, int](), set[int]()
    youngest_ms = time.time_ns() // 1_000_000 - _AGE_MS_MAX
    while unread:
        limit.left_s()
        for message in consumer.consume(1_000, 0.2):
            partition, offset, error = message.partition() or 0, message.offset() or 0, message.error()
            if is_unreadable_batch(message):
                if partition in unread and offset < ends[partition]:
                    last.pop(partition, None)
                    unreadable.add(partition)
            elif error is not None and error.code() != KafkaError._PARTITION_EOF:
                raise KafkaException(error)
            elif partition in unread and error is not None and offset < ends[partition]:
                continue  # a follower that is behind ends its log here
            elif partition in unread and error is None and offset < ends[partition]:
                if message.timestamp()[1] >= youngest_ms:
                    last[partition] = offset
                if offset < ends[partition] - 1:
                    continue
            unread.discard(partition)
    return _ReadRecords(last, unreadable)


def _find_stored(
    definition: SinkDefinition, ends: Mapping[int, int], topic_id: str | None, fetch_rows: FetchRows
) -> set[tuple[int, int]]:
    if not ends:
        return set()
    wanted = ", ".join(f"({partition}, {offset})" for partition, offset in ends.items())
    place = f"(src_partition, src_offset) IN ({wanted})"
    if topic_id is not None:
        place += f" AND topic_id IN ('', '{topic_id}')"
    query = " UNION ALL ".join(
        f"SELECT src_partition, src_offset FROM {table} WHERE {place}{condition}"
        for table, condition in tables_of(definition)
    )
    return {(int(row["src_partition"]), int(row["src_offset"])) for row in fetch_rows(query)}


# Reports to ClickHouse where a running sink stands, so that `v_integrity` knows it without Kafka.
#
# By the tables alone, an emptied ClickHouse looks like one that never had a row, and an offset that
# was moved to the log's end looks like one that was read up to there.


# Longer than ticks may wait for their block. A report reads a few records of each partition.
EVERY_S: Final = 120.0
_ASK_TOPIC_S: Final = 5.0
_STOP_S: Final = 1.0
_TIMEOUT_S: Final = 30
_COLUMNS: Final = "sink, consumer_group, partition, topic_id, committed, log_start, log_end, last_offset"
_log = role_logger(__name__)


class EndReport:
    """Reports the ends of one sink's group, on a separate thread."""

    def __init__(self, kind: SinkKind, settings: SinkSettings) -> None:
        self._kind = kind
        self._settings = settings
        self._topic: str = getattr(settings.topics, SINKS[kind].topic)
        self._connection = AdminConnection(settings)
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="end-report", daemon=True)

    def start(self) -> None:
        """Begin to report, the first time after `EVERY_S` seconds."""
        self._thread.start()

    def stop(self) -> None:
        """Stop reporting. Waits for a second at most; a report under way ends by itself."""
        self._stop.set()
        self._thread.join(_STOP_S)

    def report_once(self) -> None:
        """Report now. Blocks. Raises `Unavailable`, `OperatorError`, `SettingsError`."""
        try:
            topic_id = ask_topic_id(self._connection, self._topic, _ASK_TOPIC_S)
        except KafkaException as error:
            raise Unavailable(f"{self._topic}: {error.args[0].str()}", 2.0) from error
        ends = read_landed_ends(self._settings, self._kind, topic_id)
        # The last report of a former topic stays: `find_end_faults` names the topic by it.
        ends = [end for end in ends if end.former_id is None]
        if not ends:
            return
        group, database = self._settings.group_id(self._kind), self._settings.clickhouse_database
        place = f"'{self._kind}', '{group}'"
        rows = ", ".join(f"({place}, {_end_values(end, topic_id)})" for end in ends)
        client = connect(self._settings, _TIMEOUT_S)
        try:
            run_statement(client, f"INSERT INTO {database}.landed_ends ({_COLUMNS}) VALUES {rows}")
        finally:
            client.close()

    def _run(self) -> None:
        while not self._stop.wait(EVERY_S):
            try:
                self.report_once()
            # It is reported again soon. A file that a setting names may be away for a moment only.
            except (Unavailable, OperatorError, SettingsError) as error:
                _log.info("where the sink stands is not reported: %(error)s", **error_fields(error))


def _end_values(end: LandedEnd, topic_id: str | None) -> str:
    last = "NULL" if end.last_offset is None else end.last_offset
    return f"{end.partition}, '{topic_id or ''}', {end.committed}, {end.log_start}, {end.log_end}, {last}"
