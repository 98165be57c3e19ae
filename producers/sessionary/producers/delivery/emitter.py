"""Builds records from payloads: identity, sequence number, epoch, bytes. Knows no session state.

Sequence numbers count per session and producer, from 1, without holes. Only an event that the
transport took uses one. A dropped event counts as taken, so that its loss shows as a gap.
"""

import contextlib
import time
import uuid
from collections.abc import Callable, Sequence
from threading import Condition, Lock, RLock
from typing import NamedTuple

from sessionary.producers.delivery.record_ids import EventTemplate, HeartbeatTemplate, new_event_id
from sessionary.producers.errors import ClientClosed, EncodeError, Invalid, QueueFull, Unavailable
from sessionary.producers.ports import OnReceipt, OutRecord, Receipt, Transport
from sessionary.schemas.codec import Event, encode_event
from sessionary.schemas.codec.compiled_writer import WRITER_GAVE_UP
from sessionary.schemas.codec.value_bounds import find_invalid_value, find_long_text
from sessionary.schemas.events import EVENT_TYPES, Heartbeat, Payload
from sessionary.schemas.headers import event_headers
from sessionary.schemas.ids import SessionKey
from sessionary.schemas.topics import VALUE_BYTES_MAX
from sessionary.schemas.types import DataClass, Envelope

ENVELOPE_VERSION = 1
SEQUENCES_MAX = 100_000
_SEEN_MIN = 3  # events of a type before it has a template: every session sends some types twice
ENDED_MAX = 1_000


class SenderIdentity(NamedTuple):
    """The service and agent that send a client's events."""

    service_id: str
    agent_id: str
    agent_role: str | None = None
    actor: str | None = None


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


class SendGate:
    """Open while the client may send.

    `close` shuts it. So does a fork, in the child: the client's threads do not exist there.
    """

    __slots__ = ("__weakref__", "open")

    def __init__(self) -> None:
        self.open = True


class ProducerSequence:
    """One producer's numbers in one session. Hold `lock` from taking a number until it is sent.

    `data_classes` are those of the session, as far as the client knows.
    """

    __slots__ = ("_changed", "_forget", "_position", "_settled", "data_classes", "last", "lock", "producer_id")

    def __init__(self, producer_id: str, changed: Condition | None = None) -> None:
        """`changed` is notified of each receipt; sequences may share one."""
        self.producer_id = producer_id
        self.last = 0
        self.data_classes: tuple[DataClass, ...] = ()
        self.lock = RLock()
        self._changed = changed or Condition()
        self._settled = 0  # receipts so far
        self._position: tuple[int, int] | None = None
        self._forget: Callable[[], None] | None = None  # once the last event of an ended session is settled

    def add_data_classes(self, data_classes: Sequence[DataClass]) -> None:
        """Add classes of the session. Events carry them from now on."""
        self.data_classes = tuple(dict.fromkeys((*self.data_classes, *data_classes)))

    def renew_producer(self) -> None:
        """Go on with a new producer id, from number 1. Hold `lock`."""
        with self._changed:
            self._settled -= self.last  # receipts of earlier events are still awaited
            self.producer_id, self.last, self._position = str(uuid.uuid4()), 0, None

    def on_receipt(self, receipt: Receipt) -> None:
        """Take an event's receipt; every number has one. Called on any thread."""
        with self._changed:
            self._settled += 1
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
            if self._settled < self.last:
                return
            forget, self._forget = self._forget, None
        if forget is not None:
            forget()

    def wait_position(self, timeout_s: float) -> tuple[int, int] | None:
        """Wait until all events sent so far are delivered or lost.

        Returns partition and offset of the last one whose place in the log is known, or None.
        Raises `Unavailable`.
        """
        last = self.last
        with self._changed:
            if not self._changed.wait_for(lambda: self._settled >= last, timeout_s):
                raise Unavailable(f"{last - self._settled} events of the session are not delivered yet", 1.0)
            return self._position


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
                producer_id = str(uuid.uuid4()) if may_be_evicted else self._producer_id
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
        epoch: int = 1,
        registry: SequenceRegistry | None = None,
    ) -> None:
        """`registry`: where `sequence` is kept until the session has ended, if it is kept."""
        self._transport = transport
        self._registry = registry
        self._gate = gate
        self._identity = identity
        self.service_id = identity.service_id
        self._key_bytes = key.encoded()
        self._sequence = sequence
        sequence.add_data_classes(data_classes)
        self._user_id = user_id
        self.key = key
        self.lock = sequence.lock
        self.epoch = epoch
        self.context_bytes: int | None = None
        self._heartbeat: HeartbeatTemplate | None = None
        self._templates: dict[str, EventTemplate | None] = {}  # by event type; None: it can have none
        self._seen: dict[str, int] = {}
        self._template_facts: tuple[object, ...] = ()

    @property
    def last_seq(self) -> int:
        """The last sequence number taken; 0 before the first event."""
        return self._sequence.last

    @property
    def producer_id(self) -> str:
        """The producer id of the session's events."""
        return self._sequence.producer_id

    def renew_producer(self) -> None:
        """Send further events of the session with a new producer id."""
        with self._sequence.lock:
            self._sequence.renew_producer()

    def forget_sequence(self) -> None:
        """Let the client forget the sequence once all events are settled: the session has ended.

        Further events of this object go on with it. Others begin one with a new producer id.
        """
        if self._registry is not None:
            registry, key, sequence = self._registry, self.key, self._sequence
            sequence.forget_when_settled(lambda: registry.forget_sequence(key, sequence))

    def add_data_classes(self, data_classes: Sequence[DataClass]) -> None:
        """Let the session's further events carry these classes too."""
        self._sequence.add_data_classes(data_classes)

    def wait_position(self, timeout_s: float) -> tuple[int, int] | None:
        """Wait as `ProducerSequence.wait_position` does."""
        return self._sequence.wait_position(timeout_s)

    def emit(self, payload: Payload, fields: EnvelopeFields = NO_FIELDS, on_receipt: OnReceipt | None = None) -> str:
        """Send one event, return its id.

        Raises `Invalid`, `QueueFull`, `ClientClosed`; in these cases no number is used.
        """
        sequence = self._sequence
        settle = sequence.on_receipt if on_receipt is None else _both(sequence.on_receipt, on_receipt)
        with sequence.lock:
            record = self._build_record(payload, fields, sequence.last + 1)
            sequence.last += 1
            try:
                self._transport.send(record, settle)
            except (QueueFull, ClientClosed):
                sequence.last -= 1
                raise
        return record.event_id

    def emit_heartbeat(self) -> None:
        """Send a heartbeat; it uses no number. Never blocks."""
        if not self._gate.open:
            raise ClientClosed("the client is closed; create a new one")
        sequence = self._sequence
        facts = (sequence.last, sequence.producer_id, self.epoch, sequence.data_classes, self.context_bytes)
        template, now_us = self._heartbeat, time.time_ns() // 1000
        if template is not None and template.is_current(facts):
            self._transport.send_heartbeat(template.make_heartbeat(new_event_id(), now_us))
            return
        record = self._build_record(Heartbeat(sequence.last), EnvelopeFields(occurred_at=now_us), 0)
        try:
            self._heartbeat = HeartbeatTemplate(record, now_us, facts)
        except ValueError:
            self._heartbeat = None
        self._transport.send_heartbeat(record)

    def _build_record(self, payload: Payload, fields: EnvelopeFields, seq: int) -> OutRecord:
        if not self._gate.open:
            raise ClientClosed("the client is closed; create a new one")
        event_type = EVENT_TYPES.get(type(payload))
        if event_type is None:
            raise Invalid(
                "unknown_event_type",
                f"{type(payload).__name__} is not an event class; use one of sessionary.schemas.events",
            )
        sequence, event_id = self._sequence, new_event_id()
        occurred_at = fields.occurred_at if fields.occurred_at is not None else time.time_ns() // 1000
        if fields is NO_FIELDS:
            facts = (sequence.producer_id, self.epoch, sequence.data_classes, self.context_bytes)
            template = self._template_of(event_type, facts, payload)
            value = None if template is None else template.encode_payload(payload, event_id, seq, occurred_at)
            if template is not None and value is not None:
                self._check_event(Event(template.envelope, payload), value)
                headers = template.make_headers(event_id, occurred_at)
                return self._new_record(value, headers, event_id, event_type, seq, None)
        event = Event(self._envelope_of(event_type, fields, event_id, seq, occurred_at), payload)
        value = encode_event(event)
        if detail := find_long_text(event.envelope):
            raise Invalid("invalid_value", f"{event_type}: {detail}")
        self._check_event(event, value)
        headers = event_headers(event.envelope, fields.traceparent)
        return self._new_record(value, headers, event_id, event_type, seq, fields.traceparent)

    def _template_of(self, event_type: str, facts: tuple[object, ...], payload: Payload) -> EventTemplate | None:
        """Return the template of this type's events; None for the first ones, or if it has none."""
        if facts != self._template_facts:
            self._template_facts = facts
            self._templates.clear()
        if event_type in self._templates:
            return self._templates[event_type]
        self._seen[event_type] = seen = self._seen.get(event_type, 0) + 1
        if seen < _SEEN_MIN:
            return None
        self._templates[event_type] = None
        envelope = self._envelope_of(event_type, NO_FIELDS, "", 0, 0)
        if not find_long_text(envelope):
            with contextlib.suppress(ValueError, EncodeError, *WRITER_GAVE_UP):
                self._templates[event_type] = EventTemplate(envelope, payload)
        return self._templates[event_type]

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
        )

    def _check_event(self, event: Event, value: bytes) -> None:
        """Raise `Invalid` for a value that is out of bounds, or too many bytes."""
        if detail := find_invalid_value(event):
            raise Invalid("invalid_value", f"{event.envelope.event_type}: {detail}")
        if len(value) > VALUE_BYTES_MAX:
            raise Invalid(
                "invalid_value",
                f"{event.envelope.event_type} has {len(value)} bytes, more than {VALUE_BYTES_MAX}: store the content "
                "elsewhere and send a reference",
            )

    def _new_record(
        self,
        value: bytes,
        headers: list[tuple[str, bytes]],
        event_id: str,
        event_type: str,
        seq: int,
        trace: str | None,
    ) -> OutRecord:
        (tenant_id, session_id), producer_id = self.key, self._sequence.producer_id
        ids = (event_id, event_type, tenant_id, session_id, producer_id, seq)
        return OutRecord(self._key_bytes, value, headers, *ids, trace)


def _both(first: OnReceipt, second: OnReceipt) -> OnReceipt:
    def on_receipt(receipt: Receipt) -> None:
        first(receipt)
        second(receipt)

    return on_receipt


__all__ = [
    "NO_FIELDS",
    "Emitter",
    "EnvelopeFields",
    "ProducerSequence",
    "SendGate",
    "SenderIdentity",
    "SequenceRegistry",
]
