"""Agent and transaction families."""

from typing import NamedTuple


class AgentRegistered(NamedTuple):
    """An agent joins the session."""

    role: str


class AgentTaskUpdated(NamedTuple):
    """An agent's task changes hands."""

    task: str | None
    completed: bool
    from_snapshot_id: str | None = None
    to_snapshot_id: str | None = None


class ContextSynced(NamedTuple):
    """Context went from one agent to another."""

    from_agent_id: str
    to_agent_id: str
    sync_type: str
    shared_json: str | None = None


class TxnBegun(NamedTuple):
    """A transaction on the session's state begins."""

    txn_id: str
    base_version: int


class TxnCommitted(NamedTuple):
    """Its changes hold."""

    txn_id: str
    base_version: int
    new_version: int
    changes_json: str


class TxnRolledBack(NamedTuple):
    """Nothing of it holds."""

    txn_id: str
    reason: str | None = None
