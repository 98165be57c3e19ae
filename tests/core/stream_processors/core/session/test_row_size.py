"""Rows at the changelog's limit: which events are rejected, and that each of them halted before."""

from collections.abc import Callable

import pytest

from sessionary.schemas.codec import encode_record
from sessionary.schemas.codec.record_sizes import batch_bytes
from sessionary.schemas.ids import NAME_LENGTH_MAX, derived_id
from sessionary.schemas.limits import NUMBER_MAX
from sessionary.schemas.records import Tombstone
from sessionary.schemas.rules import NEWEST_RULES, ROW_BYTES_MAX
from sessionary.schemas.topics import CHANGELOG_BYTES_MAX
from sessionary.schemas.types import (
    Cleanup,
    ErrorInfo,
    ForgottenProducer,
    ProducerLedger,
    Rejection,
    SeqRange,
)
from sessionary.stream_processors.core.model import LogRecord
from sessionary.stream_processors.core.sequencing import (
    FORGOTTEN_MAX,
    IDS_KEPT,
    OFFSET_DISTANCE_MAX,
    OFFSETS_KEPT,
    PRODUCERS_MAX,
    RANGES_MAX,
)
from sessionary.stream_processors.core.session.effects import CLEANUPS_KEPT, REJECTIONS_KEPT
from sessionary.stream_processors.core.session.row_size import EVENT_ID_MAX
from tests.core.fold_rig import FoldRig
from tests.support.event_factory import EventFactory, snapshot

FORMER_LIMIT = 4 << 20  # the changelog topic's, before rows had one of their own
LONG_ID = "x" * 1_200_000


def filled(size: int) -> str:
    """Return a state of so many bytes."""
    return f'{{"a":"{"s" * (size - 8)}"}}'


MUCH, TOO_MUCH = filled(3_000_000), filled(4_200_000)

Story = Callable[[FoldRig, EventFactory], str]


def create_with_large_state(rig: FoldRig, agent: EventFactory) -> str:
    return rig.send(agent, "session_created", snapshot=snapshot("first", MUCH))


def pause_with_large_snapshot(rig: FoldRig, agent: EventFactory) -> str:
    rig.start(agent)
    return rig.send(agent, "session_paused", snapshot=snapshot("paused", TOO_MUCH))


def take_snapshot_with_large_context(rig: FoldRig, agent: EventFactory) -> str:
    rig.start(agent)
    return rig.send(agent, "snapshot_created", snapshot=snapshot("later", context=TOO_MUCH))


def end_with_large_snapshot(rig: FoldRig, agent: EventFactory) -> str:
    rig.start(agent)
    return rig.send(agent, "session_terminated", snapshot=snapshot("last", TOO_MUCH))


def update_state_beside_large_snapshot(rig: FoldRig, agent: EventFactory) -> str:
    rig.start(agent)
    assert rig.send(agent, "snapshot_created", snapshot=snapshot("later", filled(3_900_000))) == "applied"
    return rig.send(agent, "state_updated", state_json=filled(1_000_000))


def fill_beyond_its_gap(rig: FoldRig, agent: EventFactory) -> str:
    rig.start(agent)
    agent.seq += 5
    return rig.send(agent, "snapshot_created", {"context_bytes": 9}, snapshot=snapshot("later", TOO_MUCH))


STORIES: list[Story] = [
    create_with_large_state,
    pause_with_large_snapshot,
    take_snapshot_with_large_context,
    end_with_large_snapshot,
    update_state_beside_large_snapshot,
    fill_beyond_its_gap,
]


class FormerRig(FoldRig):
    """Judges without a limit for rows, as before; `row_batch` is the changelog batch of a row."""

    def append(self, key: bytes | None, value: bytes | None, headers: object = ()) -> str:
        self.fold.load_position(self.fold.position._replace(rules=NEWEST_RULES._replace(row_bytes_max=1 << 40)))
        batch = self.fold.begin()
        assert batch.apply(LogRecord(self.offset, self.at, key, value))
        self.offset += 1
        outcome = batch.finish()
        self.fold.merge(batch)
        rows = [(name, encode_record(row)) for name, row in outcome.rows.items() if row is not None]
        self.row_batch = max((batch_bytes(*row) for row in rows), default=0)
        return "applied" if outcome.counts.applied else "rejected"


def story_name(story: Story) -> str:
    return story.__name__


@pytest.mark.parametrize("story", STORIES, ids=story_name)
def test_an_event_that_makes_a_row_too_large_is_rejected(story: Story) -> None:
    rig, agent = FoldRig(), EventFactory()
    assert story(rig, agent) == "rejected state_too_large"
    assert rig.letter().reason == rig.audits()[-1].reason_code == "state_too_large"
    assert "row would have" in rig.audits()[-1].reason
    row = rig.fold.rows.get(agent.key.encoded())
    if row is not None:
        assert [rejection.reason for rejection in row.rejections] == ["state_too_large"]
        assert row.producers[0].last_seq == agent.seq
        assert rig.send(agent, "session_activity") == "applied"


@pytest.mark.parametrize("story", STORIES, ids=story_name)
def test_each_event_that_is_rejected_for_its_row_halted_the_partition_before(story: Story) -> None:
    rig = FormerRig()
    assert story(rig, EventFactory()) == "applied"
    assert rig.row_batch > FORMER_LIMIT


def fill_row(rig: FoldRig, agent: EventFactory, beyond: int = 0) -> str:
    """Bring a row to the limit for accepted events, and `beyond` bytes above it."""
    rig.start(agent)
    for _ in range(40):  # so that the ledger keeps no more ids and offsets with each event
        assert rig.send(agent, "session_activity") == "applied"
    size = 3_000_000
    assert rig.send(agent, "snapshot_created", snapshot=snapshot("later", filled(size))) == "applied"
    room = ROW_BYTES_MAX - rig.row_bytes(agent) if type(rig) is FoldRig else 12
    size += room - 12  # the row keeps the id of the one before, too, as a range
    return rig.send(agent, "snapshot_created", snapshot=snapshot("after", filled(size + beyond)))


def test_a_row_may_have_exactly_the_limit() -> None:
    rig, agent = FoldRig(), EventFactory()
    assert fill_row(rig, agent) == "applied"
    assert rig.row_bytes(agent) == ROW_BYTES_MAX
    assert fill_row(FoldRig(), EventFactory(), beyond=1) == "rejected state_too_large"


def test_no_row_at_the_limit_for_accepted_events_fitted_its_topic_before() -> None:
    """The limit counts key and value alone, so an event is rejected only if its row never
    fitted.
    """
    key, value = b"k" * 41, b"v" * (ROW_BYTES_MAX - 41)
    assert batch_bytes(key, value) > FORMER_LIMIT == ROW_BYTES_MAX
    assert (EVENT_ID_MAX, CHANGELOG_BYTES_MAX) == (128, ROW_BYTES_MAX + 65_536)


def gap_then_work(agent: EventFactory) -> bytes:
    agent.seq += 1 << 40
    return agent.event_bytes("session_activity")


def rejected_event(agent: EventFactory, characters: int) -> bytes:
    return agent.event_bytes("session_started", {"event_id": "😀" * characters})


def test_a_full_row_takes_everything_that_brings_no_content() -> None:
    rig, agent = FoldRig(), EventFactory()
    fill_row(rig, agent)
    for name in ("heartbeat", "session_activity", "usage_recorded"):
        assert rig.send(agent, name) == "applied"
    for name in ("session_paused", "snapshot_created"):
        assert rig.send(agent, name, snapshot=snapshot("more", TOO_MUCH)) == "rejected state_too_large"
    others = [EventFactory(producer=f"{number:0128}") for number in range(PRODUCERS_MAX - 1)]
    grown = [gap_then_work(other) for _ in range(RANGES_MAX + 2) for other in others]
    grown += [rejected_event(agent, EVENT_ID_MAX) for _ in range(REJECTIONS_KEPT)]
    records = [LogRecord(rig.offset + n, rig.at, agent.key.encoded(), value) for n, value in enumerate(grown)]
    assert rig.append_batch(*records).counts.rejected == REJECTIONS_KEPT
    assert ROW_BYTES_MAX < rig.row_bytes(agent) <= CHANGELOG_BYTES_MAX - 16_384
    assert rig.send(agent, "session_errored", error=ErrorInfo("retryable", "b", "m")) == "applied"
    assert rig.send(agent, "session_phase_changed", phase="recovery") == "applied"
    assert rig.send(agent, "session_recovered") == "applied"
    assert rig.send(agent, "snapshot_created", snapshot=snapshot("small")) == "applied"
    assert rig.row_bytes(agent) < ROW_BYTES_MAX


def test_the_deadlines_of_a_full_row_fire() -> None:
    rig, agent = FoldRig(), EventFactory()
    fill_row(rig, agent)
    rig.advance(61_000)
    assert rig.row_of(agent).state == "Timeout"
    assert rig.row_bytes(agent) > ROW_BYTES_MAX
    rig.advance(301_000)
    assert rig.row_of(agent).state == "Terminated"
    rig.advance(301_000)
    assert isinstance(rig.fold.rows[agent.key.encoded()], Tombstone)


def test_all_bounded_parts_of_a_row_fit_above_its_limit() -> None:
    rig, agent = FoldRig(), EventFactory()
    rig.start(agent)
    gaps = tuple(SeqRange(NUMBER_MAX - 1, NUMBER_MAX) for _ in range(RANGES_MAX))
    ids = bytes(2 * IDS_KEPT)
    ledger = ProducerLedger("p" * NAME_LENGTH_MAX, NUMBER_MAX, gaps, epoch=1 << 30, last_at=1 << 44, recent_ids=ids)
    ledger = ledger._replace(offsets=(1 << 62, *[OFFSET_DISTANCE_MAX - 1] * (OFFSETS_KEPT - 1)))
    rejection = Rejection(1 << 62, "too_many_producers", "😀" * EVENT_ID_MAX + "…")
    row = rig.row_of(agent)._replace(
        producers=(ledger,) * PRODUCERS_MAX,
        forgotten=(ForgottenProducer(-(1 << 63), NUMBER_MAX, 1 << 30),) * FORGOTTEN_MAX,
        rejections=(rejection,) * REJECTIONS_KEPT,
        cleanups=(Cleanup(derived_id("c"), 1 << 44, released=True),) * CLEANUPS_KEPT,
    )
    assert len(encode_record(row)) <= CHANGELOG_BYTES_MAX - ROW_BYTES_MAX
