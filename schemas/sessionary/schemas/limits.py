"""A session's limits and the bounds of an event's values, as data.

Clients and processors share these numbers. The check of the limits at a session's creation is the
processor's. The judge's bounds are in `sessionary.schemas.codec.value_bounds`; clients keep them
always.
"""

from typing import Final

from sessionary.schemas.types import Limits, SessionLimits

DEFAULTS: Final = SessionLimits(
    init_ms=15_000,
    model_ms=30_000,
    tool_ms=20_000,
    network_ms=10_000,
    idle_ms=900_000,
    attached_run_ms=900_000,
    max_duration_ms=28_800_000,
    grace_ms=300_000,
    hold_ms=86_400_000,
    user_idle_ms=86_400_000,
    recovery_ms=60_000,
    archive_delay_ms=60_000,
    release_limit_ms=300_000,
    context_limit_bytes=200_000_000,
)
# Recommended, both ends included; a value outside needs `Limits.override`, and is audited.
RANGES: dict[str, tuple[int, int]] = {
    "model_ms": (30_000, 60_000),
    "tool_ms": (10_000, 30_000),
    "network_ms": (5_000, 15_000),
    "user_idle_ms": (60_000, 2_592_000_000),
    "context_limit_bytes": (50_000_000, 200_000_000),
}
# A time of an agent's clock, in µs since the epoch: ClickHouse's DateTime64 holds these years.
REPORTED_MIN_US: Final = -2_208_988_800_000_000  # 1900-01-01
REPORTED_MAX_US: Final = 10_413_791_999_999_999  # 2299-12-31, last µs
LIMIT_MAX: Final = 10**13  # about 300 years in ms: keeps every sum within 64 bits


NAME_CHARACTERS_MAX: Final = 256  # of a text that is neither of the two below: ids, names, codes
TEXT_CHARACTERS_MAX: Final = 16 << 10  # of a text for people
MESSAGE_CHARACTERS_MAX: Final = 16 << 10  # of a turn's content; a longer one is an artifact
CONTENT_CHARACTERS_MAX: Final = 1 << 20  # of what the agent works on
STATE_LEVELS_MAX: Final = 500  # of objects and lists in each other; Python reads no more than about twice as many
# For people, by field; "Class.field" if a field of the same name is a name elsewhere.
TEXTS: Final = frozenset(
    {"Candidate.name", "choice", "detail", "message", "question", "reason", "response_id", "resume_plan", "uri"}
)
CONTENTS: Final = frozenset({"content", "output_text", "text"})  # and every field that ends in `_json`
# They go into the session's row, whose size is limited (`state_too_large`).
ROW_CONTENTS: Final = frozenset(
    {
        *("Snapshot.state_json", "Snapshot.context", "StateUpdated.state_json", "TxnCommitted.state_json"),
        "SessionRolledBack.state_json",
    }
)
ITEMS_MAX: Final = 1_024  # of a list or a map
NUMBER_MAX: Final = 10**15  # of a count, a size, a cost or a duration; thousands of them sum up within 64 bits
# Times are the agent's own, and are never judged. `Limits` has a separate check.
UNBOUNDED_NUMBERS: Final = frozenset(
    {"accessed_at", "at", "due_at", "limits", "occurred_at", "persisting_at", "retain_until", "updating_at"}
)


def with_defaults(limits: Limits) -> SessionLimits:
    """Return `limits` with the default in place of each None. Checks no value."""
    return SessionLimits(
        *(default if given is None else given for default, given in zip(DEFAULTS, limits, strict=False))
    )


MODEL_LIMIT: Final = "model_limit"  # the code of the error of a step, or a call of a model, over its limit
CONVERSATION_TURNS_MAX: Final = 200  # of a session that have a row; a later turn takes that of the oldest
AGENTS_MAX: Final = 64  # of one session
CHECKPOINTS_KEPT: Final = 16  # with data, of one operation; and snapshots of a session
CHECKPOINT_CHARACTERS_MAX: Final = 256 << 10  # of the data of these, except the last one's
TRANSACTIONS_MAX: Final = 128  # open ones of one session
TRANSACTION_MS: Final = 3_600_000  # after its begin an open one is rolled back
RESULT_CHARACTERS_MAX: Final = 16 << 10  # of a result that an agent shares; a longer one is an artifact
RUNS_OPEN_MAX: Final = 64  # of one session at a time
CHILDREN_MAX: Final = 10_000  # steps, reserved calls, artifacts and turns of a run, or of a session itself
RUN_SILENCE_MS: Final = 86_400_000  # without an event a detached or queued run then fails
FINISHED_RUN_DAYS: Final = 30  # for so long a finished run can be read, if nothing else was activated
FINISHED_RUN_DAYS_MAX: Final = 3_650
SESSION_WAIT_MS: Final = 86_400_000  # for its tenant's quota; a session that is not admitted then ends
RESUME_MS: Final = 86_400_000  # for so long after it failed a run may be resumed, if nothing else was activated
RESUME_MS_MAX: Final = FINISHED_RUN_DAYS_MAX * 86_400_000
MIGRATION_TTL_MS_MIN: Final = 1_000  # from its offer until it is aborted
MIGRATION_TTL_MS_MAX: Final = 86_400_000
MIGRATION_TTL_MS_DEFAULT: Final = 60_000  # if its offer names none
OPERATOR_HOLD_MS_MIN: Final = 1_000  # of an operator's pause that names its time
OPERATOR_HOLD_MS_MAX: Final = 30 * 86_400_000
HEARTBEATS_PER_BUDGET: Final = 6  # a client beats at least every sixth of the inactivity budget


def inactivity_budget_ms(limits: SessionLimits) -> int:
    """Return how long an Active session may be silent, in ms: model + tool + network."""
    return limits.model_ms + limits.tool_ms + limits.network_ms


def characters_max(owner: str, field: str) -> int | None:
    """Return how many characters a text may have; None if its row's size bounds it.

    `owner` is the name of the class that has the field.
    """
    qualified = f"{owner}.{field}"
    if qualified in ROW_CONTENTS:
        return None
    if field in CONTENTS or field.endswith("_json"):
        return CONTENT_CHARACTERS_MAX
    return TEXT_CHARACTERS_MAX if field in TEXTS or qualified in TEXTS else NAME_CHARACTERS_MAX
