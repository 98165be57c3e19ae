"""Builds records from payloads: identity, sequence number, epoch, bytes. Knows no session state.

Sequence numbers count per session and producer, from 1, without holes. Only an event that the
transport took uses a number. A dropped event counts as taken, so that its loss shows as a gap.
"""

import time
import uuid
from collections.abc import Sequence
from threading import Condition, Lock, RLock
from typing import NamedTuple

from sessionary.producers.errors import ClientClosed, EncodeError, Invalid, QueueFull, Unavailable
from sessionary.producers.ports import OnReceipt, OutRecord, Receipt, Transport
from sessionary.producers.process.safe_text import replace_in_value
from sessionary.schemas.codec import Event, encode_event
from sessionary.schemas.codec.value_bounds import find_invalid_value, find_long_text
from sessionary.schemas.events import EVENT_TYPES, Heartbeat, Payload
from sessionary.schemas.headers import TRACEPARENT, event_headers
from sessionary.schemas.ids import SessionKey
from sessionary.schemas.topics import VALUE_BYTES_MAX
from sessionary.schemas.types import DataClass, Envelope

ENVELOPE_VERSION = 1
SEQUENCES_MAX = 100_000


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
    """Open while the client may send. `close` shuts it; so does a fork, in the child."""

    __slots__ = ("of_parent", "open")

    def __init__(self) -> None:
        self.open = True
        self.of_parent = False  # a forked child looks at it: sessions made before are its parent's

    def closed_error(self) -> ClientClosed:
        """Return what a verb raises while the gate is shut."""
        if self.of_parent:
            return ClientClosed(
                "the session was made before the fork, by the parent process; attach to it, or make a new one"
            )
        return ClientClosed("the client is closed; create a new one")


class ProducerSequence:
    """One producer's numbers in one session. Hold `lock` from taking a number until it is sent.

    `data_classes` are those of the session, as far as the client knows.
    """

    __slots__ = ("_changed", "_position", "_settled", "data_classes", "last", "lock", "lost", "producer_id")

    def __init__(self, producer_id: str, changed: Condition | None = None) -> None:
        """`changed` is notified of each receipt; sequences may share one."""
        self.producer_id = producer_id
        self.last = 0
        self.lost = 0  # events that were not delivered, as far as their receipts tell
        self.data_classes: tuple[DataClass, ...] = ()
        self.lock = RLock()
        self._changed = changed or Condition()
        self._settled = 0  # receipts so far
        self._position: tuple[int, int] | None = None

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
            self.lost += receipt.error is not None
            if receipt.error is None and receipt.partition is not None and receipt.offset is not None:
                position = (receipt.partition, receipt.offset)
                self._position = position if self._position is None else max(self._position, position)
            self._changed.notify_all()

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

    def settled_position(self) -> tuple[int, int] | None:
        """Return partition and offset of the last event, or None while one is on its way."""
        last = self.last
        with self._changed:
            return self._position if self._settled >= last else None


class SequenceRegistry:
    """The sequences of one client, at most `SEQUENCES_MAX`.

    A sequence that was evicted never restarts at 1 under the same producer id, as the processor
    would take its events for duplicates. The session continues with a new producer id instead.
    """

    def __init__(self, producer_id: str, limit: int = SEQUENCES_MAX) -> None:
        self._producer_id = producer_id
        self._limit = limit
        self._evicted = False
        self._lock = Lock()
        self._changed = Condition()
        self._sequences: dict[SessionKey, ProducerSequence] = {}

    def sequence_for(self, key: SessionKey, *, new: bool = False) -> ProducerSequence:
        """Return the session's sequence; pass `new` if its session id was generated just now."""
        with self._lock:
            found = self._sequences.get(key)
            if found is None:
                may_be_evicted = self._evicted and not new
                producer_id = str(uuid.uuid4()) if may_be_evicted else self._producer_id
                found = self._sequences[key] = ProducerSequence(producer_id, self._changed)
                if len(self._sequences) > self._limit:
                    del self._sequences[next(iter(self._sequences))]
                    self._evicted = True
            return found


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
    ) -> None:
        self._transport = transport
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

    @property
    def is_of_parent(self) -> bool:
        """True in a forked child, if its parent made the session."""
        return self._gate.of_parent

    @property
    def last_seq(self) -> int:
        """The last sequence number taken; 0 before the first event."""
        return self._sequence.last

    @property
    def may_block(self) -> bool:
        """True if `emit` may wait for room in the queue."""
        return self._transport.may_block

    @property
    def is_open(self) -> bool:
        """True while the client may send."""
        return self._gate.open

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

    def add_data_classes(self, data_classes: Sequence[DataClass]) -> None:
        """Let the session's further events carry these classes too."""
        self._sequence.add_data_classes(data_classes)

    def wait_position(self, timeout_s: float) -> tuple[int, int] | None:
        """Wait as `ProducerSequence.wait_position` does."""
        return self._sequence.wait_position(timeout_s)

    def settled_position(self) -> tuple[int, int] | None:
        """Return what `ProducerSequence.settled_position` does."""
        return self._sequence.settled_position()

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
        self._transport.send_heartbeat(self._build_record(Heartbeat(self._sequence.last), NO_FIELDS, 0))

    def _build_record(self, payload: Payload, fields: EnvelopeFields, seq: int) -> OutRecord:
        if not self._gate.open:
            raise self._gate.closed_error()
        event_type = EVENT_TYPES.get(type(payload))
        if event_type is None:
            raise Invalid(
                "unknown_event_type",
                f"{type(payload).__name__} is not an event class; use one of sessionary.schemas.events",
            )
        identity, key, producer_id = self._identity, self.key, self._sequence.producer_id
        event_id = str(uuid.uuid4())
        envelope = Envelope(
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
            producer_id,
            seq,
            fields.run_id,
            fields.run_seq,
            fields.step_id,
            fields.causation_id,
            fields.occurred_at if fields.occurred_at is not None else time.time_ns() // 1000,
            self._sequence.data_classes,
            self.context_bytes,
        )
        event = Event(envelope, payload)
        try:
            value = encode_event(event)
        except EncodeError:
            event, value = _encode_mended(event)
        if detail := find_long_text(envelope) or find_invalid_value(event):
            raise Invalid("invalid_value", f"{event_type}: {detail}")
        if len(value) > VALUE_BYTES_MAX:
            raise Invalid(
                "invalid_value",
                f"{event_type} has {len(value)} bytes, more than {VALUE_BYTES_MAX}: store the content "
                "elsewhere and send a reference",
            )
        headers = event_headers(envelope, fields.traceparent)
        traceparent = fields.traceparent
        if traceparent is not None and headers[-1][0] != TRACEPARENT:
            traceparent = None  # malformed: it is left out of the spool too
        return OutRecord(
            self._key_bytes,
            value,
            headers,
            event_id,
            event_type,
            key.tenant_id,
            key.session_id,
            producer_id,
            seq,
            traceparent,
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


__all__ = [
    "NO_FIELDS",
    "Emitter",
    "EnvelopeFields",
    "ProducerSequence",
    "SendGate",
    "SenderIdentity",
    "SequenceRegistry",
]
