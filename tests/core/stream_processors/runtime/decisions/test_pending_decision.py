"""A decision before it is committed: which records it stops, and what a skip does to the clock."""

import pytest

from sessionary.schemas.records import Position
from sessionary.schemas.rules import NEWEST_RULES
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


def test_by_the_second_rules_a_skip_leaves_the_clock_if_the_leader_epoch_is_known() -> None:
    position = Position(5, 4_000, 0, 1, 0, rules=NEWEST_RULES)
    known = SkippedRecords([EpochRecord(7, 9_000, b"k", b"v")], 8)
    assert _skipped_offsets(SKIP, position, known, 0.0).clock_ms == 4_000
    unknown = SkippedRecords([LogRecord(7, 9_000, b"k", b"v")], 8)
    assert _skipped_offsets(SKIP, position, unknown, 9.0).clock_ms == 9_000
    with pytest.raises(Halted):
        _skipped_offsets(SKIP, position, unknown, 0.0)
