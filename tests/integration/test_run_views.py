"""What analysts see of runs is right with duplicates and late rejections."""

import json
from pathlib import Path
from typing import Any

import pytest

from sessionary.infra.cli.app import run
from sessionary.infra.cli.commands.operators.calls import find_unknown_call
from sessionary.infra.clickhouse_client import ClickHouseClient
from sessionary.producers.testing import memory_client
from sessionary.schemas.codec import encode_event, encode_record
from sessionary.schemas.events import (
    ArtifactCompleted,
    ArtifactCreated,
    ArtifactPurged,
    ArtifactSoftDeleted,
    CheckpointSaved,
    Payload,
    PlanReplaced,
    RunCompleted,
    RunFailed,
    RunPaused,
    RunRejected,
    RunResumed,
    RunRunning,
    RunStarted,
    StepFailed,
    StepSkipped,
    StepStarted,
    StepSucceeded,
    ToolCallFailed,
    ToolCallResolved,
    ToolCallStarted,
    ToolCallSucceeded,
)
from sessionary.schemas.records import RejectedEvent
from sessionary.schemas.settings import ClickHouseSettings
from sessionary.schemas.types import ErrorInfo
from tests.support.aged_rows import AgedRows
from tests.support.clickhouse_rows import insert_block
from tests.support.pipelines import run_sql
from tests.support.sink_records import agent_event, audit_record, session_id, usage

BUSY = ErrorInfo("retryable", "http_503", "the service is busy")


def call_started(key: str, number: int = 1, *, side_effect: bool = True) -> ToolCallStarted:
    return ToolCallStarted(f"id-{key}", "send", key, '{"to":"a"}', number, side_effect=side_effect, queryable=False)


def call_succeeded(key: str, number: int = 1, result: str | None = '"done"') -> ToolCallSucceeded:
    return ToolCallSucceeded(f"id-{key}", "send", key, result, None, number)


class Runs:
    """Inserts what runs leave, one second apart; the offset of a record is its number."""

    def __init__(self, clickhouse: ClickHouseSettings) -> None:
        self.rows = AgedRows(clickhouse)
        self.sent: list[bytes] = []

    def at_us(self, offset: int, age_days: float = 1) -> int:
        return self.rows.at_us(age_days) + offset * 1_000_000

    def send(self, *payloads: Payload, run: str | None = "r1", **fields: Any) -> int:
        """Insert events; return the offset of the last one."""
        named = {"run_id": run, "step_id": None, **fields}
        numbered = enumerate(payloads, len(self.sent) + 1)
        self.deliver(*(agent_event(payload, seq=seq, **named) for seq, payload in numbered))
        return len(self.sent) - 1

    def deliver(self, *values: bytes) -> None:
        """Insert records, in one block."""
        first = len(self.sent)
        records = [(self.at_us(offset), offset, value) for offset, value in enumerate(values, first)]
        insert_block(self.rows.clickhouse, "history", records, f"events {first}")
        self.sent += values

    def reject(self, offset: int, reason: Any = "illegal_transition", **fields: Any) -> None:
        at = self.at_us(offset) // 1_000 * 1_000
        rejection = RejectedEvent(reason, "", False, "acme", session_id(1), "e", "x", "billing", "t", 0, offset, at)
        value = encode_record(rejection._replace(**fields))
        insert_block(self.rows.clickhouse, "rejected", [(at, offset, value)], f"rejection {offset}")

    def decide(self, offset: int, seq: int, **fields: Any) -> None:
        """Insert what a clock decided with the record at an offset."""
        at = self.at_us(offset)
        place = {"source_partition": 0, "source_offset": offset, "at": at, "due_at": at, "fired_at": at}
        record = audit_record(1, seq, **{"transition": None, "run_id": "r1", "reason": "too slow", **place, **fields})
        insert_block(self.rows.clickhouse, "audit", [(at, offset, encode_record(record))], f"decision {offset}-{seq}")

    def pause_by_clock(self, offset: int, seq: int = 9) -> None:
        self.decide(offset, seq, kind="run", event_type="run_paused", to_run_state="paused", reason_code="inactive")

    def lose_call(self, offset: int, key: str, run: str | None = "r1") -> None:
        states = {"from_call_state": "running", "to_call_state": "unknown", "reason_code": "tool_call_limit"}
        call = {"event_type": "tool_call_unknown", "idem_key": key, "tool_name": "send", "run_id": run}
        self.decide(offset, 5, kind="tool_call", **call, **states)

    def fail_step(self, offset: int, name: str, attempt: int) -> None:
        states = {"from_step_state": "running", "to_step_state": "failed", "reason_code": "model_limit"}
        step = {"step_name": name, "step_attempt": attempt}
        self.decide(offset, 6, kind="step", event_type="step_failed", **step, **states)

    def ask(self, sql: str) -> list[tuple[Any, ...]]:
        return self.rows.fetch_values(sql)


@pytest.fixture
def runs(tables: ClickHouseSettings) -> Runs:
    return Runs(tables)


STARTED = RunStarted("detached", "report", '{"issue":1}', '["a","b"]')


def test_a_run_is_what_its_events_and_its_clock_say(runs: Runs) -> None:
    runs.send(STARTED, RunRunning(0.25), PlanReplaced('["c"]', "a is gone"))
    assert runs.ask("SELECT status, progress, plan, input, mode, task_type FROM v_runs") == [
        ("running", 0.25, '["c"]', '{"issue":1}', "detached", "report")
    ]
    runs.pause_by_clock(2)
    assert runs.ask("SELECT status, reason_code, finished_at FROM v_runs") == [("paused", "inactive", None)]
    # The clock fired before this event was judged, at the same offset as it.
    last = runs.send(RunResumed(), RunCompleted('"text"'))
    runs.pause_by_clock(last - 1, 10)
    found = runs.ask(
        "SELECT run_id, tenant_id, user_id, status, reason_code, result, events, resumes, "
        "dateDiff('second', created_at, updated_at) AS s, duration_s FROM v_runs"
    )
    assert found == [("r1", "acme", "u1", "completed", "", '"text"', 5, 1, 4, 4)]


def test_a_rejected_event_counts_nowhere_also_if_its_rejection_comes_later(runs: Runs) -> None:
    runs.send(STARTED, RunRunning(0.5), StepStarted("a", 1, "{}"))
    rejected = runs.send(RunCompleted('"forged"'), StepSucceeded("a", 1, '"forged"'), call_succeeded("k"))
    assert runs.ask("SELECT status, result FROM v_runs") == [("completed", '"forged"')]
    for offset in range(rejected - 2, rejected + 1):
        runs.reject(offset)
    assert runs.ask("SELECT status, result, events FROM v_runs") == [("running", None, 3)]
    assert runs.ask("SELECT state, output FROM v_steps") == [("running", None)]
    assert runs.ask("SELECT count() AS n FROM v_reserved_calls") == [(0,)]
    assert runs.ask("SELECT seq FROM v_run_events ORDER BY seq") == [(1,), (2,), (3,)]


def test_an_event_that_is_delivered_again_undoes_nothing_and_counts_once(runs: Runs) -> None:
    runs.send(STARTED, RunRunning(0.5), call_started("k"), call_succeeded("k"), RunCompleted())
    wanted = runs.ask("SELECT status, events FROM v_runs"), runs.ask("SELECT state, effects FROM v_reserved_calls")
    assert wanted == ([("completed", 5)], [("succeeded", 1)])
    for value in runs.sent[:5]:
        runs.deliver(value)
    assert (
        runs.ask("SELECT status, events FROM v_runs"),
        runs.ask("SELECT state, effects FROM v_reserved_calls"),
    ) == wanted
    assert runs.ask("SELECT seq FROM v_run_events ORDER BY seq") == [(n,) for n in range(1, 6)]


def test_a_block_that_the_table_had_and_the_view_had_not_is_finished_by_its_retry(
    runs: Runs, tables: ClickHouseSettings
) -> None:
    block = [(runs.at_us(0), 0, agent_event(STARTED, run_id="r1"))]
    insert_block(tables, "history", block, "t")
    # As if the server had crashed between the two parts: only the table knows the token.
    run_sql(tables, f"TRUNCATE TABLE {tables.clickhouse_database}.run_events")
    for _ in range(2):
        insert_block(tables, "history", block, "t")
    assert runs.ask("SELECT count() AS n FROM history") == [(1,)]
    assert runs.ask("SELECT count() AS n FROM run_events") == [(1,)]


def test_each_attempt_at_a_step_is_a_row_and_one_without_an_end_was_interrupted(runs: Runs) -> None:
    runs.send(STARTED)
    attempts: tuple[Payload, ...] = (
        StepStarted("a", 1, '"in"'),
        StepStarted("a", 2, '"in"'),
        StepFailed("a", 2, BUSY),
        StepStarted("a", 3, '"in"'),
        StepSucceeded("a", 3, '"out"', 5),
        StepSkipped("a", "it succeeded"),
        StepSkipped("b", "not needed"),
        StepStarted("c", 1),
    )
    for payload in attempts:
        runs.send(payload, step_id=f"s{getattr(payload, 'attempt', 0)}")
    found = runs.ask(
        "SELECT name, attempt, state, step_id, input, output, error, error_class, duration_s "
        "FROM v_steps ORDER BY name, attempt"
    )
    assert found == [
        ("a", 1, "interrupted", "s1", '"in"', None, "", "", None),
        ("a", 2, "failed", "s2", '"in"', None, "the service is busy", "retryable", 1),
        ("a", 3, "succeeded", "s3", '"in"', '"out"', "", "", 1),
        ("b", 0, "skipped", "s0", None, None, "", "", 0),
        ("c", 1, "running", "s1", None, None, "", "", None),
    ]


def test_an_attempt_that_took_longer_than_its_limit_failed(runs: Runs) -> None:
    tried = runs.send(STARTED, StepStarted("a", 1, '"in"', limit_ms=1_000))
    runs.fail_step(tried, "a", 1)
    found = "SELECT name, attempt, state, input, error, error_class, error_code FROM v_steps ORDER BY attempt"
    failed = ("a", 1, "failed", '"in"', "too slow", "retryable", "model_limit")
    assert runs.ask(found) == [failed]
    runs.send(StepStarted("a", 2, '"in"'), StepSucceeded("a", 2, '"out"'))
    assert runs.ask(found) == [failed, ("a", 2, "succeeded", '"in"', "", "", "")]
    runs.fail_step(tried, "gone", 1)  # its events have expired
    assert len(runs.ask(found)) == 2


def test_what_was_cancelled_is_no_failure(runs: Runs) -> None:
    cancelled = ErrorInfo("retryable", "cancelled", "CancelledError: ")
    runs.send(
        STARTED, StepStarted("a", 1, '"in"'), call_started("k"), ToolCallFailed("id-k", "send", "k", cancelled, 1)
    )
    runs.send(
        StepFailed("a", 1, cancelled), call_started("other"), ToolCallFailed("id-other", "send", "other", BUSY, 1)
    )
    assert runs.ask("SELECT state, error, error_code FROM v_steps") == [("cancelled", "CancelledError: ", "cancelled")]
    states = runs.ask("SELECT idem_key, state, error FROM v_tool_calls ORDER BY idem_key")
    assert states == [("k", "cancelled", ""), ("other", "failed", "the service is busy")]
    assert runs.ask("SELECT steps_failed, steps_cancelled FROM v_run_progress") == [(0, 1)]
    assert runs.ask("SELECT sum(calls) AS c, sum(failures) AS f FROM v_calls_per_minute") == [(2, 1)]
    runs.send(StepStarted("a", 2, '"in"'), StepSucceeded("a", 2, '"out"'))
    assert runs.ask("SELECT state FROM v_steps ORDER BY attempt") == [("cancelled",), ("succeeded",)]


def test_a_call_keeps_its_agent_and_its_time_whatever_comes_after_a_failed_try(runs: Runs) -> None:
    failed = ToolCallFailed("id-k", "send", "k", BUSY, 1)
    columns = "state, agent_id, service_id, duration_s, failed_tries"
    runs.send(STARTED, call_started("k"), failed)
    ((_, agent, service, took_s, _),) = runs.ask(f"SELECT {columns} FROM v_tool_calls")
    assert took_s == 0
    runs.send(call_started("k", 2), occurred_at=9_000_000)
    assert runs.ask(f"SELECT {columns} FROM v_tool_calls") == [("running", agent, service, None, 1)]
    runs.lose_call(runs.send(RunRunning(0.5)), "k")
    assert runs.ask(f"SELECT {columns} FROM v_tool_calls") == [("unknown", agent, service, None, 1)]
    runs.send(ToolCallResolved("id-k", "send", "k", "succeeded", None, "ann"), agent_id="sessionary-unknown")
    assert runs.ask(f"SELECT {columns} FROM v_tool_calls") == [("succeeded", agent, service, None, 1)]


def test_long_steps_without_a_checkpoint_are_listed(runs: Runs) -> None:
    """Each record comes a second after the one before; so many others make a step long."""
    passing = [RunRunning(0.5)] * 61
    runs.send(STARTED, StepStarted("quick", 1, "{}"), StepSucceeded("quick", 1, "{}"))
    runs.send(StepStarted("slow", 1, "{}"), *passing, StepSucceeded("slow", 1, "{}"))
    saved = CheckpointSaved("c1", "pages", "text", 70, "p70", 700, None)
    runs.send(StepStarted("saving", 1, "{}"), *passing, saved, StepSucceeded("saving", 1, "{}"))
    runs.send(StepStarted("lost", 1), StepStarted("lost", 2), *passing, StepFailed("lost", 2, BUSY))
    runs.send(STARTED, StepStarted("slow", 1), run="r2")
    found = runs.ask("SELECT run_id, name, attempt, state, toUInt32(duration_s) AS s FROM v_long_steps ORDER BY 1, 2")
    assert found[:2] == [("r1", "lost", 2, "failed", 62), ("r1", "slow", 1, "succeeded", 62)]
    (running,) = found[2:]
    assert running[:4] == ("r2", "slow", 1, "running")
    assert running[4] > 80_000  # its rows are a day old


def test_a_call_has_its_whole_result_and_only_reserved_calls_are_rows(runs: Runs) -> None:
    result = json.dumps("x" * 5_000)
    runs.send(STARTED, call_started("k"), call_succeeded("k", result=result))
    plain = ToolCallStarted("c1", "send", "c1", "{}", 1, side_effect=False, queryable=False)
    runs.send(plain)
    runs.send(call_started("k"), plain, run=None)
    columns = "run_id, idem_key, tool_name, args, result, state, try"
    found = runs.ask(f"SELECT {columns} FROM v_reserved_calls ORDER BY run_id")
    assert found == [
        ("", "k", "send", '{"to":"a"}', None, "running", 1),
        ("r1", "k", "send", '{"to":"a"}', result, "succeeded", 1),
    ]


def test_a_call_that_is_unknown_waits_for_people_until_one_says_what_came_of_it(runs: Runs) -> None:
    runs.send(STARTED, call_started("k"), call_started("harmless", side_effect=False))
    last = runs.send(call_started("own"), run=None)
    runs.lose_call(last, "k")
    runs.lose_call(last, "harmless")
    assert runs.ask("SELECT run_id, tool_name, idem_key, args, try FROM v_unresolved_calls") == [
        ("r1", "send", "k", '{"to":"a"}', 1)
    ]
    assert runs.ask("SELECT unresolved_calls FROM v_run_progress") == [(1,)]
    runs.send(ToolCallResolved("id-k", "send", "k", "failed", None, "ann"))
    assert runs.ask("SELECT count() AS n FROM v_unresolved_calls") == [(0,)]
    assert runs.ask("SELECT state, resolved_by FROM v_reserved_calls WHERE idem_key = 'k'") == [("failed", "ann")]
    runs.send(call_started("k", 2), ToolCallFailed("id-k", "send", "k", BUSY, 2))
    assert runs.ask("SELECT state, try, error, error_class FROM v_reserved_calls WHERE idem_key = 'k'") == [
        ("failed", 2, "the service is busy", "retryable")
    ]


def test_one_run_id_in_two_tenants_is_two_runs(runs: Runs) -> None:
    runs.send(STARTED)
    runs.send(STARTED, RunRunning(), tenant_id="other")
    assert runs.ask("SELECT tenant_id, status FROM v_runs ORDER BY 1") == [("acme", "started"), ("other", "running")]


def test_steps_and_calls_of_a_run_that_was_never_begun_are_orphans(runs: Runs) -> None:
    runs.send(STARTED, StepStarted("a", 1), call_started("k"))
    assert runs.ask("SELECT count() AS n FROM v_orphan_steps") == [(0,)]
    runs.send(StepStarted("b", 1), run="r2")
    runs.reject(runs.send(call_started("k2"), run="r3"), "unknown_run")
    runs.reject(runs.send(StepStarted("c", 1), run="r4"), "illegal_transition")
    runs.reject(runs.send(STARTED, run="r5"))
    runs.send(StepStarted("d", 1), run="r5")
    assert runs.ask("SELECT run_id, name, is_rejected FROM v_orphan_steps ORDER BY 1") == [
        ("r2", "b", False),
        ("r3", "send", True),
        ("r5", "d", False),
    ]


def test_progress_is_reported_by_steps_and_the_last_checkpoint(runs: Runs) -> None:
    runs.send(
        STARTED, RunRunning(0.3), StepStarted("parse", 1), StepSucceeded("parse", 1, "{}"), StepStarted("write", 1)
    )
    runs.send(*(CheckpointSaved(f"c{n}", "pages", "text", n, f"p{n}", 10 * n, None) for n in (65, 70)))
    runs.pause_by_clock(len(runs.sent) - 1)
    found = runs.ask(
        "SELECT status, steps_succeeded, steps_running, last_step, checkpoint_operation, checkpoint_stage, "
        "processed_count, last_item_id, bytes_written FROM v_run_progress"
    )
    assert found == [("paused", 1, 1, "write", "pages", "text", 70, "p70", 700)]
    runs.send(RunStarted("attached", "chat"), run="r2")
    assert runs.ask("SELECT processed_count, checkpoint_at, steps_running FROM v_run_progress WHERE run_id = 'r2'") == [
        (None, None, 0)
    ]


def test_artifacts_keep_hash_and_size_after_their_body_is_gone(runs: Runs) -> None:
    runs.send(ArtifactCreated("f1", "pdf_text", "file:///f1"), ArtifactCompleted("f1", 9, "abc"))
    assert runs.ask("SELECT state, uri FROM v_artifacts") == [("complete", "file:///f1")]
    runs.send(ArtifactSoftDeleted("f1"), ArtifactPurged("f1"))
    columns = "state, artifact_type, size_bytes, sha256, dateDiff('second', deleted_at, purged_at) AS s"
    assert runs.ask(f"SELECT {columns} FROM v_artifacts") == [("purged", "pdf_text", 9, "abc", 1)]


def test_calls_are_counted_by_minute_and_tool(runs: Runs) -> None:
    runs.send(call_started("k"), ToolCallFailed("id-k", "send", "k", BUSY, 1), call_started("k", 2))
    runs.deliver(runs.sent[0])
    runs.reject(runs.send(call_started("k", 3)))
    counted = "sum(calls) AS c, sum(retries) AS r, sum(failures) AS f"
    assert runs.ask(f"SELECT tool_name, {counted} FROM v_calls_per_minute GROUP BY 1") == [("send", 2, 1, 1)]


def test_usage_is_reported_by_tenant(runs: Runs) -> None:
    for value in (usage(seq=1), usage(seq=1), usage(seq=2), usage(seq=3, tenant_id="other", service_id="search")):
        runs.deliver(value)
    found = runs.ask("SELECT tenant_id, calls, tokens_in FROM v_usage_by_tenant ORDER BY 1")
    assert found == [("acme", 2, 200), ("other", 1, 100)]


def test_what_runs_should_never_have_is_counted(runs: Runs) -> None:
    runs.send(STARTED, StepStarted("a", 1, "{}"), StepSucceeded("a", 1, "{}"), call_started("k"), call_succeeded("k"))
    runs.send(RunFailed(BUSY))
    assert runs.ask("SELECT * FROM v_run_faults") == []
    runs.send(RunStarted("attached", "chat"), run="r2", user_id=None)
    runs.send(StepStarted("b", 1), StepSucceeded("b", 1), call_succeeded("k", 2))
    runs.send(ToolCallStarted("c1", "send", "c1", "{}", 1, side_effect=True, queryable=False))
    runs.send(StepFailed("c", 1, ErrorInfo("UNKNOWN", "", "")), StepStarted("d", 7))
    names = ["call_without_key", "failure_without_class", "key_with_two_effects", "run_without_owner"]
    names += ["step_without_input_or_output", "too_many_attempts"]
    assert runs.ask("SELECT fault, tenant_id, rows FROM v_run_faults ORDER BY 1") == [
        (name, "acme", 1) for name in names
    ]


def test_steps_of_the_client_are_no_faults_whatever_their_arguments(runs: Runs) -> None:
    """R-004-70: without arguments too, and with such as JSON cannot hold."""
    client, memory = memory_client()
    with client, client.session(user_id="u") as session, session.run("report") as report:
        report.step("none", lambda: None)
        report.step("some", len, "abc")
        report.step("object", str, Path("/a"), key="b")
        list(report.items(["page"], name="list"))
    runs.deliver(*(encode_event(event) for event in memory.events()))
    module = type(Path("/a")).__module__
    held = f'{{"args":[{{"text":"/a","type":"{module}.PosixPath"}}]}}'
    assert runs.ask("SELECT name, state, input FROM v_steps ORDER BY started_at") == [
        ("none", "succeeded", "{}"),
        ("some", "succeeded", '{"args":["abc"]}'),
        ("object [b]", "succeeded", held),
        ("list", "succeeded", '{"items":true}'),
    ]
    assert runs.ask("SELECT * FROM v_run_faults") == []


def test_a_rejected_run_is_reported_and_has_no_end_of_its_own(runs: Runs) -> None:
    runs.send(RunRejected("over quota"))
    assert runs.ask("SELECT status, events FROM v_runs") == [("rejected", 1)]
    runs.send(RunPaused(), run="r2")
    runs.reject(1, "unknown_run")
    assert runs.ask("SELECT run_id FROM v_runs") == [("r1",)]


def test_of_a_retry_a_resume_and_a_transition_one_query_tells_cause_actor_and_inputs(runs: Runs) -> None:
    runs.send(STARTED, StepStarted("a", 1, '"in"'), StepFailed("a", 1, BUSY))
    why = "attempt 1 failed: BUSY (retryable)"
    retried = runs.send(StepStarted("a", 2, '"in"', reason=why), causation_id="event-1-3")
    runs.fail_step(retried, "a", 2)
    runs.pause_by_clock(retried)
    runs.send(RunResumed("a", "goes on with step a"), actor="ann", causation_id="event-1-1")
    runs.decide(retried, 11, kind="transition", event_type="session_timed_out", to_state="Timeout", run_id=None)
    found = runs.ask("SELECT event_type, number, state, actor, cause, reason, inputs FROM v_causes")
    reported = {row[:6]: json.loads(row[6]) for row in found}
    assert reported["step_started", 2, "running", "agent-1", "step_failed", why]["input_json"] == '"in"'
    assert reported["run_resumed", 0, "running", "ann", "run_started", "goes on with step a"]["from_step"] == "a"
    assert reported["run_paused", 0, "paused", "processor", "deadline", "too slow"]["reason_code"] == "inactive"
    assert reported["step_failed", 2, "failed", "processor", "deadline", "too slow"]["reason_code"] == "model_limit"
    assert runs.ask("SELECT name FROM v_causes WHERE event_type = 'step_failed' AND cause = 'deadline'") == [("a",)]
    assert reported["session_timed_out", 0, "Timeout", "processor", "deadline", "too slow"]["due_at"] != ""


def test_people_list_the_calls_that_wait_and_name_one(
    runs: Runs, tables: ClickHouseSettings, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("SESSIONARY_CLICKHOUSE_URL", tables.clickhouse_url)
    monkeypatch.setenv("SESSIONARY_CLICKHOUSE_DATABASE", tables.clickhouse_database)
    runs.send(STARTED, call_started("k"))
    last = runs.send(call_started("k"), RunRunning(), run="r2")
    runs.lose_call(last, "k")
    runs.decide(
        last, 6, kind="tool_call", event_type="tool_call_unknown", idem_key="k", run_id="r2", to_call_state="unknown"
    )
    assert run(["call", "unknown", "--json"]) == 0
    rows = [json.loads(line) for line in capfd.readouterr().out.splitlines()]
    wanted = {"session": session_id(1), "tool": "send", "key": "k", "args": '{"to":"a"}'}
    listed = [{name: row[name] for name in ("run", *wanted)} for row in rows]
    assert listed == [{"run": name, **wanted} for name in ("r1", "r2")]
    assert run(["call", "unknown", "--json", "--agent", "agent-1"]) == 0
    assert len(capfd.readouterr().out.splitlines()) == len(rows)
    unknown = (["--user", "zoe"], ["--agent", "other"], ["--since", "2100-01-01"])
    assert [run(["call", "unknown", *each]) for each in unknown] == [0, 0, 0]
    assert capfd.readouterr().out == ""
    outcome = ["--outcome", "failed", "--by", "ann"]
    assert run(["call", "resolve", "00000000", "other", *outcome]) == 4
    assert run(["call", "resolve", "00000000", "k", *outcome]) == 5
    assert "give --run" in capfd.readouterr().err
    assert run(["call", "resolve", "00000000", "k", "--result", "{}", *outcome]) == 5
    assert run(["call", "resolve", "00000000", "k", "--result", "{", "--outcome", "succeeded", "--by", "ann"]) == 5
    assert find_unknown_call(ClickHouseClient(tables), "00000000", "k", "r2")["tool_call_id"] == "id-k"
