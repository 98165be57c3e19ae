"""Children of runs and sessions in cases that random agents rarely meet, by both judges."""

from typing import Any

from sessionary.schemas.ids import artifact_key, call_key, message_key, run_key, step_key
from sessionary.schemas.limits import CONVERSATION_TURNS_MAX
from sessionary.schemas.records import (
    ArtifactState,
    EndedToolCall,
    FinishedRun,
    MessageState,
    RunState,
    RunTombstone,
    StepState,
    TimedStep,
    ToolCallState,
)
from sessionary.schemas.types import ErrorInfo
from tests.core.oracle_rig import OracleRig
from tests.support.event_factory import EventFactory

CALL: dict[str, Any] = {"tool_call_id": "id", "idem_key": "k", "tool_name": "order"}
STARTED: dict[str, Any] = {**CALL, "try_number": 1, "side_effect": True, "queryable": False, "limit_ms": 2_000}


class Children:
    """A rig with one session and its run `r`."""

    def __init__(self, mode: str = "attached") -> None:
        self.rig, self.agent = OracleRig(), EventFactory()
        self.rig.start(self.agent)
        assert self.say("run_started", mode=mode, plan_json=None) == "applied"

    def say(self, event_type: str, run_id: str | None = "r", actor: str | None = None, **fields: Any) -> str:
        marks = {"run_id": run_id, "actor": actor, "step_id": "attempt"}
        return self.rig.send(self.agent, event_type, marks, **fields)

    def row(self, kind: type[Any], child: bytes | None = None) -> Any:
        row = self.rig.fold.rows.get(child or self.run)
        assert isinstance(row, kind)
        return row

    @property
    def run(self) -> bytes:
        return run_key(*self.agent.key, "r")

    def lose_call(self, **fields: Any) -> None:
        """Reserve a call, and let its limit pass."""
        assert self.say("tool_call_started", **{**STARTED, **fields}) == "applied"
        self.rig.advance(3_000)


def test_a_step_that_is_skipped_before_any_attempt_has_the_id_of_none() -> None:
    one = Children()
    assert one.say("step_skipped", name="search") == "applied"
    row = one.row(StepState, step_key(one.run, "search"))
    assert (row.state, row.attempt, row.step_id) == ("skipped", 0, None)


def test_the_outcome_of_a_finished_runs_call_counts_in_its_run_only() -> None:
    one = Children()
    one.lose_call()
    assert one.row(RunState).unresolved_calls == 1
    assert one.say("run_cancelled") == "applied"
    finished = one.row(FinishedRun)
    assert one.say("tool_call_failed", **CALL, try_number=1, error=ErrorInfo("retryable", "e", "e")) == "applied"
    reported = one.row(FinishedRun)
    assert (reported.unresolved_calls, reported.run_seq) == (0, finished.run_seq + 1)
    assert reported == finished._replace(
        unresolved_calls=0, run_seq=reported.run_seq, last_event_at=reported.last_event_at
    )


def test_a_run_that_its_client_paused_is_not_resumed_by_an_outcome() -> None:
    one = Children()
    assert one.say("tool_call_started", **STARTED) == "applied"
    assert one.say("run_running", progress=None) == "applied"
    assert one.say("run_paused") == "applied"
    one.rig.advance(3_000)
    assert one.row(RunState).unresolved_calls == 1
    assert one.say("run_resumed") == "rejected call_unresolved"
    fields = {**CALL, "outcome": "succeeded", "result_json": "{}", "resolved_by": "ops"}
    assert one.say("tool_call_resolved", **fields) == "applied"
    assert (one.row(RunState).state, one.row(RunState).reason_code) == ("paused", "paused")
    assert one.say("run_resumed") == "applied"


def test_two_lost_calls_hold_a_run_until_both_are_known() -> None:
    one = Children()
    assert one.say("tool_call_started", **{**STARTED, "idem_key": "k2", "limit_ms": 2_000}) == "applied"
    one.lose_call()
    assert one.row(RunState).unresolved_calls == 2
    succeeded: dict[str, Any] = {"try_number": 1, "result_json": None, "artifact_id": None}
    assert one.say("tool_call_succeeded", **{**CALL, "idem_key": "k2"}, **succeeded) == "applied"
    assert one.row(RunState).state == "paused"
    assert one.say("tool_call_succeeded", **CALL, **succeeded) == "applied"
    assert (one.row(RunState).state, one.row(RunState).reason_code) == ("running", "call_resolved")


def test_a_call_without_a_side_effect_is_tried_again_after_its_limit() -> None:
    one = Children()
    one.lose_call(side_effect=False)
    assert one.row(RunState).state == "started"
    again = {**STARTED, "try_number": 2}
    assert one.say("tool_call_started", **again) == "rejected call_unresolved"
    assert one.say("tool_call_started", **{**again, "side_effect": False}) == "applied"
    assert one.row(ToolCallState, call_key(one.run, "k")).try_number == 2


def test_all_children_vanish_with_their_run_and_the_sessions_own_calls_with_the_session() -> None:
    one = Children()
    assert one.say("step_started", name="search", attempt=1, input_json='"' + "x" * 2_000 + '"') == "applied"
    assert one.say("tool_call_started", **STARTED) == "applied"
    assert one.say("tool_call_started", run_id=None, **{**STARTED, "limit_ms": 10**13}) == "applied"
    assert one.say("run_cancelled") == "applied"
    assert one.say("session_terminated", reason="closed", snapshot=None) == "applied"
    one.rig.advance(2_000_000, step_ms=4_000)
    assert one.row(EndedToolCall, call_key(one.run, "k")).state == "unknown"
    assert call_key(one.agent.key.encoded(), "k") not in one.rig.fold.rows
    one.rig.at += 31 * 86_400_000
    one.rig.tick()
    left = {key: type(row) for key, row in one.rig.fold.rows.items() if key.startswith(one.agent.key.encoded())}
    assert left == {one.run: RunTombstone}


def test_a_call_becomes_unknown_after_its_session_was_archived() -> None:
    one = Children()
    assert one.say("tool_call_started", **{**STARTED, "limit_ms": 1_000_000}) == "applied"
    assert one.say("run_cancelled") == "applied"
    assert one.say("session_terminated", reason="closed", snapshot=None) == "applied"
    one.rig.advance(600_000, step_ms=4_000)
    assert one.agent.key.encoded() not in one.rig.oracle.rows
    assert one.row(ToolCallState, call_key(one.run, "k")).try_number == 1
    one.rig.advance(600_000, step_ms=4_000)
    assert one.row(EndedToolCall, call_key(one.run, "k")).state == "unknown"
    assert one.row(FinishedRun).unresolved_calls == 1


def test_a_step_fails_by_its_limit_also_after_its_session_was_archived() -> None:
    one = Children("detached")
    first, second = (step_key(one.run, name) for name in ("search", "answer"))
    fields: dict[str, Any] = {"attempt": 1, "input_json": "[1]"}
    assert one.say("step_started", name="search", limit_ms=2_500, **fields) == "applied"
    assert one.say("step_started", name="answer", limit_ms=1_000_000, **fields) == "applied"
    assert one.say("step_started", name="answer", limit_ms=0, **{**fields, "attempt": 2}) == "rejected invalid_value"
    one.rig.advance(3_000)
    assert one.row(StepState, first).error.code == "model_limit"
    assert one.say("step_succeeded", name="search", attempt=1, output_json="1") == "rejected illegal_transition"
    assert one.say("step_started", name="search", limit_ms=2_500, **{**fields, "attempt": 2}) == "applied"
    assert one.row(TimedStep, first).attempt == 2
    assert one.say("step_succeeded", name="search", attempt=2, output_json="1") == "applied"
    assert one.say("run_cancelled") == "applied"
    assert one.say("session_terminated", reason="closed", snapshot=None) == "applied"
    one.rig.advance(600_000, step_ms=4_000)
    assert one.agent.key.encoded() not in one.rig.oracle.rows
    one.rig.advance(600_000, step_ms=4_000)
    assert one.row(StepState, second).state == "failed"


def test_a_silent_agent_loses_its_run_at_the_last_checkpoint() -> None:
    one = Children()
    saved: dict[str, Any] = {"operation": "fetch", "stage": "pages", "processed_count": 5}
    saved |= {"last_item_id": "p5", "bytes_written": 9}
    for number in (1, 2):
        assert one.say("checkpoint_saved", checkpoint_id=f"c{number}", kind="sources_fetched", **saved) == "applied"
    at = one.rig.at
    assert one.row(RunState).checkpoint == ("c2", "fetch", at, "sources_fetched", "pages", 5, "p5", 9)
    assert one.say("run_running", progress=None) == "applied"
    one.rig.advance(100_000)
    assert (one.row(RunState).state, one.row(RunState).reason_code) == ("paused", "connection_lost")
    assert one.row(RunState).checkpoint.checkpoint_id == "c2"
    assert one.say("checkpoint_saved", "unheard-of") == "rejected unknown_run"
    assert one.say("checkpoint_saved", None) == "applied"
    one.rig.advance(1_000_000, step_ms=4_000)
    assert one.row(FinishedRun).checkpoint.checkpoint_id == "c2"


def test_a_finished_runs_artifact_is_deleted_and_vanishes_with_the_run() -> None:
    one = Children()
    key, named = artifact_key(one.run, "f"), {"artifact_id": "f"}
    assert one.say("artifact_created", **named, artifact_type="json", uri="file:///f") == "applied"
    assert one.say("artifact_completed", **named, size_bytes=9, sha256="a" * 64) == "applied"
    assert one.say("run_cancelled") == "applied"
    assert one.say("artifact_completed", **named, size_bytes=9, sha256="a" * 64) == "rejected illegal_transition"
    assert one.say("artifact_soft_deleted", **named) == "applied"
    assert one.say("artifact_purged", **named) == "applied"
    row = one.row(ArtifactState, key)
    assert (row.state, row.size_bytes, row.sha256) == ("purged", 9, "a" * 64)
    one.rig.at += 31 * 86_400_000
    one.rig.tick()
    assert key not in one.rig.fold.rows


def test_a_conversation_is_longer_than_its_rows() -> None:
    one = Children()
    for number in range(1, CONVERSATION_TURNS_MAX + 8):
        content = '"' + "x" * 2_000 + '"' if number % 7 == 0 else f"no. {number}"
        assert one.say("message_appended", None if number % 3 else "r", content=content) == "applied"
    session = one.agent.key.encoded()
    assert one.row(MessageState, message_key(session, 1)).turn == CONVERSATION_TURNS_MAX + 1
    assert one.say("message_appended", content="x" * 16_385) == "rejected invalid_value"
    assert one.row(MessageState, message_key(session, 8)).turn == 8


def test_a_missing_message_is_the_next_turn_if_it_is_replayed() -> None:
    one = Children()
    session = one.agent.key.encoded()
    missed = [one.agent.event_bytes("message_appended", content=text) for text in ("a", "b", "x" * 16_385)]
    lost = one.agent.event_bytes("artifact_created")
    assert one.say("message_appended", content="later") == "applied"
    assert one.say("session_paused") == "applied"
    replayed = (("replayed_from", b'"events:0:1"'),)
    for value, outcome in zip(missed, ("applied", "applied", "rejected late_filler"), strict=True):
        assert one.rig.append(session, value, replayed) == outcome
    assert one.rig.append(session, lost, replayed) == "rejected late_filler"
    contents = [one.row(MessageState, message_key(session, turn)).content for turn in (1, 2, 3)]
    assert contents == ["later", "a", "b"]
