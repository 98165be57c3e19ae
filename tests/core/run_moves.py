"""What random agents send of runs: mostly what fits a run's state, and anything else."""

from random import Random
from typing import Any

from sessionary.schemas.events import PAYLOADS
from sessionary.schemas.types import ErrorInfo

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


def draw_run_event(rng: Random, known: Any) -> tuple[str, dict[str, Any]]:
    """Return type and fields of an event for a run; `known` is its row, None if there is none."""
    moves = RUN_MOVES.get(getattr(known, "state", ""), RUN_MOVES[""])
    event_type = rng.choice(moves) if rng.random() < 0.85 else rng.choice(RUN_TYPES)
    drawn = {name: rng.choice(options) for name, options in RUN_FIELDS.get(event_type, {}).items()}
    if "mode" in drawn and known is not None and rng.random() < 0.7:
        drawn["mode"] = known.mode
    return event_type, drawn


def draw_run_marks(rng: Random, run_id: str) -> dict[str, Any]:
    """Return the envelope fields of an event for a run; sometimes the run's id is missing."""
    return {
        "run_id": run_id if rng.random() < 0.97 else rng.choice((None, "")),
        "actor": rng.choice((None, None, "ops")),
    }


__all__ = ["ERRORS", "RUN_IDS", "WORK", "draw_run_event", "draw_run_marks"]
