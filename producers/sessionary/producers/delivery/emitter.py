"""From a payload to a record: identity, sequence number, epoch, bytes. Knows no Kafka and no session state.

Sequence numbers count per session and producer, from 1, without holes: a number is taken only by an event that the
transport took (a dropped event counts as taken, so that its loss is visible as a gap).
"""

import time
import uuid
from collections.abc import Sequence as Values
from threading import Lock, RLock
from typing import NamedTuple

from sessionary.producers.errors import ClientClosed, Invalid, QueueFull
from sessionary.producers.ports import OnReceipt, OutRecord, Transport
from sessionary.schemas.codec import Event, encode_event
from sessionary.schemas.events import EVENT_TYPES, Heartbeat, Payload
from sessionary.schemas.headers import event_headers
from sessionary.schemas.ids import SessionKey
from sessionary.schemas.topics import VALUE_BYTES_MAX
from sessionary.schemas.types import DataClass, Envelope

ENVELOPE_VERSION = 1
SEQUENCES_MAX = 100_000


class Identity(NamedTuple):
    """Who sends."""

    service_id: str
    agent_id: str
    agent_role: str | None = None
    actor: str | None = None


class Marks(NamedTuple):
    """What an event may say beyond its payload."""

    run_id: str | None = None
    run_seq: int | None = None
    step_id: str | None = None
    causation_id: str | None = None
    actor: str | None = None
    traceparent: str | None = None  # W3C trace context
    occurred_at: int | None = None  # µs since the epoch; None = now


NO_MARKS = Marks()


class Gate:
    """Open while the client may send: closed by `close`, and in a forked child, where the client's threads are gone."""

    __slots__ = ("open",)

    def __init__(self) -> None:
        self.open = True


class Sequence:
    """The sequence of one producer in one session. Hold `lock` from taking a number until the record is sent."""

    __slots__ = ("last", "lock", "producer_id")

    def __init__(self, producer_id: str) -> None:
        self.producer_id = producer_id
        self.last = 0
        self.lock = RLock()


class Sequences:
    """The sequences of one client, at most `SEQUENCES_MAX`.

    One that had to be forgotten never begins again at 1 under the same producer id, which the judge would take for
    duplicates: whoever speaks for that session again does so as a new producer.
    """

    def __init__(self, producer_id: str, limit: int = SEQUENCES_MAX) -> None:
        self._producer_id = producer_id
        self._limit = limit
        self._forgot = False
        self._lock = Lock()
        self._known: dict[SessionKey, Sequence] = {}

    def of(self, key: SessionKey, *, new: bool = False) -> Sequence:
        """Return the session's sequence; `new` says that the session id was made just now."""
        with self._lock:
            found = self._known.get(key)
            if found is None:
                fresh = self._forgot and not new
                found = self._known[key] = Sequence(str(uuid.uuid4()) if fresh else self._producer_id)
                if len(self._known) > self._limit:
                    del self._known[next(iter(self._known))]
                    self._forgot = True
            return found


class Emitter:
    """Sends the events of one session in sequence. Thread-safe."""

    def __init__(
        self,
        transport: Transport,
        gate: Gate,
        identity: Identity,
        key: SessionKey,
        sequence: Sequence,
        *,
        user_id: str | None = None,
        data_classes: Values[DataClass] = (),
        epoch: int = 1,
    ) -> None:
        self._transport = transport
        self._gate = gate
        self._identity = identity
        self.service_id = identity.service_id
        self._key_bytes = key.encoded()
        self._sequence = sequence
        self._user_id = user_id
        self._data_classes = tuple(data_classes)
        self.key = key
        self.lock = sequence.lock
        self.epoch = epoch
        self.context_bytes: int | None = None

    @property
    def last_seq(self) -> int:
        """The last sequence number taken."""
        return self._sequence.last

    def emit(self, payload: Payload, marks: Marks = NO_MARKS, on_receipt: OnReceipt | None = None) -> str:
        """Send one event, return its id. Raises `Invalid`, `QueueFull`, `ClientClosed`; then no number is taken."""
        sequence = self._sequence
        with sequence.lock:
            record = self._record(payload, marks, sequence.last + 1)
            sequence.last += 1
            try:
                self._transport.send(record, on_receipt)
            except (QueueFull, ClientClosed):
                sequence.last -= 1
                raise
        return record.event_id

    def beat(self) -> None:
        """Send a heartbeat; it takes no number."""
        self._transport.beat(self._record(Heartbeat(self._sequence.last), NO_MARKS, 0))

    def _record(self, payload: Payload, marks: Marks, seq: int) -> OutRecord:
        if not self._gate.open:
            raise ClientClosed("the client is closed")
        event_type = EVENT_TYPES.get(type(payload))
        if event_type is None:
            raise Invalid("unknown_event_type", f"{type(payload).__name__} is no payload class")
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
            marks.actor or identity.actor,
            self.epoch,
            producer_id,
            seq,
            marks.run_id,
            marks.run_seq,
            marks.step_id,
            marks.causation_id,
            marks.occurred_at if marks.occurred_at is not None else time.time_ns() // 1000,
            self._data_classes,
            self.context_bytes,
        )
        value = encode_event(Event(envelope, payload))
        if len(value) > VALUE_BYTES_MAX:
            raise Invalid(
                "invalid_value", f"{event_type} of {len(value)} bytes: above {VALUE_BYTES_MAX} pass a reference"
            )
        headers = event_headers(envelope, marks.traceparent)
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
            marks.traceparent,
        )


__all__ = ["NO_MARKS", "Emitter", "Gate", "Identity", "Marks", "Sequence", "Sequences"]
