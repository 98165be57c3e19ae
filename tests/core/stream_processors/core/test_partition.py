"""Random agents, faults and time: the fold and the oracle must agree after every record.

Then the same log is folded again in random batches, some of them dropped, with folds reloaded from
their own bytes: the outputs must be the same.
"""

from collections import Counter
from collections.abc import Iterable
from random import Random
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule

from sessionary.schemas.codec import encode_record
from sessionary.schemas.records import (
    AuditRecord,
    EndedToolCall,
    FinishedRun,
    Position,
    RunState,
    RunTombstone,
    SessionState,
    Tombstone,
    TombstoneChunk,
    ToolCallState,
)
from sessionary.stream_processors.core.model import LogRecord
from sessionary.stream_processors.core.partition import PartitionState
from sessionary.stream_processors.core.session.transitions import TRANSITIONS
from sessionary.stream_processors.core.tombstones import count_hashes
from sessionary.stream_processors.core.uncommitted_batch import UncommittedBatch
from tests.core.oracle_rig import ANNOUNCING, DECODER, FIRST_POSITION, SETTINGS, ChildRow, OracleRig
from tests.core.random_agents import RandomAgents
from tests.support.event_factory import TICK, EventFactory
from tests.support.judges import JUDGE, STREAMS
from tests.support.row_differences import tombstone_ends

pytestmark = pytest.mark.usefixtures("second_rules")  # a crowd at `ANNOUNCING` comes to be judged by them

RUNS, STEPS = 45, 300
# The other reasons need another partition, a registry, 64 producers, a megabyte or a sink:
# wrong_partition, unknown_schema, unknown_event_type, too_many_producers, state_too_large, bad_row.
REASONS = {
    *("undecodable", "invalid_value", "bad_key", "key_mismatch", "foreign_tenant", "unknown_session"),
    *("session_exists", "session_archived", "late_filler", "stale_epoch", "future_epoch", "processor_only"),
    *("not_owner", "illegal_transition", "late", "phase_order", "missing_snapshot", "missing_error_class"),
    *("not_retryable", "retries_exhausted", "max_duration_exceeded", "version_conflict", "invalid_limits"),
    *("invalid_reason", "unknown_cleanup", "already_released", "not_member", "broken_chain", "hash_mismatch"),
    *("producer_conflict", "owner_alive"),
}


class Machine(RuleBasedStateMachine):
    """The same actions as Hypothesis rules, so that a failure shrinks to a short example."""

    @initialize()
    def begin(self) -> None:
        self.crowd = RandomAgents(Random(0), ANNOUNCING)

    @rule(act=st.integers(0, 26), times=st.integers(1, 6), seed=st.integers(0, 1_000))
    def something_happens(self, act: int, times: int, seed: int) -> None:
        self.crowd.rng = Random(seed)
        for _ in range(times):
            self.crowd.weighted_actions()[act][1]()

    @rule(seed=st.integers(0, 1_000))
    def another_processor_folds_the_same(self, seed: int) -> None:
        rig = self.crowd.rig
        assert fold_again(rig.log, Random(seed), rig.first_position) == all_outputs(rig)

    def teardown(self) -> None:
        if hasattr(self, "play"):
            check_consistency(self.crowd.rig)


TestMachine = Machine.TestCase
TestMachine.settings = settings(max_examples=30, stateful_step_count=25)


def test_long_runs_reach_every_transition_and_rejection() -> None:
    seen: set[str | None] = set()
    for seed in range(RUNS):
        position = (FIRST_POSITION, ANNOUNCING, FIRST_POSITION)[seed % 3]
        crowd = RandomAgents(Random(seed), position)
        for _ in range(STEPS):
            crowd.act_once()
        check_consistency(crowd.rig)
        assert fold_again(crowd.rig.log, Random(seed), position) == all_outputs(crowd.rig)
        for outcome in crowd.rig.outcomes:
            seen |= {line.transition for _, line in outcome.records_on("audit")} | {
                line.kind for _, line in outcome.records_on("audit")
            }
            seen |= {line.reason_code for _, line in outcome.records_on("audit") if line.transition == "T05"}
            seen |= {line.reason for _, line in outcome.records_on("rejected")}
    assert {transition.id for transition in TRANSITIONS} - seen == set()
    assert REASONS - seen == set()
    assert {"unknown_call", "call_in_progress", "call_succeeded", "unknown_artifact"} - seen == set()
    assert {
        "gap",
        "gap_filled",
        "release",
        "context_limit",
        "limits_override",
        "rejection",
        "take_over",
    } - seen == set()
    assert {"run", "tool_call"} - seen == set()
    assert {"migration", "migration_open", "unknown_migration"} - seen == set()
    assert {"transaction", "rollback", "unknown_transaction", "unknown_snapshot"} - seen == set()
    assert {"operator_only", "question_open", "no_question", "approved", "denied", "expired"} - seen == set()


def audit_bytes(audits: Iterable[tuple[bytes, AuditRecord]]) -> list[tuple[bytes, bytes]]:
    """Return audit lines as bytes, without the batch number, which depends on the batch borders."""
    return [(key, encode_record(line._replace(batch_number=0))) for key, line in audits]


def table_bytes(fold: PartitionState) -> tuple[dict[bytes, bytes], dict[bytes, int]]:
    """Return the table as the changelog has it; tombstones by hash and end only.

    The borders of batches decide when they are packed.
    """
    packed = (Tombstone, TombstoneChunk, RunTombstone)
    rows = {key: encode_record(row) for key, row in sorted(fold.rows.items()) if not isinstance(row, packed)}
    return rows, tombstone_ends(fold.rows)


def all_outputs(rig: OracleRig) -> tuple[Any, ...]:
    """Return all outputs of a rig's fold, and its state."""
    outcomes = rig.outcomes
    return (
        audit_bytes(pair for outcome in outcomes for pair in outcome.records_on("audit")),
        [pair for outcome in outcomes for pair in outcome.records_on("rejected")],
        [pair for outcome in outcomes for pair in outcome.records_on("cleanup")],
        [pair for outcome in outcomes for pair in outcome.records_on("tasks")],
        [pair for outcome in outcomes for pair in outcome.records_on("migrations")],
        table_bytes(rig.fold),
        rig.fold.position._replace(batch_number=0),
    )


def fold_again(log: list[LogRecord], rng: Random, first_position: Position = FIRST_POSITION) -> tuple[Any, ...]:
    """Return the outputs of another fold: small batches, some dropped, sometimes reloaded.

    Ticks alone are sometimes a batch, sometimes they wait for what follows.
    """
    bounds = SETTINGS._replace(
        records_max=rng.randint(1, 7),
        timers_max=rng.randint(1, 2),
        bytes_max=rng.randint(1, 5_000),
        output_bytes_max=rng.randint(1, 10_000),
    )
    fold = PartitionState(0, bounds, DECODER, JUDGE)
    fold.load_position(first_position)
    fold.finish_loading()
    kept: tuple[list[Any], ...] = tuple([] for _ in STREAMS)
    while fold.position.next_offset < len(log):
        batch = fold.begin()
        fill_batch(batch, log, rng)
        # The records that follow on ticks alone may go into the same batch.
        while batch.holds_only_ticks and batch.final_position.next_offset < len(log) and rng.random() < 0.8:
            check_clock_only(batch, fold)
            fill_batch(batch, log, rng)
        if rng.random() < 0.2:
            continue  # a transaction that was aborted
        outcome, before = batch.finish(), fold.position
        for lines, new in zip(kept, map(outcome.records_on, STREAMS), strict=True):
            lines.extend(new)
        fold.merge(batch)
        check_numbers(fold, rng)
        after = fold.position
        assert after.batch_number == before.batch_number + 1
        # Or rows vanish, and fill a small batch.
        assert outcome.rows or (after.next_offset, after.outputs_written) > (before.next_offset, before.outputs_written)
        if rng.random() < 0.2:
            fold = reload_fold(fold)
    return audit_bytes(kept[0]), *kept[1:], table_bytes(fold), fold.position._replace(batch_number=0)


def fill_batch(batch: UncommittedBatch, log: list[LogRecord], rng: Random) -> None:
    for record in log[batch.final_position.next_offset :]:
        if not batch.apply(record) or rng.random() < 0.1:
            break


def check_numbers(fold: PartitionState, rng: Random) -> None:
    """Assert that the numbers of rows, which batches move on, are those of the rows."""
    stones = [row for row in fold.rows.values() if isinstance(row, Tombstone)]
    chunks = [row for row in fold.rows.values() if isinstance(row, TombstoneChunk)]
    finished = [row for row in fold.rows.values() if isinstance(row, FinishedRun)]
    assert fold.vanishing == len(stones) + len(finished)
    assert fold.tombstones == len(stones) + sum(count_hashes(chunk.key_hashes) for chunk in chunks)
    fold.tally.count_waiting(fold.peek_row, rng.randint(0, 2))
    if fold.tally.is_complete:
        sessions = [row for row in fold.rows.values() if isinstance(row, SessionState)]
        wanted: Counter[Any] = Counter((row.state, row.context_exceeded) for row in sessions)
        wanted += Counter(
            (run.state, run.mode) for run in fold.rows.values() if isinstance(run, RunState | FinishedRun)
        )
        wanted[("running",)] += sum(isinstance(row, ToolCallState) for row in fold.rows.values())
        wanted += Counter((call.state,) for call in fold.rows.values() if isinstance(call, EndedToolCall))
        assert +fold.tally.counts == wanted


def check_clock_only(batch: UncommittedBatch, fold: PartitionState) -> None:
    """Assert that a batch comes to nothing but a later offset and clock."""
    outcome, before = batch.finish(), fold.position
    packed = (Tombstone, TombstoneChunk, RunTombstone)  # these are another form of the same
    rows = [key for key, row in outcome.rows.items() if not isinstance(row or fold.rows[key], packed)]
    assert (rows, outcome.emitted, outcome.counts.timers) == ([], [], 0)
    assert outcome.counts.ticks == outcome.position.next_offset - before.next_offset
    assert outcome.position.outage_grace_until_ms == before.outage_grace_until_ms


def reload_fold(fold: PartitionState) -> PartitionState:
    """Return a new fold, loaded from the bytes that the changelog would have."""
    new = PartitionState(fold.partition, fold.settings, DECODER, JUDGE)
    for key, row in fold.rows.items():
        read = DECODER.decode_record(encode_record(row))
        assert isinstance(
            read, SessionState | Tombstone | TombstoneChunk | RunTombstone | RunState | FinishedRun | ChildRow
        )
        new.load(key, read)
    position = DECODER.decode_record(encode_record(fold.position))
    assert isinstance(position, Position)
    new.load_position(position)
    new.finish_loading()
    assert new.next_deadline_ms == fold.next_deadline_ms
    return new


def check_consistency(rig: OracleRig) -> None:
    """Assert: no timer fires twice or early, audit numbers have no gap, no line occurs twice."""
    fired: set[tuple[Any, ...]] = set()
    places: set[tuple[int, int]] = set()
    ids: set[str] = set()
    last: dict[bytes, int] = {}
    for key, line in (pair for outcome in rig.outcomes for pair in outcome.records_on("audit")):
        assert (line.source_offset, line.source_n) not in places
        assert line.audit_id not in ids
        places.add((line.source_offset, line.source_n))
        ids.add(line.audit_id)
        if line.audit_seq:
            assert line.audit_seq == last.get(key, 0) + 1
            last[key] = line.audit_seq
        if line.fired_at is not None:
            child = (line.run_id, line.idem_key, line.step_name)  # several may be due at once
            once = (key, line.transition, line.epoch, line.due_at, line.kind, child)
            assert once not in fired
            assert line.due_at is not None
            assert line.due_at <= line.fired_at == line.appended_at
            fired.add(once)


@pytest.mark.parametrize("gap_ms", [4_999, 5_000, 5_001])
def test_an_outage_is_longer_than_five_seconds_and_needs_a_timer(gap_ms: int) -> None:
    rig = OracleRig()
    rig.tick()
    rig.at += 3_600_000
    rig.tick()
    assert rig.oracle.outage_grace_until == 0  # no session was live
    agent = RandomAgents(Random(0)).agents[0]
    rig.start(agent)
    rig.at += gap_ms
    rig.tick()
    assert (rig.fold.position.outage_grace_until_ms > 0) is (gap_ms == 5_001)


def test_a_batch_is_bounded_by_records_and_by_timers() -> None:
    agents = [EventFactory(f"s{n}") for n in range(3)]
    log = [LogRecord(n, 1_000, s.key.encoded(), s.event_bytes("session_created")) for n, s in enumerate(agents)]
    log += [LogRecord(n, 1_000 + (n - 2) * 5_000, None, TICK) for n in range(3, 7)]
    fold = PartitionState(0, SETTINGS._replace(records_max=6, timers_max=2), DECODER, JUDGE)
    first = fold.begin()
    assert [first.apply(record) for record in log[:6]] == [True] * 5 + [False]  # the sixth brings three deadlines
    assert (first.finish().counts.timers, first.final_position.next_offset, first.final_position.outputs_written) == (
        2,
        5,
        2,
    )
    fold.merge(first)
    second = fold.begin()
    assert second.apply(log[5])
    assert (
        second.finish().counts.timers,
        second.final_position.next_offset,
        second.final_position.outputs_written,
    ) == (
        1,
        6,
        0,
    )
    full = PartitionState(0, SETTINGS._replace(records_max=6), DECODER, JUDGE).begin()
    assert [full.apply(record) for record in log] == [True] * 6 + [False]
