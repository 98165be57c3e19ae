"""The lifecycle's rules that are lists, written for the oracle independently of the product."""

import uuid
from typing import Any

RULES = 2  # the version of the only rules of this release
# What an output and a rejected record may take, each as a batch of its own.
OUTPUT_BYTES = REJECTED_BYTES = 2_097_152
DEFAULTS = {
    "init_ms": 15_000,
    "model_ms": 30_000,
    "tool_ms": 20_000,
    "network_ms": 10_000,
    "idle_ms": 900_000,
    "attached_run_ms": 900_000,
    "max_duration_ms": 28_800_000,
    "grace_ms": 300_000,
    "hold_ms": 86_400_000,
    "user_idle_ms": 86_400_000,
    "recovery_ms": 60_000,
    "archive_delay_ms": 60_000,
    "release_limit_ms": 300_000,
    "context_limit_bytes": 200_000_000,
}
RANGES = {
    "model_ms": (30_000, 60_000),
    "tool_ms": (10_000, 30_000),
    "network_ms": (5_000, 15_000),
    "user_idle_ms": (60_000, 2_592_000_000),
    "context_limit_bytes": (50_000_000, 200_000_000),
}
DROP_ACTIONS = ("memory_cleanup", "close_connection", "release_context", "mark_closed")
ERROR_ACTIONS = ("exception_cleanup", "close_connection", "release_context", "mark_closed")
# An error whose code is one of these reasons asks for that reason's clean-up, since 0.1.0.
ACTIONS_OF_ERROR_CODES = {"timeout_cleanup": DROP_ACTIONS, "abnormal_termination": ERROR_ACTIONS}
END_ACTIONS = ("close_connection", "release_resources", "clear_context")
NEXT_PHASES = {
    ("Idle", "creating"): ("validating",),
    ("Idle", "validating"): ("connecting",),
    ("Active", "processing"): ("updating", "processing", "waiting"),
    ("Active", "updating"): ("persisting", "waiting"),
    ("Active", "persisting"): ("processing", "waiting"),
    ("Active", "waiting"): ("processing",),
    ("Paused", None): ("waiting",),
    ("Error", "logging"): ("recovery", "cleanup"),
    ("Error", "recovery"): ("cleanup",),
    ("Terminated", "releasing"): ("clearing",),
}
PROCESSOR_TYPES = ("session_timed_out", "session_archived", "tool_call_unknown")
COMPLETIONS = ("tool_call_succeeded", "tool_call_failed", "tool_call_resolved", "usage_recorded")
# Legal in Active only; except for the content's they only count as work.
ACTIVE_TYPES = frozenset(
    {
        "session_activity",
        "progress_reported",
        "state_updated",
        "txn_begun",
        "txn_committed",
        "txn_rolled_back",
        "run_queued",
        "run_rejected",
        "run_started",
        "run_running",
        "run_paused",
        "run_resumed",
        "run_completed",
        "run_failed",
        "run_cancelled",
        "plan_recorded",
        "plan_replaced",
        "step_started",
        "step_succeeded",
        "step_failed",
        "step_skipped",
        "tool_call_started",
        "llm_decision",
        "message_appended",
        "agent_registered",
        "agent_task_updated",
        "context_synced",
        "artifact_created",
        "artifact_chunk_appended",
        "artifact_completed",
        "artifact_soft_deleted",
        "artifact_purged",
    }
)
# The most characters of a text by its field; 256 for all others.
LONG_TEXTS = {
    **dict.fromkeys(["choice", "detail", "message", "question", "reason", "resume_plan", "uri"], 16_384),
    **dict.fromkeys(["text", "content", "output_text"], 1_048_576),
}
TIMES = ("occurred_at", "at", "due_at", "retain_until", "updating_at", "persisting_at")
OWN_NUMBERS = ("accessed_at", "epoch", "producer_seq", *TIMES)
SECURITY = {"foreign_tenant", "key_mismatch", "not_owner", "stale_epoch", "not_member", "bad_signature"}
DAY_MS = 86_400_000
TOMBSTONE_MS = 14 * DAY_MS


def made_ms(session_id: str) -> int | None:
    """Return the time in an id of version 7, in ms; None for other ids."""
    number = uuid.UUID(session_id)
    return number.int >> 80 if number.version == 7 else None


def grave_end(grave: dict[str, Any]) -> int:
    """Return when a tombstone vanishes: with a day, and with its id of version 7."""
    made = made_ms(grave["session"])
    last: int = grave["expires_at"] if made is None else min(grave["expires_at"], made + TOMBSTONE_MS)
    return (last + DAY_MS - 1) // DAY_MS * DAY_MS


def creation_fault(session_id: str, fields: dict[str, Any], now: int) -> str:
    """Return why the rules reject the creation of a session, or ''."""
    if is_out_of_bounds(fields):
        return "invalid_value"
    made = made_ms(session_id)
    return "too_old" if made is not None and now >= made + TOMBSTONE_MS else ""


def has_long_text(envelope: dict[str, Any]) -> bool:
    """Return True if a text of an envelope is longer than the rules allow."""
    texts = [value for value in envelope.values() if isinstance(value, str)]
    return max(map(len, texts)) > 256 or len(envelope["data_classes"]) > 1_024


def is_out_of_bounds(value: Any, field: str = "", owner: str = "") -> bool:
    """Return True if an event has a value that the rules do not allow, at any depth."""
    match value:
        case bool() | bytes() | None:
            return False
        case str():
            if field in ("state_json", "context"):
                return False  # the size of the row bounds them
            most = 1_048_576 if field.endswith("_json") else LONG_TEXTS.get(field, 256)
            return len(value) > (16_384 if (owner, field) == ("candidates", "name") else most)
        case int():
            return field not in OWN_NUMBERS and not 0 <= value <= 10**15
        case float():
            return value != value or value in (float("inf"), -float("inf"))
        case list():
            return len(value) > 1_024 or any(is_out_of_bounds(item, field, field) for item in value)
        case dict() if field == "limits":
            return False
        case {"chosen_tools": [], "candidates": []}:
            return True  # a decision of free text alone
        case dict() if field in ("prompt_versions", "metadata"):
            return len(value) > 1_024 or any(len(text) > 256 for pair in value.items() for text in pair)
    return any(is_out_of_bounds(part, name, field) for name, part in value.items())


def is_legal(state: str, kind: str) -> bool:
    """Return True if events of this type are legal in this state."""
    if kind in ("heartbeat", "session_taken_over"):
        return state in ("Idle", "Active", "Paused", "Timeout", "Error")
    if kind == "requests_repeated":
        return state != "Archived"
    if kind == "resources_released":
        return state in ("Active", "Paused", "Timeout", "Error", "Terminated")
    if kind in ("snapshot_created", "checkpoint_saved", *COMPLETIONS):
        return state in ("Active", "Paused", "Timeout", "Error")
    if kind in ACTIVE_TYPES:
        return state == "Active"
    homes = {
        "session_phase_changed": ("Idle", "Active", "Paused", "Error", "Terminated"),
        "session_started": ("Idle",),
        "session_start_failed": ("Idle",),
        "session_paused": ("Active", "Paused"),  # the second by operators only
        "session_errored": ("Active",),
        "session_rolled_back": ("Active",),
        "session_resumed": ("Paused", "Timeout"),
        "session_recovered": ("Error",),
        "session_terminated": ("Active", "Paused", "Error"),
    }
    return state in homes.get(kind, ())
