"""What is not judged: offsets that an operator skips, and records on which a machine fails."""

from collections.abc import Callable
from typing import Any

import pytest

from sessionary.schemas.codec import Decoder, encode_position
from sessionary.schemas.records import Position
from sessionary.schemas.types import Limits, PartitionDecision
from sessionary.stream_processors.core.family import SessionArrival
from sessionary.stream_processors.core.model import BatchResult, Decision, LogRecord, RowLookup, SkippedOffsets
from sessionary.stream_processors.core.session.effects import SessionRow
from sessionary.stream_processors.core.session.judge import SessionJudge
from sessionary.stream_processors.core.session.rows import SessionRows
from sessionary.stream_processors.metrics import CommitCosts, Metrics
from tests.core.fold_rig import FoldRig, write_result
from tests.support.event_factory import TICK, EventFactory

POISON = b"poison"


def skip_at(rig: FoldRig, next_offset: int, clock_ms: int = 0, *records: LogRecord) -> BatchResult:
    """Skip the offsets up to `next_offset` in a batch of their own."""
    batch = rig.fold.begin()
    batch.skip_offsets(SkippedOffsets("records_skipped", next_offset, clock_ms, "it is broken", "alice", records))
    rig.outcome = batch.finish()
    rig.written = write_result(rig.outcome)
    rig.fold.merge(batch)
    rig.offset = next_offset
    return rig.outcome


def test_by_the_second_rules_skipped_records_are_rejected_with_their_bytes() -> None:
    rig, agent = FoldRig(), EventFactory()
    rig.start(agent)
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
    assert (outcome.counts.rejected, outcome.judged.rejections[first]) == (2, "skipped")
    decision = PartitionDecision("records_skipped", first, first, first + 1, rig.at, "alice")
    rig.send(agent, "session_activity")
    assert [*rig.fold.position.decisions] == [decision], "it stays in the position record"
    stored = Decoder().decode_record(encode_position(rig.fold.position))
    assert isinstance(stored, Position)
    assert [*stored.decisions] == [decision]


def test_a_skip_never_sets_the_clock_back_and_a_leap_of_it_is_an_outage() -> None:
    rig, agent, brief = FoldRig(), EventFactory(), EventFactory("brief")
    rig.start(agent)
    rig.start(brief, limits=Limits(max_duration_ms=100_000))
    assert skip_at(rig, 9, rig.at - 1).position.clock_ms == rig.at
    position = skip_at(rig, 10, rig.at + 200_000).position
    assert (position.clock_ms, position.outage_grace_until_ms) == (rig.at + 200_000, rig.at + 225_000)
    rig.at += 200_000
    rig.append(None, TICK)
    assert rig.audits() == [], "its agents are heard first"
    fired = []
    for after_s in range(1, 61):
        rig.advance(1_000)
        fired += [(after_s, line.session_id, line.reason_code) for line in rig.audits()]
    assert fired == [(25, brief.key.session_id, "max_duration"), (60, agent.key.session_id, "inactive")]


def accept_truncation(rig: FoldRig, replaced: tuple[int, int], *records: LogRecord) -> BatchResult:
    """Leave records unfolded that have taken the offsets of others."""
    batch = rig.fold.begin()
    skip = SkippedOffsets("log_truncation_accepted", rig.offset, 0, "power loss", "alice", records, replaced)
    batch.skip_offsets(skip)
    rig.outcome = batch.finish()
    rig.written = write_result(rig.outcome)
    rig.fold.merge(batch)
    return rig.outcome


def test_records_that_took_the_offsets_of_folded_ones_are_rejected_and_the_position_stays() -> None:
    rig, agent = FoldRig(), EventFactory()
    rig.start(agent)
    row, key, next_offset = rig.row_of(agent), agent.key.encoded(), rig.offset
    for n, offset in enumerate((2, 3)):  # in two transactions
        outcome = accept_truncation(rig, (offset, offset), LogRecord(offset, rig.at, key, POISON))
        ((_, line),) = outcome.records_on("audit")
        assert (line.kind, line.event_type, line.actor) == ("decision", "log_truncation_accepted", "alice")
        assert (line.source_offset, line.source_n, line.gap_first, line.gap_last) == (next_offset, n, offset, offset)
        assert line.reason == f"sessionary.events-0, offsets {offset} to {offset}: power loss"
        letter = rig.letter()
        assert (letter.reason, letter.source_offset, letter.value) == ("skipped", offset, POISON)
        assert (outcome.position.next_offset, outcome.position.outputs_written) == (next_offset, n + 1)
    assert rig.row_of(agent) == row
    assert rig.send(agent, "session_activity") == "applied"


def test_what_is_folded_cannot_be_skipped() -> None:
    rig = FoldRig()
    rig.append(None, TICK)
    with pytest.raises(ValueError, match="the position is 1"):
        skip_at(rig, 1)


PLACES = ["decide", "evolve", "report", "estimate_bytes", "due_ms"]


def break_judge(monkeypatch: pytest.MonkeyPatch, place: str, event_type: str = "session_paused") -> None:
    """Let the judge, or its rows, fail in one method at events of a type."""
    whole: Any = SessionJudge.decide
    is_armed = False

    def decide(self: SessionJudge, row: SessionRow | None, arrival: SessionArrival, rows: RowLookup) -> Decision:
        nonlocal is_armed
        is_armed = arrival.event is not None and arrival.event.envelope.event_type == event_type
        if is_armed and place == "decide":
            raise ZeroDivisionError("the record's text")
        decision: Decision = whole(self, row, arrival, rows)
        return decision

    def fail(owner: type[Any]) -> Callable[..., Any]:
        former: Any = getattr(owner, place)

        def call(self: Any, *args: Any) -> Any:
            if is_armed:
                raise ZeroDivisionError("the record's text")
            return former(self, *args)

        return call

    monkeypatch.setattr(SessionJudge, "decide", decide)
    if place != "decide":
        owner = SessionJudge if hasattr(SessionJudge, place) else SessionRows
        monkeypatch.setattr(owner, place, fail(owner))


@pytest.mark.parametrize("place", PLACES)
def test_an_event_on_which_the_judge_fails_is_rejected_and_changes_nothing(
    monkeypatch: pytest.MonkeyPatch, place: str
) -> None:
    rig, agent = FoldRig(), EventFactory()
    rig.start(agent)
    row, live, deadline = rig.row_of(agent), rig.fold.live, rig.fold.next_deadline_ms
    with monkeypatch.context() as broken:
        break_judge(broken, place)
        assert rig.send(agent, "session_paused") == "rejected internal_error"
    assert (rig.row_of(agent), rig.fold.live, rig.fold.next_deadline_ms) == (row, live, deadline)
    letter, (line,) = rig.letter(), rig.audits()
    assert (letter.reason, letter.session_id) == ("internal_error", agent.key.session_id)
    assert letter.value is not None
    assert letter.detail == line.reason
    assert line.reason.startswith("ZeroDivisionError at ")
    assert "the record's text" not in line.reason
    assert (line.kind, line.reason_code, line.audit_seq, line.source_n) == ("rejection", "internal_error", 0, 0)
    assert rig.outcome is not None
    assert (rig.outcome.rows, rig.outcome.counts.rejected, rig.outcome.counts.applied) == ({}, 1, 0)
    assert rig.send(agent, "session_paused") == "applied", "mended code judges the next one"


def test_a_failure_that_is_reported_gives_the_same_again(monkeypatch: pytest.MonkeyPatch) -> None:
    rigs = FoldRig(), FoldRig()
    agent = EventFactory()
    for rig in rigs:
        agent = EventFactory()
        rig.start(agent)
    record = LogRecord(rigs[0].offset, rigs[0].at, agent.key.encoded(), agent.event_bytes("session_paused"))
    with monkeypatch.context() as broken:
        break_judge(broken, "decide")
        first = rigs[0].append_batch(record)
    batch = rigs[1].fold.begin()
    assert batch.apply(record, rigs[0].letter().detail)
    again = batch.finish()
    assert (again.emitted, again.position, again.counts) == (first.emitted, first.position, first.counts)


def test_failures_of_the_judge_are_counted_by_a_metric() -> None:
    metrics, outcome = Metrics(), FoldRig().append_batch(LogRecord(0, 1, None, TICK))
    metrics.count_outcome(outcome._replace(rejections=["late", "internal_error"]), CommitCosts(0.1))
    assert metrics.errors.labels("judge")._value.get() == 1
