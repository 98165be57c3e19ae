"""What an agent of a session sees of the others, by the roles in the session's row.

A researcher begins, so it sees nothing and depends on none. An analyzer sees what researchers
share. A writer, and an agent of any other role, sees everything; a writer depends on all others.
What is said of an agent follows from its role, never from the name of a key.
"""

from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple

from sessionary.schemas.records import AgentState, SessionState
from sessionary.schemas.types import SessionAgent, SharedResult

RESEARCHER: Final = "researcher"
ANALYZER: Final = "analyzer"
WRITER: Final = "writer"


def sees_results_of(role: str, author_role: str) -> bool:
    """Return whether an agent with a role sees what an agent with another role shares."""
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
    """What an agent sees.

    `shared_context` is the memory that all agents shared when the agent's last snapshot was made,
    by key; of a result that was replaced since, it has nothing.
    """

    row: AgentState
    shared_context: Mapping[str, SharedResult]
    results: Sequence[tuple[AgentState, SharedResult]]  # with their authors, in the order of sharing
    dependencies: Sequence[str]


def view_of(agent_id: str, agents: Sequence[SessionAgent], rows: Sequence[AgentState]) -> SeenByAgent | None:
    """Return what an agent sees; None if it is not registered.

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
    """Return whether a service may change a session's content: it owns it, or has an agent."""
    return service_id == row.owner_service or any(agent.service_id == service_id for agent in row.agents)
