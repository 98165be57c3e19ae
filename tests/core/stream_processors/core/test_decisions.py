"""What an operator decides about a partition: offsets that are not folded."""

import pytest

from sessionary.schemas.rules import NEWEST_RULES
from sessionary.stream_processors.core.model import LogRecord, Outcome, SkippedOffsets
from tests.core.fold_rig import FoldRig, write_outcome
from tests.support.event_factory import TICK, EventFactory

POISON = b"poison"


def skip_at(rig: FoldRig, next_offset: int, clock_ms: int = 0, *records: LogRecord) -> Outcome:
    """Skip the offsets up to `next_offset` in a batch of their own."""
    batch = rig.fold.begin()
    batch.skip_offsets(SkippedOffsets("records_skipped", next_offset, clock_ms, "it is broken", "alice", records))
    rig.outcome = batch.finish()
    rig.written = write_outcome(rig.outcome)
    rig.fold.merge(batch)
    rig.offset = next_offset
    return rig.outcome


def test_by_the_first_rules_skipped_offsets_leave_a_gap_in_the_audit_trail_and_nothing_else() -> None:
    rig, agent = FoldRig(), EventFactory()
    rig.start(agent)
    poison = LogRecord(4, rig.at, agent.key.encoded(), POISON)
    outcome = skip_at(rig, 7, 0, poison)
    (line,) = rig.audits()
    assert (line.kind, line.event_type, line.reason_code) == ("gap", "records_skipped", "records_skipped")
    assert (line.gap_first, line.gap_last, line.actor, line.tenant_id) == (4, 6, "alice", "")
    assert (line.source_partition, line.source_offset) == (0, 4)
    assert line.reason == "sessionary.events-0, offsets 4 to 6: it is broken"
    assert (outcome.position.next_offset, outcome.position.outcome_n) == (7, 0)
    assert (outcome.rows, outcome.records_on("rejected"), outcome.counts.refused) == ({}, [], 0)
    assert (outcome.counts.first_offset, outcome.counts.last_offset) == (4, 6)
    assert rig.send(agent, "session_activity") == "applied", "the session goes on"


def test_by_the_second_rules_skipped_records_are_rejected_with_their_bytes() -> None:
    rig, agent = FoldRig(), EventFactory()
    rig.start(agent)
    rig.activate(NEWEST_RULES)
    first = rig.offset
    key = agent.key.encoded()
    records = [LogRecord(first, rig.at, key, POISON, (("a", b"b"),)), LogRecord(first + 1, rig.at, None, POISON)]
    outcome = skip_at(rig, first + 2, 0, *records)
    (line,) = rig.audits()
    assert (line.kind, line.gap_first, line.gap_last) == ("decision", first, first + 1)
    letters = [record for _, record in outcome.records_on("rejected")]
    assert [(letter.reason, letter.key, letter.value) for letter in letters] == [
        ("skipped", key, POISON),
        ("skipped", None, POISON),
    ]
    assert letters[0].session_id == agent.key.session_id
    assert letters[0].headers == {"a": b"b"}
    assert letters[0].detail == "skipped by alice: it is broken"
    assert (outcome.counts.refused, outcome.judged.refusals[first]) == (2, "skipped")


def test_a_skip_never_sets_the_clock_back_and_a_leap_of_it_is_quiet() -> None:
    rig, agent = FoldRig(), EventFactory()
    rig.start(agent)
    assert skip_at(rig, 5, rig.at - 1).position.clock_ms == rig.at
    position = skip_at(rig, 6, rig.at + 200_000).position
    assert (position.clock_ms, position.quiet_until_ms) == (rig.at + 200_000, rig.at + 225_000)
    rig.at += 200_000
    rig.append(None, TICK)
    assert rig.audits() == [], "its agents are heard first"
    rig.advance(25_000)
    assert [line.transition for line in rig.audits()] == ["T06"]


def test_what_is_folded_cannot_be_skipped() -> None:
    rig = FoldRig()
    rig.append(None, TICK)
    with pytest.raises(ValueError, match="the position is 1"):
        skip_at(rig, 1)
