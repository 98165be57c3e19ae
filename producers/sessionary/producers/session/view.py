"""One process's view of one session, under the session's lock.

The view is not authoritative: the processor decides. The client uses the view to choose the legal
last event, to know when heartbeats are due, and to reject at once events that the processor is
certain to reject.
"""

import json
import secrets
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import count
from types import TracebackType
from typing import TYPE_CHECKING, Final

from sessionary.producers.delivery.emitter import Emitter, EnvelopeFields
from sessionary.producers.errors import (
    Invalid,
    NotAllowed,
    ProducerError,
    SessionEnded,
    SessionFenced,
    VerdictPending,
)
from sessionary.producers.ports import AgentMember, Json
from sessionary.producers.process.safe_text import to_json_text
from sessionary.producers.session.pending_verdict import PendingVerdict
from sessionary.producers.verdicts.begun_work import BegunWork
from sessionary.producers.verdicts.local_checks import (
    NO_BARS,
    Bar,
    Bars,
    barred_events,
    events_within_runs,
    find_objection,
)
from sessionary.producers.verdicts.session_watch import SentEvents
from sessionary.schemas.events import EVENT_TYPES, Payload, ToolCallResolved
from sessionary.schemas.ids import content_hash, snapshot_id_of
from sessionary.schemas.limits import STATE_LEVELS_MAX
from sessionary.schemas.types import Answer, Limits, Phase, Question, Snapshot, SnapshotMessage, ToolExecution

if TYPE_CHECKING:  # few sessions have a chain
    from sessionary.producers.session.snapshots import SnapshotChain

WAITING: Final[Phase] = "waiting"
"""The phase of a session between two turns, which needs no heartbeats."""

# A session's content as JSON text, and snapshots of it. Pure, except for random snapshot ids.


def canonical_json(state: Mapping[str, Json]) -> str:
    """Return `state` as JSON text. Raises `Invalid` as `to_json_text`, and if it is no dict, or
    is nested too deep.
    """
    if not isinstance(state, dict):
        kind = type(state).__name__
        raise Invalid("invalid_value", f"state is of type {kind}, not a JSON object: use a dict")
    text = to_json_text(state, "state", "state_too_large")
    if text.count("{") + text.count("[") > STATE_LEVELS_MAX:  # few have so many
        _require_state(text, "state")
    return text


def parsed_state(text: str) -> dict[str, Json]:
    """Return the state in `text`. Raises `Invalid` if it is not a JSON object."""
    try:
        state = json.loads(text)
    except ValueError as error:
        raise Invalid("invalid_value", f"state is not valid JSON: {error}") from None
    if not isinstance(state, dict):
        raise Invalid("invalid_value", f"state is a JSON {type(state).__name__}, not an object")
    return state


WITH_STATE: Final = frozenset(kind for kind in EVENT_TYPES if {"state_json", "snapshot"} & set(kind._fields))
"""Events that carry a state, some of them in a snapshot."""


def check_given_state(payload: Payload) -> None:
    """Raise `Invalid` if an event carries a state that is no JSON object.

    Of a snapshot that is a delta or compressed, the processor finds it.
    """
    if type(payload) not in WITH_STATE:
        return
    text, name = getattr(payload, "state_json", None), "state_json"
    snapshot = getattr(payload, "snapshot", None)
    if isinstance(snapshot, Snapshot) and (snapshot.encoding, snapshot.compression) == ("full", "none"):
        text, name = snapshot.state_json, f"the state of snapshot {snapshot.snapshot_id}"
    if isinstance(text, str):
        _require_state(text, f"{EVENT_TYPES[type(payload)]}: {name}")


def _require_state(text: str, name: str) -> None:
    """Raise `Invalid` if the processor would refuse a text as a state."""
    from sessionary.schemas.snapshots import find_state_fault  # rarely needed

    if fault := find_state_fault(text):
        raise Invalid("invalid_value", f"{name} {fault}")


def full_snapshot(state_json: str, schema_version: int, parent: str | None, snapshot_id: str | None = None) -> Snapshot:
    """Return a snapshot of a state alone; `parent` is the id of the one before it.

    `snapshot_id`: its own id; default: a random one.
    """
    return Snapshot(
        snapshot_id=snapshot_id or snapshot_id_of(secrets.randbits(48)),
        parent_snapshot_id=parent,
        schema_version=schema_version,
        state_json=state_json,
        context=None,
        content_hash=content_hash(state_json),
        encoding="full",
        compression="none",
    )


def new_snapshot_ids() -> Iterator[str]:
    """Return the ids of snapshots of one object: from a random one on, without a repetition."""
    return map(snapshot_id_of, count(secrets.randbits(48)))


# The lock of a session, which no thread waits for in a forked child of the session's process.


class SessionLock:
    """The emitter's lock, a context manager. Reentrant.

    A child that is forked while a thread holds the lock has a copy that no thread ever releases.
    """

    __slots__ = ("_emitter", "_lock")

    def __init__(self, emitter: Emitter) -> None:
        self._emitter = emitter
        self._lock = emitter.lock

    def __enter__(self) -> None:
        """Wait for the lock. Raises `ClientClosed` in a forked child of the session's process."""
        self._emitter.check_process()
        self._lock.acquire()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._lock.release()

    def acquire_now(self) -> bool:
        """Take the lock if it is free, without waiting; return whether it was."""
        return self._lock.acquire(blocking=False)

    def acquire_within(self, seconds: float) -> bool:
        """Take the lock if it is free within so many seconds; return whether it was."""
        return self._lock.acquire(timeout=seconds)

    def release(self) -> None:
        """Release the lock after `acquire_now` or `acquire_within`."""
        self._lock.release()


_HELD_REMEDY = "it continues once they resume it"
ASKED_REMEDY = "ask() the same question to wait for the answer, or cancel() the session to give up"


_STOPPED: Final = ("", 0, None)  # as `fenced_by` has it


class LocalView:
    """The local state of a session. Hold `lock` for its methods, and to change an attribute."""

    __slots__ = (
        "agent_count",
        "agents",
        "answers",
        "asked",
        "bars",
        "begun",
        "chain",
        "changes",
        "created_id",
        "departures",
        "detached",
        "detached_runs",
        "emitter",
        "fenced_by",
        "followed",
        "head_messages",
        "head_tool",
        "held_as",
        "is_held",
        "is_member",
        "is_queued",
        "is_update_open",
        "limits",
        "local_state",
        "lock",
        "lost",
        "lost_before",
        "new_answer",
        "notified_lost",
        "offered",
        "pending",
        "phase",
        "question",
        "quotas",
        "schema_version",
        "sends_phases",
        "sent_events",
        "snapshot_id",
        "snapshot_ids",
        "snapshots",
        "state_json",
        "stopped",
        "version",
    )

    def __init__(self, emitter: Emitter, limits: Limits, state_json: str, schema_version: int, *, quotas: bool) -> None:
        self.emitter = emitter
        self.lock = SessionLock(emitter)
        self.begun = BegunWork(emitter.key.session_id)
        self.limits = limits
        self.state_json = state_json
        self.schema_version = schema_version
        self.local_state: str = "Idle"
        self.phase: str | None = None
        self.quotas = quotas  # as far as is known
        self.sends_phases = True  # only the owning service may change the phase
        self.is_member = False  # an agent of this service is registered
        self.version = 1
        self.snapshot_id: str | None = None
        self.snapshot_ids = new_snapshot_ids()
        self.snapshots = False  # one before and one after each recorded tool call
        self.chain: SnapshotChain | None = None  # of snapshots that say more than the state
        self.head_messages: Sequence[SnapshotMessage] = ()  # what the last known head said
        self.head_tool: ToolExecution | None = None
        self.created_id = ""  # id of the event that created it, if this object did
        self.pending: PendingVerdict | None = None  # the verdict that a verb waits for
        self.followed: PendingVerdict | None = None  # one that ends the session once more, if it is granted
        self.is_queued = False  # it waits for its tenant's quota, and beats so that it is not given up
        self.detached = False
        self.detached_runs: set[str] = set()  # those that were begun here: they may outlive the session
        self.held_as: str | None = None  # the producer id under which this client created it, or took it over
        # Who holds the session, its epoch, and the service that owns it if that is another one.
        self.fenced_by: tuple[str, int, str | None] | None = None
        self.stopped: Callable[[], ProducerError] | None = None  # why a task's verbs raise, if they do
        self.agents: Sequence[AgentMember] = ()  # of the session, as far as this object knows
        self.agent_count = 0  # a poll reports only the number
        self.is_update_open = False  # the verdict on the last update did not come
        self.departures = 0  # how often the session was ended, detached or left
        self.changes = 0  # how often it was changed here, counted after the event: an answer of before is outdated
        self.bars: Bars = NO_BARS  # events that the processor is certain to reject in this state
        self.lost_before = 0  # events that were lost before the state was last certain
        self.offered: str | None = None  # the migration whose end a verb waits for
        self.lost = self.notified_lost = False  # reported: by a poll
        self.is_held = False  # others paused it, as a poll or a verdict has reported
        self.question: Question | None = None  # the open one, as far as this object knows
        self.asked = set[str]()  # ids of the questions that this object asked
        self.answers: Sequence[Answer] = ()  # the last ones, as the processor reported them
        self.new_answer: Answer | None = None  # the last one, if no work was done since
        self.sent_events: SentEvents | None = None  # those that may not be judged yet; None: not polled

    @property
    def session_id(self) -> str:
        """The session's UUID."""
        return self.emitter.key.session_id

    @property
    def is_holder(self) -> bool:
        """Whether this client created the session, or took it over.

        Not once it has another producer id: who holds the session, it or the other user of the
        former id, is unknown.
        """
        return self.held_as == self.emitter.producer_id

    @property
    def has_ended(self) -> bool:
        """Whether no last event is to be sent: the session ended, or only the processor ends it."""
        return self.local_state in ("Terminated", "Timeout")

    def new_snapshot(self) -> Snapshot:
        """Return a snapshot of the content with a new id."""
        if self.chain is not None:
            return self.chain.next_snapshot()
        return full_snapshot(self.state_json, self.schema_version, self.snapshot_id, next(self.snapshot_ids))

    def renew_snapshot_ids(self) -> None:
        """Count ids of snapshots from another number on: the session has had those from here."""
        self.snapshot_ids = new_snapshot_ids()

    def stop(self, stopped: Callable[[], ProducerError]) -> None:
        """Let all verbs raise from now on. Takes no lock: a verb may hold it for long."""
        self.stopped = stopped
        self.fenced_by = _STOPPED  # verbs look at it first

    def unfence(self) -> None:
        """Let verbs go on again, unless they were stopped, perhaps at this moment."""
        self.fenced_by = None
        if self.stopped is not None:
            self.fenced_by = _STOPPED

    def update_bars(self, *, committed: bool) -> None:
        """Find the events that are certain to be rejected in a state that was entered."""
        if committed:
            self.lost_before = self.emitter.lost_events
        # In a shared session, another process may prevent the state that we asked for.
        if committed or self.is_holder:
            self.bars = barred_events(self.local_state, is_owner=self.sends_phases, is_member=self.is_member)
        else:
            self.bars = NO_BARS

    def require_held(self) -> None:
        """Raise `SessionFenced` if another process is known to have the session.

        Raises `TaskStopped` if it has the task that this object is for.
        """
        if self.stopped is not None:
            raise self.stopped()
        if self.fenced_by is not None:
            raise SessionFenced(self.session_id, *self.fenced_by)

    def require_open(self, payload: Payload, fields: EnvelopeFields) -> None:
        """Raise if an event may not be sent now, or is certain to be rejected."""
        self.require_held()
        if self.pending is not None:
            raise VerdictPending(self.pending.verb)
        if (
            self.local_state == "Terminated"
            and not self.notified_lost
            and not self._may_outlive(payload, fields.run_id)
        ):
            raise SessionEnded(f"session {self.session_id} has ended; create a new one")
        if (bar := self.bars.get(type(payload))) is None:
            return
        # The runs whose blocks are open here are known: an attached one waits with its session.
        is_attached = self.question is not None and fields.run_id in self.begun.attached_runs
        if is_attached or not _may_go_on_alone(payload, fields.run_id):
            self.require_passing(payload, bar)

    def require_passing(self, payload: Payload, bar: Bar) -> None:
        """Raise `NotAllowed` if the processor is certain to reject an event."""
        objection = find_objection(payload, bar, self.local_state, self.emitter.service_id)
        # If an event was lost, the session may not be in the state that it led to.
        if objection is not None and self.emitter.lost_events == self.lost_before:
            if self.question is not None:
                detail = (
                    f"{EVENT_TYPES[type(payload)]} is not possible while a person is asked {self.question.text!r:.200}"
                )
                raise NotAllowed(objection.reason, f"{detail}: {ASKED_REMEDY}", objection.state, objection.event_type)
            if self.is_held and self.local_state == "Paused":
                detail = f"{EVENT_TYPES[type(payload)]} is not possible while others hold the session: {_HELD_REMEDY}"
                raise NotAllowed(objection.reason, detail, objection.state, objection.event_type)
            raise objection

    def _may_outlive(self, payload: Payload, run_id: str | None) -> bool:
        """Return whether an event may belong to a run that continues without its session."""
        # A person's finding on a call may belong to a detached run that another object began.
        is_known = run_id in self.detached_runs or isinstance(payload, ToolCallResolved)
        return is_known and _may_go_on_alone(payload, run_id)


def _may_go_on_alone(payload: Payload, run_id: str | None) -> bool:
    """Return whether an event may belong to a detached run, which no session state bars."""
    return bool(run_id) and type(payload) in events_within_runs()
