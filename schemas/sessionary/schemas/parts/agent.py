"""Agents of a session, and what they share (`avro/common/*.avsc`)."""

from typing import NamedTuple


class SessionAgent(NamedTuple):
    """An agent of a session, as the session's row has it."""

    agent_id: str
    role: str
    service_id: str  # A member of the session by that
    snapshot_id: str  # The last one of the agent's state


class SharedResult(NamedTuple):
    """A result that an agent shares with the other agents of its session."""

    key: str
    task: str
    number: int  # From 1, in the order in which the session's agents shared
    at: int  # Log time, ms
    result_json: str | None = None
    artifact_id: str | None = None


class AgentHandover(NamedTuple):
    """What an agent got from another one of its session."""

    from_agent_id: str
    from_snapshot_id: str  # The giver's snapshot
    sync_type: str
    at: int  # Log time, ms
