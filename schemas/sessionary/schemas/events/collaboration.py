"""Events of collaboration: agents of one session, and transactions on its state."""

from typing import NamedTuple


class AgentRegistered(NamedTuple):
    """An agent joins the session."""

    role: str


class AgentTaskUpdated(NamedTuple):
    """An agent's task changes."""

    task: str | None
    completed: bool
    from_snapshot_id: str | None = None
    to_snapshot_id: str | None = None


class ContextSynced(NamedTuple):
    """Context was passed from one agent to another."""

    from_agent_id: str
    to_agent_id: str
    sync_type: str
    shared_json: str | None = None


class TxnBegun(NamedTuple):
    """A transaction on the session's state begins."""

    txn_id: str
    base_version: int


class TxnCommitted(NamedTuple):
    """A transaction on the session's state is committed."""

    txn_id: str
    base_version: int
    new_version: int
    changes_json: str


class TxnRolledBack(NamedTuple):
    """A transaction on the session's state is rolled back; its changes are dropped."""

    txn_id: str
    reason: str | None = None
