"""Rows of the changelog's table and of the oracle in one form, so that they can be compared."""

from typing import Any

from tests.auditor.decoding import Row
from tests.auditor.rules import DAY_MS

_SAME = (
    *("state", "phase", "epoch", "version", "audit_seq", "created_at", "entered_at", "last_event_at"),
    *("last_work_at", "max_due_at", "released_at", "error_class", "state_json", "context_exceeded"),
    *("last_tool", "last_result"),
)
SAME_OF_RUNS = (
    *("run_id", "mode", "state", "run_seq", "created_at", "entered_at", "last_event_at", "progress", "resumes"),
    "unresolved_calls",
    "checkpoint",
)
_OF_CALLS = ("run_id", "step_id", "tool_name", "idem_key", "try_number", "side_effect", "queryable", "started_at")
SAME_OF_CHILDREN = {
    "StepState": (
        *("run_id", "name", "step_id", "state", "attempt", "started_at", "entered_at", "error"),
        *("input_json", "output_json"),
    ),
    "TimedStep": (
        *("run_id", "name", "step_id", "attempt", "started_at", "due_at", "limit_ms", "input_json", "output_json"),
    ),
    "ToolCallState": (*_OF_CALLS, "due_at", "limit_ms", "reservation"),
    "ArtifactState": (
        *("run_id", "step_id", "artifact_id", "artifact_type", "uri", "state", "created_at", "entered_at"),
        *("size_bytes", "sha256", "file_name", "media_type"),
    ),
    "MessageState": ("turn", "run_id", "agent_id", "service_id", "role", "name", "at", "content", "artifact_id"),
    "AgentState": (
        *("agent_id", "role", "service_id", "registered_at", "updated_at", "snapshot_id", "shared_seen"),
        *("current_task", "completed_tasks", "shared", "handover"),
    ),
    "CheckpointState": ("run_id", "operation", "saved"),
    "EndedToolCall": (*_OF_CALLS, "state", "entered_at", "error", "resolved_by", "result_json", "artifact_id"),
}


def run_kind(run: Row) -> str:
    return "FinishedRun" if run["state"] in ("completed", "failed", "cancelled") else "RunState"


def wanted_rows(oracle: Any) -> dict[bytes, Row]:
    """Return a partition's sessions, runs and their children as its oracle has them."""
    children = {
        key: {name: child[name] for name in ("kind", *SAME_OF_CHILDREN[child["kind"]])}
        for key, child in oracle.children.items()
    }
    runs = {
        key: {"kind": run_kind(run), **{name: run[name] for name in SAME_OF_RUNS}} for key, run in oracle.runs.items()
    }
    sessions = {key: {"kind": "SessionState", **_session_summary(key, row)} for key, row in oracle.rows.items()}
    return {**sessions, **runs, **children}


def ledger_summary(producers: Row) -> dict[str, tuple[int, list[tuple[int, int]]]]:
    return {name: (ledger["last"], ledger["missing"]) for name, ledger in producers.items()}


def _session_summary(key: bytes, row: Row) -> Row:
    names = {
        "owner": row["owner"],
        "attempts": row["attempts"],
        "turns": row["turns"],
        "claim": row["claim"],
        **{name: row[name] for name in ("holder_epoch", "question", "answers", "hold", "exchanges", "turn_by")},
        "agents": [*row["agents"].values()],
        "shared_results": row["shared_results"],
        "transactions": row["transactions"],
        "producers": ledger_summary(row["producers"]),
    }
    names["open_runs"] = [name[len(key) + 1 : -1].decode() for name in row["open_runs"]]
    return {
        **{name: row[name] for name in _SAME},
        **names,
        "cleanups": row["cleanups"],
        "rejections": row["rejections"],
    }


def _people_of(fields: Row) -> Row:
    question, hold = (fields.get(name) for name in ("question", "hold"))
    asked = question and (question["question_id"], question["answer_ms"], question["text"])
    given = [tuple(answer.values()) for answer in fields.get("answers", [])]
    held = hold and tuple(hold.values())
    return {"holder_epoch": fields.get("holder_epoch", 0), "question": asked, "answers": given, "hold": held}


def found_row(kind: str, fields: Row) -> Row:
    """Return a row of the table in the oracle's form."""
    if kind in ("RunState", "FinishedRun"):
        checkpoint = fields.get("checkpoint")
        same = {name: fields.get(name, 0) for name in SAME_OF_RUNS}
        return {
            "kind": kind,
            **same,
            "checkpoint": tuple(checkpoint.values()) if isinstance(checkpoint, dict) else checkpoint,
        }
    if kind == "RunTombstone":
        return {"kind": kind, "expires_at": -(-fields["expires_at"] // DAY_MS) * DAY_MS}
    if kind == "AgentState":
        return {"kind": kind, **agent_summary(fields)}
    if kind == "CheckpointState":
        return {"kind": kind, **checkpoint_summary(fields)}
    if kind in SAME_OF_CHILDREN:
        return {"kind": kind, **{name: fields[name] for name in SAME_OF_CHILDREN[kind]}}
    ledger = {
        producer["producer_id"]: (producer["last_seq"], [tuple(gap.values()) for gap in producer["missing"]])
        for producer in fields["producers"]
    }
    if kind == "Tombstone":
        return {**fields, "kind": kind, "producers": ledger}
    return {
        **{name: fields[name] for name in _SAME},
        "kind": kind,
        "owner": fields["owner_service"],
        "attempts": fields["recovery_attempts"],
        "turns": fields.get("turns", 0),
        "claim": (claim := fields.get("quota")) and (claim["offset"], claim["granted"]),
        **_people_of(fields),
        **{name: fields.get(name, 0) for name in ("exchanges", "turn_by")},
        "agents": [tuple(agent.values()) for agent in fields.get("agents", ())],
        "shared_results": fields.get("shared_results", 0),
        "transactions": [tuple(each.values()) for each in fields.get("transactions", ())],
        "open_runs": [run["run_id"] for run in fields.get("open_runs", ())],
        "producers": ledger,
        "cleanups": {cleanup["cleanup_id"]: cleanup["released"] for cleanup in fields["cleanups"]},
        "rejections": [(rejection["offset"], rejection["reason"]) for rejection in fields["rejections"]],
    }


def agent_summary(fields: Row) -> Row:
    """Return an agent of the table in the oracle's form."""
    same = {name: fields[name] for name in SAME_OF_CHILDREN["AgentState"]}
    shared = [_values_of(result) for result in fields["shared"]]
    handover = fields["handover"]
    return same | {
        "completed_tasks": list(fields["completed_tasks"]),
        "shared": {key: tuple(rest) for key, *rest in shared},
        "handover": handover if handover is None else _values_of(handover),
    }


def checkpoint_summary(fields: Row) -> Row:
    """Return an operation's checkpoints of the table in the oracle's form."""
    return {**{name: fields[name] for name in ("run_id", "operation")}, "saved": [*map(_values_of, fields["saved"])]}


def _values_of(record: Any) -> tuple[Any, ...]:
    return tuple(record.values()) if isinstance(record, dict) else tuple(record)
