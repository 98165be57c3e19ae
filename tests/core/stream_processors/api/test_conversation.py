"""What the control API answers about a conversation, and about what a session is at."""

from typing import Any

import pytest

from sessionary.schemas.ids import call_key, message_key, step_key
from sessionary.schemas.limits import CONVERSATION_TURNS_MAX
from sessionary.schemas.records import MessageState
from tests.core.stream_processors.api.run_rig import RunRig
from tests.core.stream_processors.api.test_steps import STEP, fields, shown
from tests.core.stream_processors.api.test_tool_calls import RUNNING

TURN = MessageState("acme", "", 1, None, "agent-1", "billing", "user", None, 10, "Hello")


class CountedRows(dict[bytes, Any]):
    """Rows that count how many turns were read."""

    turns = 0

    def get(self, key: bytes, default: Any = None) -> Any:
        row = super().get(key, default)
        self.turns += isinstance(row, MessageState)
        return row


def rig_with_turns(turns: int) -> RunRig:
    """Return a rig whose session has had so many turns; the rows of the last ones are there."""
    rig = RunRig()
    key = rig.agent.key.encoded()
    for turn in range(max(turns - CONVERSATION_TURNS_MAX, 0) + 1, turns + 1):
        row = TURN._replace(session_id=rig.agent.key.session_id, turn=turn, content=f"turn {turn}")
        rig.load_child(message_key(key, turn), row)
    rig.rig.fold.rows[key] = rig.rig.fold.rows[key]._replace(turns=turns)
    return rig


def asked_turns(rig: RunRig, query: str) -> list[int]:
    return [message["turn"] for message in rig.ask("conversation", query=query)[1]["messages"]]


def test_the_last_turns_are_reported_in_order_with_their_contents() -> None:
    status, found = rig_with_turns(5).ask("conversation", query="?last=2")
    assert (status, set(found), found["turns"]) == (200, fields("Conversation"), 5)
    fourth, fifth = found["messages"]
    assert set(fourth) == set(fifth) == fields("Message")
    assert shown(fourth, "turn", "role", "content", "service_id", "at_ms") == (4, "user", "turn 4", "billing", 10)
    assert shown(fifth, "turn", "content", "name", "artifact_id", "run_id") == (5, "turn 5", None, None, None)


def test_no_more_turns_are_reported_than_there_were_and_none_before_the_first() -> None:
    assert asked_turns(rig_with_turns(3), "?last=200") == [1, 2, 3]
    assert asked_turns(rig_with_turns(3), "?last=0") == []
    assert asked_turns(rig_with_turns(0), "") == []
    assert asked_turns(rig_with_turns(30), "") == list(range(11, 31))


def test_of_many_turns_only_those_that_are_asked_for_are_read() -> None:
    rig = rig_with_turns(450)
    rows = CountedRows(rig.rig.fold.rows)
    rig.rig.fold.rows = rows
    assert asked_turns(rig, "?last=3") == [448, 449, 450]
    assert rows.turns == 3
    assert rig.ask("tool-calls")[0] == rig.ask("artifacts")[0] == rig.ask("execution")[0] == 200
    assert rows.turns == 3
    assert asked_turns(rig, "?last=200") == list(range(251, 451))


def test_a_turn_whose_row_a_later_one_took_meanwhile_is_left_out() -> None:
    rig = rig_with_turns(450)
    key = rig.agent.key.encoded()
    rig.rig.fold.rows[message_key(key, 451)] = TURN._replace(turn=451)
    assert asked_turns(rig, "?last=200") == list(range(252, 451))


@pytest.mark.parametrize("query", ["?last=201", "?last=-1", "?last=x", "?last="])
def test_a_number_of_turns_that_is_none_is_rejected(query: str) -> None:
    status, problem = rig_with_turns(1).ask("conversation", query=query)
    assert (status, problem["reason"]) == (400, "invalid_value")


def rig_with_execution() -> RunRig:
    """Return a rig with an open and a finished run, steps, and calls in and outside of a run."""
    rig = RunRig()
    for run_id in ("r0", "r1"):
        assert rig.send("run_started", run_id, mode="detached", input_json='{"month":1}') == "applied"
    assert rig.send("run_running", "r0", progress=0.5) == "applied"
    assert rig.send("run_completed", "r0") == "applied"
    session_id = rig.agent.key.session_id
    for name, started_at in (("write", 30), ("read", 10)):
        step = STEP._replace(session_id=session_id, name=name, started_at=started_at)
        rig.load_child(step_key(rig.run_key("r1"), name), step)
    in_run, outside = (RUNNING._replace(session_id=session_id, idem_key=name) for name in ("k1", "k2"))
    rig.load_child(call_key(rig.run_key("r1"), "k1"), in_run._replace(run_id="r1"))
    rig.load_child(call_key(rig.agent.key.encoded(), "k2"), outside)
    return rig


def test_what_a_session_is_at_is_reported_without_contents() -> None:
    status, found = rig_with_execution().ask("execution")
    assert (status, set(found)) == (200, fields("Execution"))
    (run,) = found["runs"]
    assert set(run) == fields("RunInExecution")
    assert shown(run, "run_id", "state", "mode") == ("r1", "started", "detached")
    assert [step["name"] for step in run["steps"]] == ["read", "write"]
    assert [set(step) for step in run["steps"]] == [fields("StepHead")] * 2
    assert [call["idem_key"] for call in run["tool_calls"]] == ["k1"]
    assert [call["idem_key"] for call in found["tool_calls"]] == ["k2"]
    assert "input_json" not in run


@pytest.mark.parametrize("page", ["conversation", "execution"])
def test_another_tenant_s_session_is_unknown(page: str) -> None:
    status, problem = rig_with_turns(1).ask(page, token="other")
    assert (status, problem["reason"]) == (404, "unknown_session")
