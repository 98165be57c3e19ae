"""Records the work of one session: acknowledged events, and the processor's records."""

import random
from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple, Protocol, TypeVar

from sessionary.producers.context.call_counts import AttemptCalls
from sessionary.producers.context.scope import CallAnswers
from sessionary.producers.delivery.emitter import EnvelopeFields
from sessionary.producers.durable.flow import Flow
from sessionary.producers.errors import DeliveryFailed, NotAllowed, Unavailable
from sessionary.producers.ports import Control, OnError, Verdict
from sessionary.producers.process.clocks import awake_and_asleep_s
from sessionary.producers.run_ports import CallView, LogPosition, RunReads, RunView, Waits
from sessionary.producers.verdicts.begun_work import BegunWork
from sessionary.schemas.events import Payload
from sessionary.schemas.ids import SessionKey
from sessionary.schemas.types import RejectionReason, SessionLimits, ToolExecution

if TYPE_CHECKING:  # most clients have no library
    from sessionary.producers.artifacts.library import ArtifactLibrary

T = TypeVar("T")


def _no_wait() -> Flow[bool]:
    yield from ()
    return False


REAL_WAITS = Waits(awake_and_asleep_s, None, random.SystemRandom().random)


class SentEvent(Protocol):
    """An event that was sent, and whose position in the log can be asked for."""

    event_id: str
    event_type: str

    def wait_position(self, timeout_s: float) -> LogPosition | None:
        """Return the log position; None if the broker did not report it. Raises `Unavailable`."""
        ...


class Judged(NamedTuple):
    """A record after an event about it was judged, and whether that event applied."""

    record: CallView | RunView | None
    event_id: str
    rejection: RejectionReason | None  # None: it applied


class Recorder(NamedTuple):
    """The parts of a session that recorded work uses.

    Attributes:
        key: The session's key.
        send: Sends an event, and returns an object that knows its position in the log.
        wait_sent: Waits until all events of the session are delivered, at most so many seconds, and
            returns the last one's position in the log.
        keep_rejection: Takes the id of an event whose rejection is not to be reported.
        is_active: Returns whether the session is Active, as far as the client knows.
        control: Reports the session's verdicts.
        reads: Reads runs, steps and calls; None: nothing is recorded.
        timeout_s: How long a call waits for the broker, and then for the processor.
        waits: The clock of waits between tries.
        on_error: Gets the errors that must not reach the program.
        limits: Returns the session's limits.
        calls: Returns what numbers the session's tool calls outside of runs.
        artifacts: Keeps values that are too large for events; None: such values are refused.
        quotas: Returns whether runs wait for their tenant's quota, as far as is known.
        change_begun: Changes the counts of what the session has begun, under its lock.
        is_asking: Returns whether the session waits for a person, as far as the client knows.
        until_answered: Waits while it does; returns whether it did.
        snapshots: Whether a snapshot is taken before and after each call.
        snapshot_call: Takes one; raises nothing.
        open_snapshot_call: Returns the id of the call before which the last one was taken, if it
            was taken before a call.
        answers: Answers the calls of a session that is replayed; None: they are made.
    """

    key: SessionKey
    send: Callable[[Payload, EnvelopeFields], SentEvent]
    wait_sent: Callable[[float], LogPosition | None]
    keep_rejection: Callable[[str, RejectionReason], None]
    is_active: Callable[[], bool]
    control: Control
    reads: RunReads | None
    timeout_s: float
    waits: Waits
    on_error: OnError
    limits: Callable[[], SessionLimits]
    calls: Callable[[], AttemptCalls]
    artifacts: "ArtifactLibrary | None" = None
    quotas: Callable[[], bool] = lambda: False
    change_begun: Callable[[Callable[[BegunWork], None]], None] = lambda change: None
    is_asking: Callable[[], bool] = lambda: False
    until_answered: Callable[[], Flow[bool]] = _no_wait
    snapshots: bool = False
    snapshot_call: Callable[[ToolExecution, EnvelopeFields], None] = lambda tool, fields: None
    open_snapshot_call: Callable[[], str | None] = lambda: None
    answers: CallAnswers | None = None

    def was_asking(self, refused: NotAllowed) -> bool:
        """Return whether an event was refused while a person was asked, who has answered by now."""
        return refused.state == "Paused" and self.is_active()

    @property
    def known(self) -> RunReads:
        """The reader of runs. Raises `Unavailable` if there is none."""
        if self.reads is None:
            raise Unavailable("this client knows nothing of runs: its ports have no `runs`", 60.0)
        self.control.check_configured()
        return self.reads

    def fetch_run(self, run_id: str, after: LogPosition | None = None) -> RunView | None:
        """Return a run once `after` is judged; None if there is none. Raises as `RunReads`."""
        return self.known.fetch_run(self.key.session_id, run_id, after, self.timeout_s)

    def send_acknowledged(self, payload: Payload, fields: EnvelopeFields) -> LogPosition | None:
        """Send an event, wait until the broker has it, and return its position in the log.

        Raises as `Session.emit` does, and `Unavailable` if the broker does not acknowledge it.
        """
        pending = self.send(payload, fields)
        return None if self.reads is None else wait_recorded(pending, pending.event_type, self.timeout_s)

    def ask(
        self,
        payload: Payload,
        fields: EnvelopeFields,
        fetch: Callable[[LogPosition | None], CallView | RunView | None],
    ) -> Judged:
        """Send an event, and fetch the record that it concerns once the event is judged.

        Raises as `send_acknowledged` and `fetch` do; `Unavailable` if its verdict is not kept.
        """
        pending = self.send(payload, fields)
        return self.find_judged(pending, wait_recorded(pending, pending.event_type, self.timeout_s), fetch)

    def find_judged(
        self,
        pending: SentEvent,
        log_position: LogPosition | None,
        fetch: Callable[[LogPosition | None], CallView | RunView | None],
    ) -> Judged:
        """Fetch the record that an event in the log concerns, once the event is judged.

        Raises as `fetch` does; `Unavailable` if the verdict is not kept.
        """
        record = fetch(log_position)
        verdict = self._verdict_of(pending, log_position, record)
        if verdict.applied and record is None:  # nothing would stop a repetition
            raise Unavailable(f"the processor does not report the outcome of {pending.event_type}", 1.0)
        return Judged(record, pending.event_id, None if verdict.applied else verdict.reason or "UNKNOWN")

    def _verdict_of(
        self, pending: SentEvent, log_position: LogPosition | None, record: CallView | RunView | None
    ) -> Verdict:
        if isinstance(record, CallView) and record.reservation == pending.event_id:
            return Verdict(applied=True, reason=None)
        verdict = None if record is None else record.verdict
        if verdict is None and log_position is not None:
            verdict = self.control.fetch_session(self.key.session_id, log_position, self.timeout_s).verdict
        if verdict is None or not verdict.kept:
            raise Unavailable(f"the verdict on {pending.event_type} (event {pending.event_id}) is not known", 1.0)
        return verdict


def wait_recorded(sent: SentEvent, what: str, timeout_s: float) -> LogPosition | None:
    """Return an event's place once the broker has the event; None if it reported no place.

    `what` names the event in errors. Raises `Unavailable`, also if the event is lost.
    """
    try:
        return sent.wait_position(timeout_s)
    except DeliveryFailed as error:
        raise Unavailable(f"{what} is not recorded: {error}", 1.0) from error
