"""How a client reads sessions as the processor has committed them: protocols, as in `ports`."""

from collections.abc import Sequence
from typing import NamedTuple, Protocol

from sessionary.producers.run_ports import Verdict
from sessionary.schemas.types import Answer, DataClass, Limits, Question, Refusal


class AgentMember(NamedTuple):
    """An agent of a session; its service is a member of the session."""

    agent_id: str
    role: str
    service_id: str
    snapshot_id: str  # The last one of the agent's state


class MigrationView(NamedTuple):
    """A session's last migration to another service."""

    migration_id: str
    target_service: str
    step: str  # offered, prepared, completed or aborted
    reason_code: str | None = None  # Why it was aborted
    from_state: str | None = None  # The session's state before it was prepared

    @property
    def is_open(self) -> bool:
        """Whether it is neither completed nor aborted."""
        return self.step in ("offered", "prepared")


class SessionView(NamedTuple):
    """A session as the processor has committed it."""

    session_id: str
    state: str  # Idle, Active, Paused, Timeout, Error, Terminated or Archived
    phase: str | None
    epoch: int
    version: int  # Of the content, from 1
    owner_service: str
    state_json: str  # The content
    state_schema_version: int
    snapshot_id: str | None  # Of the last snapshot
    snapshot_state_json: str | None
    limits: Limits
    verdict: Verdict | None  # Only if one was asked for
    data_classes: Sequence[DataClass] = ()  # Of the data that the session handles
    agent_id: str | None = None  # Of the client that created it or took it over last
    holder: str | None = None  # The producer id of that client
    refusals: Sequence[Refusal] = ()  # The session's last ones
    reason_code: str | None = None  # Why it is in its state, if the processor says so
    quotas: bool | None = None  # Whether its runs ask for their tenant's quota, if known
    holder_epoch: int | None = None  # The last epoch that a client's event has given, if known
    question: Question | None = None  # That the session waits with
    answer: Answer | None = None  # How its last question ended
    agents: Sequence[AgentMember] = ()  # In the order in which they were registered
    migration: MigrationView | None = None  # Its last migration; None if there never was one
    awaits_quota: bool = False  # Whether it waits until its tenant's quota admits it

    @property
    def is_held(self) -> bool:
        """Whether it is Paused only until its migration ends: if that is aborted, it is Active."""
        migration = self.migration
        is_prepared = migration is not None and migration.step == "prepared" and migration.from_state == "Active"
        return is_prepared and self.state == "Paused"


class Control(Protocol):
    """Asks the processor about one session. Thread-safe; blocks."""

    def check_configured(self) -> None:
        """Raise `SettingsError` if no control API is configured."""
        ...

    def fetch_session(self, session_id: str, after: tuple[int, int] | None, timeout_s: float) -> SessionView:
        """Return the session once the event at `after` (partition, offset) has its verdict.

        Raises `SessionLost`, `AuthenticationFailed`, `Invalid`, and `Unavailable` if there is no
        answer within `timeout_s`.
        """
        ...


class FollowedState(NamedTuple):
    """What a stream of a session's states tells."""

    view: SessionView | None  # None: the session is archived
    position: tuple[int, int] | None = None  # (partition, offset) up to which it includes the log


class StateStream(Protocol):
    """An open stream of a session's committed states. Only `close` may be called on any thread."""

    def read_states(self, timeout_s: float) -> Sequence[FollowedState]:
        """Return what is told next, in order; nothing after `timeout_s`.

        Raises `Unavailable` if the stream has ended: another one may go on after it.
        """
        ...

    def close(self) -> None:
        """End the stream, also while another thread reads it. May be called again."""
        ...


class Follows(Protocol):
    """Opens streams of sessions' states. Thread-safe; blocks."""

    def check_configured(self) -> None:
        """Raise `SettingsError` if no control API is configured."""
        ...

    def open_states(self, session_id: str, after: tuple[int, int] | None, timeout_s: float) -> StateStream:
        """Return a stream that begins with the present state, once `after` is judged. Asks once.

        Raises `SessionLost` if there is no such session, `AuthenticationFailed`, `Invalid`,
        `SettingsError`, and `Unavailable` if there is no answer. That of an archived session tells
        only that.
        """
        ...
