"""What can happen to a run. All times are ms of log time."""

from typing import NamedTuple, final

from sessionary.schemas.records import QuotaVerdict, RunState
from sessionary.schemas.types import ErrorInfo, QuotaStep, Refusal, RunQuota, RunStateName
from sessionary.stream_processors.core.run.transitions import RunChange


class RunBegun(NamedTuple):
    """An event made the run."""

    row: RunState


@final
class RunMoved:
    """An event of the run was applied; its state is `target` from now on, maybe as before."""

    __slots__ = ("at_ms", "change", "target")

    def __init__(self, target: RunStateName, at_ms: int, change: RunChange) -> None:
        self.target: RunStateName = target
        self.at_ms = at_ms
        self.change = change


@final
class RunHeard:
    """An event of the run was applied, and brings nothing for it."""

    __slots__ = ("at_ms",)

    def __init__(self, at_ms: int) -> None:
        self.at_ms = at_ms


class RunRevived(NamedTuple):
    """A failed run goes on. What its session and the partition say of its limit is given again.

    With a claim to a quota it waits for that before.
    """

    at_ms: int
    attached_run_ms: int
    clock_repair: int
    quota: RunQuota | None = None


class RunAdmitted(NamedTuple):
    """The claim of a run was granted: it goes on as the event that asked wanted it to."""

    at_ms: int


class RunTurnedAway(NamedTuple):
    """The claim of a run was rejected. A new run has no row any more; a resumed one is failed."""

    at_ms: int


class ClaimMoved(NamedTuple):
    """What the quotas are told of the claim that a run has, or had."""

    step: QuotaStep
    claim: RunQuota


class ClaimDecided(NamedTuple):
    """Received by a run: a verdict on a claim, which may be an older one of the run's."""

    at_ms: int
    verdict: QuotaVerdict


class RunHeld(NamedTuple):
    """The session's time-out, or the unknown outcome of a call, pauses the run."""

    at_ms: int
    reason_code: str


class CallsCounted(NamedTuple):
    """So many calls of the run have a side effect and an unknown outcome from now on."""

    unresolved: int


class RunReleased(NamedTuple):
    """The outcome of all calls for which the run waited is known: it goes on."""

    at_ms: int
    reason_code: str


class RunGivenUp(NamedTuple):
    """The run failed by its clock, or by its session's end; its reason is the error's code."""

    at_ms: int
    error: ErrorInfo


class SessionTimedOut(NamedTuple):
    """Received by an attached run whose session timed out, for this reason.

    `is_silent`: nothing was heard of its agent, so the connection to it is lost.
    """

    at_ms: int
    reason_code: str
    is_silent: bool


class SessionEnded(NamedTuple):
    """Received by an attached run whose session was terminated, for this reason."""

    at_ms: int
    reason_code: str


class CallUnresolved(NamedTuple):
    """Received by a run if the outcome of one of its calls with a side effect becomes unknown."""

    at_ms: int
    tool_name: str


class CallSettled(NamedTuple):
    """Received by a run if such an outcome is known after all.

    An attached run goes on only if its session is Active.
    """

    at_ms: int
    is_active: bool


class RunChanged(NamedTuple):
    """Tells a session that a run changed without an event of its own.

    By its clock, by the session itself, or by one of its calls.

    `due_ms` is set if its clock did it. `checkpoint_id` is of its last checkpoint. `from_state` is
    None if the run begins.
    """

    run_id: str
    at_ms: int
    from_state: RunStateName | None
    to_state: RunStateName
    reason_code: str
    reason: str
    due_ms: int | None = None
    checkpoint_id: str | None = None


class RunRejected(NamedTuple):
    """Tells a session that a run is over its tenant's quota.

    `refusal` is of the event that asked.
    """

    run_id: str
    at_ms: int
    reason: str
    refusal: Refusal


class TaskAdmitted(NamedTuple):
    """Tells a session that a task of it may be carried out."""

    run: RunState
    at_ms: int


RunFact = (
    RunBegun
    | RunMoved
    | RunHeard
    | RunRevived
    | RunHeld
    | CallsCounted
    | RunReleased
    | RunGivenUp
    | RunAdmitted
    | RunTurnedAway
    | ClaimMoved
)
ReceivedFact = RunFact | SessionTimedOut | SessionEnded | CallUnresolved | CallSettled | ClaimDecided
