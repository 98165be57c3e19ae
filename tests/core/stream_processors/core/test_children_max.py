"""How many children a run, or a session itself, may have: one more is rejected."""

from typing import Any

import pytest

from sessionary.schemas.limits import CHILDREN_MAX, CONVERSATION_TURNS_MAX
from sessionary.stream_processors.core.model import LogRecord
from sessionary.stream_processors.core.session import children
from tests.auditor import child_model
from tests.core.oracle_rig import OracleRig
from tests.core.stream_processors.core.child_rig import ChildRig
from tests.support.event_factory import EventFactory

_BATCH = 2_500
_CALL: dict[str, Any] = {"tool_call_id": "id", "tool_name": "pay", "try_number": 1, "side_effect": False}
_REJECTED = "rejected too_many_children"


def fill_up(rig: ChildRig, run_id: str | None) -> None:
    """Reserve as many calls of a run, or of the session, as it may have children."""
    for start in range(0, CHILDREN_MAX, _BATCH):
        calls = [
            rig.agent.event_bytes("tool_call_started", {"run_id": run_id}, idem_key=f"n{n}", limit_ms=10**9, **_CALL)
            for n in range(start, start + _BATCH)
        ]
        key = rig.agent.key.encoded()
        records = [LogRecord(rig.offset + n, rig.at, key, call) for n, call in enumerate(calls)]
        assert rig.append_batch(*records).counts.applied == _BATCH


def test_one_more_child_of_a_run_is_rejected() -> None:
    rig = ChildRig()
    fill_up(rig, "r1")
    rows = len(rig.fold.rows)
    assert rig.step("started") == _REJECTED
    assert rig.letter().detail == "the run r1 has 10000 children, which is the most"
    assert rig.call("started") == _REJECTED
    assert len(rig.fold.rows) == rows
    assert rig.call("failed") == "rejected unknown_call"  # for another reason, which is reported first
    assert rig.call("succeeded", idem_key="n7", result_json="1") == "applied"
    assert rig.step("skipped", run_id="r2") == "rejected unknown_run"
    rig.begin("r2")
    assert rig.step("started", run_id="r2") == "applied"
    assert rig.call("started", run_id=None) == "applied"


def test_a_full_session_goes_on_with_its_conversation() -> None:
    rig = ChildRig()
    fill_up(rig, None)
    assert rig.call("started", run_id=None) == _REJECTED
    assert rig.letter().detail == "the session has 10000 children, which is the most"
    assert rig.step("started") == "applied"
    for _ in range(CONVERSATION_TURNS_MAX + 1):
        assert rig.say("message_appended", run_id=None) == "applied"
    assert rig.row_of(rig.agent).turns == CONVERSATION_TURNS_MAX + 1


@pytest.mark.interpreted
def test_both_judges_count_alike(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(children, "CHILDREN_MAX", 3)
    monkeypatch.setattr(child_model, "CHILDREN_MAX", 3)
    rig, agent = OracleRig(), EventFactory()
    rig.start(agent)

    def call(number: int, run_id: str | None) -> str:
        return rig.send(agent, "tool_call_started", {"run_id": run_id}, idem_key=f"n{number}", limit_ms=10**9, **_CALL)

    assert rig.send(agent, "run_started", {"run_id": "r"}, mode="attached", plan_json=None) == "applied"
    for run_id in (None, "r"):
        assert [call(number, run_id) for number in range(4)] == [*["applied"] * 3, _REJECTED]
    assert rig.send(agent, "step_started", {"run_id": "r"}, name="a", attempt=1) == _REJECTED
    assert rig.send(agent, "artifact_created", {"run_id": None}) == _REJECTED
    assert rig.send(agent, "message_appended", {"run_id": None}) == "applied"
    assert rig.send(agent, "artifact_created", {"run_id": None}) == _REJECTED
    succeeded = {"idem_key": "n2", "result_json": "1", **_CALL}
    del succeeded["side_effect"]
    assert rig.send(agent, "tool_call_succeeded", {"run_id": "r"}, **succeeded) == "applied"
    assert rig.send(agent, "run_started", {"run_id": "s"}, mode="attached", plan_json=None) == "applied"
    assert call(0, "s") == "applied"
