"""Kafka and ClickHouse as a comparison of requests sees them."""

import re
from collections.abc import Iterable, Mapping
from concurrent.futures import Future
from typing import Any, NamedTuple

from confluent_kafka import IsolationLevel, KafkaError, KafkaException, TopicPartition
from confluent_kafka.admin import OffsetSpec  # type: ignore[attr-defined]  # exported, but not in its __all__

from sessionary.schemas.headers import transaction_header
from sessionary.sinks.integrity.topic_counts import COUNTED_TOPICS, TransactionId

_EARLIEST = type(OffsetSpec.earliest())  # type: ignore[no-untyped-call]
_LATEST = type(OffsetSpec.latest())  # type: ignore[no-untyped-call]


class FakeMessage(NamedTuple):
    """A record, or an error that a consumer reports in its place."""

    place: tuple[str, int]
    at: int
    at_s: float = 0.0
    transaction: TransactionId | None = None
    code: int | None = None

    def topic(self) -> str:
        return self.place[0]

    def partition(self) -> int:
        return self.place[1]

    def offset(self) -> int:
        return self.at

    def error(self) -> KafkaError | None:
        return None if self.code is None else KafkaError(self.code)

    def timestamp(self) -> tuple[int, int]:
        return 2, int(self.at_s * 1_000)

    def value(self) -> bytes:
        return b"value"

    def headers(self) -> list[tuple[str, bytes]]:
        return [] if self.transaction is None else [transaction_header(*self.transaction)]


class FakeTopics:
    """A broker, its admin client and its consumer in one.

    Attributes:
        records: What a consumer is given, by log.
        starts: Where logs begin, unless at 0.
        ends: Where logs end, unless after their last record.
        opened: The offsets of open transactions' first records, by log.
        answers: What the next calls of `consume` return, before what was assigned.
        silent: Logs of which a consumer gets nothing.
        written: The group's committed offsets, unless it has read all.
        refused: Codes of the errors for topics, and for single logs.
        config: The topics' settings.
    """

    def __init__(self) -> None:
        self.records: dict[tuple[str, int], list[FakeMessage]] = {}
        self.starts: dict[tuple[str, int], int] = {}
        self.ends: dict[tuple[str, int], int] = {}
        self.opened: dict[tuple[str, int], int] = {}
        self.answers: list[list[FakeMessage]] = []
        self.silent: set[tuple[str, int]] = set()
        self.paused: set[tuple[str, int]] = set()
        self.written: dict[tuple[str, int], int] = {}
        self.refused: dict[str | tuple[str, int], int] = {}
        self.config = {"retention.ms": "604800000", "retention.bytes": "-1"}
        self.read: list[tuple[str, int]] = []
        self._pending: list[FakeMessage] = []

    def append(self, topic: str, partition: int, transaction: TransactionId | None, at_s: float) -> None:
        """Append a record of a transaction."""
        place = topic, partition
        offset = self._end(place)
        self.records.setdefault(place, []).append(FakeMessage(place, offset, at_s, transaction))

    def _end(self, place: tuple[str, int]) -> int:
        held = self.records.get(place)
        return self.ends.get(place, held[-1].at + 1 if held else self.starts.get(place, 0))

    def _find_later(self, place: tuple[str, int], at_ms: int) -> int:
        return next((record.at for record in self.records.get(place, ()) if record.at_s * 1_000 >= at_ms), -1)

    def _answer(self, value: object, *places: str | tuple[str, int]) -> "Future[Any]":
        answer: Future[Any] = Future()
        refused = [self.refused[place] for place in places if place in self.refused]
        if refused:
            answer.set_exception(KafkaException(KafkaError(refused[0])))
        else:
            answer.set_result(value)
        return answer

    # As a connection, and as the admin client.

    def open_client(self) -> "FakeTopics":
        return self

    def end_client(self) -> None:
        """Do nothing."""

    def describe_configs(self, resources: Iterable[Any], **_: object) -> dict[Any, "Future[Any]"]:
        class Entry(NamedTuple):
            value: str

        found = {name: Entry(value) for name, value in self.config.items()}
        return {resource: self._answer(found, resource.name) for resource in resources}

    def list_offsets(
        self, asked: Mapping[TopicPartition, Any], *, isolation_level: IsolationLevel, **_: object
    ) -> dict[TopicPartition, "Future[Any]"]:
        class Found(NamedTuple):
            offset: int

        def find(place: tuple[str, int], spec: Any) -> int:
            if isinstance(spec, _EARLIEST):
                return self.starts.get(place, 0)
            if isinstance(spec, _LATEST):
                is_committed = isolation_level == IsolationLevel.READ_COMMITTED
                return self.opened.get(place, self._end(place)) if is_committed else self._end(place)
            return self._find_later(place, spec.timestamp)

        return {
            one: self._answer(Found(find((one.topic, one.partition), spec)), one.topic, (one.topic, one.partition))
            for one, spec in asked.items()
        }

    # As a consumer.

    def offsets_for_times(self, asked: Iterable[TopicPartition], **_: object) -> list[TopicPartition]:
        return [
            TopicPartition(one.topic, one.partition, self._find_later((one.topic, one.partition), one.offset))
            for one in asked
        ]

    def committed(self, asked: Iterable[TopicPartition], **_: object) -> list[TopicPartition]:
        places = [(one.topic, one.partition) for one in asked]
        return [TopicPartition(*place, self.written.get(place, self._end(place))) for place in places]

    def get_watermark_offsets(self, one: TopicPartition, **_: object) -> tuple[int, int]:
        place = one.topic, one.partition
        return self.starts.get(place, 0), self._end(place)

    def assign(self, places: Iterable[TopicPartition]) -> None:
        for one in places:
            place = one.topic, one.partition
            self.read.append(place)
            held = () if place in self.silent | self.paused else self.records.get(place, ())
            self._pending += [record for record in held if one.offset <= record.at < self.opened.get(place, 1 << 62)]
            if place not in self.silent | self.paused:
                self._pending.append(FakeMessage(place, self._end(place), code=KafkaError._PARTITION_EOF))

    def consume(self, _count: int, _timeout_s: float) -> list[FakeMessage]:
        if self.answers:
            return self.answers.pop(0)
        messages, self._pending = self._pending, []
        return messages

    def pause(self, places: Iterable[TopicPartition]) -> None:
        self.paused |= {(one.topic, one.partition) for one in places}

    def resume(self, places: Iterable[TopicPartition]) -> None:
        """Hand out what was assigned to paused partitions: an assignment leaves them paused."""
        resumed = [one for one in places if (one.topic, one.partition) in self.paused]
        self.paused -= {(one.topic, one.partition) for one in resumed}
        self.assign(resumed)

    def close(self) -> None:
        self.paused.clear()


class FakeTransaction(NamedTuple):
    """A row of `batches`. Transaction n judged the offsets 10 n to 10 n + 9."""

    partition: int
    number: int
    started_s: float
    counts: Mapping[str, int] | None = None
    landed_s: float = 0.0


class FakeBatches:
    """The table `batches`; `scanned` has the numbers of transactions that each query looked at."""

    def __init__(self, now_s: float) -> None:
        self.now_s = now_s
        self.rows: list[FakeTransaction] = []
        self.scanned: list[list[int]] = []

    def add(self, partition: int, number: int, started_s: float, **counts: int) -> None:
        """Add a transaction that counts its records, 0 of the topics that are not named."""
        self.rows.append(FakeTransaction(partition, number, started_s, counts))

    def fetch_rows(self, query: str) -> list[dict[str, Any]]:
        if "dismissed_faults" in query:
            return []
        if found := re.search(r"toUnixTimestamp64Milli\(now64\(3\)\) - (\d+)", query):
            return [{"landed_ms": int(self.now_s * 1_000) - int(found[1])}]
        since, landed = (
            int(re.findall(rf"{pattern}\((\d+)", query)[0])
            for pattern in ("started_at >= toDateTime", r"landed_at <= fromUnixTimestamp64Milli\(toInt64")
        )
        rows = [row for row in self.rows if row.started_s >= since and row.landed_s * 1_000 <= landed]
        self.scanned.append([row.number for row in rows])
        if "uncounted" in query:
            return [
                {"partition": row.partition, "uncounted": 1, "first": row.number, "last": row.number}
                for row in rows
                if row.counts is None
            ]
        if named := re.search(r"\(partition, number\) IN \((.*)\)\s", query):
            places = {(int(one), int(other)) for one, other in re.findall(r"\((\d+), (\d+)\)", named[1])}
            rows = [row for row in rows if (row.partition, row.number) in places]
        having = query.rpartition("WHERE")[2]
        return [
            {
                "partition": row.partition,
                "number": row.number,
                "first_offset": 10 * row.number,
                "last_offset": 10 * row.number + 9,
                "started_s": int(row.started_s),
                **{topic: row.counts.get(topic, 0) for topic in COUNTED_TOPICS},
            }
            for row in rows
            if row.counts is not None and self._has(having, row, row.counts)
        ]

    @staticmethod
    def _has(having: str, row: FakeTransaction, counts: Mapping[str, int]) -> bool:
        some = re.findall(r"(\w+) > 0 AND started_s >= (\d+)", having)
        return not some or any(counts.get(topic, 0) > 0 and row.started_s >= int(since) for topic, since in some)
