"""Compares what transactions count with the topics of their outputs.

Each record there names its transaction in a header. A transaction's row in `batches` says how many
it wrote to each of these topics. Rows are compared elsewhere: a sink reads `audit` and `rejected`.
"""

import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future
from datetime import UTC, datetime
from typing import Any, Final, Literal, NamedTuple

from confluent_kafka import Consumer, IsolationLevel, KafkaError, KafkaException, TopicPartition
from confluent_kafka.admin import (  # type: ignore[attr-defined]  # exported, but not by the names of its __all__
    AdminClient,
    ConfigResource,
    OffsetSpec,
    ResourceType,
)

from sessionary.schemas.errors import Unavailable
from sessionary.schemas.headers import find_transaction, read_headers
from sessionary.schemas.kafka.clients import AdminConnection, is_unreadable_batch, take_answer
from sessionary.sinks.integrity.landed_ends import SILENT_S, EndFault, FetchRows, TimeLimit, without_dismissed
from sessionary.sinks.settings import SinkGroupSettings

CountedTopic = Literal["audit", "rejected", "cleanup", "tasks", "migrations", "quotas"]
# Fields of `TopicNames`. No sink reads the topics of requests.
REQUEST_TOPICS: Final[tuple[CountedTopic, ...]] = ("cleanup", "tasks", "migrations", "quotas")
COUNTED_TOPICS: Final[tuple[CountedTopic, ...]] = ("audit", "rejected", *REQUEST_TOPICS)
_COLUMNS: Final[Mapping[CountedTopic, str]] = {**{topic: topic for topic in COUNTED_TOPICS}, "audit": "audited"}
_LAST_S: Final = 4_291_747_200  # a time that no record has
# A record has the broker's time, and a transaction's start is by its processor's clock.
_MARGIN_S: Final = 300
_CLOCKS_MS: Final = 60_000  # by which a broker's clock may be ahead of ClickHouse's
_OLDER: Final = "older records may be deleted, or name no transaction"
_RETENTION_S: Final = 86_400  # no retention that was in force lately was shorter, unless it still is
_PLACES: Final = 5_000  # transactions that one query names: a server reads 256 KiB of a query by default
# By partition and number; of the log.
TransactionId = tuple[int, int]
_NOT_COUNTED: Final = " OR ".join(f"{topic} IS NULL" for topic in REQUEST_TOPICS)


def count_faults(topics: Sequence[CountedTopic]) -> tuple[str, ...]:
    """Return the names of the faults that a comparison of topics may find."""
    return tuple(f"{_fault_of(topic)}_{what}" for topic in topics for what in ("missing", "doubled"))


def _fault_of(topic: CountedTopic) -> str:
    return topic if topic in REQUEST_TOPICS else f"{topic}_topic"  # `audit_missing` is of a session's rows


class WrittenCount(NamedTuple):
    """How many records a transaction counts for one topic, and the offsets that it judged."""

    records: int
    first_offset: int
    last_offset: int


class TopicComparison(NamedTuple):
    """The faults, with the columns of `v_integrity`, and sentences on what was not compared.

    `unread`: those of the notes that tell of logs which Kafka did not let us read.
    """

    faults: list[EndFault]
    notes: list[str]
    unread: Sequence[str] = ()


class _TopicLog(NamedTuple):
    """Where a partition of a topic begins and ends, and how long its records are kept (ms).

    `retention_ms`: None if that is unknown, or a size limits it too; -1 for ever.
    """

    start: int
    end: int
    retention_ms: int | None


def compare_topics(
    settings: SinkGroupSettings,
    fetch_rows: FetchRows,
    since_s: int = 0,
    late_s: int = 120,
    timeout_s: float = 3_600.0,
    topics: Sequence[CountedTopic] = COUNTED_TOPICS,
) -> TopicComparison:
    """Compare topics with transactions that began since a time (s), and landed `late_s` ago.

    Records that their topic may have deleted are not compared, nor are those of transactions
    without counts, nor logs that Kafka does not let us read: the notes say so. Blocks for up to
    `timeout_s`, besides the time of `fetch_rows`, whose errors it raises.
    """
    limit = TimeLimit(settings, timeout_s)
    # Before the topics: what had landed then was committed to all of them.
    (row,) = fetch_rows(f"SELECT toUnixTimestamp64Milli(now64(3)) - {1_000 * late_s} AS landed_ms")
    landed_ms = int(row["landed_ms"])
    found: dict[CountedTopic, Counter[TransactionId]] = {}
    starts_s: dict[CountedTopic, dict[int, float]] = {}
    notes: list[str] = []
    unread: list[str] = []
    for topic in topics:
        read = _read_topic(settings, topic, since_s, landed_ms, limit)
        name = getattr(settings.topics, topic)
        unread += _unread_notes(name, read.unread, settings.partitions, is_whole=topic == "quotas")
        found[topic] = read.found
        starts_s[topic], topic_notes = _known_since(settings, topic, read, since_s)
        notes += topic_notes
    firsts_s = {topic: max(since_s, min(by_log.values())) for topic, by_log in starts_s.items()}
    first_s = min(firsts_s.values())
    if first_s == float("inf"):
        return TopicComparison([], notes, unread)
    period = (
        f"started_at >= toDateTime({int(first_s)}, 'UTC') AND started_at < toDateTime({_LAST_S}, 'UTC') "
        f"AND landed_at <= fromUnixTimestamp64Milli(toInt64({landed_ms}), 'UTC')"
    )
    notes += _fetch_uncounted(fetch_rows, period)
    known = _fetch_counts(fetch_rows, period, firsts_s)
    faults: list[EndFault] = []
    for topic in topics:
        counted = known | _fetch_named(fetch_rows, period, [place for place in found[topic] if place not in known])
        wanted = {
            place: WrittenCount(counts.by_topic[topic], counts.first_offset, counts.last_offset)
            for place, counts in counted.items()
            if counts.started_s >= starts_s[topic].get(place[0], float("inf"))
        }
        faults += find_count_faults(topic, wanted, found[topic])
    return TopicComparison(without_dismissed(faults, fetch_rows), notes, unread)


def find_count_faults(
    topic: CountedTopic, wanted: Mapping[TransactionId, WrittenCount], found: Mapping[TransactionId, int]
) -> Iterator[EndFault]:
    """Yield `…_missing` and `…_doubled` of each partition, in the order of its transactions.

    Transactions in a row that differ in the same way are one fault. `wanted`: what transactions
    count, 0 included. Records of other transactions are left out.
    """
    fault: EndFault | None = None
    for (partition, number), counted in sorted(wanted.items()):
        excess = found.get((partition, number), 0) - counted.records
        if not excess and not counted.records:
            continue
        name = f"{_fault_of(topic)}_{'doubled' if excess > 0 else 'missing'}"
        if fault is not None and (not excess or (fault.fault, fault.partition) != (name, partition)):
            yield fault
            fault = None
        if excess:
            first, rows = (counted.first_offset, 0) if fault is None else (fault.first_offset, fault.rows)
            fault = EndFault(name, partition, rows + abs(excess), first, counted.last_offset)
    if fault is not None:
        yield fault


class _Counts(NamedTuple):
    """A transaction's counts by topic, when it began (s), and the offsets that it judged."""

    by_topic: Mapping[CountedTopic, int]
    started_s: int
    first_offset: int
    last_offset: int


def _fetch_uncounted(fetch_rows: FetchRows, period: str) -> Iterator[str]:
    """Yield a sentence for each partition with transactions without counts."""
    query = (
        "SELECT partition, count() AS uncounted, min(number) AS first, max(number) AS last "
        f"FROM batches FINAL WHERE {period} AND ({_NOT_COUNTED}) GROUP BY partition ORDER BY partition"
    )
    for row in fetch_rows(query):
        yield (
            f"partition {row['partition']}: {row['uncounted']} transactions, of the numbers {row['first']} to "
            f"{row['last']}, do not count their records of {', '.join(REQUEST_TOPICS)}: these are not compared"
        )


def _fetch_counts(
    fetch_rows: FetchRows, period: str, firsts_s: Mapping[CountedTopic, float]
) -> dict[TransactionId, _Counts]:
    """Return the transactions that wrote something to one of the topics since its own first time.

    A transaction that is there twice was judged again: the last one's records count.
    """
    some = [
        f"{topic} > 0 AND started_s >= {int(first_s)}" for topic, first_s in firsts_s.items() if first_s < float("inf")
    ]
    return dict(_fetch_transactions(fetch_rows, period, f"({' OR '.join(some)}) AND NOT ({_NOT_COUNTED})"))


def _fetch_named(fetch_rows: FetchRows, period: str, places: list[TransactionId]) -> dict[TransactionId, _Counts]:
    """Return those of the transactions that are in the period and have counts."""
    named: dict[TransactionId, _Counts] = {}
    for first in range(0, len(places), _PLACES):
        part = ", ".join(map(str, places[first : first + _PLACES]))
        where = f"{period} AND (partition, number) IN ({part})"
        named |= dict(_fetch_transactions(fetch_rows, where, f"NOT ({_NOT_COUNTED})"))
    return named


def _fetch_transactions(fetch_rows: FetchRows, where: str, having: str) -> Iterator[tuple[TransactionId, _Counts]]:
    # argMax leaves out rows whose value is NULL, and no tuple is.
    columns = ("first_offset", "last_offset", "toUnixTimestamp(started_at)", *map(_COLUMNS.__getitem__, COUNTED_TOPICS))
    names = ("first_offset", "last_offset", "started_s", *COUNTED_TOPICS)
    chosen = ", ".join(f"tupleElement(newest, {n}) AS {name}" for n, name in enumerate(names, 1))
    query = (
        f"SELECT partition, number, {chosen} FROM (SELECT partition, number, "
        f"argMax(({', '.join(columns)}), src_offset) AS newest FROM batches WHERE {where} "
        f"GROUP BY partition, number) WHERE {having}"
    )
    for row in fetch_rows(query):
        by_topic = {topic: int(row[topic] or 0) for topic in COUNTED_TOPICS}
        offsets = int(row["first_offset"]), int(row["last_offset"])
        yield (int(row["partition"]), int(row["number"])), _Counts(by_topic, int(row["started_s"]), *offsets)


def _known_since(
    settings: SinkGroupSettings, topic: CountedTopic, read: "_ReadTopic", since_s: int
) -> tuple[dict[int, float], list[str]]:
    """Return by partition of the events topic since when the topic has all records, and notes."""
    name: str = getattr(settings.topics, topic)
    unread = dict(read.unread)
    by_log: dict[int, float] = {}
    for partition in range(settings.partitions):
        by_log[partition] = float("inf") if partition in unread else read.kept_s[partition]
        if by_log[partition] == float("inf"):
            unread.setdefault(partition, "it deleted records, and since when it has all is unknown")
    notes = list(_unread_notes(name, unread, settings.partitions, is_whole=topic == "quotas"))
    if topic == "quotas":
        # A notice is in the partition of its tenant, whatever partition it comes from.
        by_log = dict.fromkeys(by_log, max(by_log.values()))
    later_s = sorted(kept_s for kept_s in by_log.values() if since_s < kept_s < float("inf"))
    if later_s:
        partly = "" if later_s[0] == later_s[-1] else f", and in part from {_shown(later_s[0])} on"
        notes.append(f"{name} is compared from {_shown(later_s[-1])} on{partly}: {_OLDER}")
    return by_log, notes


def _unread_notes(name: str, unread: Mapping[int, str], count: int, *, is_whole: bool) -> Iterator[str]:
    """Yield a sentence for each reason that partitions of a topic are not compared for.

    `is_whole`: the topic is not compared at all if one partition is not.
    """
    by_reason: dict[str, list[int]] = {}
    for partition, reason in sorted(unread.items()):
        by_reason.setdefault(reason, []).append(partition)
    for reason, partitions in by_reason.items():
        which = f"partition {', '.join(map(str, partitions))}"
        if len(partitions) == count:
            yield f"{name} is not compared: {reason}"
        else:
            yield (
                f"{name} is not compared: {which}: {reason}"
                if is_whole
                else f"{name}, {which}, is not compared: {reason}"
            )


def _kept_since(log: _TopicLog, first_at_s: float | None) -> float:
    """Return since when a log that was read from its beginning has all records (s).

    `first_at_s`: when its first record was appended, None if it has none. It has all that followed.
    A topic with few records has those of its retention, too. But the retention may have been
    raised, and the topic made anew: what was before that is gone, and a day is allowed for it.
    """
    by_record = float("inf") if first_at_s is None else first_at_s + _MARGIN_S
    if log.retention_ms is None and log.start > 0:
        return by_record
    is_longer = log.retention_ms in (None, -1)
    kept_s = _RETENTION_S if is_longer else min(_RETENTION_S, (log.retention_ms or 0) / 1_000)
    return min(by_record, time.time() - kept_s + _MARGIN_S)


def _shown(at_s: float) -> str:
    return f"{datetime.fromtimestamp(at_s, UTC):%Y-%m-%dT%H:%M:%S}"


class _ReadTopic(NamedTuple):
    """What was read of a topic.

    Attributes:
        kept_s: Since when each partition has all records (s); 0 if since before the time asked for.
        found: The number of records by transaction.
        unread: Why a partition was not read, or not to its end.
    """

    kept_s: dict[int, float]
    found: Counter[TransactionId]
    unread: dict[int, str]


def _read_topic(
    settings: SinkGroupSettings, topic: CountedTopic, since_s: int, landed_ms: int, limit: TimeLimit
) -> _ReadTopic:
    """Read a topic. Errors of Kafka are reasons why it is not read: other topics may be."""
    name: str = getattr(settings.topics, topic)
    connection = AdminConnection(settings)
    try:
        logs, unread = _ask_logs(connection.open_client(), name, settings.partitions, landed_ms, limit)
        read = _read_logs(settings, topic, logs, since_s, limit)
        return read._replace(unread=unread | read.unread)
    except KafkaException as error:
        reason = str(error.args[0].str())
    except (Unavailable, TimeoutError) as error:
        reason = str(error) or "Kafka did not answer"
    finally:
        connection.end_client()
    return _ReadTopic({}, Counter(), dict.fromkeys(range(settings.partitions), reason))


def _ask_logs(
    admin: AdminClient, name: str, partitions: int, landed_ms: int, limit: TimeLimit
) -> tuple[dict[int, _TopicLog], dict[int, str]]:
    """Return where each log begins and ends, and why others are unknown.

    An open transaction hides what others committed after its first record. So a log is unknown if
    one is open that began before `landed_ms`, when all that is compared had been committed.
    """
    kept_ms = _ask_retention(admin, name, limit)
    places = [TopicPartition(name, number) for number in range(partitions)]
    timeout_s = limit.left_s()

    def ask(spec: OffsetSpec, isolation: IsolationLevel) -> dict[TopicPartition, Future[Any]]:
        answers: dict[TopicPartition, Future[Any]] = admin.list_offsets(
            dict.fromkeys(places, spec), isolation_level=isolation, request_timeout=timeout_s
        )
        return answers

    latest: OffsetSpec = OffsetSpec.latest()  # type: ignore[no-untyped-call]
    earliest: OffsetSpec = OffsetSpec.earliest()  # type: ignore[no-untyped-call]
    later: OffsetSpec = OffsetSpec.for_timestamp(landed_ms + _CLOCKS_MS)
    asked = (
        ask(earliest, IsolationLevel.READ_UNCOMMITTED),
        ask(later, IsolationLevel.READ_UNCOMMITTED),
        ask(latest, IsolationLevel.READ_UNCOMMITTED),
        ask(latest, IsolationLevel.READ_COMMITTED),
    )
    logs: dict[int, _TopicLog] = {}
    unknown: dict[int, str] = {}
    for place in places:
        try:
            start, later_at, end, open_at = (int(take_answer(answers[place], timeout_s).offset) for answers in asked)
            if open_at < (later_at if later_at >= 0 else end):
                unknown[place.partition] = f"a transaction is open at offset {open_at}, and hides what follows"
                continue
            logs[place.partition] = _TopicLog(start, open_at, kept_ms)
        except KafkaException as error:  # its leader may be away, or the topic
            unknown[place.partition] = str(error.args[0].str())
        except TimeoutError:
            unknown[place.partition] = f"its leader did not answer in {timeout_s:g} s"
    return logs, unknown


def _ask_retention(admin: AdminClient, name: str, limit: TimeLimit) -> int | None:
    """Return how long a topic keeps its records (ms); None: who asks may not know."""
    timeout_s = limit.left_s()
    resource = ConfigResource(ResourceType.TOPIC, name)
    answer = admin.describe_configs([resource], request_timeout=timeout_s)[resource]
    try:
        config = {name: entry.value for name, entry in take_answer(answer, timeout_s).items()}
    except KafkaException as error:
        if error.args[0].code() not in (
            KafkaError.TOPIC_AUTHORIZATION_FAILED,
            KafkaError.CLUSTER_AUTHORIZATION_FAILED,
        ):
            raise
        return None
    is_by_time = config.get("retention.bytes") == "-1" and config.get("retention.ms") is not None
    return int(config["retention.ms"]) if is_by_time else None


def _read_logs(
    settings: SinkGroupSettings, topic: CountedTopic, logs: Mapping[int, _TopicLog], since_s: int, limit: TimeLimit
) -> _ReadTopic:
    name: str = getattr(settings.topics, topic)
    starts = {partition: log.start for partition, log in logs.items()}
    unfinished: dict[int, str] = {}
    # Records that are deleted meanwhile are not left out silently.
    consumer = Consumer({**settings.reader_config_of(settings.group_id("batches")), "auto.offset.reset": "error"})
    try:
        if since_s and logs:
            asked = [TopicPartition(name, partition, max(0, since_s - _MARGIN_S) * 1_000) for partition in logs]
            for answer in consumer.offsets_for_times(asked, timeout=limit.left_s()):
                log = logs[answer.partition]
                if answer.error is not None:
                    unfinished[answer.partition] = answer.error.str()
                starts[answer.partition] = log.end if answer.offset < 0 else max(answer.offset, log.start)
        read = _read_records(consumer, name, starts, {number: log.end for number, log in logs.items()}, limit)
    finally:
        consumer.close()
    kept_s = {
        partition: max(
            0.0 if starts[partition] > log.start else _kept_since(log, read.firsts_s.get(partition)),
            0.0 if topic in REQUEST_TOPICS else read.unnamed_s.get(partition, -_MARGIN_S) + _MARGIN_S,
        )
        for partition, log in logs.items()
    }
    return _ReadTopic(kept_s, read.found, read.unfinished | unfinished)


class _ReadRecords(NamedTuple):
    """Records by transaction, when each log's first one was appended, why logs are unfinished.

    `unnamed_s`: when each log's last output that names no transaction was appended.
    """

    found: Counter[TransactionId]
    firsts_s: dict[int, float]
    unfinished: dict[int, str]
    unnamed_s: dict[int, float]


def _read_records(
    consumer: Consumer, name: str, starts: Mapping[int, int], ends: Mapping[int, int], limit: TimeLimit
) -> _ReadRecords:
    found: Counter[TransactionId] = Counter()
    firsts_s: dict[int, float] = {}
    unfinished: dict[int, str] = {}
    unnamed_s: dict[int, float] = {}
    left = {partition for partition, start in starts.items() if start < ends[partition]}
    consumer.assign([TopicPartition(name, partition, starts[partition]) for partition in left])
    heard_s = time.monotonic()
    while left:
        limit.left_s()
        messages = consumer.consume(2_000, 0.5)
        if messages:
            heard_s = time.monotonic()
        elif time.monotonic() - heard_s > SILENT_S:
            unfinished |= dict.fromkeys(left, f"Kafka sent nothing for {SILENT_S:g} s")
            break
        for message in messages:
            partition, offset, error = message.partition(), message.offset() or 0, message.error()
            if partition is None or partition not in left:
                if error is not None and message.topic() is None:
                    raise KafkaException(error)
                continue
            if is_unreadable_batch(message):
                unfinished[partition] = f"its batch at offset {offset} is unreadable"
            elif error is not None and error.code() == KafkaError._AUTO_OFFSET_RESET:
                unfinished[partition] = "records were deleted while they were read: check again"
            elif error is not None and error.code() != KafkaError._PARTITION_EOF:
                unfinished[partition] = error.str()
            elif error is not None and offset < ends[partition]:
                continue  # a follower that is behind ends its log here
            elif error is None and offset < ends[partition]:
                firsts_s.setdefault(partition, message.timestamp()[1] / 1_000)
                transaction = find_transaction(read_headers(message) or ())
                if transaction is not None:
                    found[transaction] += 1
                else:
                    unnamed_s[partition] = message.timestamp()[1] / 1_000
                if offset < ends[partition] - 1:
                    continue
            left.discard(partition)
    return _ReadRecords(found, firsts_s, unfinished, unnamed_s)
