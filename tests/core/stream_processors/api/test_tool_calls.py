"""What the control API answers about reserved tool calls."""

import pytest

from sessionary.schemas.ids import call_key
from sessionary.schemas.records import EndedToolCall, ToolCallState
from sessionary.schemas.types import ErrorInfo
from tests.core.stream_processors.api.run_rig import RunRig
from tests.core.stream_processors.api.test_steps import fields, shown

RUNNING = ToolCallState("acme", "", None, "a-1", "pay", "k1", 2, True, False, 30, 1_030, 1_000, "e-1")
ENDED = EndedToolCall(
    *("acme", "", None, None, "pay", "k2", 1, True, True, "succeeded", 10, 20, None, None, '"paid"', "art-1"),
)
OF_RUN, OF_SESSION = ("runs", "r1"), ()


def rig_with_calls(parts: tuple[str, ...], *calls: ToolCallState | EndedToolCall) -> RunRig:
    """Return a rig with a run `r1`; the calls are its, or the session's."""
    rig = RunRig()
    rig.send("run_started", "r1", mode="detached")
    run_id = "r1" if parts else None
    parent = rig.run_key("r1") if parts else rig.agent.key.encoded()
    for call in calls:
        row = call._replace(session_id=rig.agent.key.session_id, run_id=run_id)
        rig.load_child(call_key(parent, call.idem_key), row)
    return rig


@pytest.mark.parametrize(("parts", "others"), [(OF_RUN, OF_SESSION), (OF_SESSION, OF_RUN)])
def test_calls_are_listed_by_their_beginning_without_results_and_only_with_their_parent(
    parts: tuple[str, ...], others: tuple[str, ...]
) -> None:
    rig = rig_with_calls(parts, RUNNING, ENDED, ENDED._replace(idem_key="k0", started_at=30))
    status, found = rig.ask(*parts, "tool-calls")
    assert status == 200
    assert [call["idem_key"] for call in found["tool_calls"]] == ["k2", "k0", "k1"]
    assert [set(call) for call in found["tool_calls"]] == [fields("ToolCallHead")] * 3
    assert set(found) == fields("ToolCallList")
    assert rig.ask(*others, "tool-calls")[1]["tool_calls"] == []
    assert (rig.ask(*others, "tool-calls", "k1")[1]["reason"]) == "unknown_call"


@pytest.mark.parametrize("parts", [OF_RUN, OF_SESSION])
def test_a_running_call_is_shown_with_its_reservation_and_deadline(parts: tuple[str, ...]) -> None:
    rig = rig_with_calls(parts, RUNNING)
    status, call = rig.ask(*parts, "tool-calls", "k1")
    assert (status, set(call)) == (200, fields("ToolCall"))
    assert shown(call, "state", "try_number", "started_ms", "entered_ms", "limit_ms", "reservation") == (
        *("running", 2, 30, 30, 1_000, "e-1"),
    )
    assert call["deadline_ms"] == max(1_030, rig.rig.fold.position.outage_grace_until_ms)
    assert shown(call, "run_id", "tool_name", "step_id", "side_effect", "queryable") == (
        *("r1" if parts else None, "pay", "a-1", True, False),
    )
    assert shown(call, "error", "resolved_by", "artifact_id", "result_json") == (None, None, None, None)


def test_an_ended_call_is_shown_with_its_outcome() -> None:
    error = ErrorInfo("retryable", "resolved_failed", "ann found that the call had no effect")
    failed = ENDED._replace(idem_key="k3", state="failed", error=error, resolved_by="ann", result_json=None)
    rig = rig_with_calls(OF_RUN, ENDED, failed)
    _, call = rig.ask(*OF_RUN, "tool-calls", "k2")
    assert shown(call, "state", "started_ms", "entered_ms", "result_json", "artifact_id", "error") == (
        *("succeeded", 10, 20, '"paid"', "art-1", None),
    )
    assert shown(call, "deadline_ms", "limit_ms", "reservation") == (None, None, None)
    _, call = rig.ask(*OF_RUN, "tool-calls", "k3")
    assert shown(call, "state", "error", "resolved_by") == ("failed", error._asdict(), "ann")


@pytest.mark.parametrize(("parts", "reason"), [(OF_RUN, "unknown_run"), (OF_SESSION, "unknown_session")])
def test_the_calls_of_another_tenant_are_as_unknown_as_their_parent(parts: tuple[str, ...], reason: str) -> None:
    rig = rig_with_calls(parts, RUNNING)
    for page in (("tool-calls",), ("tool-calls", "k1")):
        status, problem = rig.ask(*parts, *page, token="other")
        assert (status, problem["reason"]) == (404, reason)
    assert rig.ask(*parts, "tool-calls", "k9")[1]["reason"] == "unknown_call"
