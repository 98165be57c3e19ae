"""What the control API answers about the agents of a session, and about what one of them sees."""

from typing import Any

import pytest

from sessionary.producers.control.http_runs import parse_agent_view, parse_agents
from tests.core.stream_processors.api.run_rig import RunRig
from tests.core.stream_processors.api.test_steps import fields

ROLES = {"researcher_1": "researcher", "analyzer_1": "analyzer", "writer_1": "writer", "critic_1": "critic"}


def rig_with_agents() -> RunRig:
    """Return a rig whose session has an agent of each role; the first three have shared."""
    rig = RunRig()
    for agent_id, role in ROLES.items():
        rig.tell("agent_registered", agent_id=agent_id, role=role)
    for number, agent_id in enumerate(list(ROLES)[:3]):
        named: dict[str, Any] = {"agent_id": agent_id, "task": "work", "result_json": f"{number}"}
        rig.tell("agent_task_updated", completed=True, **named)
    rig.tell("context_synced", from_agent_id="researcher_1", to_agent_id="analyzer_1", sync_type="handoff")
    return rig


def test_the_agents_are_reported_in_the_order_of_registration_without_results() -> None:
    rig = rig_with_agents()
    status, found = rig.ask("agents")
    assert (status, set(found)) == (200, fields("Agents"))
    assert [agent["agent_id"] for agent in found["agents"]] == list(ROLES)
    assert {frozenset(agent) for agent in found["agents"]} == {frozenset(fields("Agent"))}
    assert [agent["shared_keys"] for agent in found["agents"]] == [*([f"{name}_work"] for name in list(ROLES)[:3]), []]
    handover = found["agents"][1]["handover"]
    assert (handover["from_agent_id"], handover["sync_type"]) == ("researcher_1", "handoff")
    assert handover["from_snapshot_id"] == found["agents"][0]["snapshot_id"]
    assert [agent.role for agent in parse_agents(found)] == list(ROLES.values())


@pytest.mark.parametrize(
    ("agent_id", "visible", "dependencies", "context"),
    [
        ("researcher_1", [], [], ["researcher_1"]),
        ("analyzer_1", ["researcher_1"], ["researcher_1"], ["researcher_1", "analyzer_1"]),
        (
            "writer_1",
            ["researcher_1", "analyzer_1", "writer_1"],
            ["researcher_1", "analyzer_1", "critic_1"],
            ["researcher_1", "analyzer_1", "writer_1"],
        ),
        ("critic_1", ["researcher_1", "analyzer_1", "writer_1"], [], []),
    ],
)
def test_a_view_tells_the_agent_what_it_sees_and_on_whom_it_depends(
    agent_id: str, visible: list[str], dependencies: list[str], context: list[str]
) -> None:
    status, found = rig_with_agents().ask("agents", agent_id)
    assert (status, set(found)) == (200, fields("AgentView"))
    assert set(found["agent_state"]) == fields("Agent") | {"shared_context"}
    assert {frozenset(result) for result in found["results"]} <= {frozenset(fields("SharedResult"))}
    numbers = {name: f"{number}" for number, name in enumerate(ROLES)}
    assert found["visible_context"] == {f"{name}_work": numbers[name] for name in visible}
    assert [(result["agent_id"], result["role"]) for result in found["results"]] == [
        (name, ROLES[name]) for name in visible
    ]
    assert found["dependencies"] == dependencies
    assert found["agent_state"]["shared_context"] == {f"{name}_work": numbers[name] for name in context}
    read = parse_agent_view(found)
    assert read.agent_state.agent_id == agent_id
    assert [result.key for result in read.results] == [f"{name}_work" for name in visible]


def test_an_agent_that_is_not_registered_is_unknown() -> None:
    status, problem = rig_with_agents().ask("agents", "writer_2")
    assert (status, problem["reason"]) == (404, "unknown_agent")
    assert RunRig().ask("agents")[1]["agents"] == []


def test_another_tenant_is_notified_of_nothing() -> None:
    status, _ = rig_with_agents().ask("agents", "writer_1", token="unknown")
    assert status == 401
