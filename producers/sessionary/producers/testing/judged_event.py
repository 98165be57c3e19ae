"""The judge's decision about one event, as tests read it."""

from typing import Final, Literal, NamedTuple, Protocol

from sessionary.producers.ports import Receipt, Verdict
from sessionary.schemas.codec import Event
from sessionary.schemas.signatures import SigningKeys
from sessionary.schemas.types import RejectionReason

MEMORY_KEYS: Final = SigningKeys({"memory": "the key of operators in memory, and of quotas"})
"""With these a memory signs what only server roles may write. They are no secret."""

VerdictOutcome = Literal["applied", "rejected", "duplicate"]
"""The outcome of an event. A duplicate repeats an event that was judged before."""


class NamedSession(Protocol):
    """A `Session` or an `AsyncSession`."""

    @property
    def session_id(self) -> str:
        """The session's UUID."""
        ...


class MemoryQuota(NamedTuple):
    """The quota of each tenant of a memory: how many runs at once, and the fate of further ones.

    Attributes:
        live_sessions: How many sessions at once; None: sessions ask for no quota.
        tokens: So many may be used in a window before further runs and sessions wait; None: any.
        token_window_s: Length of a window in seconds.
    """

    concurrent_runs: int
    over: Literal["queue", "reject"] = "queue"
    live_sessions: int | None = None
    tokens: int | None = None
    token_window_s: int = 3_600


class JudgedEvent(NamedTuple):
    """One event with its position in the log and the judge's verdict.

    `outcome` is the event's outcome. `reason` (for programs) and `detail` (for people) are those of
    a rejection, None otherwise.
    """

    event: Event
    partition: int
    offset: int
    at_ms: int  # Append time: ms since the epoch, on the fake clock
    outcome: VerdictOutcome
    reason: RejectionReason | None = None
    detail: str | None = None

    @property
    def event_type(self) -> str:
        """The event's type, for example `session_paused`."""
        return self.event.envelope.event_type

    @property
    def session_id(self) -> str:
        """The id of the event's session."""
        return self.event.envelope.session_id

    @property
    def receipt(self) -> Receipt:
        """The receipt that the client gets: the event's position in the log."""
        return Receipt(self.partition, self.offset)

    @property
    def verdict(self) -> Verdict:
        """The verdict as `Session.sync` reads it."""
        return Verdict(applied=self.outcome != "rejected", reason=self.reason)
