"""Agents of a session: their view of the others, the judgement of their events, and their rows.

A researcher begins, so it sees nothing and depends on none. An analyzer sees what researchers
share. A writer, and an agent of any other role, sees everything; a writer depends on all others.
All rules for an agent follow from its role, never from the name of a key.

A row holds an agent's tasks and what it shares; it has no clock, and vanishes with its session.
"""

from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple

from sessionary.schemas.codec import Event, encode_record, record_headers
from sessionary.schemas.enums import known_role
from sessionary.schemas.events import AgentRegistered, AgentTaskUpdated, ContextSynced
from sessionary.schemas.ids import agent_key, event_snapshot_id, valid_name
from sessionary.schemas.limits import AGENTS_MAX, RESULT_CHARACTERS_MAX
from sessionary.schemas.records import AgentState, SessionState
from sessionary.schemas.types import AgentHandover, SessionAgent, SharedResult
from sessionary.stream_processors.core.family import (
    ChildFamily,
    Judged,
    SessionArrival,
    UnclockedRows,
    object_to_row_size,
    object_to_snapshot_id,
)
from sessionary.stream_processors.core.judge import Objection
from sessionary.stream_processors.core.rows import RowKind

AGENT_PAYLOADS: Final = (AgentRegistered, AgentTaskUpdated, ContextSynced)
RESEARCHER: Final = "researcher"
ANALYZER: Final = "analyzer"
WRITER: Final = "writer"


def sees_results_of(role: str, author_role: str) -> bool:
    """Return whether an agent with a role sees the results of an agent with another role."""
    if role == RESEARCHER:
        return False
    return role != ANALYZER or author_role == RESEARCHER


def dependencies_of(agent: SessionAgent, agents: Sequence[SessionAgent]) -> list[str]:
    """Return the ids of the agents that an agent depends on, in the order of registration."""
    if agent.role == ANALYZER:
        return [other.agent_id for other in agents if other.role == RESEARCHER]
    if agent.role == WRITER:
        return [other.agent_id for other in agents if other.agent_id != agent.agent_id]
    return []


class SeenByAgent(NamedTuple):
    """The part of the session that an agent sees.

    `shared_context` is the memory that all agents shared when the agent's last snapshot was made,
    by key; it lacks results that were replaced since.
    """

    row: AgentState
    shared_context: Mapping[str, SharedResult]
    results: Sequence[tuple[AgentState, SharedResult]]  # with their authors, in the order of sharing
    dependencies: Sequence[str]


def view_of(agent_id: str, agents: Sequence[SessionAgent], rows: Sequence[AgentState]) -> SeenByAgent | None:
    """Return the part of the session that an agent sees; None if the agent is not registered.

    `agents` are those of the session's row, `rows` the rows of all of them.
    """
    agent = next((each for each in agents if each.agent_id == agent_id), None)
    row = next((each for each in rows if each.agent_id == agent_id), None)
    if agent is None or row is None:
        return None
    shared = [(author, result) for author in rows for result in author.shared]
    shared.sort(key=lambda pair: pair[1].number)
    context = {result.key: result for _, result in shared if result.number <= row.shared_seen}
    seen = [(author, result) for author, result in shared if sees_results_of(agent.role, author.role)]
    return SeenByAgent(row, context, seen, dependencies_of(agent, agents))


def find_agent(row: SessionState, agent_id: str) -> SessionAgent | None:
    """Return an agent of a session; None if it is not registered."""
    return next((agent for agent in row.agents if agent.agent_id == agent_id), None)


def is_member(row: SessionState, service_id: str) -> bool:
    """Return whether a service may change a session's content: as its owner, or by an agent."""
    return service_id == row.owner_service or any(agent.service_id == service_id for agent in row.agents)


class AgentKept(NamedTuple):
    """An agent joined the session or made a snapshot; so many results are shared now."""

    agent: SessionAgent
    shared_results: int

    def apply(self, row: SessionState) -> SessionState:
        """Return the session with the agent's entry."""
        agents = tuple(self.agent if known.agent_id == self.agent.agent_id else known for known in row.agents)
        if self.agent not in agents:
            agents = (*agents, self.agent)
        return row._replace(agents=agents, shared_results=self.shared_results)


def judge_agent(session: SessionState, event: Event, arrival: SessionArrival) -> Judged | Objection:
    """Judge an event against `arrival.child`.

    registration:   names ─▶ repetition ─▶ number of agents ─▶ size
    others:         agent ─▶ sender ─▶ snapshot ─▶ length ─▶ task ─▶ size
    """
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
    session: SessionState, event: Event, payload: AgentRegistered, arrival: SessionArrival
) -> Judged | Objection:
    agent_id = named_agent(event)
    service_id = event.envelope.service_id if payload.service_id is None else payload.service_id
    for what, name in (("agent_id", agent_id), ("service_id", service_id)):
        if not valid_name(name):
            return Objection("invalid_value", f"{what} {name!r} is no name")
    if not payload.role:
        return Objection("invalid_value", f"agent {agent_id} has no role")
    # `other`: its sender may be older than this list of roles.
    if payload.known_role not in ("UNKNOWN", "other", known_role(payload.role)):
        return Objection("invalid_value", f"agent {agent_id} has the role {payload.role}, not {payload.known_role}")
    known = find_agent(session, agent_id)
    if known is not None:  # a client that died does not know what arrived
        if (known.role, known.service_id) == (payload.role, service_id):
            return Judged(None)
        return Objection("invalid_value", f"agent {agent_id} is registered as {known.role} of {known.service_id}")
    if len(session.agents) >= AGENTS_MAX:
        return Objection("too_many_agents", f"the session has {AGENTS_MAX} agents, which is the most")
    snapshot_id, now_ms = event_snapshot_id(event.envelope.event_id), arrival.now_ms
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
    return _within_size(after, AgentKept(agent, session.shared_results), arrival)


def _update_task(
    session: SessionState,
    agent: SessionAgent,
    row: AgentState,
    event: Event,
    payload: AgentTaskUpdated,
    arrival: SessionArrival,
) -> Judged | Objection:
    sender = event.envelope.service_id
    if sender not in (agent.service_id, session.owner_service):
        return Objection("not_member", f"agent {agent.agent_id} is {agent.service_id}'s, not {sender}'s")
    if objection := _object_to_snapshot(agent, payload.from_snapshot_id):
        return objection
    named = payload.to_snapshot_id
    snapshot_id = event_snapshot_id(event.envelope.event_id) if named is None else named
    if (objection := object_to_snapshot_id(snapshot_id)) is not None:
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
    after = row._replace(
        updated_at=arrival.now_ms,
        snapshot_id=snapshot_id,
        shared_seen=count,
        current_task=current,
        completed_tasks=completed,
        shared=shared,
    )
    return _within_size(after, AgentKept(agent._replace(snapshot_id=snapshot_id), count), arrival)


def _hand_over(
    session: SessionState,
    agent: SessionAgent,
    row: AgentState,
    event: Event,
    payload: ContextSynced,
    arrival: SessionArrival,
) -> Judged | Objection:
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
    return _within_size(row._replace(handover=handover), AgentKept(agent, session.shared_results), arrival)


def _unknown(agent_id: str) -> Objection:
    return Objection("unknown_agent", f"agent {agent_id} is not registered with the session")


def _object_to_snapshot(agent: SessionAgent, snapshot_id: str | None) -> Objection | None:
    """Return an objection to an event that follows another snapshot than an agent's last one."""
    if snapshot_id in (None, agent.snapshot_id):
        return None
    detail = f"snapshot {snapshot_id} is not the last one of agent {agent.agent_id}, {agent.snapshot_id}"
    return Objection("broken_chain", detail)


def _within_size(after: AgentState, kept: AgentKept, arrival: SessionArrival) -> Judged | Objection:
    too_large = object_to_row_size("agent", arrival.child_key or b"", after, arrival)
    return too_large or Judged(after, (kept,))


def named_agent(event: Event) -> str:
    """Return the id of an event's agent; for a hand-over, the taker's id."""
    payload = event.payload
    if isinstance(payload, ContextSynced):
        return payload.to_agent_id
    assert isinstance(payload, AGENT_PAYLOADS)
    return event.envelope.agent_id if payload.agent_id is None else payload.agent_id


def _key_of(event: Event, session: bytes, run: bytes, row: object) -> bytes | None:
    return agent_key(session, named_agent(event))


_KIND: Final = RowKind(AgentState, live=False, prefixes=record_headers(AgentState), encode=encode_record, is_child=True)
AGENTS: Final = ChildFamily(UnclockedRows("agent", (_KIND,)), AGENT_PAYLOADS, _key_of, judge_agent)
