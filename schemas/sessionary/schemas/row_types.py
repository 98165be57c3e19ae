"""Small records that rows of sessions, agents and quotas have (`avro/common/*.avsc`)."""

from typing import NamedTuple

from sessionary.schemas.enums import CheckpointKind, QuotaClaimState, QuotaName, QuotaStep


class RunQuota(NamedTuple):
    """A run's claim to a slot of its tenant's quota.

    Attributes:
        offset: Of the event that asked; with session and run it names the claim.
        event_type: Type of that event: what the grant lets happen.
        event_id: Its id.
        granted: Whether the run has the slot; else it waits.
    """

    offset: int
    event_type: str
    event_id: str
    granted: bool


class QuotaClaim(NamedTuple):
    """A claim to a tenant's quota that has not ended."""

    session_id: str
    run_id: str
    offset: int  # Of the event that asked, in its session's partition
    state: QuotaClaimState


class Checkpoint(NamedTuple):
    """The last checkpoint of a run: how far it got. What it holds is in its event.

    Attributes:
        checkpoint_id: Its id.
        operation: What the run was doing.
        at: When it was saved, ms of log time.
        kind: What the run has reached, if it is one of the usual points.
        stage: The operation's stage.
        processed_count: Items done.
        last_item_id: The last of them.
        bytes_written: Bytes written.
    """

    checkpoint_id: str
    operation: str
    at: int
    kind: CheckpointKind | None = None
    stage: str | None = None
    processed_count: int | None = None
    last_item_id: str | None = None
    bytes_written: int | None = None


class OpenRun(NamedTuple):
    """A run of a session that has not finished."""

    run_id: str
    detached: bool


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


__all__ = [
    "AgentHandover",
    "Checkpoint",
    "OpenRun",
    "QuotaClaim",
    "QuotaClaimState",
    "QuotaName",
    "QuotaStep",
    "RunQuota",
    "SessionAgent",
    "SharedResult",
]
