"""The oracle's model of the agents of a session: what their events make of them."""

import hashlib
import re

from tests.auditor.decoding import Rejection, Row
from tests.auditor.snapshot_model import check_id

AGENT_TYPES = ("agent_registered", "agent_task_updated", "context_synced")
# What only the owning service and those of registered agents may send.
OF_MEMBERS = (
    *("state_updated", "snapshot_created", "checkpoint_saved"),
    *("txn_begun", "txn_committed", "txn_rolled_back"),
)
AGENTS_MAX = 64
RESULT_MAX = 16_384
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}")


def agent_named(kind: str, envelope: Row, fields: Row) -> str:
    """Return the id of the agent whose row an event changes."""
    named = fields["to_agent_id"] if kind == "context_synced" else fields.get("agent_id")
    return str(envelope["agent_id"] if named is None else named)


def is_stranger(row: Row, kind: str, envelope: Row, fields: Row) -> bool:
    """Tell whether an event is not its service's to send, as its service is no member."""
    service = envelope["service_id"]
    if service == row["owner"]:
        return False
    if kind == "agent_registered":
        return not fields.get("as_operator", False)
    return kind in OF_MEMBERS and service not in {agent[2] for agent in row["agents"].values()}


def next_agent(agent: Row | None, row: Row, kind: str, envelope: Row, fields: Row, now: int) -> Row:
    """Return an agent after an event of it; raises `Rejection`. `row` is its session."""
    name = agent_named(kind, envelope, fields)
    if kind == "agent_registered":
        return _registered(agent, row, name, envelope, fields, now)
    if agent is None:
        raise Rejection("unknown_agent")
    if kind == "context_synced":
        return _handed_over(agent, row, envelope, fields, now)
    if envelope["service_id"] not in (row["owner"], agent["service_id"]):
        raise Rejection("not_member")
    if fields["from_snapshot_id"] not in (None, agent["snapshot_id"]):
        raise Rejection("broken_chain")
    snapshot_id = _made_by(envelope) if fields["to_snapshot_id"] is None else fields["to_snapshot_id"]
    check_id(snapshot_id)
    result, artifact = fields.get("result_json"), fields.get("artifact_id")
    if result is not None and len(result) > RESULT_MAX:
        raise Rejection("invalid_value")
    task = agent["current_task"] if fields["task"] is None else fields["task"]
    if not task:
        raise Rejection("invalid_value")
    done, current = list(agent["completed_tasks"]), agent["current_task"]
    if task in done:
        raise Rejection("task_done")
    if not fields["completed"] and current and current != task:
        done.append(current)
    if fields["completed"]:
        done.append(task)
        current = None if current == task else current
    else:
        current = task
    count, shared = row["shared_results"], dict(agent["shared"])
    if result is not None or artifact is not None:
        key, count = fields.get("shared_key"), count + 1
        key = f"{name}_{task}" if key is None else key
        shared.pop(key, None)
        shared[key] = (task, count, now, result, artifact)
    return agent | {
        "updated_at": now,
        "snapshot_id": snapshot_id,
        "shared_seen": count,
        "current_task": current,
        "completed_tasks": done,
        "shared": shared,
    }


def _made_by(envelope: Row) -> str:
    return f"snap_{hashlib.sha256(envelope['event_id'].encode()).hexdigest()[:12]}"


def _registered(agent: Row | None, row: Row, name: str, envelope: Row, fields: Row, now: int) -> Row:
    named = fields.get("service_id")
    service = envelope["service_id"] if named is None else named
    if not _NAME.fullmatch(name) or not _NAME.fullmatch(service) or not fields["role"]:
        raise Rejection("invalid_value")
    known = fields["role"] if fields["role"] in ("researcher", "analyzer", "writer") else "other"
    if fields.get("known_role", "UNKNOWN") not in ("UNKNOWN", "other", known):
        raise Rejection("invalid_value")
    if agent is not None:
        if (agent["role"], agent["service_id"]) != (fields["role"], service):
            raise Rejection("invalid_value")
        return agent
    if len(row["agents"]) == AGENTS_MAX:
        raise Rejection("too_many_agents")
    return {
        **{name: row[name] for name in ("tenant", "session")},
        "kind": "AgentState",
        "agent_id": name,
        "role": fields["role"],
        "service_id": service,
        "registered_at": now,
        "updated_at": now,
        "snapshot_id": _made_by(envelope),
        "shared_seen": row["shared_results"],
        "current_task": None,
        "completed_tasks": [],
        "shared": {},
        "handover": None,
        "state": "",
    }


def _handed_over(agent: Row, row: Row, envelope: Row, fields: Row, now: int) -> Row:
    giver = row["agents"].get(fields["from_agent_id"])
    if giver is None:
        raise Rejection("unknown_agent")
    if fields["from_agent_id"] == agent["agent_id"]:
        raise Rejection("invalid_value")
    if envelope["service_id"] not in (row["owner"], giver[2]):
        raise Rejection("not_member")
    if fields.get("from_snapshot_id") not in (None, giver[3]):
        raise Rejection("broken_chain")
    return agent | {"handover": (fields["from_agent_id"], giver[3], fields["sync_type"], now)}


def keep_agent(row: Row, agent: Row) -> None:
    """Let a session know of an agent what `next_agent` returned."""
    known = tuple(agent[name] for name in ("agent_id", "role", "service_id", "snapshot_id"))
    row["agents"][agent["agent_id"]] = known
    row["shared_results"] = max(row["shared_results"], agent["shared_seen"])
