"""A decision before it is committed: which records it stops, and what a skip does to the clock."""

import pytest

from sessionary.schemas.records import Position
from sessionary.stream_processors.core.model import LogRecord
from sessionary.stream_processors.errors import Halted
from sessionary.stream_processors.runtime.decisions.pending_decision import (
    GapAcceptance,
    PendingDecision,
    RecordSkip,
    _skipped_offsets,
)
from sessionary.stream_processors.runtime.decisions.skipped_records import SkippedRecords
from tests.core.stream_processors.runtime.owner_doubles import OwnerBench

POSITION = Position(5, 4_000, 0, 1, 0)
SKIP = RecordSkip(5, 7, "it fails", "alice", Halted("clock_ahead", "told so", 90.0, 5))
RECORDS = [LogRecord(n, 1_000 * n, b"k", b"v") for n in range(3, 9)]


class EpochRecord(LogRecord):
    """A record of leader epoch 4."""

    __slots__ = ()

    @property
    def leader_epoch(self) -> int | None:
        return 4


def pending(decision: RecordSkip | GapAcceptance | None) -> PendingDecision:
    return PendingDecision(OwnerBench().context, 0, decision)


def test_records_before_a_skip_are_folded_and_it_is_reached_with_its_first_one() -> None:
    decision = pending(SKIP)
    assert decision.cut_records(RECORDS[:2]) == RECORDS[:2]
    assert not decision.is_reached
    assert decision.cut_records(RECORDS) == RECORDS[:2]
    assert decision.is_reached


@pytest.mark.parametrize(("offset", "covered"), [(None, False), (4, False), (5, True), (7, True), (8, False)])
def test_a_halt_within_a_skip_is_what_was_decided_about(offset: int | None, covered: bool) -> None:
    decision = pending(SKIP)
    assert decision.covers_halt(offset) == covered
    assert decision.is_reached == covered


@pytest.mark.parametrize("other", [None, GapAcceptance("lost", "alice")])
def test_without_a_skip_every_record_is_folded_and_every_halt_stands(other: GapAcceptance | None) -> None:
    decision = pending(other)
    assert decision.cut_records(RECORDS) == RECORDS
    assert not decision.covers_halt(5)
    assert not decision.is_reached


def test_a_skip_leaves_the_clock_if_the_leader_epoch_is_known() -> None:
    known = SkippedRecords([LogRecord(6, 9_500, b"k", b"v"), EpochRecord(7, 9_000, b"k", b"v")], 8)
    skipped = _skipped_offsets(SKIP, POSITION, known, 0.0)
    assert (skipped.next_offset, skipped.clock_ms, skipped.event_type) == (8, 4_000, "records_skipped")


def test_a_skip_without_a_leader_epoch_raises_the_clock_to_the_last_stamp_unless_that_is_ahead() -> None:
    unknown = SkippedRecords([EpochRecord(6, 9_500, b"k", b"v"), LogRecord(7, 9_000, b"k", b"v")], 8)
    skipped = _skipped_offsets(SKIP, POSITION, unknown, 9.0)
    assert (skipped.next_offset, skipped.clock_ms, skipped.event_type) == (8, 9_000, "records_skipped")
    with pytest.raises(Halted, match=r"offset 7 is stamped 1\.5 s ahead") as caught:
        _skipped_offsets(SKIP, POSITION, unknown, 7.5)
    assert (caught.value.reason, caught.value.offset, caught.value.clears_in_s) == ("clock_ahead", 5, 1.5)
    for clock_ms in (9_000, 9_001):  # it never goes back, and where it stays no worker's clock matters
        assert _skipped_offsets(SKIP, POSITION._replace(clock_ms=clock_ms), unknown, 0.0).clock_ms == clock_ms
