"""The changelog's records of artifacts, of the turns of a conversation, and of agents."""

from collections.abc import Sequence
from typing import NamedTuple

from sessionary.schemas.parts.agent import AgentHandover, SharedResult
from sessionary.schemas.types import ArtifactStateName


class ArtifactState(NamedTuple):
    """An artifact of a run or a session, with which it vanishes; its body is elsewhere."""

    tenant_id: str
    session_id: str
    run_id: str | None  # None if the artifact belongs to the session
    step_id: str | None  # As its first event's envelope has it
    artifact_id: str  # Unique in its run, or in its session if it is of no run
    artifact_type: str
    uri: str  # Where the body is
    state: ArtifactStateName
    created_at: int  # Log time, ms; so are all times here
    entered_at: int  # When this state was entered
    size_bytes: int  # Of the chunks so far, or of the complete body
    sha256: str | None  # Of the complete body, in 64 hex digits


class MessageState(NamedTuple):
    """A turn of a session's conversation; a later turn takes its row."""

    tenant_id: str
    session_id: str
    turn: int  # From 1, in the order of the log
    run_id: str | None  # As its event's envelope has it
    agent_id: str
    service_id: str  # Whose agent sent it
    role: str
    name: str | None
    at: int  # Log time, ms
    content: str | None = None
    artifact_id: str | None = None
    content_apart: bool = False  # The two fields before are in a MessageContent, and None here


class MessageContent(NamedTuple):
    """A turn's content, if it is large; a record of its own beside the turn's row."""

    content: str | None
    artifact_id: str | None


class AgentState(NamedTuple):
    """An agent of a session: its tasks and what it shares. It vanishes with its session."""

    tenant_id: str
    session_id: str
    agent_id: str  # Unique in its session
    role: str
    service_id: str
    registered_at: int  # Log time, ms; so are all times here
    updated_at: int  # When the last snapshot was made
    snapshot_id: str  # The last snapshot: each change of the tasks makes one
    shared_seen: int  # How many results the session's agents had shared by the last snapshot
    current_task: str | None = None
    completed_tasks: Sequence[str] = ()  # In the order of their completion
    shared: Sequence[SharedResult] = ()  # What this agent shares; oldest first
    handover: AgentHandover | None = None  # The last one that it got
