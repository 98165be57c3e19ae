"""The record of one session up to a point: its events, and the state that they lead to.

The events are read in batches, and folded again by the processor's own rules, in a memory of their
own. So what was rejected counts for nothing, and agents, turns and content at the point are what
the processor held. Nothing is sent.
"""

from collections.abc import Iterable, Sequence
from functools import cached_property
from typing import NamedTuple

from sessionary.producers.delivery.emitter import SenderIdentity
from sessionary.producers.errors import SessionLost
from sessionary.producers.ports import OutRecord
from sessionary.producers.replay.calls import FoundCalls, RecordedCall, find_calls
from sessionary.producers.replay.errors import NotReplayable, PointNotFound, rejected_point
from sessionary.producers.run_ports import LogEntry, RecordReads
from sessionary.producers.testing.judged_event import JudgedEvent
from sessionary.producers.testing.memory import InMemoryTransport
from sessionary.schemas.codec import Event
from sessionary.schemas.errors import DecodeError
from sessionary.schemas.events import (
    AgentRegistered,
    AgentTaskUpdated,
    CheckpointSaved,
    LlmDecision,
    MessageAppended,
    RunFailed,
    SessionCreated,
    SessionErrored,
    SessionRecovered,
    SessionResumed,
    SessionTakenOver,
    StepFailed,
    StepStarted,
    StepSucceeded,
    ToolCallFailed,
    ToolCallStarted,
    ToolCallSucceeded,
    UsageRecorded,
)
from sessionary.schemas.ids import SessionKey, event_snapshot_id
from sessionary.schemas.records import MessageState, SessionState

Point = int | str | None
"""An offset, the id of an event or of a snapshot; None: the end of the record."""


class RecordedEvent(NamedTuple):
    """An event of the record that applied.

    Attributes:
        offset: Its place in the log.
        at_ms: When it was appended, log time.
        event: Envelope and payload.
        sent: The record as it is in the log; of what a server role signed, as a memory signs it.
        is_own: The agent that is replayed sent it.
    """

    offset: int
    at_ms: int
    event: Event
    sent: OutRecord
    is_own: bool

    @property
    def event_type(self) -> str:
        """The event's type."""
        return self.event.envelope.event_type


class SessionRecord:
    """A session's record up to a point.

    Attributes:
        key: The session's key.
        events: The events that applied, in order, without heartbeats.
        rejected: The agent's events that the processor rejected, in order.
        memory: The memory in which they were folded; its time is that of the last one.
        batches: In how many batches they were read.
        target: The offset of the last event; the point, if one was given.
        is_whole: No point was given.
    """

    def __init__(
        self,
        key: SessionKey,
        events: Sequence[RecordedEvent],
        rejected: Sequence[RecordedEvent],
        memory: InMemoryTransport,
        batches: int,
        point: Point,
    ) -> None:
        self.key, self.events, self.rejected, self.memory, self.batches = key, events, rejected, memory, batches
        self.target = events[-1].offset
        self.is_whole = point is None

    def __repr__(self) -> str:
        return f"<SessionRecord {self.key.session_id}, {len(self.events)} events up to offset {self.target}>"

    @property
    def row(self) -> SessionState:
        """The session's row at the point. Raises `SessionLost` if it was archived by then."""
        return self.memory.find_row(self.key.session_id)

    @property
    def creation(self) -> SessionCreated:
        """What the session began with."""
        first = self.events[0].event.payload
        assert isinstance(first, SessionCreated)
        return first

    @cached_property
    def found(self) -> FoundCalls:
        """The calls of the agent that is replayed."""
        return find_calls([(each.offset, each.event) for each in self.events if each.is_own])

    # The execution history, in five classes

    @property
    def calls(self) -> Sequence[RecordedCall]:
        """Calls of tools and models with their results, and steps, each try by itself."""
        return self.found.calls

    @property
    def reasoning(self) -> Sequence[RecordedEvent]:
        """Steps and decisions."""
        return self._of(StepStarted, StepSucceeded, StepFailed, LlmDecision, CheckpointSaved, AgentTaskUpdated)

    @property
    def interactions(self) -> Sequence[RecordedEvent]:
        """What others did in the session, and the calls of tools, which go outside."""
        outside = self._of(ToolCallStarted, ToolCallSucceeded, ToolCallFailed)
        return [each for each in self.events if not each.is_own or each in outside]

    @property
    def faults(self) -> Sequence[RecordedEvent]:
        """Errors, and the attempts to recover from them."""
        ended = (SessionErrored, SessionRecovered, SessionResumed, SessionTakenOver)
        return self._of(*ended, ToolCallFailed, StepFailed, RunFailed)

    def context(self, offset: int | None = None) -> Sequence[MessageAppended]:
        """Return the messages that the agent had at an offset; by default at the point."""
        last = self.target if offset is None else offset
        found = (each.event.payload for each in self.events if each.offset <= last)
        return [payload for payload in found if isinstance(payload, MessageAppended)]

    @property
    def tokens(self) -> int:
        """Tokens of all calls of models, in and out."""
        return tokens_of(each.event for each in self.events)

    @property
    def turn(self) -> int:
        """Number of the last exchange with the user that ended."""
        return self.row.exchanges

    def _of(self, *kinds: type) -> Sequence[RecordedEvent]:
        return [each for each in self.events if isinstance(each.event.payload, kinds)]


def tokens_of(events: Iterable[Event]) -> int:
    """Return the tokens that events report, in and out."""
    payloads = (event.payload for event in events)
    return sum(each.tokens_in + each.tokens_out for each in payloads if isinstance(each, UsageRecorded))


def messages_of(memory: InMemoryTransport, session_id: str) -> list[tuple[str, str | None]]:
    """Return role and content of a session's turns that are kept, in order."""
    with memory.core.lock:
        rows = memory.core.log.find_turns(session_id, 200)
    return [(row.role, row.content) for row in rows if isinstance(row, MessageState)]


def read_record(
    reads: RecordReads, key: SessionKey, agent: SenderIdentity, point: Point, timeout_s: float
) -> SessionRecord:
    """Read a session's record up to a point, which it includes.

    Raises:
        SessionLost: There is no such session of this tenant.
        PointNotFound: The session has no such snapshot, event or offset.
        NotReplayable: A part of the record is gone, or of a newer version.
    """
    reading = _Reading(reads, key, agent, point)
    for batch in reads.read_log(key, timeout_s):
        reading.batches += 1
        if reading.take(batch):
            break
    return reading.finish()


class _Reading:
    """Folds the entries of a log up to a point."""

    def __init__(self, reads: RecordReads, key: SessionKey, agent: SenderIdentity, point: Point) -> None:
        self.batches = 0
        self._has_times, self._key, self._agent, self._point = reads.has_times, key, agent, point
        self._memory: InMemoryTransport | None = None
        self._events: list[RecordedEvent] = []
        self._rejected: list[RecordedEvent] = []
        self._is_found = self._is_known = False
        self._refused: str | None = None  # the verdict about the point's event, if that was rejected

    def take(self, batch: Sequence[LogEntry]) -> bool:
        """Fold a batch; return whether the point was reached."""
        for entry in batch:
            if self._memory is None and entry.key is None:
                continue  # before the session began
            self._is_known = True
            if isinstance(self._point, int) and entry.offset > self._point:
                return True
            if self._fold(entry) and self._names(self._events[-1].event, entry):
                self._is_found = True
                if not isinstance(self._point, int):
                    return True
        return False

    def _fold(self, entry: LogEntry) -> bool:
        """Judge an entry; return whether it is an event of the session that applied."""
        if self._memory is None:
            self._memory = InMemoryTransport(1, now_ms=entry.at_ms, outages=self._has_times)
        memory = self._memory
        judged = fold_entry(memory, entry, session_id=self._key.session_id, has_times=self._has_times)
        if judged is not None and judged.outcome == "rejected" and self._names(judged.event, entry):
            self._refused = f"at offset {entry.offset} ({judged.reason}: {judged.detail})"
        if judged is None or judged.outcome == "duplicate":
            return False
        envelope = judged.event.envelope
        is_own = (envelope.service_id, envelope.agent_id) == (self._agent.service_id, self._agent.agent_id)
        sent = memory.core.log.records[-1]
        event = RecordedEvent(entry.offset, entry.at_ms, judged.event, sent, is_own)
        if judged.outcome == "applied":
            self._events.append(event)
        elif is_own and event.event_type != "heartbeat":
            self._rejected.append(event)
        return judged.outcome == "applied"

    def _names(self, event: Event, entry: LogEntry) -> bool:
        """Return whether the point is an event, its snapshot, or its offset."""
        if isinstance(self._point, int):
            return entry.offset == self._point
        return self._point is not None and self._point in (event.envelope.event_id, *_snapshots_of(event))

    def finish(self) -> SessionRecord:
        """Return the record. Raises as `read_record` does."""
        session_id = self._key.session_id
        if not self._is_known:
            raise unknown_session(session_id)
        if self._memory is None:
            raise PointNotFound(self._point or "", session_id)
        if not self._events or not isinstance(self._events[0].event.payload, SessionCreated):
            raise NotReplayable(
                f"the record of session {session_id} is not whole: its beginning is gone from the log by its "
                "retention; ask ClickHouse (`sessionary session timeline`) for what is left"
            )
        if self._point is not None and not self._is_found:
            if self._refused is not None:
                raise rejected_point(self._point, session_id, self._refused)
            raise PointNotFound(self._point, session_id)
        return SessionRecord(self._key, self._events, self._rejected, self._memory, self.batches, self._point)


def fold_entry(memory: InMemoryTransport, entry: LogEntry, *, session_id: str, has_times: bool) -> JudgedEvent | None:
    """Judge an entry of a session's log as the processor did; None if it is no event.

    Raises `NotReplayable` for a record of a newer version.
    """
    try:
        with memory.core.lock:
            return memory.core.log.append_past(entry, has_times=has_times)
    except DecodeError as why:
        if why.reason == "undecodable":
            return None  # the processor rejected it, too
        raise NotReplayable(
            f"the record of session {session_id} cannot be read at offset {entry.offset} ({why}): it is "
            "of a newer version; upgrade the package sessionary in this process"
        ) from why


def unknown_session(session_id: str) -> SessionLost:
    """Return the error of a session of which the log has nothing."""
    return SessionLost(f"session {session_id} is not known: the log has no event of it for this tenant")


def _snapshots_of(event: Event) -> list[str]:
    """Return the ids of the snapshots that an event makes."""
    payload = event.payload
    snapshot = getattr(payload, "snapshot", None)
    made = [] if snapshot is None else [snapshot.snapshot_id]
    if isinstance(payload, AgentRegistered | AgentTaskUpdated):
        named = payload.to_snapshot_id if isinstance(payload, AgentTaskUpdated) else None
        made.append(named or event_snapshot_id(event.envelope.event_id))
    return made
