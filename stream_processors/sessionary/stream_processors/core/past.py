"""The state of one session as the judge held it at a point of its partition's log.

    records of the log ─┐
    audit trail ────────┴─ states_at(log, session, points) ─▶ a PastState each

The session is folded alone, from its first event on, by the judge itself. Other sessions' records
only move the clock: no row of theirs is read by a session's verdicts. What is no record of the
session is in the audit trail: where the session begins, at which time and by which rules, and
what people decided about the partition meanwhile.

The fold leaves audit records like the judge's. Those with a hash of the row are compared with the
trail, so the answer says how far it is checked.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final, Literal, NamedTuple

from sessionary.schemas.codec import Decoder, Event, encode_record
from sessionary.schemas.errors import DecodeError, Invalid
from sessionary.schemas.ids import SessionKey
from sessionary.schemas.records import AuditRecord, Position, RunTombstone, SessionState, Tick, Tombstone
from sessionary.schemas.retention import retention_of
from sessionary.schemas.rules import known_rules
from sessionary.schemas.types import ClockRepair, RuleSet
from sessionary.stream_processors.core.clock import add_repair
from sessionary.stream_processors.core.committed import PartitionSettings
from sessionary.stream_processors.core.judge import Judge
from sessionary.stream_processors.core.model import ClockSetting, LogRecord, SkippedOffsets
from sessionary.stream_processors.core.partition import PartitionState
from sessionary.stream_processors.core.session.people import instant_text
from sessionary.stream_processors.core.trail import hash_row, read_repair, read_rules
from sessionary.stream_processors.errors import PointUnknown, StateExpired

PointKind = Literal["offset", "time", "snapshot", "event"]
# equal: as far as there are hashes. not_checkable: from some offset on, or at all.
Verdict = Literal["equal", "not_checkable", "differs"]

_TICK: Final = encode_record(Tick(""))
_SKIPS: Final[dict[str, Literal["records_skipped", "log_gap_accepted"]]] = {
    "records_skipped": "records_skipped",
    "log_gap_accepted": "log_gap_accepted",
}
# After these, rows do not follow from the log as it is now.
_BREAKS: Final = frozenset({"log_truncation_accepted", "rows_accepted", "topics_accepted"})


class Point(NamedTuple):
    """A point of a session's history; the record at an offset, and the one named, are included.

    `value`: an offset of the partition, a time (ms of log time), or the id of a snapshot or event.
    """

    kind: PointKind
    value: int | str

    def __str__(self) -> str:
        told = (
            instant_text(self.value, "milliseconds")
            if isinstance(self.value, int) and self.kind == "time"
            else self.value
        )
        return f"{self.kind} {told}"


class LostEvents(NamedTuple):
    """What the state lacks: a producer's numbers, or offsets of the log, from `first` to `last`.

    `what` is `gap` for events that a client lost, else the decision that gave offsets up.
    """

    what: str
    first: int
    last: int
    offset: int  # at which that was found


class HashCheck(NamedTuple):
    """How a state compares with the hashes that the judge left up to its point.

    `equal` hashes were compared. `offset`: of the last one that is equal; if the verdict is
    `differs`, or hashes cannot be compared any more, of the first such record. None without one.
    """

    verdict: Verdict
    equal: int
    offset: int | None


class PastState(NamedTuple):
    """A session's state at a point. `rows`: all its rows by their keys, those of children too.

    `row` is None once the tombstone has vanished. `personal_until`: when the first personal
    data of which the state was made expires (µs since the epoch); None without such data.
    """

    row: SessionState | Tombstone | None
    rows: dict[bytes, Any]
    offset: int  # of the last record of the log that it includes
    clock_ms: int  # the partition's clock there
    began_ms: int  # log time of the session's first event
    check: HashCheck
    lost: Sequence[LostEvents]
    personal_until: int | None
    chain: Sequence[str]  # ids of snapshots, from the session's first one to the row's


class PastLog(NamedTuple):
    """The log of a session's partition, and what its fold depends on.

    `trail`: all audit records of the session and of decisions, or without these if there was none
    since the session began: then rules and repairs of the clock are those of `end`. It may hold
    others. `records`: the
    log from the session's first event on, `end` its end: later records are not folded yet.
    """

    records: Iterable[LogRecord]
    trail: Sequence[AuditRecord]
    end: Position
    settings: PartitionSettings
    judge: Judge
    decoder: Decoder


def find_beginning(trail: Iterable[AuditRecord]) -> AuditRecord | None:
    """Return the audit record of a session's first event; None if the trail does not have it."""
    begun = (record for record in trail if record.kind == "transition" and record.from_state == "UNKNOWN")
    return max(begun, key=_place, default=None)


def require_beginning(trail: Iterable[AuditRecord], session: SessionKey) -> AuditRecord:
    """Return what `find_beginning` does. Raises `StateExpired` instead of returning None."""
    begin = find_beginning(trail)
    if begin is None:
        raise StateExpired(f"the audit trail does not have the first event of session {session.session_id} any more")
    return begin


def is_of_interest(record: AuditRecord, session: SessionKey) -> bool:
    """Return whether a record of the audit trail belongs to a `PastLog` of a session."""
    return record.kind == "decision" or (record.tenant_id, record.session_id) == session


def state_at(log: PastLog, session: SessionKey, partition: int, point: Point) -> PastState:
    """Return the state that the judge held at a point. Raises as `states_at`."""
    return states_at(log, session, partition, (point,))[0]


def states_at(log: PastLog, session: SessionKey, partition: int, points: Sequence[Point]) -> Sequence[PastState]:
    """Return the states that the judge held at some points, in their order. The log is folded once.

    Raises `PointUnknown` if there is no such point, `StateExpired` if the trail or the log does
    not reach back to the session's first event, `Invalid` if its snapshots are no chain, or if its
    events do not have a point and do not lead to the states that the judge held.
    """
    log = log._replace(trail=[record for record in log.trail if is_of_interest(record, session)])
    begin = require_beginning(log.trail, session)
    for point in points:
        _require_within(point, session, begin, log.end)
    fold = _SessionFold(log, session, partition, begin)
    states = fold.run(points)
    for point in points:
        if point not in states:
            fold.require_equal(point)
            raise PointUnknown(
                f"session {session.session_id} has no {point} up to offset {log.end.next_offset - 1} of partition "
                f"{partition}: sessionary session timeline lists what it has"
            )
    return [states[point] for point in points]


def _require_within(point: Point, session: SessionKey, begin: AuditRecord, end: Position) -> None:
    """Raise `PointUnknown` for an offset or time outside of what is folded of the session."""
    if point.kind not in ("offset", "time"):
        return
    is_offset = point.kind == "offset"
    first = begin.source_offset if is_offset else begin.appended_at // 1_000
    last = end.next_offset - 1 if is_offset else end.clock_ms
    if int(point.value) < first:
        raise PointUnknown(f"session {session.session_id} began at {point._replace(value=first)}, after {point}")
    if int(point.value) > last:
        folded = point._replace(value=last)
        raise PointUnknown(f"the log of session {session.session_id} is folded up to {folded}, not {point}")


class _SessionFold:
    """Folds one session; see the module's docstring."""

    def __init__(self, log: PastLog, session: SessionKey, partition: int, begin: AuditRecord) -> None:
        self._log, self._key, self._begin = log, session.encoded(), begin
        self._session = session
        self._state = PartitionState(partition, log.settings, log.decoder, log.judge)
        decisions = sorted((record for record in log.trail if record.kind == "decision"), key=_place)
        self._failures = {record.source_offset: record.reason for record in log.trail if _is_failure(record)}
        self._decisions = [record for record in decisions if _place(record) >= _place(begin)]
        self._state.load_position(_first_position(log, begin, decisions))
        self._state.finish_loading()
        self._batch = self._state.begin()
        self._hashes: dict[int, str] = {}  # by audit number
        self._skipped: list[tuple[int, int]] = []
        self._broken_at: int | None = None
        self._later: LogRecord | None = None  # a record of another session that has not moved the clock yet
        self._now_ms = begin.appended_at // 1_000  # of the last record that was folded
        self._offset = begin.source_offset
        self._personal_until: int | None = None
        self._parents: dict[str, str | None] = {}  # of each snapshot that the row had

    def run(self, points: Sequence[Point]) -> dict[Point, PastState]:
        """Fold up to the last point; return the states at those that came."""
        wanted, states = list(dict.fromkeys(points)), dict[Point, PastState]()
        log, end_offset = self._log, self._log.end.next_offset
        decisions = iter(self._decisions)
        decision = next(decisions, None)
        for record in log.records:
            if record.offset >= end_offset:
                break
            self._keep([point for point in wanted if _is_beyond(record, point)], wanted, states)
            if not wanted:
                return states
            while decision is not None and decision.source_offset <= record.offset:
                self._repeat(decision)
                decision = next(decisions, None)
            if any(first <= record.offset <= last for first, last in self._skipped):
                continue
            self._offset = record.offset
            if record.key != self._key and record.key is not None:
                self._pass_over(record)
                continue
            self._pass_time(record.timestamp_ms)
            self._apply(record)
            if record.key is not None and (event := self._note_event(record)) is not None:
                self._keep([point for point in wanted if self._is_reached(point, event)], wanted, states)
        self._keep([point for point in wanted if point.kind in ("offset", "time")], wanted, states)
        return states

    def require_equal(self, point: Point) -> None:
        """Raise `Invalid` if the events that were folded are not those that the judge had.

        Then a point may be missing only for that.
        """
        self._end_batch()
        self._batch = self._state.begin()
        check = self._check()
        if check.verdict == "differs":
            detail = f"its events have no {point}, and do not lead to the state that the judge held at offset "
            raise Invalid("hash_mismatch", f"{detail}{check.offset}")

    def _keep(self, points: Sequence[Point], wanted: list[Point], states: dict[Point, PastState]) -> None:
        """Let the state after the last record be that at some of the wanted points."""
        if not points:
            return
        if self._later is not None:
            self._apply(self._later)
        self._end_batch()
        states.update(dict.fromkeys(points, self._state_now()))
        self._batch = self._state.begin()
        wanted[:] = [point for point in wanted if point not in points]

    def _state_now(self) -> PastState:
        row, rows = self._state.rows.get(self._key), dict(self._state.rows)
        assert row is None or isinstance(row, (SessionState, Tombstone))
        repairs = self._state.position.clock_repairs
        if repairs:
            rows = {key: self._state.repair_times(each, repairs) for key, each in rows.items()}
            row = rows.get(self._key)
        return PastState(
            *(row, rows, self._offset, self._state.position.clock_ms, self._begin.appended_at // 1_000),
            *(self._check(), self._list_lost(), self._personal_until, self._list_chain(row)),
        )

    def _pass_over(self, record: LogRecord) -> None:
        """Take the record of another session: it is folded, as a tick, only if its time matters.

        After a repair of the clock each one is folded: stamps before it do not move the clock.
        """
        record = LogRecord(record.offset, record.timestamp_ms, None, _TICK)
        self._pass_time(record.timestamp_ms)
        state, stamp_ms = self._state, record.timestamp_ms
        if state.timers.may_be_due(stamp_ms) or state.has_vanishing(stamp_ms) or state.position.clock_repairs:
            self._apply(record)
        else:
            self._later = record

    def _pass_time(self, stamp_ms: int) -> None:
        """Fold the record that was passed over last if the clock would be another one without it.

        The next record alone would show an outage, or its stamp is below that one's.
        """
        later, outage_ms = self._later, self._log.settings.outage_ms
        if later is not None and not later.timestamp_ms <= stamp_ms <= self._now_ms + outage_ms:
            self._apply(later)

    def _apply(self, record: LogRecord) -> None:
        self._later = None
        while not self._batch.apply(record, self._failures.get(record.offset)):
            self._end_batch()
            self._batch = self._state.begin()
        self._now_ms = max(self._now_ms, record.timestamp_ms)

    def _end_batch(self) -> None:
        outcome = self._batch.finish()
        self._state.merge(self._batch)
        for _, record in outcome.records_on("audit"):
            if record.row_hash is not None:
                self._hashes[record.audit_seq] = record.row_hash

    def _repeat(self, decision: AuditRecord) -> None:
        """Repeat what people decided about the partition, as the audit trail tells of it."""
        kind, first, last = decision.event_type, decision.gap_first, decision.gap_last
        if kind in _BREAKS and self._broken_at is None:
            self._broken_at = decision.source_offset
        if kind in ("records_skipped", "log_truncation_accepted") and first is not None and last is not None:
            self._skipped.append((first, last))
        if kind not in _SKIPS and kind not in ("rules_announced", "clock_repaired"):
            return
        if self._later is not None:
            self._apply(self._later)
        self._end_batch()
        self._batch = batch = self._state.begin()
        if kind in _SKIPS:
            skip = SkippedOffsets(
                _SKIPS[kind], (last or 0) + 1, decision.appended_at // 1_000, decision.reason, decision.actor or ""
            )
            batch.skip_offsets(skip)
        elif kind == "rules_announced":
            batch.announce_rules(read_rules(decision), decision.actor or "")
        else:
            batch.set_clock(_setting_of(decision))
            self._end_batch()
            self._batch = self._state.begin()

    def _note_event(self, record: LogRecord) -> Event | None:
        """Return the event of the session that was folded last; note when its data expires."""
        try:
            event = self._log.decoder.as_of(self._batch.final_position.rules.version).decode_event(record.value)
        except DecodeError:
            return None
        if not isinstance(event, Event):
            return None
        personal_until = retention_of(event.envelope.data_classes, record.timestamp_ms * 1_000).personal_until
        if personal_until is not None:
            self._personal_until = min(personal_until, self._personal_until or personal_until)
        row = self._batch.get_row(self._key)
        if isinstance(row, SessionState):
            self._parents.setdefault(row.snapshot.snapshot_id, row.snapshot.parent_snapshot_id)
        return event

    def _is_reached(self, point: Point, event: Event) -> bool:
        """Return whether the event that was folded last is a point, or brought its snapshot."""
        if point.kind == "event":
            return event.envelope.event_id == point.value
        row = self._batch.get_row(self._key)
        if point.kind != "snapshot" or not isinstance(row, SessionState):
            return False
        taken = [row.snapshot.snapshot_id] + [agent.snapshot_id for agent in row.agents]
        return point.value in taken

    def _check(self) -> HashCheck:
        """Compare the hashes of the rows with those that the judge left up to here."""
        equal, offset = 0, None
        for record in sorted(self._log.trail, key=lambda record: record.audit_seq):
            if record.row_hash is None or not self._begin.source_offset <= record.source_offset <= self._offset:
                continue
            found = self._hashes.get(record.audit_seq)
            is_broken = self._broken_at is not None and record.source_offset >= self._broken_at
            if is_broken or (found and found.partition(":")[0] != record.row_hash.partition(":")[0]):
                return HashCheck("not_checkable", equal, record.source_offset)
            if found != record.row_hash:
                return HashCheck("differs", equal, record.source_offset)
            equal, offset = equal + 1, record.source_offset
        if self._broken_at is not None:
            return HashCheck("not_checkable", equal, self._broken_at)
        return HashCheck("equal" if equal else "not_checkable", equal, offset)

    def _list_chain(self, row: SessionState | Tombstone | None) -> list[str]:
        if not isinstance(row, SessionState):
            return []
        return snapshot_chain(self._parents, row.snapshot.snapshot_id, row.restored_from_snapshot_id)

    def _list_lost(self) -> list[LostEvents]:
        return [
            LostEvents(
                record.event_type if record.kind == "decision" else record.kind,
                *(record.gap_first or 0, record.gap_last or 0, record.source_offset),
            )
            for record in sorted(self._log.trail, key=_place)
            if self._begin.source_offset <= record.source_offset <= self._offset
            and (record.kind in ("gap", "gap_filled") or record.event_type in _SKIPS or record.event_type in _BREAKS)
        ]


def snapshot_chain(parents: Mapping[str, str | None], head: str, origin: str | None = None) -> list[str]:
    """Return the ids of a snapshot and its ancestors, the root first.

    `parents`: by id, None for a root; `origin`: a snapshot of another session that a root may
    name. Raises `Invalid` for a cycle, and for a parent that is not there.
    """
    chain: dict[str, None] = {}  # in order, and found at once: a session may have very many
    at: str | None = head
    while at is not None and (at != origin or at in parents):
        if at in chain:
            raise Invalid("broken_chain", f"snapshot {head} has itself as an ancestor, by {at}")
        if at not in parents:
            raise Invalid("broken_chain", f"snapshot {head} has an ancestor {at} that is not there")
        chain[at] = None
        at = parents[at]
    return list(reversed(chain))


def _place(record: AuditRecord) -> tuple[int, int]:
    return record.source_offset, record.source_n


def _is_failure(record: AuditRecord) -> bool:
    return record.kind == "rejection" and record.reason_code == "internal_error"


def _is_beyond(record: LogRecord, point: Point) -> bool:
    if point.kind == "offset":
        return record.offset > int(point.value)
    return point.kind == "time" and record.timestamp_ms > int(point.value)


def _setting_of(decision: AuditRecord) -> ClockSetting:
    until_offset = decision.source_offset if decision.gap_last is None else decision.gap_last + 1
    return ClockSetting(decision.appended_at // 1_000, until_offset, decision.reason, decision.actor or "")


def _first_position(log: PastLog, begin: AuditRecord, decisions: Sequence[AuditRecord]) -> Position:
    """Return where the partition was when it judged a session's first event."""
    grace_ms = 0
    if begin.outage_end_at is not None:
        grace_ms = begin.outage_end_at // 1_000 + log.settings.outage_grace_ms
    repairs: tuple[ClockRepair, ...] = () if decisions else (*log.end.clock_repairs,)
    for decision in decisions:
        if decision.event_type == "clock_repaired" and _place(decision) < _place(begin):
            setting = _setting_of(decision)
            repairs = add_repair(repairs, setting.until_offset, read_repair(decision), setting.clock_ms)
    return Position(begin.source_offset, begin.appended_at // 1_000, grace_ms, 0, 0)._replace(
        rules=_rules_at(begin, decisions, log.end.rules), clock_repairs=repairs
    )


def _rules_at(begin: AuditRecord, decisions: Sequence[AuditRecord], rules_at_end: RuleSet) -> RuleSet:
    """Return the rules that were in force at a session's first event.

    Without an announcement before it they are those that the next one replaced.
    """
    announced = [record for record in decisions if record.event_type == "rules_announced"]
    if earlier := [record for record in announced if _place(record) < _place(begin)]:
        return read_rules(earlier[-1])
    if not announced:
        return rules_at_end
    version = int(re.findall(r"after rules (\d+)", announced[0].reason)[0])
    known = known_rules().get(version)
    if known is None:
        raise StateExpired(f"its first events were judged by rules {version}, which this release does not know")
    return known.rules


def past_document(state: PastState, source: str, session: SessionKey, partition: int, point: Point) -> dict[str, Any]:
    """Return the JSON document of a state at a point: the `PastState` of `/openapi.json`."""
    row = state.row
    return {
        "session_id": session.session_id,
        "tenant_id": session.tenant_id,
        "point": {point.kind: point.value},
        "source": source,
        "position": {"partition": partition, "offset": state.offset, "clock_ms": state.clock_ms},
        "check": {**state.check._asdict(), "hashed": "row"},
        "lost": [lost._asdict() for lost in state.lost],
        "state": row.state if isinstance(row, SessionState) else "Archived",
        "snapshots": list(state.chain),
        "row_hash": None if row is None else hash_row(row),
        "row": None if row is None else _as_json(row),
        "children": [
            {"kind": type(child).__name__, **_as_json(child)}
            for _, child in sorted(state.rows.items())
            if not isinstance(child, (SessionState, Tombstone, RunTombstone))
        ],
    }


def _as_json(value: Any) -> Any:
    """Return a row, or a part of one, as JSON has it: its fields by their names."""
    if isinstance(value, tuple) and hasattr(value, "_asdict"):
        return {name: _as_json(part) for name, part in value._asdict().items()}
    if isinstance(value, Mapping):
        return {name: _as_json(part) for name, part in value.items()}
    if isinstance(value, bytes):
        return value.hex()
    if isinstance(value, Sequence) and not isinstance(value, str):
        return [_as_json(part) for part in value]
    return value
