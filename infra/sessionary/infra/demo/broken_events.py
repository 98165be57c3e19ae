"""Records that no client of ours would send, made by a plain producer: what a broken or hostile sender does.

    wrong_bytes     no Avro at all                     → undecodable
    unknown_schema  a fingerprint that nobody knows    → unknown_schema
    bad_key         a key that is no session's         → bad_key
    key_mismatch    another session in the envelope    → key_mismatch
    foreign_tenant  another tenant in the envelope     → foreign_tenant
    stale_epoch     an epoch below the session's       → stale_epoch
    duplicate       one good event twice               → one applied, one duplicate

Each acknowledged record is a line of the journal, in the form of the client's own.
"""

import json
import logging
import time
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from confluent_kafka import KafkaError, Message, Producer

from sessionary.infra.demo.plan import BrokenRecord, PlannedSession
from sessionary.schemas.codec import Event, encode_event
from sessionary.schemas.errors import Unavailable
from sessionary.schemas.events import ProgressReported
from sessionary.schemas.headers import event_headers
from sessionary.schemas.ids import SessionKey
from sessionary.schemas.settings import KafkaSettings
from sessionary.schemas.types import Envelope

_FLUSH_S = 30.0
_log = logging.getLogger(__name__)


class _Record(NamedTuple):
    key: bytes
    value: bytes
    envelope: Envelope | None  # None where nobody can read one
    times: int = 1


class BrokenSender:
    """Sends broken records. Not thread-safe: one caller at a time."""

    def __init__(self, settings: KafkaSettings, journal: Path) -> None:
        """Connects lazily; the journal is appended to."""
        self._topic = settings.topics.events
        self._producer = Producer(
            {
                **settings.client_config(),
                "partitioner": "murmur2_random",
                "enable.idempotence": True,
            },
            logger=_log,
        )
        self._producer_id = str(uuid.uuid4())
        self._sequences: dict[str, int] = {}
        self._journal = journal.open("a")
        self.sent = 0
        self.delivered = 0

    def send(self, kind: BrokenRecord, session: PlannedSession) -> None:
        """Send one kind of record for `session` and wait for the acknowledgement. Raises `Unavailable`."""
        record = self._made(kind, session)
        headers: list[tuple[str, str | bytes | None]] = []
        headers.extend(event_headers(record.envelope) if record.envelope is not None else ())
        for _ in range(record.times):
            self.sent += 1
            self._producer.produce(
                self._topic, record.value, record.key, headers=headers, on_delivery=self._noted(record)
            )
        if self._producer.flush(_FLUSH_S):
            raise Unavailable("the broker does not acknowledge", _FLUSH_S)

    def settle(self) -> None:
        """Take acknowledgements that came after `send` had given up waiting, until `close`. Does not block."""
        if not self._journal.closed:
            self._producer.poll(0)

    def close(self) -> None:
        """Wait for what is outstanding, bounded, and close the journal."""
        self._producer.flush(_FLUSH_S)
        self._journal.close()

    def _noted(self, record: _Record) -> Callable[[KafkaError | None, Message], None]:
        def delivered(error: KafkaError | None, message: Message) -> None:
            envelope = record.envelope
            self.delivered += error is None
            line = {
                "event_id": envelope.event_id if envelope else "",
                "event_type": envelope.event_type if envelope else "",
                "tenant_id": envelope.tenant_id if envelope else "",
                "session_id": envelope.session_id if envelope else "",
                "producer_id": self._producer_id,
                "producer_seq": envelope.producer_seq if envelope else 0,
                "partition": message.partition(),
                "offset": message.offset(),
                "error": str(error) if error is not None else None,
            }
            self._journal.write(json.dumps(line) + "\n")

        return delivered

    def _made(self, kind: BrokenRecord, session: PlannedSession) -> _Record:
        key = SessionKey(session.tenant_id, session.session_id).encoded()
        match kind:
            case "wrong_bytes":
                return _Record(key, b"this is no Avro", None)
            case "unknown_schema":
                return _Record(key, b"\xc3\x01" + b"\xee" * 8 + b"some body", None)
            case "bad_key":
                envelope = self._envelope(session)
                key = b"no session at all"
            case "key_mismatch":
                envelope = self._envelope(session)._replace(session_id=str(uuid.uuid4()))
            case "foreign_tenant":
                envelope = self._envelope(session)._replace(tenant_id="mallory")
            case "stale_epoch":
                envelope = self._envelope(session, counted=True)._replace(epoch=0)
            case "duplicate":
                envelope = self._envelope(session, counted=True)
        value = encode_event(Event(envelope, ProgressReported(0.5, 1.0, kind)))
        return _Record(key, value, envelope, times=2 if kind == "duplicate" else 1)

    def _envelope(self, session: PlannedSession, *, counted: bool = False) -> Envelope:
        """An envelope in order; `counted` where the judge will look at its sequence number."""
        seq = self._sequences.get(session.session_id, 0) + 1
        if counted:
            self._sequences[session.session_id] = seq
        return Envelope(
            event_id=str(uuid.uuid4()),
            event_type="progress_reported",
            schema_version=1,
            tenant_id=session.tenant_id,
            session_id=session.session_id,
            user_id=session.user_id,
            agent_id=f"{session.service_id}-agent",
            agent_role=None,
            service_id=session.service_id,
            actor=None,
            epoch=1,
            producer_id=self._producer_id,
            producer_seq=seq,
            run_id=None,
            run_seq=None,
            step_id=None,
            causation_id=None,
            occurred_at=time.time_ns() // 1000,
            data_classes=session.data_classes,
        )


__all__ = ["BrokenSender"]
