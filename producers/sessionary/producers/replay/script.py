"""Compares the events of a replay with those of the record, and does again what others did.

What two runs of the same code give differently, such as ids and durations, does not count.
"""

import json
from collections import deque
from collections.abc import Callable, Collection, Mapping, Sequence
from threading import RLock
from typing import Any, Final

from sessionary.producers.ports import Backlog, Counters, OnReceipt, OutRecord, Transport
from sessionary.producers.replay.calls import without_addresses
from sessionary.producers.replay.record import RecordedEvent, SessionRecord
from sessionary.producers.testing.memory import InMemoryTransport
from sessionary.schemas.codec import Decoder, Event, encode_event
from sessionary.schemas.events import LlmDecision, RunRunning, SessionActivity, SnapshotCreated, UsageRecorded

# Fields that say which process did it, when, and by which try.
_FREE: Final = frozenset(
    {
        *("tool_call_id", "idem_key", "execution_time_ms", "duration_ms", "try_number", "attempt"),
        *("updating_at", "persisting_at", "snapshot_id", "parent_snapshot_id", "from_snapshot_id"),
        *("to_snapshot_id", "checkpoint_id", "artifact_id", "uri", "elapsed_s"),
        *("time_to_first_token_ms", "retry_of", "due_at", "question_id", "last_item_id", "data_json"),
        *("transaction_id", "snapshot"),  # a snapshot repeats what other events said
    }
)
# What a process does because another one died, or a person asked; code that runs once need not.
_OF_PROCESSES: Final = frozenset(
    {
        *("session_resumed", "session_taken_over", "session_recovered", "session_timed_out", "step_skipped"),
        *("run_resumed", "resources_released", "requests_repeated", "artifact_soft_deleted", "artifact_purged"),
        *("tool_call_unknown", "tool_call_resolved"),
        *("artifact_created", "artifact_completed"),  # large values, which answered calls do not keep again
    }
)


class TargetReached(BaseException):
    """Stops the agent's code at the point up to which it is replayed; no `except` is to hold it."""


class Script:
    """The events that a replay is to send again. Thread-safe.

    Attributes:
        session_id: The session that is replayed, once it is known.
        now_us: When the last event occurred that was sent again, µs since the epoch.
        is_reached: The agent has come to the point.
    """

    def __init__(self, record: SessionRecord, *, stops: bool) -> None:
        """`stops`: the agent's code stops at the point, if one was given."""
        self._stops = stops and not record.is_whole
        self.session_id: str | None = None
        self.now_us = record.events[0].event.envelope.occurred_at
        self.is_reached = False
        self._record, self._lock = record, RLock()
        self._unended = record.found.unended
        self._inside = record.found.inside | _left_behind(record.events, self._unended)
        self._left: dict[str, deque[RecordedEvent]] = {}
        for each in record.events:
            if each.is_own and each.offset not in self._inside:
                self._left.setdefault(_form_of(each.event), deque()).append(each)
        self._refused: dict[str, deque[RecordedEvent]] = {}  # may be sent again, and rejected again
        for each in record.rejected:
            self._refused.setdefault(_form_of(each.event), deque()).append(each)
        self._sent: set[int] = set()  # offsets of the events that were sent again
        self._next = 0  # the first event of the record that was neither sent again nor done again
        self._others: list[str] = []  # what the record does not have

    @property
    def is_over(self) -> bool:
        """Whether all events of the record were sent again."""
        return self._next >= len(self._record.events)

    def check_target(self) -> None:
        """Raise `TargetReached` once the agent has come to the point."""
        if self.is_reached:
            raise TargetReached

    def check_end(self) -> None:
        """Raise `TargetReached` for a call that the record up to the point does not have.

        Only if all that it has was sent again: then the call is the first one after the point.
        """
        if self._stops and self.is_over:
            self.is_reached = True
            raise TargetReached

    def is_next(self, event: Event) -> bool:
        """Return whether the record has an event that was not sent again yet."""
        with self._lock:
            return bool(self._left.get(_form_of(event)))

    def note(self, event: Event, redo: Callable[[RecordedEvent], None], *, is_rejected: bool = False) -> None:
        """Note an event that was sent; `redo` takes what others did next."""
        with self._lock:
            form = _form_of(event)
            places = (self._refused, self._left) if is_rejected else (self._left, self._refused)
            waiting = places[0].get(form) or places[1].get(form)
            if waiting:
                found = waiting.popleft()
                self._sent.add(found.offset)
                self.now_us = max(self.now_us, found.event.envelope.occurred_at)
            elif not _is_of_process(event):
                self._others.append(_describe(event))
            self.go_on(redo)

    def go_on(self, redo: Callable[[RecordedEvent], None]) -> None:
        """Let `redo` do again what others did up to the next event of the agent."""
        with self._lock:
            events = self._record.events
            while self._next < len(events) and self._may_pass(event := events[self._next]):
                self._next += 1
                if not event.is_own:
                    redo(event)
            if self.is_over and self._stops:
                self.is_reached = True

    def _may_pass(self, event: RecordedEvent) -> bool:
        is_free = not event.is_own or event.offset in self._inside or event.offset in self._sent
        return is_free or _is_of_process(event.event)

    def find_difference(self) -> str | None:
        """Return the first difference from the record, for people; None if there is none."""
        left = [each for waiting in self._left.values() for each in waiting]
        missing = [each for each in left if not _is_of_process(each.event) and each.offset not in self._unended]
        if missing:
            first = min(missing, key=lambda each: each.offset)
            came = f"; instead it sent {self._others[0]}" if self._others else ""
            return f"the record has {_describe(first.event)} at offset {first.offset}, the replay has not{came}"
        return f"the replay has {self._others[0]}, which the record has not" if self._others else None


class ScriptedTransport:
    """A transport that notes what the replayed session sends. Thread-safe."""

    def __init__(self, inner: Transport, script: Script, memory: InMemoryTransport | None = None) -> None:
        """`memory`: the inner one, if what others did in the record is sent to it, too."""
        self._inner, self._script, self._memory = inner, script, memory
        self._decoder = Decoder()

    @property
    def may_block(self) -> bool:
        """As the inner one."""
        return self._inner.may_block

    @property
    def counters(self) -> Counters:
        """Those of the inner one."""
        return self._inner.counters

    @property
    def backlog(self) -> Backlog:
        """That of the inner one."""
        return self._inner.backlog

    def send(self, record: OutRecord, on_receipt: OnReceipt | None = None) -> None:
        """Send a record, and note it. Raises `TargetReached`, and as the inner one."""
        if record.session_id != self._script.session_id:
            self._inner.send(record, on_receipt)
            return
        self._script.check_target()
        event = self._decoder.decode_event(record.value)
        assert isinstance(event, Event)
        if self._memory is None and isinstance(event.payload, UsageRecorded) and self._script.is_next(event):
            # It was used once, in the session that this is a fork of.
            nothing = UsageRecorded(event.payload.model, 0, 0, 0, 0, is_timeout_retry=False)
            record = record._replace(value=encode_event(event._replace(payload=nothing)))
        self._inner.send(record, on_receipt)
        self._script.note(event, self.redo, is_rejected=self._is_rejected(event))

    def _is_rejected(self, event: Event) -> bool:
        """Return whether an event that was just sent is known to be rejected."""
        judged = () if self._memory is None else reversed(self._memory.core.log.judged)
        event_id = event.envelope.event_id
        found = (each for each in judged if each.event.envelope.event_id == event_id)
        return next((each.outcome == "rejected" for each in found), False)

    def redo(self, event: RecordedEvent) -> None:
        """Send what another one sent in the record."""
        if self._memory is not None:
            self._inner.send(event.sent)

    def send_heartbeat(self, record: OutRecord) -> None:
        """Send a heartbeat."""
        self._inner.send_heartbeat(record)

    def flush(self, timeout_s: float) -> int:
        """As the inner one."""
        return self._inner.flush(timeout_s)

    def close(self, timeout_s: float) -> int:
        """As the inner one."""
        return self._inner.close(timeout_s)


def _left_behind(events: Sequence[RecordedEvent], unended: Collection[int]) -> set[int]:
    """Return the offsets of events that are there because a process died, and another went on.

    These are beginnings of calls that were begun again, and the second beginning of their run. Code
    that runs once does not send them.
    """
    found, senders, later = set[int](), dict[str, str](), set[str]()
    for each in events:
        envelope, payload = each.event.envelope, each.event.payload
        if each.is_own and envelope.run_id is not None:
            former = senders.setdefault(envelope.run_id, envelope.producer_id)
            if isinstance(payload, RunRunning) and payload.progress is None and former != envelope.producer_id:
                found.add(each.offset)
            senders[envelope.run_id] = envelope.producer_id
    for each in reversed(events):
        form = _form_of(each.event)
        if each.offset not in unended:
            later.add(form)
        elif form in later:
            found.add(each.offset)
    return found


def _is_of_process(event: Event) -> bool:
    """Return whether a process did this beside its agent's code: a replay need not do it.

    Answered calls take no snapshots, and load no artifacts.
    """
    payload = event.payload
    return (
        event.envelope.event_type in _OF_PROCESSES
        or (isinstance(payload, SnapshotCreated) and payload.snapshot.tool is not None)
        or (isinstance(payload, SessionActivity) and payload.uri is not None)
    )


def _form_of(event: Event) -> str:
    """Return what two equal events have in common, as text."""
    name = event.envelope.event_type
    plain = _plain(event.payload)
    if name == "step_started":
        plain.pop("reason", None)
    if isinstance(event.payload, LlmDecision):  # of a mapping: an answer from the record has another order
        plain["candidates"] = sorted(plain["candidates"] or [], key=json.dumps)
    return f"{name} {json.dumps(plain, sort_keys=True, default=str)}"


def _plain(value: Any) -> Any:
    fields = getattr(value, "_asdict", None)
    if fields is not None:
        return {name: _plain(each) for name, each in fields().items() if name not in _FREE}
    if isinstance(value, Mapping):
        return {f"{name}": _plain(each) for name, each in value.items()}
    if isinstance(value, Sequence) and not isinstance(value, str | bytes):
        return [_plain(each) for each in value]
    return without_addresses(value) if isinstance(value, str) else value


def _describe(event: Event) -> str:
    text = json.dumps({name: each for name, each in _plain(event.payload).items() if each is not None}, default=str)
    return f"{event.envelope.event_type} {text if len(text) <= 300 else text[:300] + '…'}"
