"""A new family of rows needs its own module and one line: folded, recovered, packed."""

from collections.abc import Sequence
from typing import Any

import pytest

from sessionary.schemas.codec import Decoder, encode_record
from sessionary.schemas.rules import NEWEST_RULES
from sessionary.stream_processors.core.clock import NEVER_MS
from sessionary.stream_processors.core.committed import PartitionSettings
from sessionary.stream_processors.core.families import CHILDREN
from sessionary.stream_processors.core.model import BatchResult, LogRecord, RowFate
from sessionary.stream_processors.core.partition import PartitionState
from sessionary.stream_processors.core.session.judge import SessionJudge
from sessionary.stream_processors.store.cached_rows import CachedRows
from sessionary.stream_processors.store.packed_rows import FamilyCodec
from tests.support.event_factory import TICK, EventFactory
from tests.support.tally_family import CLOSED, SILENCE_MS, ClosedTally, Tally, tally_family, tally_judge, tally_key

START_MS = 1_700_000_000_000
SETTINGS = PartitionSettings("sessionary.events", 1)
JUDGE = tally_judge()


class Story:
    """One partition with the family, and the log so far."""

    def __init__(self) -> None:
        self.state = new_state()
        self.log: list[LogRecord] = []
        self.outcomes: list[BatchResult] = []
        self.at = START_MS

    def append(self, key: bytes | None, value: bytes) -> BatchResult:
        record = LogRecord(len(self.log), self.at, key, value)
        self.log.append(record)
        outcome = fold_batch(self.state, [record])
        self.outcomes.append(outcome)
        return outcome

    def send(self, agent: EventFactory, event_type: str, **fields: Any) -> BatchResult:
        return self.append(agent.key.encoded(), agent.event_bytes(event_type, **fields))

    def pass_time(self, ms: int) -> BatchResult:
        """Let time pass without an outage."""
        until = self.at + ms
        while self.at < until:
            self.at = min(until, self.at + 4_000)
            outcome = self.append(None, TICK)
        return outcome


def new_state() -> PartitionState:
    state = PartitionState(0, SETTINGS, Decoder(), JUDGE)
    state.finish_loading()
    return state


def fold_batch(state: PartitionState, records: Sequence[LogRecord]) -> BatchResult:
    uncommitted = state.begin()
    assert all(uncommitted.apply(record) for record in records)
    outcome = uncommitted.finish()
    state.merge(uncommitted)
    return outcome


def begin_session(story: Story) -> EventFactory:
    agent = EventFactory()
    story.send(agent, "session_created")
    for phase in ("validating", "connecting"):
        story.send(agent, "session_phase_changed", phase=phase)
    assert story.send(agent, "session_started").counts.applied == 1
    return agent


def test_its_events_reach_its_rows_and_are_work_of_the_session() -> None:
    story = Story()
    agent = begin_session(story)
    for _ in range(3):
        assert story.send(agent, "message_appended").counts.applied == 1
    assert story.state.rows[tally_key(agent.key.encoded())] == Tally(*agent.key, 3, START_MS)
    assert story.state.rows[agent.key.encoded()].turns == 0  # the messages' own family is not there
    assert story.state.live == 2


def test_an_event_of_another_tenant_is_rejected_before_its_family_sees_it() -> None:
    story = Story()
    agent = begin_session(story)
    foreign = agent.event_bytes("message_appended", {"tenant_id": "globex"})
    outcome = story.append(agent.key.encoded(), foreign)
    assert list(outcome.rejections) == ["foreign_tenant"]
    assert len(outcome.records_on("audit")) == 1
    assert tally_key(agent.key.encoded()) not in story.state.rows


def test_its_deadlines_fire_among_those_of_the_sessions_and_its_facts_leave_records() -> None:
    story = Story()
    agent = begin_session(story)
    story.send(agent, "message_appended")
    assert story.state.next_deadline_ms == START_MS + SILENCE_MS
    outcome = story.pass_time(SILENCE_MS)
    assert (outcome.counts.timers, outcome.counts.audited) == (1, 0)
    ((key, request),) = outcome.records_on("cleanup")
    assert (key, request.reason) == (agent.key.encoded(), "1 messages")
    assert story.state.live == 1


def test_its_objections_are_rejections_of_the_session_and_its_rows_vanish_with_it() -> None:
    story = Story()
    agent = begin_session(story)
    story.send(agent, "message_appended")
    story.pass_time(SILENCE_MS)
    key = tally_key(agent.key.encoded())
    assert story.state.rows[key] == ClosedTally(*agent.key, 1)
    outcome = story.send(agent, "message_appended")
    assert (outcome.counts.rejected, list(outcome.rejections)) == (1, ["session_archived"])
    ((rejected_key, rejected),) = outcome.records_on("rejected")
    assert (rejected_key, rejected.detail) == (agent.key.encoded(), CLOSED)
    assert [line.kind for _, line in outcome.records_on("audit")] == ["rejection"]
    assert story.send(agent, "session_terminated", reason="closed").counts.applied == 1
    story.pass_time(10 * 60_000)
    assert key not in story.state.rows


def test_two_families_of_the_same_events_are_an_error() -> None:
    with pytest.raises(ValueError, match="same events"):
        SessionJudge([*CHILDREN, tally_family()])


def test_void_batches_leave_its_deadlines_as_they_were() -> None:
    story = Story()
    agent = begin_session(story)
    story.send(agent, "message_appended")
    offset = len(story.log)
    for _ in range(2):
        void = story.state.begin()
        assert void.apply(
            LogRecord(offset, START_MS + 4_000, agent.key.encoded(), agent.event_bytes("message_appended"))
        )
        assert void.apply(LogRecord(offset + 1, START_MS + 8_000, None, TICK))
    outcome = story.pass_time(SILENCE_MS)
    assert outcome.counts.timers == 1


def test_any_cut_of_the_log_and_a_recovery_in_between_give_the_same() -> None:
    story = Story()
    agents = [begin_session(story) for _ in range(1)]
    for turn in range(12):
        story.send(agents[0], "message_appended")
        story.pass_time(3_000 if turn % 4 else 12_000)
    codec = FamilyCodec(JUDGE.families)
    for size in (1, 3, 7, len(story.log)):
        state = new_state()
        emitted: list[bytes] = []
        for start in range(0, len(story.log), size):
            outcome = fold_batch(state, story.log[start : start + size])
            emitted += [encode_record(record) for _, _, record in outcome.emitted if _has_no_batch(record)]
            changelog = {key: codec.pack(row, NEWEST_RULES.version).value for key, row in state.rows.items()}
            state = recover_state(state, changelog)
        assert emitted == [
            encode_record(record)
            for outcome in story.outcomes
            for _, _, record in outcome.emitted
            if _has_no_batch(record)
        ]
        assert dict(state.rows) == dict(story.state.rows)
        assert state.next_deadline_ms == story.state.next_deadline_ms


def _has_no_batch(record: object) -> bool:
    """Audit records name their batch, which depends on how the log is cut."""
    return not hasattr(record, "batch_number")


def recover_state(before: PartitionState, changelog: dict[bytes, bytes]) -> PartitionState:
    """Return the state that a new owner has: from packed rows, as a store keeps them."""
    codec = FamilyCodec(JUDGE.families)
    shelf = {key: codec.repack(value, None) for key, value in changelog.items()}
    rows = CachedRows(shelf, codec)
    state = PartitionState(0, SETTINGS, Decoder(), JUDGE, rows)
    state.load_position(before.position)
    state.finish_loading(rows.due_rows())
    assert (state.live, state.vanishing) == (before.live, before.vanishing)
    return state


def test_packed_rows_tell_each_family_apart() -> None:
    codec = FamilyCodec(JUDGE.families)
    tally, closed = Tally("acme", "s", 2, 5_000), ClosedTally("acme", "s", 2)
    for row, due_ms, live in ((tally, 15_000, True), (closed, NEVER_MS, False)):
        packed = codec.pack(row, NEWEST_RULES.version)
        assert codec.unpack(packed.stored) == row
        assert codec.repack(packed.value, packed.due) == packed.stored
        assert (
            codec.due_stored_row(b"k", packed.stored)
            == (b"k", due_ms, RowFate(live, is_child=True))
            == codec.due_row(b"k", row)
        )
