"""How an event is judged against the agent that it names; its session and run are for it.

registration:   names ─▶ said again ─▶ number of agents ─▶ size
others:         agent ─▶ sender ─▶ snapshot ─▶ length ─▶ task ─▶ size
"""

from typing import NamedTuple

from sessionary.schemas.codec import Event
from sessionary.schemas.events import AgentRegistered, AgentTaskUpdated, ContextSynced
from sessionary.schemas.ids import valid_name
from sessionary.schemas.limits import AGENTS_MAX, RESULT_CHARACTERS_MAX
from sessionary.schemas.records import AgentState, SessionState
from sessionary.schemas.types import AgentHandover, SessionAgent, SharedResult
from sessionary.stream_processors.core.agent.views import find_agent
from sessionary.stream_processors.core.dependants.child_naming import AGENT_PAYLOADS, named_agent
from sessionary.stream_processors.core.dependants.row_size import object_to_row_size
from sessionary.stream_processors.core.machine import Arrival, Objection


class AgentJudgement(NamedTuple):
    """What an event is for an agent: its row afterwards, and what the session has of it."""

    after: AgentState
    agent: SessionAgent
    shared_results: int  # how many the session's agents have shared then


def judge_agent(session: SessionState, event: Event, arrival: Arrival) -> AgentJudgement | Objection | None:
    """Judge an event against `arrival.child`; return what it comes to, None if nothing changes."""
    payload = event.payload
    assert isinstance(payload, AGENT_PAYLOADS)
    if isinstance(payload, AgentRegistered):
        return _register(session, event, payload, arrival)
    agent = find_agent(session, named_agent(event))
    if agent is None:
        return _unknown(named_agent(event))
    row = arrival.child
    assert isinstance(row, AgentState)  # both rows are written by one event
    if isinstance(payload, ContextSynced):
        return _hand_over(session, agent, row, event, payload, arrival)
    return _update_task(session, agent, row, event, payload, arrival)


def _register(
    session: SessionState, event: Event, payload: AgentRegistered, arrival: Arrival
) -> AgentJudgement | Objection | None:
    agent_id = named_agent(event)
    service_id = event.envelope.service_id if payload.service_id is None else payload.service_id
    for what, name in (("agent_id", agent_id), ("service_id", service_id)):
        if not valid_name(name):
            return Objection("invalid_value", f"{what} {name!r} is no name")
    if not payload.role:
        return Objection("invalid_value", f"agent {agent_id} has no role")
    known = find_agent(session, agent_id)
    if known is not None:  # a client that died does not know what arrived
        if (known.role, known.service_id) == (payload.role, service_id):
            return None
        return Objection("invalid_value", f"agent {agent_id} is registered as {known.role} of {known.service_id}")
    if len(session.agents) >= AGENTS_MAX:
        return Objection("too_many_agents", f"the session has {AGENTS_MAX} agents, which is the most")
    snapshot_id, now_ms = event.envelope.event_id, arrival.now_ms
    after = AgentState(
        tenant_id=session.tenant_id,
        session_id=session.session_id,
        agent_id=agent_id,
        role=payload.role,
        service_id=service_id,
        registered_at=now_ms,
        updated_at=now_ms,
        snapshot_id=snapshot_id,
        shared_seen=session.shared_results,
    )
    agent = SessionAgent(agent_id, payload.role, service_id, snapshot_id)
    return _within_size(AgentJudgement(after, agent, session.shared_results), arrival)


def _update_task(
    session: SessionState,
    agent: SessionAgent,
    row: AgentState,
    event: Event,
    payload: AgentTaskUpdated,
    arrival: Arrival,
) -> AgentJudgement | Objection:
    sender = event.envelope.service_id
    if sender not in (agent.service_id, session.owner_service):
        return Objection("not_member", f"agent {agent.agent_id} is {agent.service_id}'s, not {sender}'s")
    if objection := _object_to_snapshot(agent, payload.from_snapshot_id):
        return objection
    if (length := len(payload.result_json or "")) > RESULT_CHARACTERS_MAX:
        detail = f"result_json has {length} characters, more than {RESULT_CHARACTERS_MAX}: send it as an artifact"
        return Objection("invalid_value", detail)
    task = row.current_task if payload.task is None else payload.task
    if not task:
        return Objection("invalid_value", f"agent {agent.agent_id} has no task")
    if task in row.completed_tasks:
        return Objection("task_done", f"agent {agent.agent_id} completed {task} before")
    current, completed = row.current_task, (*row.completed_tasks,)
    if payload.completed:
        current, completed = None if current == task else current, (*completed, task)
    else:  # a new task ends the one before it
        if current is not None and current != task:
            completed = (*completed, current)
        current = task
    count, shared = session.shared_results, row.shared
    if payload.result_json is not None or payload.artifact_id is not None:
        count += 1
        key = f"{agent.agent_id}_{task}" if payload.shared_key is None else payload.shared_key
        result = SharedResult(key, task, count, arrival.now_ms, payload.result_json, payload.artifact_id)
        shared = (*(old for old in row.shared if old.key != key), result)
    snapshot_id = event.envelope.event_id if payload.to_snapshot_id is None else payload.to_snapshot_id
    after = row._replace(
        updated_at=arrival.now_ms,
        snapshot_id=snapshot_id,
        shared_seen=count,
        current_task=current,
        completed_tasks=completed,
        shared=shared,
    )
    return _within_size(AgentJudgement(after, agent._replace(snapshot_id=snapshot_id), count), arrival)


def _hand_over(
    session: SessionState,
    agent: SessionAgent,
    row: AgentState,
    event: Event,
    payload: ContextSynced,
    arrival: Arrival,
) -> AgentJudgement | Objection:
    giver, sender = find_agent(session, payload.from_agent_id), event.envelope.service_id
    if giver is None:
        return _unknown(payload.from_agent_id)
    if giver.agent_id == agent.agent_id:
        return Objection("invalid_value", f"agent {agent.agent_id} cannot hand over to itself")
    if sender not in (giver.service_id, session.owner_service):
        return Objection("not_member", f"agent {giver.agent_id} is {giver.service_id}'s, not {sender}'s")
    if objection := _object_to_snapshot(giver, payload.from_snapshot_id):
        return objection
    handover = AgentHandover(giver.agent_id, giver.snapshot_id, payload.sync_type, arrival.now_ms)
    return _within_size(AgentJudgement(row._replace(handover=handover), agent, session.shared_results), arrival)


def _unknown(agent_id: str) -> Objection:
    return Objection("unknown_agent", f"agent {agent_id} is not registered with the session")


def _object_to_snapshot(agent: SessionAgent, snapshot_id: str | None) -> Objection | None:
    """Return an objection to an event that follows another snapshot than an agent's last one."""
    if snapshot_id in (None, agent.snapshot_id):
        return None
    detail = f"snapshot {snapshot_id} is not the last one of agent {agent.agent_id}, {agent.snapshot_id}"
    return Objection("broken_chain", detail)


def _within_size(judged: AgentJudgement, arrival: Arrival) -> AgentJudgement | Objection:
    return object_to_row_size(arrival.child_key or b"", judged.after, arrival) or judged
