"""The facts of a session, of which a decision consists.

A rejection is a fact too: it is numbered, audited and kept, and changes nothing else of the
session. Runs and children act on their session by separate facts (`ChildFact`).
"""

from collections.abc import Sequence
from typing import Any, Literal, NamedTuple, final

from sessionary.schemas.records import SessionState
from sessionary.schemas.types import (
    Answer,
    DataClass,
    ErrorClass,
    FencedBeats,
    ForgottenProducer,
    Migration,
    OpenRun,
    OpenTransaction,
    Phase,
    ProducerLedger,
    Question,
    QuotaName,
    Rejection,
    RejectionReason,
    SeqRange,
    SessionHold,
    Snapshot,
)
from sessionary.stream_processors.core.session.transitions import Transition


class Rejected(NamedTuple):
    """The event does not apply. `kept` goes into the row for clients that ask for the verdict.

    Heartbeats are not `audited`, nor is lateness after the first in an epoch.
    """

    reason: RejectionReason
    detail: str
    kept: Rejection | None
    audited: bool


class BeatFenced(NamedTuple):
    """A client's first heartbeat of a past epoch was rejected; those after it are only counted."""

    beats: FencedBeats  # with that client


class Created(NamedTuple):
    """The session exists from now on."""

    transition: Transition
    row: SessionState


class SessionAdmitted(NamedTuple):
    """The session's claim to a slot of its tenant's quota was granted: it may start."""

    at_ms: int


class ClaimRejected(NamedTuple):
    """The session's claim was rejected: `rejection` is of the event that created the session."""

    rejection: Rejection


class LimitsOverridden(NamedTuple):
    """The session was created with limits outside their recommended ranges."""

    reason: str


class StateHashed(NamedTuple):
    """The audit trail gets a hash of the session's row as it is after the event."""


@final
class SequenceMoved:
    """A producer's sequence number was taken into the session's ledger.

    `forgotten` is None if it did not change, `owner_heard_at` if the event is no sign of life of
    the owning service.
    """

    __slots__ = ("forgotten", "owner_heard_at", "producers")

    def __init__(
        self,
        producers: Sequence[ProducerLedger],
        forgotten: Sequence[ForgottenProducer] | None = None,
        owner_heard_at: int | None = None,
    ) -> None:
        self.producers = producers
        self.forgotten = forgotten
        self.owner_heard_at = owner_heard_at


class GapFound(NamedTuple):
    """A producer jumped over sequence numbers."""

    gap: SeqRange


class GapFilled(NamedTuple):
    """A replayed event came into its own gap: `seq` is missing no longer."""

    producers: Sequence[ProducerLedger]
    seq: int


class Transitioned(NamedTuple):
    """The state changed. `due_ms` is set if a clock did it.

    The session waits with `question`, if there is one; `answer` ends the question. A new epoch
    `fences` off earlier senders, unless the epoch came from an operator or a clock; it `ends_turn`
    of another process. `hold`: the operator's, if one has paused the session.
    """

    transition: Transition
    at_ms: int
    reason_code: str
    reason: str
    due_ms: int | None = None
    snapshot: Snapshot | None = None
    error_class: ErrorClass | None = None
    question: Question | None = None
    answer: Answer | None = None
    fences: bool = False
    hold: SessionHold | None = None
    ends_turn: bool = False


class Buried(NamedTuple):
    """The session was archived; a tombstone remains until `expires_ms` (log time)."""

    expires_ms: int


@final
class PhaseMoved:
    """Only the phase changed. `turn_by`: which producer is in a turn from now on, as in the row."""

    __slots__ = ("at_ms", "phase", "turn_by")

    def __init__(self, phase: Phase, at_ms: int, turn_by: int) -> None:
        self.phase: Phase = phase
        self.at_ms = at_ms
        self.turn_by = turn_by


class ContentUpdated(NamedTuple):
    """The content was replaced; its version is one higher."""

    version: int
    state_json: str
    at_ms: int


class ContentRestored(NamedTuple):
    """The content of an older snapshot is the session's, as a new version."""

    content: ContentUpdated
    snapshot_id: str
    reason: str


class TransactionMoved(NamedTuple):
    """A transaction has begun or ended; with its commit comes the new content.

    `by_event`: an event says so. Otherwise it is rolled back because its time, or its session, is
    over.
    """

    step: Literal["begun", "committed", "rolled_back"]
    transaction: OpenTransaction
    at_ms: int
    reason_code: str
    reason: str
    content: ContentUpdated | None = None
    by_event: bool = True


class SnapshotTaken(NamedTuple):
    """The chain of snapshots has a new head."""

    snapshot: Snapshot
    at_ms: int


@final
class WorkDone:
    """The agent worked: the inactivity clock and the idle clock start again.

    Most events are work and nothing else. Such an event's `SequenceMoved` is part of this fact
    (`producers`, `owner_heard_at`), because copying a row is a large part of its cost. The judge
    sets both fields; otherwise both are None.
    """

    __slots__ = ("at_ms", "owner_heard_at", "producers")

    def __init__(self, at_ms: int) -> None:
        self.at_ms = at_ms
        self.producers: Sequence[ProducerLedger] | None = None
        self.owner_heard_at: int | None = None


@final
class HeartbeatSeen:
    """The agent is alive: in Active, the inactivity clock starts again.

    The judge sets `owner_heard_at` if the sender's service owns the session.
    """

    __slots__ = ("at_ms", "owner_heard_at")

    def __init__(self, at_ms: int) -> None:
        self.at_ms = at_ms
        self.owner_heard_at: int | None = None


class TakenOver(NamedTuple):
    """Another process holds the session from now on; its service owns it."""

    service_id: str
    agent_id: str
    producer_id: str
    at_ms: int
    reason: str | None  # for people


class TokensUsed(NamedTuple):
    """An event used tokens, which count for these quotas of the tenant."""

    tokens: int  # above 0
    quotas: Sequence[QuotaName]


class ToolSeen(NamedTuple):
    """A tool was called, or a call of one ended; None: the row keeps what it has."""

    tool_name: str | None
    result: str | None


class RunOpened(NamedTuple):
    """A run is open from now on; maybe it waits for its tenant's quota."""

    run: OpenRun
    asks_quota: bool = False


class RunClosed(NamedTuple):
    """An event finished a run."""

    run_id: str


class RunEventTaken(NamedTuple):
    """An event of a detached run was applied outside Active, where it moves no clock."""


class RequestsAsked(NamedTuple):
    """An operator has the session's open requests sent again."""

    requests: Sequence[Any]  # as `open_requests` returns them
    reason: str | None  # for people


class CleanupReleased(NamedTuple):
    """A clean-up was confirmed."""

    cleanup_id: str
    at_ms: int


class DataClassified(NamedTuple):
    """The event declared classes of data."""

    data_classes: Sequence[DataClass]


class ContextMeasured(NamedTuple):
    """The agent's context has this size."""

    size_bytes: int
    exceeded: bool


class ContextExceeded(NamedTuple):
    """The agent's context has grown above its limit."""

    size_bytes: int
    limit_bytes: int


class MigrationMoved(NamedTuple):
    """A migration is offered or prepared; `migration` is as it is from now on."""

    at_ms: int
    migration: Migration
    reason: str


class StateDiffered(NamedTuple):
    """The target accepted another state than the session's; the event is rejected."""

    migration: Migration


class MigrationCompleted(NamedTuple):
    """The target owns the session from now on. The sender of the event holds it."""

    at_ms: int
    migration: Migration
    agent_id: str
    producer_id: str


AbortReason = Literal[
    "target_silent",
    "expired",
    "called_off",
    "declined",
    "state_differs",
    "taken_over",
    "session_ended",
    "session_resumed",
]


class MigrationAborted(NamedTuple):
    """The migration is over; the owner stays. `due_ms` is set if its time was over."""

    at_ms: int
    migration: Migration
    reason_code: AbortReason
    reason: str
    due_ms: int | None = None


SessionFact = (
    Rejected
    | BeatFenced
    | Created
    | SessionAdmitted
    | ClaimRejected
    | LimitsOverridden
    | SequenceMoved
    | GapFound
    | GapFilled
    | Transitioned
    | Buried
    | PhaseMoved
    | ContentUpdated
    | ContentRestored
    | TransactionMoved
    | SnapshotTaken
    | WorkDone
    | HeartbeatSeen
    | TakenOver
    | RunOpened
    | RunClosed
    | RunEventTaken
    | TokensUsed
    | ToolSeen
    | RequestsAsked
    | CleanupReleased
    | DataClassified
    | ContextMeasured
    | ContextExceeded
    | MigrationMoved
    | StateDiffered
    | StateHashed
    | MigrationCompleted
    | MigrationAborted
)
