"""Reads what a session's state at a point is folded from: its partition's log, and audit trail.

    audit trail, from its begin ──▶ where the session began, decisions, hashes
    events, from there on ────────▶ `core.past`, a part at a time

Everything here blocks.
"""

from collections.abc import Iterator, Sequence
from typing import Final

from sessionary.schemas.codec.from_settings import decoder_for
from sessionary.schemas.ids import SessionKey
from sessionary.schemas.records import AuditRecord, Position
from sessionary.stream_processors.core.judge import Judge
from sessionary.stream_processors.core.model import LogRecord
from sessionary.stream_processors.core.past import (
    PastLog,
    PastState,
    Point,
    find_beginning,
    is_of_interest,
    require_beginning,
    state_at,
)
from sessionary.stream_processors.errors import StateExpired
from sessionary.stream_processors.runtime.audit_log import read_audit
from sessionary.stream_processors.runtime.decisions import read_each
from sessionary.stream_processors.runtime.job import partition_settings
from sessionary.stream_processors.runtime.log_probe import probe_log
from sessionary.stream_processors.settings import ProcessorSettings

_CLOCKS_APART_MS: Final = 60_000  # of the leaders that stamp a session's first event and its audit record


class PastReader:
    """Folds single sessions from Kafka. One instance may serve any number of threads."""

    def __init__(self, settings: ProcessorSettings, judge: Judge) -> None:
        """Connect to nothing yet."""
        self._settings, self._judge = settings, judge
        self._decoder = decoder_for(settings)

    def state_at(
        self, session: SessionKey, partition: int, point: Point, end: Position, begun_ms: int | None = None
    ) -> PastState:
        """Return a session's state at a point below `end`, up to which its partition is folded.

        `begun_ms`: when the session began, ms of log time. Then the trail is read only from there
        on, unless people decided about the partition since.

        Raises `PointUnknown`; `StateExpired` if log or trail do not reach back to its first event;
        `Lost` if the broker does not answer, `Unavailable` if a schema registry does not.
        """
        trail = self._read_own_trail(session, partition, begun_ms)
        if trail is None:
            trail = list(self._read_trail(session, partition))
        first = require_beginning(trail, session).source_offset
        start = probe_log(self._settings, partition, first).start_offset
        if first < start:
            raise StateExpired(
                f"the events of session {session.session_id} begin at offset {first}, and the log of partition "
                f"{partition} at {start}: those before are deleted"
            )
        last = int(point.value) if point.kind == "offset" else end.next_offset - 1
        log = PastLog(
            records=self._read_events(partition, first, min(last, end.next_offset - 1), trail),
            trail=trail,
            end=end,
            settings=partition_settings(self._settings),
            judge=self._judge,
            decoder=self._decoder,
        )
        return state_at(log, session, partition, point)

    def _read_events(self, partition: int, first: int, last: int, trail: Sequence[AuditRecord]) -> Iterator[LogRecord]:
        for read in read_each(self._settings, partition, first, last):
            if read.is_past_unreadable and not _is_skipped(read.next_offset - 1, trail):
                raise StateExpired(
                    f"a batch of the events of partition {partition}, before offset {read.next_offset}, cannot be read"
                )
            yield from read.records

    def _read_own_trail(self, session: SessionKey, partition: int, begun_ms: int | None) -> list[AuditRecord] | None:
        """Return the session's part of the trail, without decisions.

        None if its begin is not found, or if there were decisions since: then rules and repairs of
        the clock were others than they are now.
        """
        if begun_ms is None:
            return None
        trail = list(self._read_trail(session, partition, begun_ms - _CLOCKS_APART_MS))
        begin = find_beginning(trail)
        if begin is None or any(
            record.kind == "decision" and record.source_offset >= begin.source_offset for record in trail
        ):
            return None
        return [record for record in trail if record.kind != "decision"]

    def _read_trail(self, session: SessionKey, partition: int, since_ms: int | None = None) -> Iterator[AuditRecord]:
        """Yield the session's audit records and the partition's decisions, in order.

        `since_ms`: those appended before may be left out. Other sessions' records are not decoded.
        """
        keys = (None, session.encoded())
        for part in read_audit(self._settings, partition, StateExpired, keys, since_ms):
            yield from (record for record in part.records if is_of_interest(record, session))


def _is_skipped(offset: int, trail: Sequence[AuditRecord]) -> bool:
    """Return whether people decided to skip an offset, so that the judge never had its record."""
    return any(
        record.event_type == "records_skipped" and (record.gap_first or 0) <= offset <= (record.gap_last or 0)
        for record in trail
        if record.kind == "decision"
    )
