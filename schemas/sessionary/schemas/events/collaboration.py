"""Events of collaboration: agents of one session."""

from typing import NamedTuple


class AgentRegistered(NamedTuple):
    """An agent joins the session.

    Attributes:
        role: What the agent does, and so what it sees: researcher, analyzer, writer, or any other.
        agent_id: The agent that joins; None: the one that sends.
        service_id: The agent's service, a member of the session from then on; None: the one that
            sends.
        as_operator: An operator registers the agent.
    """

    role: str
    agent_id: str | None = None
    service_id: str | None = None
    as_operator: bool = False


class AgentTaskUpdated(NamedTuple):
    """An agent's task changes.

    Attributes:
        task: The task that is the agent's from now on, or that it completed; None: its current one.
        completed: The task is done.
        from_snapshot_id: The agent's last snapshot, as the sender knows it.
        to_snapshot_id: The new one; None: it has the event's id.
        agent_id: The agent; None: the one that sends.
        result_json: What the agent shares of the task; a larger one is an artifact.
        artifact_id: The artifact that has the result.
        shared_key: The key under which the result is shared; None: the agent's id, `_` and the
            task.
    """

    task: str | None
    completed: bool
    from_snapshot_id: str | None = None
    to_snapshot_id: str | None = None
    agent_id: str | None = None
    result_json: str | None = None
    artifact_id: str | None = None
    shared_key: str | None = None


class ContextSynced(NamedTuple):
    """Context was passed from one agent to another.

    Attributes:
        from_agent_id: The giver.
        to_agent_id: The taker.
        sync_type: Why, for programs: `handoff`, or any other.
        shared_json: What is passed beside the shared results.
        from_snapshot_id: The giver's snapshot that is handed over; None: its last one.
    """

    from_agent_id: str
    to_agent_id: str
    sync_type: str
    shared_json: str | None = None
    from_snapshot_id: str | None = None
