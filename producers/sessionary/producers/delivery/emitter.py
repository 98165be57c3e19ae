"""Builds records from payloads: identity, sequence number, epoch, bytes. Knows no session state.

Sequence numbers count per session and producer, from 1, without gaps. Only an event that the
transport took uses one. A dropped event counts as taken, so that its loss shows as a gap.
"""

import contextlib
import time
from collections.abc import Callable, Sequence
from threading import Condition, Lock, RLock
from typing import Final, NamedTuple

from sessionary.producers.delivery.record_ids import EventTemplate, HeartbeatTemplate, new_event_id
from sessionary.producers.errors import ClientClosed, EncodeError, Invalid, QueueFull, Unavailable
from sessionary.producers.ports import OnReceipt, OutRecord, Receipt, Transport
from sessionary.producers.process.safe_text import replace_in_value
from sessionary.schemas.codec import Event, encode_event
from sessionary.schemas.codec.compiled_helpers import WRITER_GAVE_UP
from sessionary.schemas.codec.value_bounds import find_invalid_value, find_long_text
from sessionary.schemas.events import EVENT_TYPES, OPERATORS, Heartbeat, Payload
from sessionary.schemas.headers import TRACEPARENT, event_headers
from sessionary.schemas.ids import SessionKey
from sessionary.schemas.topics import VALUE_BYTES_MAX
from sessionary.schemas.types import DataClass, Envelope

SEQUENCES_MAX = 100_000
ENDED_MAX = 1_000
_NO_OPERATOR = (
    "as_operator is for operators, who act by the control API (`sessionary session pause`, `approve` and so on); "
    "a client acts as itself: leave the field out"
)


def new_producer_id() -> str:
    """Return an id for a process; a copy of it at another moment gets another one."""
    return new_event_id(time.time_ns() // 1_000)


class ProducerSequence:
    """One producer's numbers in one session. Hold `lock` from taking a number until it is sent.

    `data_classes` are those of the session, as far as the client knows.
    """

    __slots__ = (
        "_changed",
        "_forget",
        "_former",
        "_position",
        "_settled",
        "data_classes",
        "last",
        "last_us",
        "lock",
        "lost",
        "producer_id",
    )

    def __init__(self, producer_id: str, changed: Condition | None = None) -> None:
        """`changed` is notified of each receipt; sequences may share one."""
        self.producer_id = producer_id
        self.last = 0
        self.last_us = 0  # when the last event was made, µs since the epoch
        self.lost = 0  # events that were not delivered, according to their receipts
        self.data_classes: tuple[DataClass, ...] = ()
        self.lock = RLock()
        self._changed = changed or Condition()
        self._former = 0  # numbers given out under former producer ids
        self._settled = 0  # receipts so far, of all ids
        self._position: tuple[int, int] | None = None
        self._forget: Callable[[], None] | None = None  # once the last event of an ended session is settled

    def add_data_classes(self, data_classes: Sequence[DataClass]) -> None:
        """Add classes of the session. Events carry them from now on."""
        added = tuple(data_classes)
        with self._changed:  # several objects of one session may add some
            self.data_classes = tuple(dict.fromkeys((*self.data_classes, *added)))

    def renew_producer(self) -> None:
        """Continue with a new producer id, from number 1. Hold `lock`."""
        with self._changed:
            self._former += self.last  # their receipts are still awaited
            self.producer_id, self.last = new_producer_id(), 0

    def give_back(self) -> None:
        """Give the last number back: the transport did not take its event. Hold `lock`."""
        with self._changed:
            self.last -= 1
            self._changed.notify_all()  # a thread may have begun to wait for its receipt
        if self._forget is not None:
            self._forget_settled()

    def on_receipt(self, receipt: Receipt) -> None:
        """Take an event's receipt; every number has one. Called on any thread."""
        with self._changed:
            self._settled += 1
            self.lost += receipt.error is not None
            if receipt.error is None and receipt.partition is not None and receipt.offset is not None:
                position = (receipt.partition, receipt.offset)
                self._position = position if self._position is None else max(self._position, position)
            self._changed.notify_all()
        if self._forget is not None:
            self._forget_settled()

    def forget_when_settled(self, forget: Callable[[], None]) -> None:
        """Call `forget` once, as soon as every event sent so far has its receipt."""
        self._forget = forget
        self._forget_settled()

    def _forget_settled(self) -> None:
        with self._changed:
            if self._settled < self._former + self.last:
                return
            forget, self._forget = self._forget, None
        if forget is not None:
            forget()

    def wait_position(self, timeout_s: float) -> tuple[int, int] | None:
        """Wait until all events sent so far are delivered or lost.

        Returns partition and offset of the last one whose position in the log is known, or None.
        Raises `Unavailable`.
        """
        with self._changed:
            sent = self._former + self.last  # a new producer id meanwhile changes nothing
            # The last one may be an event that waits for room, and is not taken in the end.
            if not self._changed.wait_for(lambda: self._settled >= min(sent, self._former + self.last), timeout_s):
                raise Unavailable(f"{sent - self._settled} events of the session are not delivered yet", 1.0)
            return self._position

    def settled_position(self) -> tuple[int, int] | None:
        """Return partition and offset of the last event, or None while one is on its way."""
        with self._changed:
            return self._position if self._settled >= self._former + self.last else None


class SequenceRegistry:
    """The sequences of a client's sessions that have not ended, at most `SEQUENCES_MAX`.

    A sequence that was evicted or forgotten never restarts at 1 under the same producer id, as the
    processor would take its events for duplicates. The session continues with a new producer id.
    """

    def __init__(self, producer_id: str, limit: int = SEQUENCES_MAX) -> None:
        self._producer_id = producer_id
        self._limit = limit
        self._evicted = False
        self._lock = Lock()
        self._changed = Condition()
        self._sequences: dict[SessionKey, ProducerSequence] = {}
        self._ended: dict[SessionKey, ProducerSequence] = {}
        self._ended_max = 0

    def sequence_for(self, key: SessionKey, *, new: bool = False) -> ProducerSequence:
        """Return the session's sequence; pass `new` if its session id was generated just now."""
        with self._lock:
            found = self._sequences.get(key) or self._ended.get(key)
            if found is None:
                may_be_evicted = self._evicted and not new
                producer_id = new_producer_id() if may_be_evicted else self._producer_id
                found = self._sequences[key] = ProducerSequence(producer_id, self._changed)
                if len(self._sequences) > self._limit:
                    del self._sequences[next(iter(self._sequences))]
                    self._evicted = True
            return found

    def keep_ended(self, most: int = ENDED_MAX) -> None:
        """Keep the sequences of the last `most` ended sessions, for answers that come later."""
        self._ended_max = most

    def forget_sequence(self, key: SessionKey, sequence: ProducerSequence) -> None:
        """Forget the sequence of a session that has ended, if it is still the session's."""
        with self._lock:
            if self._sequences.get(key) is sequence:
                del self._sequences[key]
                self._ended[key] = sequence
            if len(self._ended) > self._ended_max:
                del self._ended[next(iter(self._ended))]
                self._evicted = True


ENVELOPE_VERSION = 1
_SEEN_MIN = 3  # events of a type before it has a template: every session sends some types twice


class SenderIdentity(NamedTuple):
    """The service and agent that send a client's events; their versions go with snapshots."""

    service_id: str
    agent_id: str
    agent_role: str | None = None
    actor: str | None = None
    versions: tuple[str | None, str | None] = (None, None)  # of the server, and of its protocol


class EnvelopeFields(NamedTuple):
    """Envelope fields that differ from call to call."""

    run_id: str | None = None
    run_seq: int | None = None
    step_id: str | None = None
    causation_id: str | None = None
    actor: str | None = None
    traceparent: str | None = None  # W3C trace context; goes into a header
    occurred_at: int | None = None  # µs since the epoch; None = now


NO_FIELDS = EnvelopeFields()


# Their snapshots hold the content alone, unless the session takes further ones.
_WITH_STATE: Final = frozenset({"session_created", "session_paused", "session_terminated"})
_NO_VERSIONS: Final = (None, None)


class SendGate:
    """Open while the client may send. `close` shuts it; so does a fork, in the child."""

    __slots__ = ("of_parent", "open")

    def __init__(self) -> None:
        self.open = True
        self.of_parent = False  # a forked child looks at it: sessions made before are its parent's

    def closed_error(self) -> ClientClosed:
        """Return the error of a verb while the gate is shut."""
        if self.of_parent:
            return ClientClosed(
                "the session was made before the fork, by the parent process; attach to it, or make a new one"
            )
        return ClientClosed("the client is closed; create a new one")


class Emitter:
    """Sends the events of one session in sequence. Thread-safe."""

    def __init__(
        self,
        transport: Transport,
        gate: SendGate,
        identity: SenderIdentity,
        key: SessionKey,
        sequence: ProducerSequence,
        *,
        user_id: str | None = None,
        data_classes: Sequence[DataClass] = (),
        registry: SequenceRegistry | None = None,
    ) -> None:
        """`registry`: keeps `sequence` until the session has ended; None: it is not kept."""
        self._transport = transport
        self._registry = registry
        self.gate = gate
        self._identity = identity
        self.service_id = identity.service_id
        self.key_bytes = key.encoded()
        self._sequence = sequence
        sequence.add_data_classes(data_classes)
        self._user_id = user_id
        self.key = key
        self.lock = sequence.lock
        self.epoch = 1
        self.context_bytes: int | None = None
        self.lease: object = None  # keeps the client open
        self._heartbeat: HeartbeatTemplate | None = None
        self._templates: dict[type[Payload], EventTemplate | None] = {}  # None: it can have none
        self._seen: dict[type[Payload], int] = {}
        self._template_facts: tuple[object, ...] = ()
        self._built_us = 0  # when the last event occurred that was built without a template

    @property
    def is_of_parent(self) -> bool:
        """True in a forked child, if its parent made the session."""
        return self.gate.of_parent

    def check_process(self) -> None:
        """Raise `ClientClosed` in a forked child, if its parent made the session."""
        if self.gate.of_parent:
            raise self.gate.closed_error()

    @property
    def last_seq(self) -> int:
        """The last sequence number taken; 0 before the first event."""
        return self._sequence.last

    @property
    def last_us(self) -> int:
        """When the last event was made, µs since the epoch; 0 before the first one."""
        return self._sequence.last_us

    @property
    def may_block(self) -> bool:
        """True if `emit` may wait for room in the queue."""
        return self._transport.may_block

    @property
    def lost_events(self) -> int:
        """How many events of the session were not delivered, as far as is known."""
        return self._sequence.lost

    @property
    def producer_id(self) -> str:
        """The producer id of the session's events."""
        return self._sequence.producer_id

    def renew_producer(self) -> None:
        """Send further events of the session with a new producer id."""
        with self._sequence.lock:
            self._sequence.renew_producer()

    def forget_sequence(self) -> None:
        """Forget the sequence once all events are settled: the session has ended.

        This emitter continues its sequence. A new emitter of the session begins another one, with a
        new producer id.
        """
        if self._registry is not None:
            registry, key, sequence = self._registry, self.key, self._sequence
            sequence.forget_when_settled(lambda: registry.forget_sequence(key, sequence))

    def add_data_classes(self, data_classes: Sequence[DataClass]) -> None:
        """Add data classes to the session's further events."""
        self._sequence.add_data_classes(data_classes)

    def wait_position(self, timeout_s: float) -> tuple[int, int] | None:
        """Wait as `ProducerSequence.wait_position` does."""
        return self._sequence.wait_position(timeout_s)

    def wait_taken_over(self, timeout_s: float) -> None:
        """Wait until what dead processes left of the session is delivered or lost.

        Raises `Unavailable`.
        """
        if not self._transport.wait_taken_over(self.key.encoded(), timeout_s):
            raise Unavailable("events of the session that a dead process left are not delivered yet", 1.0)

    def settled_position(self) -> tuple[int, int] | None:
        """Return as `ProducerSequence.settled_position` does."""
        return self._sequence.settled_position()

    def emit(
        self,
        payload: Payload,
        fields: EnvelopeFields = NO_FIELDS,
        on_receipt: OnReceipt | None = None,
        event_id: str | None = None,
    ) -> str:
        """Send one event, return its id; `event_id`: instead of a new one.

        Raises `Invalid`, `QueueFull`, `ClientClosed`; in these cases no number is used.
        """
        if type(payload) in OPERATORS and getattr(payload, "as_operator", False):
            raise Invalid("operator_only", _NO_OPERATOR)
        sequence = self._sequence
        settle = sequence.on_receipt if on_receipt is None else _both(sequence.on_receipt, on_receipt)
        with sequence.lock:
            record, seq = None, sequence.last + 1
            if fields is NO_FIELDS and event_id is None and self.gate.open:
                facts = (sequence.producer_id, self.epoch, sequence.data_classes, self.context_bytes)
                template = self._templates.get(type(payload)) if facts == self._template_facts else None
                if template is not None:
                    record = template.make_record(payload, seq)
                else:
                    self._see_event(payload, facts)
            if record is None:
                record = self._build_record(payload, fields, seq, event_id=event_id)
            sequence.last = seq
            try:
                self._transport.send(record, settle)
            except (QueueFull, ClientClosed):
                sequence.give_back()
                raise
            if (at_us := record.stamp_us or self._built_us) > sequence.last_us:
                sequence.last_us = at_us
        return record.event_id

    def emit_heartbeat(
        self, run_id: str | None = None, elapsed_s: float | None = None, *, epoch: int | None = None
    ) -> None:
        """Send a heartbeat; it uses no number. Never blocks.

        `run_id`: the run whose beat it is, and the seconds that it has taken. `epoch`: instead of
        the session's.
        """
        if not self.gate.open:
            raise self.gate.closed_error()
        sequence = self._sequence
        epoch = self.epoch if epoch is None else epoch
        facts = (sequence.last, sequence.producer_id, epoch, sequence.data_classes, self.context_bytes)
        template, now_us = self._heartbeat, time.time_ns() // 1000
        if run_id is not None:
            fields = EnvelopeFields(run_id=run_id, occurred_at=now_us)
            self._transport.send_heartbeat(self._build_record(Heartbeat(sequence.last, elapsed_s), fields, 0, epoch))
            return
        if template is not None and template.facts == facts:
            self._transport.send_heartbeat(template.make_heartbeat(now_us))
            return
        record = self._build_record(Heartbeat(sequence.last), EnvelopeFields(occurred_at=now_us), 0, epoch)
        try:
            self._heartbeat = HeartbeatTemplate(record, now_us, facts)
        except ValueError:
            self._heartbeat = None
        self._transport.send_heartbeat(record)

    def _build_record(
        self,
        payload: Payload,
        fields: EnvelopeFields,
        seq: int,
        epoch: int | None = None,
        event_id: str | None = None,
    ) -> OutRecord:
        if not self.gate.open:
            raise self.gate.closed_error()
        event_type = EVENT_TYPES.get(type(payload))
        if event_type is None:
            raise Invalid(
                "unknown_event_type",
                f"{type(payload).__name__} is not an event class; use one of sessionary.schemas.events",
            )
        now_us = time.time_ns() // 1000
        event_id = event_id or new_event_id(now_us)
        occurred_at = now_us if fields.occurred_at is None else fields.occurred_at
        self._built_us = occurred_at
        envelope = self._envelope_of(event_type, fields, event_id, seq, occurred_at)
        event = Event(envelope if epoch is None else envelope._replace(epoch=epoch), payload)
        try:
            value = encode_event(event)
        except EncodeError:
            event, value = _encode_mended(event)
        if detail := find_long_text(event.envelope):
            raise Invalid("invalid_value", f"{event_type}: {detail}")
        self._check_event(event, value)
        headers, trace = event_headers(event.envelope, fields.traceparent), fields.traceparent
        if trace is not None and headers[-1][0] != TRACEPARENT:
            trace = None  # malformed: it is left out of the spool too
        (tenant_id, session_id), producer_id = self.key, self._sequence.producer_id
        ids = (event_id, event_type, tenant_id, session_id, producer_id, seq)
        return OutRecord(self.key_bytes, value, headers, *ids, trace)

    def _see_event(self, payload: Payload, facts: tuple[object, ...]) -> None:
        """Count an event without a template; make one for its class once the event is frequent.

        `facts`: the fields of the envelopes that do not differ from event to event.
        """
        if facts != self._template_facts:
            self._template_facts = facts
            self._templates.clear()
            self._seen.clear()  # facts that change with every event are worth no template
        cls = type(payload)
        event_type = EVENT_TYPES.get(cls)
        if event_type is None or cls in self._templates:
            return
        self._seen[cls] = seen = self._seen.get(cls, 0) + 1
        if seen < _SEEN_MIN:
            return
        self._templates[cls] = None
        envelope = self._envelope_of(event_type, NO_FIELDS, "", 0, 0)
        if not find_long_text(envelope):
            with contextlib.suppress(ValueError, EncodeError, *WRITER_GAVE_UP):
                self._templates[cls] = EventTemplate(self.key_bytes, envelope, payload)

    def _envelope_of(
        self, event_type: str, fields: EnvelopeFields, event_id: str, seq: int, occurred_at: int
    ) -> Envelope:
        identity, key = self._identity, self.key
        return Envelope(
            event_id,
            event_type,
            ENVELOPE_VERSION,
            key.tenant_id,
            key.session_id,
            self._user_id,
            identity.agent_id,
            identity.agent_role,
            identity.service_id,
            fields.actor or identity.actor,
            self.epoch,
            self._sequence.producer_id,
            seq,
            fields.run_id,
            fields.run_seq,
            fields.step_id,
            fields.causation_id,
            occurred_at,
            self._sequence.data_classes,
            self.context_bytes,
            *(identity.versions if event_type in _WITH_STATE else _NO_VERSIONS),
        )

    def _check_event(self, event: Event, value: bytes) -> None:
        """Raise `Invalid` for a value out of bounds, or for too many bytes."""
        if detail := find_invalid_value(event):
            raise Invalid("invalid_value", f"{event.envelope.event_type}: {detail}")
        if len(value) > VALUE_BYTES_MAX:
            raise Invalid(
                "invalid_value",
                f"{event.envelope.event_type} has {len(value)} bytes, more than {VALUE_BYTES_MAX}: store the content "
                "elsewhere and send a reference",
            )


def _encode_mended(event: Event) -> tuple[Event, bytes]:
    """Encode an event without its lone surrogates. Raises `EncodeError` for other faults."""
    mended = replace_in_value(event)
    return mended, encode_event(mended)


def _both(first: OnReceipt, second: OnReceipt) -> OnReceipt:
    def on_receipt(receipt: Receipt) -> None:
        first(receipt)
        second(receipt)

    return on_receipt
