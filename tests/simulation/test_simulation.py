"""A thousand fixed schedules; together they must reach every kind of fault and outcome."""

import re
from collections import Counter
from collections.abc import Callable
from typing import Any, get_args

import pytest

from sessionary.schemas.types import RejectionReason
from sessionary.stream_processors.core.model import Stream
from sessionary.stream_processors.core.session.facts import AbortReason
from sessionary.stream_processors.core_build import core_build
from tests.simulation import workers
from tests.simulation.checks import find_faults
from tests.simulation.migrations import MOVE_STAGES
from tests.simulation.runner import Failure, check_schedule, run_schedule
from tests.simulation.world import World

SCHEDULES = 1_700
IS_COMPILED = core_build() == "native"
# Reasons that no schedule need reach, and those that a list below names.
ELSEWHERE = {
    *("UNKNOWN", "bad_row"),
    *("not_member", "broken_chain", "hash_mismatch", "snapshot_exists", "skipped", "internal_error"),
    *("producer_conflict", "too_many_producers", "owner_alive", "too_old"),  # a full ledger forgets first
    *("unknown_run", "too_many_runs", "resume_expired"),
    *("unknown_call", "call_in_progress", "call_succeeded", "call_unresolved"),
    *("unknown_artifact", "too_many_children", "quota_exceeded"),
    *("unknown_migration", "migration_open", "migration_moved"),
    *("operator_only", "question_open", "no_question"),
    *("too_many_agents", "unknown_agent", "task_done", "too_many_transactions", "unknown_snapshot"),
}
REASONS = {f"rejected: {reason}" for reason in set(get_args(RejectionReason)) - ELSEWHERE}
TRANSITIONS = {f"T{n:02}" for n in range(1, 15)}
FIRED = {"init_timeout", "inactive", "idle", "max_duration", "timeout_cleanup", "recovery_failed", "archived"}
STAGES = ("fenced", "open", "begun", "finished", "written", "committed")
TROUBLE = {
    *(f"crash: processor {stage}" for stage in STAGES),
    *(f"crash: sink {stage}" for stage in ("gathering", "taken", "declared")),
    *(f"zombie: goes on when {stage}" for stage in STAGES),
    *(f"batch: full by {bound}" for bound in ("records", "bytes", "timers", "output")),
    *(f"recovery: {source}" for source in ("whole changelog", "compacted changelog", "own store and the rest")),
    *("transaction: aborted by the next owner", "transaction: aborted, folded again"),
    *("transaction: committed, answer lost", "owner: fenced", "cluster: partition moved"),
    *("transaction: none begun, the last end is in doubt", "transaction: begun by a new producer"),
    "late end: refused",
    *("sink: fenced", "sink: a zombie inserts", "sink: block dropped as known", "sink: inserted, answer lost"),
    *("sink: replays a declared block", "sink: closing commit"),
    *("log: offsets without records", "log: clock set back", "log: clock leaps", "broker: outage", "log: outage"),
    *("client: a spool is replayed", "client: a process dies with its queue", "client: loses events and goes on"),
    *("client: a straggler comes", "client: a frozen process goes on"),
    *("network: dropped, sent again later", "network: sent twice as the answer was lost"),
    *("clock: set back", "clock: set ahead"),
    *("decided: records_skipped", "decided: log_gap_accepted", "rejected: skipped"),
    *("rules: announced", "rules: in force", "rules: crash after the announcement", "rules: a client's record"),
    *("duplicate", "tombstone cleared", "tombstones packed", "steady agent lived", "time: a silence", "time: weeks"),
}
KINDS = {
    *("transition", "rejection", "gap", "release", "context_limit", "limits_override", "decision", "take_over"),
    *("run", "tool_call", "step"),
}
RUNS = {
    *(f"run: running to paused, {reason}" for reason in ("connection_lost", "session_timed_out")),
    *(f"run: {state} to failed, session_ended" for state in ("queued", "started", "running", "paused")),
    *(f"run: {state} to failed, attached_limit" for state in ("started", "running", "paused")),
    *(f"recovery: of a {name}" for name in ("RunState", "FinishedRun")),
    "rejected: unknown_run",
}
CALLS = {
    *(f"rejected: {reason}" for reason in ("unknown_call", "call_in_progress", "call_succeeded", "call_unresolved")),
    *("call: running to unknown", "fired: tool_call_limit"),
    *("step: running to failed", "fired: model_limit"),
    *(f"run: {state} to paused, call_unresolved" for state in ("started", "running")),
    "run: paused to running, call_resolved",
    *(f"recovery: of a {name}" for name in ("StepState", "TimedStep", "ToolCallState", "EndedToolCall")),
}
AGENTS = {"rejected: unknown_agent", "rejected: task_done", "recovery: of a AgentState"}
ARTIFACTS_AND_TURNS = {
    *(f"artifact: {state}" for state in ("open", "complete", "soft_deleted", "purged")),
    *("rejected: unknown_artifact", "turn: in the row of an older one"),
    *(f"recovery: of a {name}" for name in ("ArtifactState", "MessageState")),
}
QUOTAS = {
    *("crash: worker of quotas", "quota: granted", "quota: rejected"),
    *("quota: granted a session", "quota: rejected a session", "audit: quota"),
    *("quota: tokens are used up", "quota: rejected because of tokens"),
    "run: None to queued, quota_requested",
    *(f"run: queued to {state}, quota_granted" for state in ("queued", "started")),
    "run: queued to rejected, quota_exceeded",
}
PEOPLE = {*(f"rejected: {reason}" for reason in ("operator_only", "question_open", "no_question")), "fired: expired"}
CRASHED = ("source", "target", "worker")
MIGRATIONS = {
    *(f"migration: {step}" for step in ("offered", "prepared", "completed", "aborted")),
    *(f"migration: prepared in {state}" for state in ("Active", "Paused", "Timeout")),
    *(f"migration: aborted, {reason}" for reason in get_args(AbortReason)),
    *(
        f"migration: crash of {who}, {at}"
        for who in ("source", "target", "worker")
        for at in ("not offered", *MOVE_STAGES)
    ),
    *(f"migration: an event {what}" for what in ("is lost", "is late", "comes twice")),
    *(f"migration: a former owner {what}" for what in ("speaks", "is rejected")),
    *(f"rejected: {reason}" for reason in ("migration_moved", "migration_open", "unknown_migration")),
    *("migration: claimed by another service", "fenced beats"),
}
A_FEW = 3
# What `checks` say.
_WRITTEN, _DOUBLED = re.compile(r"(\d+) \w+, (\d+) in one go"), re.compile(r"(audit_id|source) .* occurs \d times")
EXPECTED = {
    *(PEOPLE | REASONS | TRANSITIONS | TROUBLE | RUNS | CALLS | AGENTS | ARTIFACTS_AND_TURNS | QUOTAS),
    *(f"fired: {name}" for name in FIRED),
    *(f"audit: {kind}" for kind in KINDS),
}


@pytest.mark.skipif(IS_COMPILED, reason="with the compiled core every schedule runs")
def test_every_third_schedule_holds_with_the_python_core(record_property: Callable[[str, object], None]) -> None:
    record_property("seed", f"1 to {SCHEDULES} by 3")
    assert sum(check_schedule(seed)["records"] for seed in range(1, SCHEDULES, 3)) > 15 * SCHEDULES


@pytest.mark.skipif(not IS_COMPILED, reason="tests/native runs it with the compiled core, which is faster")
def test_every_schedule_holds_and_together_they_meet_everything() -> None:
    seen: Counter[str] = Counter()
    for seed in range(1, SCHEDULES + 1):
        seen += check_schedule(seed)
    assert EXPECTED - seen.keys() == set()
    assert [what for what in sorted(MIGRATIONS) if seen[what] < A_FEW] == []
    assert seen["records"] > 50 * SCHEDULES


def test_a_seed_gives_the_same_schedule_again() -> None:
    for seed in (3, 4):
        first, second = (run_schedule(seed, tracing=True) for _ in range(2))
        assert first == second
        assert len(first.trace) > 20


class Unwatched:
    """Trusts each end."""

    doubt = None

    def begin(self) -> None:
        """Begin a transaction."""

    def abort(self) -> None:
        """Abort the transaction."""

    def log(self, *line: object) -> None:
        """Take a line of the driver's log."""


def test_late_ends_lose_and_double_records_unless_they_are_watched() -> None:
    lost, doubled = set[int](), set[int]()
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(workers, "EndWatch", Unwatched)
        for seed in range(1, 41):
            found = "\n".join(run_schedule(seed).found)
            if any(int(ours) < int(theirs) for ours, theirs in _WRITTEN.findall(found)):
                lost.add(seed)
            if _DOUBLED.search(found):
                doubled.add(seed)
    assert lost
    assert doubled
    for seed in (min(lost), min(doubled)):
        assert check_schedule(seed)["late end: refused"]


def test_tracing_changes_nothing() -> None:
    assert run_schedule(5).seen == run_schedule(5, tracing=True).seen


def finished_world(seed: int) -> World:
    world = World(seed)
    world.run()
    assert find_faults(world) == []
    return world


def test_a_failure_names_the_seed_and_how_to_repeat_it() -> None:
    text = str(Failure(17, [f"no. {n}" for n in range(99)]))
    assert "python -m tests.simulation --seed 17 --trace" in text
    assert "and 91 more" in text


def _lose_last(found: list[Any]) -> None:
    found.pop()


def _repeat_last(found: list[Any]) -> None:
    found.append(found[-1])


@pytest.mark.parametrize("stream", ["audit", "rejected"])
def test_a_missing_or_doubled_line_is_found(stream: Stream) -> None:
    for change in (_lose_last, _repeat_last):
        world = finished_world(2)
        outcome = next(o for outcomes in world.broker.outcomes for o in outcomes if o.records_on(stream))
        assert isinstance(outcome.emitted, list)
        found = [emitted for emitted in outcome.emitted if emitted.stream == stream]
        outcome.emitted[:] = [emitted for emitted in outcome.emitted if emitted.stream != stream]
        change(found)
        outcome.emitted.extend(found)
        assert find_faults(world)


def test_a_missing_or_doubled_row_in_clickhouse_is_found() -> None:
    for change in (_lose_last, _repeat_last):
        world = finished_world(2)
        change(world.clickhouse.rows)
        assert any("ClickHouse" in fault for fault in find_faults(world))
