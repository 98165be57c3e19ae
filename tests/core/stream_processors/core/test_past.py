"""A session's state at a point, folded alone, is what the partition's judge held there."""

import hashlib
import os
import random
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from sessionary.schemas.codec import Decoder, Event, encode_record
from sessionary.schemas.errors import DecodeError, Invalid
from sessionary.schemas.ids import SessionKey, parse_key
from sessionary.schemas.records import AuditRecord, SessionState
from sessionary.stream_processors.core.committed import PartitionSettings
from sessionary.stream_processors.core.families import CHILDREN
from sessionary.stream_processors.core.model import ClockSetting, LogRecord, SkippedOffsets
from sessionary.stream_processors.core.partition import PartitionState
from sessionary.stream_processors.core.past import (
    PastLog,
    PastState,
    Point,
    find_beginning,
    is_of_interest,
    snapshot_chain,
    state_at,
    states_at,
)
from sessionary.stream_processors.core.session.judge import HASHED_EVERY, SessionJudge
from sessionary.stream_processors.errors import PointUnknown, StateExpired
from tests.core.past_rig import PastRig
from tests.recorded.log_format import read_log
from tests.style.project import ROOT
from tests.support.event_factory import EventFactory, snapshot, snapshot_id
from tests.support.signing import KEYS

RECORDED = Path(__file__).parents[3] / "recorded" / "0.2.0"
RECORDS = 9_000  # of the recorded log's partition, for a test that takes a second
POINTS = 20
SEED = 37


class Held(NamedTuple):
    """What the judge held of a session at an offset, as bytes by key, and the clock there."""

    session: SessionKey
    offset: int
    rows: Mapping[bytes, bytes]
    clock_ms: int
    event_id: str | None  # of the record at the offset
    snapshot_id: str | None


class WholeFold(NamedTuple):
    """The fold of a partition, all sessions together."""

    log: Sequence[LogRecord]
    held: Sequence[Held]
    audits: Sequence[AuditRecord]
    state: PartitionState

    def past(self, session: SessionKey) -> PastLog:
        """Return what the log and the trail have of a session."""
        trail = [audit for audit in self.audits if is_of_interest(audit, session)]
        begin = find_beginning(trail)
        assert begin is not None
        records = [record for record in self.log if record.offset >= begin.source_offset]
        state = self.state
        return PastLog(records, trail, state.position, state.settings, state.judge, state.decoder)

    def at(self, session: SessionKey, point: Point) -> PastState:
        """Return the session's state at a point."""
        return state_at(self.past(session), session, self.state.partition, point)


def random_points(log: Sequence[LogRecord], sessions: set[bytes]) -> dict[int, bytes]:
    """Return offsets at random, each with the key of a session that has begun by then.

    Half of them are those of the session's own records.
    """
    chance = random.Random(SEED)
    begun: list[bytes] = []
    points: dict[int, bytes] = {}
    wanted = sorted(chance.sample(range(len(log) // 10, len(log)), POINTS))
    for n, record in enumerate(log):
        if record.key in sessions and record.key not in begun:
            begun.append(record.key)
        if n in wanted and begun:
            own = record.key if record.key in begun and len(points) % 2 else chance.choice(begun)
            points[record.offset] = own
    return points


@cache
def whole_fold(size: int = RECORDS) -> WholeFold:
    recorded = read_log(RECORDED)
    given = recorded.settings
    settings = PartitionSettings(
        f"{given.topic_prefix}.events", given.partitions, given.outage_ms, given.outage_grace_ms, 37, keys=KEYS
    )
    judge = SessionJudge(CHILDREN, tombstone_ms=given.tombstone_ms)
    state = PartitionState(1, settings, Decoder(), judge)
    state.finish_loading()
    events = recorded.events[1][:size]
    log = [LogRecord(event.offset, event.timestamp_ms, event.key, event.value, event.headers) for event in events]
    sessions = {record.key for record in log if record.key is not None and _event_type(record) == "session_created"}
    points = random_points(log, sessions)
    held: list[Held] = []
    audits: list[AuditRecord] = []
    batch = state.begin()
    for record in log:
        while not batch.apply(record):
            audits += [audit for _, audit in batch.finish().records_on("audit")]
            state.merge(batch)
            batch = state.begin()
        if record.offset in points:
            audits += [audit for _, audit in batch.finish().records_on("audit")]
            state.merge(batch)
            held.append(_hold(state, points[record.offset], record))
            batch = state.begin()
    audits += [audit for _, audit in batch.finish().records_on("audit")]
    state.merge(batch)
    return WholeFold(log, [each for each in held if each.rows], audits, state)


def _event_type(record: LogRecord) -> str | None:
    event = _event_of(record)
    return None if event is None else event.envelope.event_type


def _event_of(record: LogRecord) -> Event | None:
    try:
        event = Decoder().decode_event(record.value)
    except DecodeError:
        return None
    return event if isinstance(event, Event) else None


def _hold(state: PartitionState, key: bytes, record: LogRecord) -> Held:
    session = parse_key(key)
    rows = {name: row for name, row in state.rows.items() if (row.tenant_id, row.session_id) == session}
    event = _event_of(record) if record.key == key else None
    row = rows.get(key)
    return Held(
        session,
        record.offset,
        as_bytes(rows),
        state.position.clock_ms,
        None if event is None else event.envelope.event_id,
        row.snapshot.snapshot_id if isinstance(row, SessionState) else None,
    )


def as_bytes(rows: Mapping[bytes, Any]) -> Mapping[bytes, bytes]:
    return {key: encode_record(row) for key, row in rows.items()}


def test_at_random_points_of_a_recorded_log_it_is_what_the_judge_held() -> None:
    """R-003-12 (20 random points), R-003-56: equal to the live state at that event."""
    fold = whole_fold()
    assert len(fold.held) >= POINTS - 2
    assert sum(held.event_id is not None for held in fold.held) >= 3
    checked = 0
    for held in fold.held:
        past = fold.at(held.session, Point("offset", held.offset))
        assert as_bytes(past.rows) == held.rows, held
        assert (past.offset, past.clock_ms) == (held.offset, held.clock_ms)
        assert past.check.verdict == "equal"
        checked += past.check.equal
        if held.event_id is not None:
            by_event = fold.at(held.session, Point("event", held.event_id))
            assert as_bytes(by_event.rows) == held.rows
    assert checked > 2 * POINTS


def digest() -> str:
    """Return a digest of the states at all points."""
    fold = whole_fold(RECORDS // 4)
    states = [fold.at(held.session, Point("offset", held.offset)) for held in fold.held]
    rows = b"".join(encode_record(state.row) for state in states if state.row is not None)
    return f"{len(states)} {hashlib.sha256(rows).hexdigest()}"


def test_two_processes_with_other_hash_seeds_tell_the_same_states() -> None:
    seed = "2" if os.environ.get("PYTHONHASHSEED") == "1" else "1"
    program = "from tests.core.stream_processors.core.test_past import digest; print(hash('session'), digest())"
    hashed, count, states = subprocess.run(
        [sys.executable, "-c", program],
        env={**os.environ, "PYTHONHASHSEED": seed},
        cwd=ROOT,
        capture_output=True,
        check=True,
        text=True,
    ).stdout.split()
    assert int(hashed) != hash("session")  # the seed is in force
    assert (int(count) > POINTS // 2, f"{count} {states}") == (True, digest())


@pytest.fixture
def rig() -> PastRig:
    return PastRig()


@pytest.fixture
def agent(rig: PastRig) -> EventFactory:
    agent = EventFactory("past")
    other = EventFactory("other")
    rig.start(other)
    rig.start(agent)
    assert rig.send(agent, "state_updated") == "applied"
    rig.send(other, "session_activity")
    return agent


def test_every_hundredth_event_of_a_producer_leaves_a_hash(rig: PastRig, agent: EventFactory) -> None:
    while agent.seq < 2 * HASHED_EVERY:
        assert rig.send(agent, "session_activity") == "applied"
    hashed = [audit for audit in rig.trail if audit.kind == "state_hash"]
    assert [audit.producer_seq for audit in hashed] == [HASHED_EVERY, 2 * HASHED_EVERY]
    assert len({audit.row_hash for audit in hashed}) == 2
    past = rig.past(agent, Point("offset", rig.offset - 1))
    assert past.check == ("equal", 2 + 2, hashed[-1].source_offset)


def test_a_point_can_be_a_time_an_event_or_a_snapshot(rig: PastRig, agent: EventFactory) -> None:
    before = rig.row_of(agent)
    at_ms, snapshot_id = rig.at, before.snapshot.snapshot_id
    assert rig.send(agent, "session_paused") == "applied"
    paused = rig.row_of(agent)
    rig.send(agent, "session_resumed")
    assert rig.past(agent, Point("time", at_ms - 1)).row == before
    assert rig.past(agent, Point("time", at_ms)).row == paused
    assert rig.past(agent, Point("snapshot", paused.snapshot.snapshot_id)).row == paused
    assert rig.past(agent, Point("snapshot", snapshot_id)).offset == next(
        record.offset for record in rig.log if record.key == agent.key.encoded()
    )


def test_a_point_can_be_an_agents_snapshot(rig: PastRig, agent: EventFactory) -> None:
    assert rig.send(agent, "agent_registered", agent_id="r1", role="researcher") == "applied"
    held = [rig.row_of(agent)]
    for task in ("gather", "read"):
        assert rig.send(agent, "agent_task_updated", agent_id="r1", task=task, completed=False) == "applied"
        held.append(rig.row_of(agent))
    rig.send(agent, "session_paused")
    snapshots = [row.agents[0].snapshot_id for row in held]
    assert len({*snapshots}) == 3
    assert [rig.past(agent, Point("snapshot", each)).row for each in snapshots] == held


def test_states_at_some_points_are_those_at_each_and_the_log_is_folded_once(rig: PastRig, agent: EventFactory) -> None:
    first = rig.offset - 1
    assert rig.send(agent, "session_paused") == "applied"
    paused = rig.row_of(agent).snapshot.snapshot_id
    rig.send(EventFactory("another"), "session_created")
    rig.send(agent, "session_resumed")
    rig.advance(120_000)
    last = Point("offset", rig.offset - 1)
    points = [last, Point("snapshot", paused), Point("time", rig.at - 30_000), Point("offset", first), last]
    read: list[int] = []

    def records() -> Iterator[LogRecord]:
        for record in rig.log:
            read.append(record.offset)
            yield record

    state = rig.fold
    log = PastLog(records(), rig.trail, state.position, state.settings, state.judge, state.decoder)
    assert states_at(log, agent.key, 0, points) == [rig.past(agent, point) for point in points]
    assert read == [record.offset for record in rig.log]
    log = log._replace(records=rig.log)
    with pytest.raises(PointUnknown, match="has no event nowhere"):
        states_at(log, agent.key, 0, [last, Point("event", "nowhere")])


def test_a_time_out_is_there_from_the_record_on_with_which_it_fired(rig: PastRig, agent: EventFactory) -> None:
    rig.advance(120_000)
    fired = next(audit for audit in rig.trail if audit.transition == "T06" and audit.session_id == agent.key.session_id)
    states = [
        rig.past(agent, Point("offset", offset)).row.state  # type: ignore[union-attr]
        for offset in (fired.source_offset - 1, fired.source_offset)
    ]
    assert states == ["Active", "Timeout"]
    later = rig.past(agent, Point("offset", rig.offset - 1))
    assert later.row == rig.fold.rows[agent.key.encoded()]


@pytest.mark.parametrize(
    "point",
    [
        Point("offset", 0),
        Point("offset", 10_000),
        Point("time", 1),
        Point("time", 1 << 50),
        Point("event", "none"),
        Point("snapshot", "none"),
    ],
)
def test_an_unknown_point_is_an_error_that_names_it(rig: PastRig, agent: EventFactory, point: Point) -> None:
    with pytest.raises(PointUnknown, match=f"{point.kind}.*"):
        rig.past(agent, point)


def test_a_time_before_the_session_is_told_as_a_time(rig: PastRig, agent: EventFactory) -> None:
    told = r"began at time [\d-]+T[\d:]+\.\d{3}Z, after time 1970-01-01T00:00:00\.007Z"
    with pytest.raises(PointUnknown, match=told):
        rig.past(agent, Point("time", 7))


def test_a_time_beyond_the_log_is_told_as_a_time(rig: PastRig, agent: EventFactory) -> None:
    told = r"folded up to time [\d-]+T[\d:]+\.\d{3}Z, not time 2200-01-01T00:00:00\.000Z"
    with pytest.raises(PointUnknown, match=told):
        rig.past(agent, Point("time", 7_258_118_400_000))


def test_an_event_of_another_session_is_no_point(rig: PastRig, agent: EventFactory) -> None:
    other = _event_of(rig.log[-1])
    assert other is not None
    assert other.envelope.session_id != agent.key.session_id
    with pytest.raises(PointUnknown):
        rig.past(agent, Point("event", other.envelope.event_id))


def test_without_the_first_record_of_the_trail_it_is_expired(rig: PastRig, agent: EventFactory) -> None:
    rig.trail = [audit for audit in rig.trail if audit.transition != "T01"]
    with pytest.raises(StateExpired, match="first event"):
        rig.past(agent, Point("offset", rig.offset - 1))


def test_another_hash_in_the_trail_is_found_and_a_hash_of_another_schema_is_no_fault(
    rig: PastRig, agent: EventFactory
) -> None:
    place = next(n for n, audit in enumerate(rig.trail) if audit.transition == "T02" and is_of(audit, agent))
    found = rig.trail[place]
    assert found.row_hash is not None
    schema, _, digest = found.row_hash.partition(":")
    rig.trail[place] = found._replace(row_hash=f"{schema}:{digest[::-1]}")
    point = Point("offset", rig.offset - 1)
    assert rig.past(agent, point).check == ("differs", 1, found.source_offset)
    rig.trail[place] = found._replace(row_hash=f"{schema[::-1]}:{digest}")
    assert rig.past(agent, point).check == ("not_checkable", 1, found.source_offset)


def is_of(audit: AuditRecord, agent: EventFactory) -> bool:
    return audit.session_id == agent.key.session_id


def test_a_missing_event_is_found_by_the_next_hash(rig: PastRig, agent: EventFactory) -> None:
    own = [record for record in rig.log if record.key == agent.key.encoded()]
    assert rig.send(agent, "session_paused") == "applied"
    rig.log.remove(own[-1])
    assert rig.past(agent, Point("offset", rig.offset - 1)).check.verdict == "differs"


@pytest.mark.parametrize(
    "event_type", ["message_appended", "checkpoint_saved", "agent_registered", "tool_call_started"]
)
def test_a_missing_event_of_a_child_is_found_by_the_next_hash_of_the_row(
    rig: PastRig, agent: EventFactory, event_type: str
) -> None:
    assert rig.send(agent, event_type) == "applied"
    gone = rig.log[-1]
    assert rig.send(agent, "session_paused") == "applied"
    assert rig.past(agent, Point("offset", rig.offset - 1)).check.verdict == "equal"
    rig.log.remove(gone)
    assert rig.past(agent, Point("offset", rig.offset - 1)).check.verdict == "differs"


def test_events_that_a_client_lost_are_part_of_the_answer(rig: PastRig, agent: EventFactory) -> None:
    agent.seq += 3
    assert rig.send(agent, "session_activity") == "applied"
    (lost,) = rig.past(agent, Point("offset", rig.offset - 1)).lost
    assert (lost.what, lost.last - lost.first, lost.offset) == ("gap", 2, rig.offset - 1)


def test_skipped_offsets_and_a_repaired_clock_are_repeated(rig: PastRig, agent: EventFactory) -> None:
    skipped = LogRecord(rig.offset, rig.at, agent.key.encoded(), agent.event_bytes("state_updated"))
    rig.log.append(skipped)
    batch = rig.fold.begin()
    batch.skip_offsets(SkippedOffsets("records_skipped", rig.offset + 1, rig.at, "damaged", "ops", [skipped]))
    rig.trail += [audit for _, audit in batch.finish().records_on("audit")]
    rig.fold.merge(batch)
    rig.offset += 1
    agent.seq -= 1
    rig.send(agent, "session_activity")
    batch = rig.fold.begin()
    batch.set_clock(ClockSetting(rig.at + 3_600_000, rig.offset, "leapt", "ops"))
    rig.trail += [audit for _, audit in batch.finish().records_on("audit")]
    rig.fold.merge(batch)
    rig.at += 3_600_000
    rig.send(agent, "session_activity")
    later = EventFactory("later")
    rig.start(later)
    rig.advance(40_000)
    rig.send(agent, "session_paused")
    for one in (agent, later):
        past = rig.past(one, Point("offset", rig.offset - 1))
        assert past.row == rig.fold.repair_times(rig.row_of(one), rig.fold.position.clock_repairs)
        assert past.check.verdict == "equal"
    assert [lost.what for lost in rig.past(agent, Point("offset", rig.offset - 1)).lost] == ["records_skipped"]


def test_rows_that_were_accepted_make_what_follows_not_checkable(rig: PastRig, agent: EventFactory) -> None:
    offset = rig.offset
    batch = rig.fold.begin()
    batch.note_rebuild("rows_accepted", "rows accepted", "they are right", "ops")
    rig.trail += [audit for _, audit in batch.finish().records_on("audit")]
    rig.fold.merge(batch)
    rig.send(agent, "session_paused")
    past = rig.past(agent, Point("offset", rig.offset - 1))
    assert past.check == ("not_checkable", 2, offset)
    assert [lost.what for lost in past.lost] == ["rows_accepted"]


@pytest.mark.parametrize("damage", ["missing", "cycle", "unknown parent"])
def test_a_chain_that_is_broken_in_the_log_is_told(rig: PastRig, agent: EventFactory, damage: str) -> None:
    """R-003-42: no endless loop, and no state of other events."""
    head = rig.row_of(agent).snapshot.snapshot_id
    for name in ("second", "third"):
        assert rig.send(agent, "snapshot_created", snapshot=snapshot(name, parent=head)) == "applied"
        head = snapshot_id(name)
    assert rig.send(agent, "session_paused") == "applied"
    place = len(rig.log) - 3
    if damage == "missing":
        del rig.log[place]
    else:
        parent = snapshot_id("third") if damage == "cycle" else "snap_0123456789ab"
        agent.seq -= 3
        value = agent.event_bytes("snapshot_created", snapshot=snapshot("second", parent=parent))
        rig.log[place] = rig.log[place]._replace(value=value)
    past = rig.past(agent, Point("offset", rig.offset - 1))
    assert past.check == ("differs", 2, rig.offset - 1)
    for name in ("second", "third"):
        with pytest.raises(Invalid, match=f"have no snapshot {snapshot_id(name)}, and do not lead to the state that"):
            rig.past(agent, Point("snapshot", snapshot_id(name)))
    with pytest.raises(PointUnknown):
        rig.past(agent, Point("offset", rig.offset))


def test_personal_data_expires_thirty_days_after_the_first_of_it(rig: PastRig) -> None:
    agent = EventFactory("personal")
    began_ms = rig.at
    assert rig.send(agent, "session_created", envelope={"data_classes": ("personal",)}) == "applied"
    past = rig.past(agent, Point("offset", rig.offset - 1))
    assert past.personal_until == (began_ms + 30 * 86_400_000) * 1_000


def test_the_chain_of_snapshots_begins_at_the_root(rig: PastRig, agent: EventFactory) -> None:
    """R-003-42: root first; a cycle or a missing parent is an error, no endless loop."""
    taken = [rig.row_of(agent).snapshot.snapshot_id]
    for name in ("second", "third"):
        assert rig.send(agent, "snapshot_created", snapshot=snapshot(name, parent=taken[-1])) == "applied"
        taken.append(snapshot_id(name))
    assert rig.past(agent, Point("offset", rig.offset - 1)).chain == taken
    assert rig.past(agent, Point("snapshot", snapshot_id("second"))).chain == taken[:2]
    assert snapshot_chain({"a": None, "b": "a"}, "b") == ["a", "b"]
    assert snapshot_chain({"a": "elsewhere"}, "a", "elsewhere") == ["a"]
    with pytest.raises(Invalid, match="itself"):
        snapshot_chain({"a": "b", "b": "a"}, "a")
    with pytest.raises(Invalid, match="not there"):
        snapshot_chain({"a": "b"}, "a")
