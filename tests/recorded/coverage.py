"""What a recording must hold: every transition and every rejection of the processor, often
enough.
"""

from collections.abc import Mapping
from typing import get_args

from sessionary.schemas.types import RejectionReason

COUNT_MIN = 20
TRANSITIONS = tuple(f"T{n:02}" for n in range(1, 15))
# The default for readers of a later symbol, a row that a sink rejects, a fault of our own.
NEVER = frozenset({"UNKNOWN", "bad_row", "internal_error"})
# What the scripts lead to by chance at most.
NOT_SCRIPTED = frozenset(
    {
        *("not_member", "broken_chain", "hash_mismatch", "skipped", "owner_alive", "too_old"),
        *("too_many_runs", "resume_expired", "too_many_children", "too_many_agents", "quota_exceeded"),
        *("migration_open", "migration_moved", "bad_signature", "task_taken_over", "snapshot_exists"),
    }
)
REASONS = tuple(reason for reason in get_args(RejectionReason) if reason not in NEVER | NOT_SCRIPTED)


def too_rare(transitions: Mapping[str, int], reasons: Mapping[str, int]) -> list[str]:
    """Return what came less than `COUNT_MIN` times, and how often it came."""
    counts = [(name, transitions.get(name, 0)) for name in TRANSITIONS]
    counts += [(name, reasons.get(name, 0)) for name in REASONS]
    return [f"{name}: {count}" for name, count in counts if count < COUNT_MIN]
