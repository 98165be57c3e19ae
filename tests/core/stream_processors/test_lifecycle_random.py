"""Random agents, random faults, random time: the fold and the auditor have to agree after every record.

Then the whole log again: cut into batches at random, with batches dropped and folds reloaded from their own bytes, it
has to give the same outputs.
"""

from collections.abc import Iterable
from random import Random
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule

from sessionary.schemas.codec import encode_record
from sessionary.schemas.records import AuditRecord, Gravestone, Position, SessionState
from sessionary.stream_processors.core.partition import Batch, LogRecord, PartitionFold
from sessionary.stream_processors.core.session.transitions import TRANSITIONS
from tests.core.court import DECODER, SETTINGS, Court
from tests.core.play import Play
from tests.support.scribe import TICK, Scribe

PLAYS, STEPS = 24, 300
# The rest needs another partition, a registry, 64 producers, a megabyte or a broken table.
MET = {"wrong_partition", "unknown_schema", "unknown_event_type", "too_many_producers", "state_too_large", "bad_row"}
MET = {
    *("undecodable", "invalid_value", "bad_key", "key_mismatch", "foreign_tenant", "unknown_session"),
    *("session_exists", "session_archived", "late_filler", "stale_epoch", "future_epoch", "processor_only"),
    *("not_owner", "illegal_transition", "late", "phase_order", "missing_snapshot", "missing_error_class"),
    *("not_retryable", "retries_exhausted", "max_duration_exceeded", "version_conflict", "invalid_limits"),
    *("invalid_reason", "unknown_cleanup", "already_released"),
}


class Machine(RuleBasedStateMachine):
    """The same play, step by step as Hypothesis likes it: what fails here comes back as a short story."""

    @initialize()
    def begin(self) -> None:
        self.play = Play(Random(0))

    @rule(act=st.integers(0, 13), times=st.integers(1, 6), seed=st.integers(0, 1_000))
    def something_happens(self, act: int, times: int, seed: int) -> None:
        self.play.rng = Random(seed)
        for _ in range(times):
            self.play.acts()[act][1]()

    @rule(seed=st.integers(0, 1_000))
    def another_processor_folds_the_same(self, seed: int) -> None:
        assert refolded(self.play.court.log, Random(seed)) == everything(self.play.court)

    def teardown(self) -> None:
        if hasattr(self, "play"):
            consistent(self.play.court)


TestMachine = Machine.TestCase
TestMachine.settings = settings(max_examples=30, stateful_step_count=25)


def test_long_plays_meet_every_transition_and_refusal() -> None:
    seen: set[str | None] = set()
    for seed in range(PLAYS):
        play = Play(Random(seed))
        for _ in range(STEPS):
            play.step()
        consistent(play.court)
        assert refolded(play.court.log, Random(seed)) == everything(play.court)
        for outcome in play.court.outcomes:
            seen |= {line.transition for _, line in outcome.audits} | {line.kind for _, line in outcome.audits}
            seen |= {line.reason for _, line in outcome.rejected}
    assert {transition.id for transition in TRANSITIONS} - seen == set()
    assert MET - seen == set()
    assert {"gap", "release", "context_limit", "limits_override", "refusal"} - seen == set()


def plain(audits: Iterable[tuple[bytes, AuditRecord]]) -> list[tuple[bytes, bytes]]:
    """Audit lines in bytes without the number of the batch, which alone depends on how the log was cut."""
    return [(key, encode_record(line._replace(batch_number=0))) for key, line in audits]


def as_bytes(fold: PartitionFold) -> dict[bytes, bytes]:
    """The table as the changelog holds it."""
    return {key: encode_record(row) for key, row in sorted(fold.rows.items())}


def everything(court: Court) -> tuple[Any, ...]:
    """All outputs of a court's fold, and its state."""
    outcomes = court.outcomes
    return (
        plain(pair for outcome in outcomes for pair in outcome.audits),
        [pair for outcome in outcomes for pair in outcome.rejected],
        [pair for outcome in outcomes for pair in outcome.cleanups],
        as_bytes(court.fold),
        court.fold.position._replace(batch_number=0),
    )


def refolded(log: list[LogRecord], rng: Random) -> tuple[Any, ...]:
    """The same of another fold: small batches, some of them dropped, reloaded from bytes now and then."""
    records, timers, size = rng.randint(1, 7), rng.randint(1, 2), rng.randint(1, 5_000)
    fold = PartitionFold(0, SETTINGS._replace(records_max=records, timers_max=timers, bytes_max=size), DECODER)
    fold.loaded()
    kept: tuple[list[Any], list[Any], list[Any]] = ([], [], [])
    while fold.position.next_offset < len(log):
        batch = filled(fold, log, rng)
        if rng.random() < 0.2:
            continue  # a transaction that was aborted
        outcome, before = batch.finish(), fold.position
        for lines, new in zip(kept, outcome[1:4], strict=True):
            lines.extend(new)
        fold.merge(batch)
        after = fold.position
        assert after.batch_number == before.batch_number + 1
        assert (after.next_offset, after.outcome_n) > (before.next_offset, before.outcome_n)
        if rng.random() < 0.2:
            fold = reloaded(fold)
    return plain(kept[0]), kept[1], kept[2], as_bytes(fold), fold.position._replace(batch_number=0)


def filled(fold: PartitionFold, log: list[LogRecord], rng: Random) -> Batch:
    batch = fold.begin()
    for record in log[fold.position.next_offset :]:
        if not batch.apply(record) or rng.random() < 0.1:
            break
    return batch


def reloaded(fold: PartitionFold) -> PartitionFold:
    """A new fold from the bytes that the changelog would hold."""
    new = PartitionFold(fold.partition, fold.settings, DECODER)
    for key, row in fold.rows.items():
        read = DECODER.decode_record(encode_record(row))
        assert isinstance(read, SessionState | Gravestone)
        new.load(key, read)
    position = DECODER.decode_record(encode_record(fold.position))
    assert isinstance(position, Position)
    new.load_position(position)
    new.loaded()
    assert new.next_deadline_ms == fold.next_deadline_ms
    return new


def consistent(court: Court) -> None:
    """No timer fires twice or early, a session's audit numbers have no gap, and no line stands twice."""
    fired: set[tuple[Any, ...]] = set()
    places: set[tuple[int, int]] = set()
    ids: set[str] = set()
    last: dict[bytes, int] = {}
    for key, line in (pair for outcome in court.outcomes for pair in outcome.audits):
        assert (line.source_offset, line.source_n) not in places
        assert line.audit_id not in ids
        places.add((line.source_offset, line.source_n))
        ids.add(line.audit_id)
        if line.audit_seq:
            assert line.audit_seq == last.get(key, 0) + 1
            last[key] = line.audit_seq
        if line.fired_at is not None:
            once = (key, line.transition, line.epoch, line.due_at)
            assert once not in fired
            assert line.due_at is not None
            assert line.due_at <= line.fired_at == line.appended_at
            fired.add(once)


@pytest.mark.parametrize("gap_ms", [4_999, 5_000, 5_001])
def test_a_hole_is_longer_than_five_seconds_and_needs_a_timer(gap_ms: int) -> None:
    court = Court()
    court.tick()
    court.at += 3_600_000
    court.tick()
    assert court.book.quiet_until == 0  # nobody lived to be cut off
    scribe = Play(Random(0)).scribes[0]
    court.starts(scribe)
    court.at += gap_ms
    court.tick()
    assert (court.fold.position.quiet_until_ms > 0) is (gap_ms == 5_001)


def test_a_batch_is_bounded_by_records_and_by_timers() -> None:
    scribes = [Scribe(f"s{n}") for n in range(3)]
    log = [LogRecord(n, 1_000, s.key.encoded(), s.writes("session_created")) for n, s in enumerate(scribes)]
    log += [LogRecord(n, 1_000 + (n - 2) * 5_000, None, TICK) for n in range(3, 7)]
    fold = PartitionFold(0, SETTINGS._replace(records_max=6, timers_max=2), DECODER)
    first = fold.begin()
    assert [first.apply(record) for record in log[:6]] == [True] * 5 + [False]  # the sixth brings three deadlines
    assert (first.finish().counts.timers, first.position().next_offset, first.position().outcome_n) == (2, 5, 2)
    fold.merge(first)
    second = fold.begin()
    assert second.apply(log[5])
    assert (second.finish().counts.timers, second.position().next_offset, second.position().outcome_n) == (1, 6, 0)
    full = PartitionFold(0, SETTINGS._replace(records_max=6), DECODER).begin()
    assert [full.apply(record) for record in log] == [True] * 6 + [False]
