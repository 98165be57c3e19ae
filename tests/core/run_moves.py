"""What random agents send of runs, steps, reserved tool calls, artifacts and conversations.

Mostly it is what fits the state of the run, step, call or artifact.
"""

from collections.abc import Callable, Sequence
from random import Random
from typing import Any, NamedTuple

from sessionary.schemas.events import PAYLOADS
from sessionary.schemas.ids import SessionKey, agent_key, artifact_key, call_key, run_key, step_key
from sessionary.schemas.records import SessionState
from sessionary.schemas.types import ErrorInfo
from tests.support.event_factory import snapshot

WORK = ["session_activity", "progress_reported", "message_appended", "usage_recorded", "tool_call_succeeded"]
ERRORS = [ErrorInfo(kind, "e", "e") for kind in ("retryable", "retryable", "retryable", "fatal", "UNKNOWN")]
RUN_IDS = ("r1", "r2", "r3")
RUN_TYPES = sorted(name for name in PAYLOADS if name.startswith(("run_", "plan_")))
RUN_MOVES = {
    "": ("run_started", "run_started", "run_started", "run_queued", "run_rejected"),
    "queued": ("run_started", "run_started", "run_cancelled"),
    "started": ("run_running", "run_running", "run_running", "run_cancelled", "plan_recorded"),
    "running": (
        *("run_running", "run_paused", "run_completed", "run_failed", "run_failed", "run_cancelled"),
        *("plan_recorded", "plan_replaced", *WORK, *WORK),
    ),
    "paused": ("run_resumed", "run_resumed", "run_resumed", "run_failed", "run_cancelled", *WORK),
    "failed": ("run_resumed", "run_resumed", "run_resumed", "run_started"),
}
RUN_FIELDS: dict[str, dict[str, list[Any]]] = {
    "run_queued": {"mode": ["attached", "detached", "detached", "UNKNOWN"]},
    "run_started": {"mode": ["attached", "detached", "detached", "UNKNOWN"], "plan_json": [None, None, "[]"]},
    "run_running": {"progress": [None, None, 0.0, 0.5, 1.0, 1.5, -0.1]},
    "run_failed": {"error": ERRORS},
}

STEP_MOVES = {
    "": (*["step_started"] * 5, "step_skipped"),
    "running": (*["step_succeeded", "step_failed"] * 3, "step_started"),
    "succeeded": ("step_skipped", "step_skipped", "step_started"),
    "failed": (*["step_started"] * 4, "step_succeeded"),
    "skipped": ("step_skipped", "step_started"),
}
CALL_MOVES = {
    "": (*["tool_call_started"] * 7, "tool_call_succeeded", "tool_call_resolved"),
    "running": ("tool_call_succeeded", "tool_call_failed", "tool_call_failed", "tool_call_started"),
    "succeeded": ("tool_call_started", "tool_call_started", "tool_call_failed", "tool_call_resolved"),
    "failed": (*["tool_call_started"] * 4, "tool_call_succeeded"),
    "unknown": ("tool_call_started", "tool_call_succeeded", "tool_call_failed", *["tool_call_resolved"] * 3),
}
ARTIFACT_MOVES = {
    "": (*["artifact_created"] * 7, "artifact_chunk_appended", "artifact_completed"),
    "open": (
        *(*["artifact_chunk_appended"] * 4, *["artifact_completed"] * 4),
        *("artifact_created", "artifact_soft_deleted", "artifact_purged"),
    ),
    "complete": (
        *("artifact_completed", "artifact_completed", "artifact_created", "artifact_chunk_appended"),
        *("artifact_soft_deleted", "artifact_soft_deleted", "artifact_purged"),
    ),
    "soft_deleted": ("artifact_purged", "artifact_purged", "artifact_soft_deleted", "artifact_created"),
    "purged": ("artifact_purged", "artifact_created", "artifact_soft_deleted"),
}
PLAIN_CALL = {"idem_key": ["", "tool_call_id ü"]}  # no reserved one: the second is the id that examples have
PLAIN_CALLS = {name: PLAIN_CALL for name in PAYLOADS if name.startswith("tool_call_")}
LONG = '"' + "x" * 1_200 + '"'  # such content is apart from its row
# The last content is too long.
MESSAGES: dict[str, dict[str, list[Any]]] = {
    "message_appended": {"content": [*["hello"] * 12, None, LONG, "x" * 16_385]}
}
HASHES = (*["a" * 64] * 8, "b" * 64, "A" * 64, "a" * 63)
LIMITS_MS = (*[None] * 4, *[1, 900, 2_500, 7_000] * 3, 30_000, 10**13, 0, 10**13 + 1)
CHILD_FIELDS: dict[str, dict[str, tuple[Any, ...]]] = {
    "step_started": {"input_json": (None, "{}", LONG), "limit_ms": (*LIMITS_MS, *[None] * 8)},
    "step_succeeded": {"output_json": (None, "{}", "{}", "[1]", LONG)},
    "step_failed": {"error": tuple(ERRORS)},
    "tool_call_started": {"side_effect": (True, True, False), "queryable": (True, False), "limit_ms": LIMITS_MS},
    "tool_call_succeeded": {"result_json": (None, "{}", LONG), "artifact_id": (None, "a1")},
    "tool_call_failed": {"error": tuple(ERRORS)},
    "artifact_created": {"artifact_type": (*["json"] * 5, "text"), "uri": (*["file:///f"] * 5, "file:///g")},
    "artifact_chunk_appended": {"length": (0, 5, 10)},
    "artifact_completed": {"sha256": HASHES},
    "tool_call_resolved": {
        "outcome": (*["succeeded", "failed"] * 3, "UNKNOWN"),
        "result_json": (None, "[2]", LONG),
        "resolved_by": ("ops", "a query"),
    },
}


# The way of a child from its first event to its last; random events rarely walk it to its end.
_DONE: dict[str, Any] = {"task": "write", "completed": True, "result_json": "1"}
AGENT_WAY: list[tuple[str, dict[str, Any]]] = [
    ("agent_registered", {"role": "writer"}),
    ("agent_task_updated", {"task": "write", "completed": False}),
    ("agent_task_updated", _DONE),
    ("agent_task_updated", _DONE),
]
ARTIFACT_WAY: list[tuple[str, dict[str, Any]]] = [
    ("artifact_created", {"artifact_type": "json", "uri": "file:///own"}),
    ("artifact_chunk_appended", {"offset": 0, "length": 9}),
    ("artifact_completed", {"size_bytes": 9, "sha256": "c" * 64}),
    ("artifact_soft_deleted", {}),
    ("artifact_purged", {}),
]
_OWN_CALL: dict[str, Any] = {"tool_call_id": "own", "tool_name": "order", "try_number": 1}
_OWN_START = {**_OWN_CALL, "side_effect": True, "queryable": False, "limit_ms": None}
CALL_WAY: list[tuple[str, dict[str, Any]]] = [
    ("tool_call_started", _OWN_START),
    ("tool_call_started", _OWN_START),
    ("tool_call_succeeded", {**_OWN_CALL, "result_json": "{}"}),
    ("tool_call_started", {**_OWN_START, "try_number": 2}),
]


class ChildMove(NamedTuple):
    """An event of a child: its type, its fields, and fields of its envelope."""

    event_type: str
    fields: dict[str, Any]
    marks: dict[str, Any]


def draw_child_event(
    rng: Random, key: SessionKey, row_of: Callable[[bytes], Any], run_ids: Sequence[str] = RUN_IDS
) -> ChildMove:
    """Return an event of a step, call or artifact, mostly of a run that is at work.

    `key` is the session's; `row_of` returns a row by its key, None if there is none.
    """
    states = {run_id: getattr(row_of(run_key(*key, run_id)), "state", "") for run_id in run_ids}
    working = [run_id for run_id, state in states.items() if state in ("started", "running", "paused")]
    run_id: str | None = rng.choice(working if working and rng.random() < 0.9 else run_ids)
    kind = rng.choices(("step", "call", "artifact"), (30, 50, 20))[0]
    if rng.random() < (0.02 if kind == "step" else 0.25):
        run_id = None
    parent = key.encoded() if run_id is None else run_key(*key, run_id)
    draw = {"step": draw_step_event, "call": draw_call_event, "artifact": draw_artifact_event}[kind]
    event_type, fields = draw(rng, parent, row_of)
    drawn = {name: rng.choice(options) for name, options in CHILD_FIELDS.get(event_type, {}).items()}
    marks = {"run_id": run_id, "step_id": rng.choice((None, "step-1")), "actor": rng.choice((None, None, "ops"))}
    return ChildMove(event_type, {**drawn, **fields}, marks)


def draw_agent_event(rng: Random, key: SessionKey, row_of: Callable[[bytes], Any]) -> ChildMove:
    """Return an event of one of a session's agents, mostly one that fits.

    `key` is the session's; `row_of` returns a row by its key, None if there is none.
    """
    names = ("a1", "a2", "a3", "a4")
    agent_id = rng.choice(names)
    known, chance = row_of(agent_key(key.encoded(), agent_id)), rng.random()
    if chance < (0.1 if known is not None else 0.8):
        role = rng.choice(("researcher", "analyzer", "writer")) if known is None or chance < 0.02 else known.role
        service_id = rng.choice((None, None, "guests", "a b")) if known is None else known.service_id
        fields = {"role": role, "agent_id": agent_id, "service_id": service_id, "as_operator": rng.random() < 0.3}
        return ChildMove("agent_registered", fields, {})
    last = getattr(known, "snapshot_id", None)
    snapshot_id = last if rng.random() < 0.9 else rng.choice((None, "other"))
    if chance < 0.25:
        synced = {"from_agent_id": rng.choice(names), "to_agent_id": agent_id, "sync_type": "handoff"}
        return ChildMove("context_synced", {**synced, "from_snapshot_id": rng.choice((None, None, last))}, {})
    updated = {
        "agent_id": agent_id,
        "task": rng.choice((None, *(f"task-{number}" for number in range(4)))),
        "completed": rng.random() < 0.5,
        "from_snapshot_id": snapshot_id,
        "to_snapshot_id": rng.choice((None, f"to-{rng.randrange(1_000_000)}")),
        "result_json": rng.choice((None, "1", "2", LONG)),
        "artifact_id": rng.choice((None, None, "f1")),
        "shared_key": rng.choice((None, None, None, "report")),
    }
    return ChildMove("agent_task_updated", updated, {})


def draw_point_event(rng: Random, row: SessionState) -> ChildMove:
    """Return a checkpoint, snapshot, rollback or step of a transaction; `row`: the session."""
    kind = rng.choice(("checkpoint_saved", "snapshot_created", "session_rolled_back", *["txn"] * 4))
    base = row.version + rng.choice((0, 0, 0, 0, 1, -1))
    versions = {"base_version": base, "new_version": base + rng.choice((1, 1, 1, 1, 2))}
    if kind == "checkpoint_saved":
        data = rng.choice(("[1]", LONG, '"' + "x" * 60_000 + '"', None))
        fields = {"checkpoint_id": f"c{rng.randrange(10**6)}", "operation": rng.choice(("parse", "write"))}
        return ChildMove(kind, {**fields, "data_json": data, "processed_count": rng.choice((None, 5))}, {})
    if kind == "snapshot_created":
        return ChildMove(kind, {"snapshot": snapshot(f"s{rng.randrange(6)}", rng.choice(("{}", '{"a": 1}')))}, {})
    if kind == "session_rolled_back":
        target = rng.choice((row.snapshot.snapshot_id, *(f"s{number}" for number in range(6))))
        brought = {"state_json": rng.choice((None, '{"c": 3}')), "reason": rng.choice((None, "a mistake"))}
        return ChildMove(kind, {"snapshot_id": target, **versions, **brought}, {})
    open_ones = [each.transaction_id for each in row.transactions]
    if not open_ones or rng.random() < 0.4:
        return ChildMove(
            "txn_begun", {"transaction_id": rng.choice(("", *(f"t{rng.randrange(99)}" for _ in "123456")))}, {}
        )
    name = {"transaction_id": rng.choice((*open_ones, *open_ones, "t0"))}
    if rng.random() < 0.3:
        return ChildMove("txn_rolled_back", {**name, "reason": rng.choice((None, "no"))}, {})
    return ChildMove("txn_committed", {**name, **versions, "state_json": rng.choice(("{}", '{"b": 2}'))}, {})


def draw_step_event(rng: Random, run: bytes, row_of: Callable[[bytes], Any]) -> tuple[str, dict[str, Any]]:
    """Return type and fields of an event of a step; `run` is its run's key."""
    name = rng.choice(("search", "answer"))
    known = row_of(step_key(run, name))
    event_type = _draw_type(rng, STEP_MOVES, known, "running")
    if event_type == "step_skipped":
        return event_type, {"name": name}
    last = 0 if known is None else known.attempt
    return event_type, {"name": name, "attempt": _draw_number(rng, last + (event_type == "step_started"))}


def draw_call_event(rng: Random, parent: bytes, row_of: Callable[[bytes], Any]) -> tuple[str, dict[str, Any]]:
    """Return type and fields of an event of a call; `parent` is its run's key, or its session's."""
    idem_key = rng.choice(("k1", "k2", "k3"))
    known = row_of(call_key(parent, idem_key))
    event_type = _draw_type(rng, CALL_MOVES, known, "running")
    tool_name = "query" if rng.random() < 0.95 else "order"
    fields = {"tool_call_id": f"call-{idem_key}", "idem_key": idem_key, "tool_name": tool_name}
    if event_type == "tool_call_resolved":
        return event_type, fields
    last = 0 if known is None else known.try_number
    return event_type, fields | {"try_number": _draw_number(rng, last + (event_type == "tool_call_started"))}


def draw_artifact_event(rng: Random, parent: bytes, row_of: Callable[[bytes], Any]) -> tuple[str, dict[str, Any]]:
    """Return type and fields of an event of an artifact; `parent` is the key of its parent."""
    artifact_id = rng.choice(("f1", "f2"))
    known = row_of(artifact_key(parent, artifact_id))
    event_type = _draw_type(rng, ARTIFACT_MOVES, known)
    fields: dict[str, Any] = {"artifact_id": artifact_id}
    size = 0 if known is None else known.size_bytes
    if event_type == "artifact_chunk_appended":
        fields["offset"] = 0 if rng.random() < 0.1 else _draw_number(rng, size)
    elif event_type == "artifact_completed":
        fields["size_bytes"] = _draw_number(rng, size)
    return event_type, fields


def _draw_type(rng: Random, moves: dict[str, tuple[str, ...]], known: Any, state: str = "") -> str:
    """Return a type of event; `state` is that of rows that do not say theirs."""
    if rng.random() < 0.1:
        return rng.choice(sorted({name for names in moves.values() for name in names}))
    return rng.choice(moves["" if known is None else getattr(known, "state", state)])


def _draw_number(rng: Random, right: int) -> int:
    return right if rng.random() < 0.93 else max(0, right + rng.choice((-1, 1, 5)))


def draw_run_event(rng: Random, known: Any) -> tuple[str, dict[str, Any]]:
    """Return type and fields of an event for a run; `known` is its row, None if there is none."""
    moves = RUN_MOVES.get(getattr(known, "state", ""), RUN_MOVES[""])
    event_type = rng.choice(moves) if rng.random() < 0.85 else rng.choice(RUN_TYPES)
    drawn = {name: rng.choice(options) for name, options in RUN_FIELDS.get(event_type, {}).items()}
    mode = getattr(known, "mode", None)  # a tombstone has none
    if "mode" in drawn and mode is not None and rng.random() < 0.7:
        drawn["mode"] = mode
    return event_type, drawn


def draw_run_marks(rng: Random, run_id: str) -> dict[str, Any]:
    """Return the envelope fields of an event for a run; sometimes the run's id is missing."""
    return {
        "run_id": run_id if rng.random() < 0.97 else rng.choice((None, "")),
        "actor": rng.choice((None, None, "ops")),
    }
