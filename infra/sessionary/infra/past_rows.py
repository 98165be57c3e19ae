"""A session's state at a point, folded from the records that ClickHouse has.

    audit, history ──▶ the session's own records, and when other records moved the clock
                   ──▶ `stream_processors.core.past`

The judge needs a session's own records whole, and of the others only their times. Of these the
first and last of each stretch of time are read, and those at which the session changed: so an
outage shows as it was, and a deadline fires at its record.
"""

import base64
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, Final

from sessionary.infra.clickhouse_client import ClickHouseClient, Row
from sessionary.schemas.codec import Decoder
from sessionary.schemas.ids import SessionKey
from sessionary.schemas.records import AuditRecord, Position
from sessionary.schemas.rules import newest_known
from sessionary.stream_processors.core.families import SESSION_JUDGE
from sessionary.stream_processors.core.model import LogRecord
from sessionary.stream_processors.core.past import PastLog, PastState, Point, find_beginning, states_at
from sessionary.stream_processors.errors import PointUnknown, StateExpired
from sessionary.stream_processors.runtime.job import partition_settings
from sessionary.stream_processors.settings import ProcessorSettings

_OFFSET_MAX: Final = (1 << 63) - 1  # of Kafka; ClickHouse reads a number above 64 bits as another one
_OTHER: Final = b"\0other"  # in place of another session's key
_TEXTS: Final = ("tenant_id", "session_id", "kind", "event_type", "from_state", "reason_code", "reason")
_OR_NULL: Final = ("actor", "row_hash", "gap_first", "gap_last")
_NUMBERS: Final = ("audit_seq", "source_partition", "source_offset", "source_n")
_TRAIL: Final = (
    f"SELECT {', '.join((*_TEXTS, *_OR_NULL, *_NUMBERS))}, toUnixTimestamp64Micro(appended_at) AS appended, "
    "toUnixTimestamp64Micro(outage_end_at) AS outage_end FROM audit FINAL "
    "WHERE tenant_id = {tenant:String} AND session_id = {session:String} "
)
_LOG: Final = (
    "FROM history WHERE source_partition = {partition:UInt32} AND topic_id = {topic:String} "
    "AND source_offset >= {first:UInt64} AND source_offset <= {last:UInt64} "
)
_RECORDS: Final = (
    "SELECT source_offset, toUnixTimestamp64Milli(appended_at) AS stamp_ms, "
    "base64Encode(ifNull(key_bytes, '')) AS key, isNull(key_bytes) AS is_keyless, "
    "base64Encode(ifNull(value_bytes, '')) AS value, isNull(value_bytes) AS is_blank, "
    "toUnixTimestamp(personal_expires) AS expires_s, "
    f"arrayMap(each -> [each.1, base64Encode(each.2)], headers) AS header_list {_LOG}"
)
_IN_ORDER: Final = " ORDER BY source_offset LIMIT 1 BY source_offset"
# By the key of the table. One condition for all three would read the whole table.
_OF_SESSION: Final = f"{_RECORDS} AND tenant_id = {{tenant:String}} AND session_id = {{session:String}}{_IN_ORDER}"
_OF_RULES: Final = f"{_RECORDS} AND tenant_id = '' AND session_id = '' AND event_type = 'rules_activation'{_IN_ORDER}"
# What came under the session's key and is no event is there without it, but is in the audit trail.
_AT_OFFSETS: Final = f"{_RECORDS} AND source_offset IN {{offsets:Array(UInt64)}}{_IN_ORDER}"
_STAMPS: Final = (
    "SELECT min(source_offset) AS first, argMin(toUnixTimestamp64Milli(appended_at), source_offset) AS first_ms, "
    "max(source_offset) AS last, argMax(toUnixTimestamp64Milli(appended_at), source_offset) AS last_ms "
    f"{_LOG} GROUP BY intDiv(toUnixTimestamp64Milli(appended_at), {{step_ms:UInt64}})"
)


class PastRows:
    """Folds single sessions from ClickHouse. Every method blocks."""

    def __init__(self, source: ClickHouseClient, settings: ProcessorSettings) -> None:
        """`settings`: those of the processors, with their signing keys."""
        self._source, self._settings = source, settings

    def states_at(self, session: SessionKey, points: Sequence[Point]) -> tuple[Sequence[PastState], int]:
        """Return a session's states at some points, and its partition. The records are read once.

        Raises `PointUnknown`, and `StateExpired` if ClickHouse does not have all of its records,
        or if personal data in them has expired. Raises as `ClickHouseClient` does.
        """
        names = {"tenant": session.tenant_id, "session": session.session_id}
        trail = [_audit_of(row) for row in self._source.fetch_rows(_TRAIL, **names)]
        begin = find_beginning(trail)
        if begin is None:
            raise StateExpired(f"ClickHouse does not have the first event of session {session.session_id}")
        partition = begin.source_partition
        decisions = f"{_TRAIL} AND kind = 'decision' AND source_partition = {{partition:UInt32}}"
        trail += map(_audit_of, self._source.fetch_rows(decisions, tenant="", session="", partition=partition))
        topic, end = self._find_log(session, begin, points)
        last = end.next_offset - 1
        for point in points:
            if point.kind == "offset" and int(point.value) > last:
                raise PointUnknown(f"ClickHouse has the log of partition {partition} up to offset {last}, not {point}")
        if all(point.kind == "offset" for point in points):
            last = max(int(point.value) for point in points)
        bounds: dict[str, str | int] = {
            "partition": partition,
            "topic": topic,
            "first": begin.source_offset,
            "last": last,
        }
        log = PastLog(
            records=self._read_log(session, bounds, {audit.source_offset for audit in trail}),
            trail=trail,
            end=end,
            settings=partition_settings(self._settings),
            judge=SESSION_JUDGE,
            decoder=Decoder(),
        )
        states = states_at(log, session, partition, points)
        for until in [state.personal_until for state in states if state.personal_until is not None]:
            if until <= datetime.now(UTC).timestamp() * 1_000_000:
                raise StateExpired(f"expired on {_day(until // 1_000_000)}: the state is of personal data")
        return states, partition

    def _find_log(self, session: SessionKey, begin: AuditRecord, points: Sequence[Point]) -> tuple[str, Position]:
        """Return the id of the topic of a session's events, and up to where ClickHouse has it.

        For offsets that are there, any position beyond them: so the table is not read to its end.
        """
        found = self._source.fetch_rows(
            "SELECT topic_id FROM history WHERE tenant_id = {tenant:String} AND session_id = {session:String} "
            "AND source_partition = {partition:UInt32} AND source_offset = {offset:UInt64} LIMIT 1",
            tenant=session.tenant_id,
            session=session.session_id,
            partition=begin.source_partition,
            offset=begin.source_offset,
        )
        if not found:
            raise StateExpired(f"the first event of session {session.session_id} is not in ClickHouse any more")
        topic = str(found[0]["topic_id"])
        log = "FROM history WHERE source_partition = {partition:UInt32} AND topic_id = {topic:String}"
        named: dict[str, str | int] = {"partition": begin.source_partition, "topic": topic}
        ends = []
        if all(point.kind == "offset" for point in points):
            ends = self._source.fetch_rows(
                "SELECT source_offset AS last, toUnixTimestamp64Milli(appended_at) AS clock_ms "
                f"{log} AND source_offset >= {{offset:UInt64}} LIMIT 1",
                **named,
                offset=min(max(int(point.value) for point in points), _OFFSET_MAX),
            )
        (end,) = ends or self._source.fetch_rows(
            f"SELECT max(source_offset) AS last, toUnixTimestamp64Milli(max(appended_at)) AS clock_ms {log}", **named
        )
        return topic, Position(int(end["last"]) + 1, int(end["clock_ms"]), 0, 0, 0, rules=newest_known())

    def _read_log(self, session: SessionKey, bounds: Mapping[str, str | int], offsets: set[int]) -> Iterator[LogRecord]:
        """Yield the session's records, and others in their places, in order."""
        step_ms = max(1, self._settings.outage_ms // 4)
        records: dict[int, LogRecord] = {}
        for row in self._source.fetch_rows(_STAMPS, **bounds, step_ms=step_ms):
            for place in ("first", "last"):
                offset = int(row[place])
                records[offset] = LogRecord(offset, int(row[f"{place}_ms"]), _OTHER, None)
        named = {"tenant": session.tenant_id, "session": session.session_id}
        own = self._source.fetch_rows(_OF_SESSION, **bounds, **named) + self._source.fetch_rows(_OF_RULES, **bounds)
        if left := offsets - {int(row["source_offset"]) for row in own}:
            own += self._source.fetch_rows(_AT_OFFSETS, **bounds, offsets=f"[{','.join(map(str, sorted(left)))}]")
        for row in own:
            record = _record_of(row)
            if record.key == session.encoded() and row["is_blank"]:
                day = _day(int(row["expires_s"]))
                raise StateExpired(f"expired on {day}: the event at offset {record.offset} is of personal data")
            records[record.offset] = record
        yield from (records[offset] for offset in sorted(records))


def _day(at_s: int) -> str:
    return datetime.fromtimestamp(at_s, UTC).date().isoformat()


def _record_of(row: Row) -> LogRecord:
    headers: Sequence[Sequence[str]] = row["header_list"]
    return LogRecord(
        int(row["source_offset"]),
        int(row["stamp_ms"]),
        None if row["is_keyless"] else base64.b64decode(row["key"]),
        base64.b64decode(row["value"]),
        tuple((name, base64.b64decode(content)) for name, content in headers),
    )


def _audit_of(row: Row) -> AuditRecord:
    """Return an audit record with the fields that a fold reads; the others are empty."""
    fields: dict[str, Any] = dict.fromkeys(AuditRecord._fields)
    fields |= {name: row[name] for name in (*_TEXTS, *_OR_NULL)}
    fields |= {name: int(row[name]) for name in _NUMBERS}
    fields |= {name: None if row[name] is None else int(row[name]) for name in ("gap_first", "gap_last")}
    fields["appended_at"] = int(row["appended"])
    fields["outage_end_at"] = None if row["outage_end"] is None else int(row["outage_end"])
    return AuditRecord(**fields)
