"""Compares what transactions count with topics that no sink reads: requests and notices.

Each record there names its transaction in a header. A transaction's row in `batches` says how many
it wrote to each of these topics.
"""

import time
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from datetime import UTC, datetime
from typing import Final, Literal, NamedTuple

from confluent_kafka import Consumer, KafkaError, KafkaException, TopicPartition
from confluent_kafka.admin import AdminClient, ConfigResource, ResourceType  # type: ignore[attr-defined]

from sessionary.schemas.errors import Unavailable
from sessionary.schemas.headers import find_transaction, read_headers
from sessionary.schemas.kafka.clients import is_unreadable_batch
from sessionary.sinks.integrity.landed_ends import EndFault, FetchRows, TimeLimit, group_consumer, without_dismissed
from sessionary.sinks.settings import SinkGroupSettings

CountedTopic = Literal["cleanup", "tasks", "migrations", "quotas"]
# Columns of `batches`, and fields of `TopicNames`.
COUNTED_TOPICS: Final[tuple[CountedTopic, ...]] = ("cleanup", "tasks", "migrations", "quotas")
_LAST_S: Final = 4_291_747_200  # a time that no record has
# A broker deletes by its clock, and a transaction's start is by its processor's.
_MARGIN_S: Final = 3_600
_PLACES: Final = 1_000  # transactions that one query names
# By partition and number; of the log.
TransactionId = tuple[int, int]
_NOT_COUNTED: Final = " OR ".join(f"{topic} IS NULL" for topic in COUNTED_TOPICS)


class WrittenCount(NamedTuple):
    """How many records a transaction counts for one topic, and the offsets that it judged."""

    records: int
    first_offset: int
    last_offset: int


class TopicComparison(NamedTuple):
    """The faults, with the columns of `v_integrity`, and sentences on what was not compared."""

    faults: list[EndFault]
    notes: list[str]


class _Span(NamedTuple):
    """The transactions of a partition that are compared, and those of them without counts."""

    low: int
    high: int
    uncounted: int
    first_uncounted: int
    last_uncounted: int


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
) -> TopicComparison:
    """Compare the topics with transactions that began since a time (s), and landed `late_s` ago.

    Records that their topic may have deleted by its retention are not compared, nor are those of
    transactions without counts: the notes say so. Blocks for up to `timeout_s`, besides the time of
    `fetch_rows`. Raises `Unavailable` if Kafka does not answer, and the errors of `fetch_rows`.
    """
    limit = TimeLimit(settings, timeout_s)
    period = (
        f"started_at >= toDateTime({since_s}, 'UTC') AND landed_at <= now64(3) - toIntervalSecond({late_s}) "
        f"AND started_at < toDateTime({_LAST_S}, 'UTC')"
    )
    # Before the topics: what is in these rows was committed to all of them.
    spans = _fetch_spans(fetch_rows, period)
    written = _fetch_counts(fetch_rows, period)
    try:
        logs, found, unreadable = _read_topics(settings, since_s, limit)
    except KafkaException as error:
        raise Unavailable(f"{settings.bootstrap_servers}: {error.args[0].str()}", 2.0) from error
    notes = [_uncounted_note(partition, span) for partition, span in sorted(spans.items()) if span.uncounted]
    faults: list[EndFault] = []
    for topic in COUNTED_TOPICS:
        starts_s, topic_notes = _known_since(settings, topic, logs, unreadable, since_s)
        notes += topic_notes
        begun = {place: counts for place, counts in written.items() if counts.started_s >= starts_s[place[0]]}
        wanted = {
            place: WrittenCount(counts.by_topic[topic], counts.first_offset, counts.last_offset)
            for place, counts in begun.items()
            if counts.by_topic[topic]
        }
        others = [
            place
            for place in found[topic]
            if place not in wanted and place[0] in spans and spans[place[0]].low <= place[1] <= spans[place[0]].high
        ]
        wanted |= _fetch_empty(fetch_rows, period, topic, others, starts_s)
        faults += find_count_faults(topic, wanted, found[topic])
    return TopicComparison(without_dismissed(faults, fetch_rows), notes)


def find_count_faults(
    topic: CountedTopic, wanted: Mapping[TransactionId, WrittenCount], found: Mapping[TransactionId, int]
) -> Iterator[EndFault]:
    """Yield `…_missing` and `…_doubled` for each partition in which transactions wrote otherwise.

    `wanted`: what transactions count, 0 included. Records of other transactions are left out.
    """
    differing: dict[tuple[int, str], list[tuple[int, WrittenCount]]] = {}
    for (partition, number), counted in wanted.items():
        excess = found.get((partition, number), 0) - counted.records
        if excess:
            what = "doubled" if excess > 0 else "missing"
            differing.setdefault((partition, what), []).append((abs(excess), counted))
    for (partition, what), places in sorted(differing.items()):
        first, last = min(one.first_offset for _, one in places), max(one.last_offset for _, one in places)
        yield EndFault(f"{topic}_{what}", partition, sum(rows for rows, _ in places), first, last)


class _Counts(NamedTuple):
    """A transaction's counts by topic, when it began (s), and the offsets that it judged."""

    by_topic: Mapping[CountedTopic, int]
    started_s: int
    first_offset: int
    last_offset: int


def _fetch_spans(fetch_rows: FetchRows, period: str) -> dict[int, _Span]:
    query = (
        f"SELECT partition, min(number) AS low, max(number) AS high, countIf({_NOT_COUNTED}) AS uncounted, "
        f"minIf(number, {_NOT_COUNTED}) AS first, maxIf(number, {_NOT_COUNTED}) AS last "
        f"FROM batches FINAL WHERE {period} GROUP BY partition"
    )
    names = ("low", "high", "uncounted", "first", "last")
    return {int(row["partition"]): _Span(*(int(row[name]) for name in names)) for row in fetch_rows(query)}


def _fetch_counts(fetch_rows: FetchRows, period: str) -> dict[TransactionId, _Counts]:
    """Return the transactions that wrote something to one of the topics.

    A transaction that is there twice was judged again: the last one's records count.
    """
    some = " OR ".join(f"{topic} > 0" for topic in COUNTED_TOPICS)
    return dict(_fetch_transactions(fetch_rows, period, f"({some}) AND NOT ({_NOT_COUNTED})"))


def _fetch_empty(
    fetch_rows: FetchRows, period: str, topic: CountedTopic, places: list[TransactionId], starts_s: Mapping[int, float]
) -> dict[TransactionId, WrittenCount]:
    """Return those of the transactions that count no record of the topic, which has records."""
    empty: dict[TransactionId, WrittenCount] = {}
    for first in range(0, len(places), _PLACES):
        named = ", ".join(map(str, places[first : first + _PLACES]))
        where = f"{period} AND (partition, number) IN ({named})"
        for place, counts in _fetch_transactions(fetch_rows, where, f"{topic} = 0"):
            if counts.started_s >= starts_s[place[0]]:
                empty[place] = WrittenCount(0, counts.first_offset, counts.last_offset)
    return empty


def _fetch_transactions(fetch_rows: FetchRows, where: str, having: str) -> Iterator[tuple[TransactionId, _Counts]]:
    # argMax leaves out rows whose value is NULL, and no tuple is.
    columns = ("first_offset", "last_offset", "toUnixTimestamp(started_at)", *COUNTED_TOPICS)
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


def _uncounted_note(partition: int, span: _Span) -> str:
    return (
        f"partition {partition}: {span.uncounted} transactions, of the numbers {span.first_uncounted} to "
        f"{span.last_uncounted}, do not count their records of {', '.join(COUNTED_TOPICS)}: these are not compared"
    )


def _known_since(
    settings: SinkGroupSettings,
    topic: CountedTopic,
    logs: Mapping[tuple[str, int], _TopicLog],
    unreadable: Mapping[tuple[str, int], int],
    since_s: int,
) -> tuple[dict[int, float], list[str]]:
    """Return by partition of the events topic since when the topic has all records, and notes."""
    name: str = getattr(settings.topics, topic)
    by_log: dict[int, float] = {}
    notes: list[str] = []
    for partition in range(settings.partitions):
        place, log = (name, partition), logs[name, partition]
        by_log[partition] = _kept_since(log)
        if place in unreadable:
            by_log[partition] = float("inf")
            notes.append(f"{name}-{partition} is not compared: its batch at offset {unreadable[place]} is unreadable")
        elif by_log[partition] == float("inf"):
            notes.append(
                f"{name}-{partition} is not compared: it deleted records, and since when it has all is unknown"
            )
        elif by_log[partition] > since_s:
            notes.append(
                f"{name}-{partition} is compared from {_shown(by_log[partition])} on: it deleted older records"
            )
    # A notice is in the partition of its tenant, whatever partition it comes from.
    latest = max(by_log.values(), default=0.0)
    return (dict.fromkeys(by_log, latest) if topic == "quotas" else by_log), notes


def _kept_since(log: _TopicLog) -> float:
    if log.start == 0 or log.retention_ms == -1:
        return 0.0
    return float("inf") if log.retention_ms is None else time.time() - log.retention_ms / 1_000 + _MARGIN_S


def _shown(at_s: float) -> str:
    return f"{datetime.fromtimestamp(at_s, UTC):%Y-%m-%dT%H:%M:%S}"


class _ReadTopics(NamedTuple):
    """Where logs begin and end, records by transaction, and the first batch that is unreadable."""

    logs: dict[tuple[str, int], _TopicLog]
    found: dict[str, Counter[TransactionId]]
    unreadable: dict[tuple[str, int], int]


def _read_topics(settings: SinkGroupSettings, since_s: int, limit: TimeLimit) -> _ReadTopics:
    """Raises `KafkaException`, `Unavailable`."""
    fields = {str(getattr(settings.topics, topic)): topic for topic in COUNTED_TOPICS}
    kept_ms = _ask_retention(settings, fields, limit)
    consumer = group_consumer(settings, "batches")
    try:
        places = [TopicPartition(name, number) for name in fields for number in range(settings.partitions)]
        logs = dict[tuple[str, int], _TopicLog]()
        for place in places:
            low, high = consumer.get_watermark_offsets(place, timeout=limit.left_s()) or (0, 0)
            logs[place.topic, place.partition] = _TopicLog(low, high, kept_ms[place.topic])
        starts = {place: log.start for place, log in logs.items()}
        if since_s:
            asked = [TopicPartition(*place, max(0, since_s - _MARGIN_S) * 1_000) for place in logs]
            for answer in consumer.offsets_for_times(asked, timeout=limit.left_s()):
                key = answer.topic, answer.partition
                starts[key] = logs[key].end if answer.offset < 0 else max(answer.offset, starts[key])
        read, unreadable = _read_records(consumer, starts, {place: log.end for place, log in logs.items()}, limit)
    finally:
        consumer.close()
    return _ReadTopics(logs, {field: read[name] for name, field in fields.items()}, unreadable)


def _ask_retention(settings: SinkGroupSettings, names: Iterable[str], limit: TimeLimit) -> dict[str, int | None]:
    """Return how long each topic keeps its records (ms); None: who asks may not know."""
    admin = AdminClient(settings.client_config())
    kept: dict[str, int | None] = {}
    resources = [ConfigResource(ResourceType.TOPIC, name) for name in names]
    for resource, answer in admin.describe_configs(resources, request_timeout=limit.left_s()).items():
        try:
            config = {name: entry.value for name, entry in answer.result(limit.left_s()).items()}
        except KafkaException as error:
            if error.args[0].code() not in (
                KafkaError.TOPIC_AUTHORIZATION_FAILED,
                KafkaError.CLUSTER_AUTHORIZATION_FAILED,
            ):
                raise
            config = {}
        is_by_time = config.get("retention.bytes") == "-1" and config.get("retention.ms") is not None
        kept[resource.name] = int(config["retention.ms"]) if is_by_time else None
    return kept


def _read_records(
    consumer: Consumer,
    starts: Mapping[tuple[str, int], int],
    ends: Mapping[tuple[str, int], int],
    limit: TimeLimit,
) -> tuple[dict[str, Counter[TransactionId]], dict[tuple[str, int], int]]:
    found: dict[str, Counter[TransactionId]] = {name: Counter() for name, _ in starts}
    unreadable: dict[tuple[str, int], int] = {}
    unread = {place for place, start in starts.items() if start < ends[place]}
    consumer.assign([TopicPartition(*place, starts[place]) for place in unread])
    while unread:
        limit.left_s()
        for message in consumer.consume(2_000, 0.5):
            place = message.topic() or "", message.partition() or 0
            offset, error = message.offset() or 0, message.error()
            if is_unreadable_batch(message):
                unreadable.setdefault(place, offset)
            elif error is not None and error.code() != KafkaError._PARTITION_EOF:
                raise KafkaException(error)
            elif place in unread and error is None and offset < ends[place]:
                transaction = find_transaction(read_headers(message) or ())
                if transaction is not None:
                    found[place[0]][transaction] += 1
                if offset < ends[place] - 1:
                    continue
            unread.discard(place)
    return found, unreadable
