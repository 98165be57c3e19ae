"""Records that a broken or hostile sender would send, made by a plain producer.

    kind              what is wrong                      outcome
    wrong_bytes       bytes that are not Avro            refused: undecodable
    unknown_schema    a fingerprint of no schema         refused: unknown_schema
    bad_key           a key that names no session        refused: bad_key
    key_mismatch      another session in the envelope    refused: key_mismatch
    foreign_tenant    another tenant in the envelope     refused: foreign_tenant
    stale_epoch       an epoch below the session's       refused: stale_epoch
    duplicate         one valid event sent twice         one applied, one duplicate

Each acknowledged record becomes a journal line, in the format of the client's journal. A record may
be in the log twice, if its first acknowledgement is lost.
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
from sessionary.schemas.kafka.clients import ORDERED, discard_producer
from sessionary.schemas.settings import KafkaSettings
from sessionary.schemas.types import Envelope

_SEND_S = 30.0
_RENEW_S = 10.0
_POLL_S = 0.1
_log = logging.getLogger(__name__)


class _Record(NamedTuple):
    key: bytes
    value: bytes
    envelope: Envelope | None  # None: the record has no readable envelope
    times: int = 1


def _kafka_producer(settings: KafkaSettings) -> Producer:
    return Producer({**settings.client_config(), **ORDERED}, logger=_log)


class BrokenSender:
    """Sends broken records. Not thread-safe: one caller at a time.

    After 10 s without an acknowledgement a new producer sends all open records again: librdkafka
    may lose its last broker for ever.
    """

    def __init__(
        self,
        settings: KafkaSettings,
        journal: Path,
        *,
        new_producer: Callable[[], Producer] | None = None,
        clock_s: Callable[[], float] = time.monotonic,
    ) -> None:
        """Connect lazily. Lines are appended to `journal`.

        `new_producer` and `clock_s` replace Kafka's producer and the monotonic clock for tests.
        """
        self._topic = settings.topics.events
        self._new_producer = new_producer or (lambda: _kafka_producer(settings))
        self._clock_s = clock_s
        self._producer = self._new_producer()
        self._open: dict[int, _Record] = {}  # by the number of the attempt
        self._attempts = 0
        self._progress_s = 0.0  # when an acknowledgement came, or the first attempt was made
        self._producer_id = str(uuid.uuid4())
        self._sequences: dict[str, int] = {}
        self._journal = journal.open("a")
        self.sent = 0
        self.delivered = 0

    def send_record(self, kind: BrokenRecord, session: PlannedSession) -> None:
        """Send one kind of record for `session`. Blocks until it is acknowledged.

        Raises `Unavailable` if the broker does not acknowledge it within 30 s.
        """
        record = self._make_record(kind, session)
        for _ in range(record.times):
            self.sent += 1
            self._produce(record)
        if not self._wait_acknowledged():
            raise Unavailable(f"Kafka does not acknowledge a record to {self._topic} within {_SEND_S:g} s", _SEND_S)

    def poll_acknowledgements(self) -> None:
        """Process acknowledgements that came after `send_record` stopped waiting.

        Does not block.
        """
        if not self._journal.closed:
            self._poll_producer(0)

    def close(self) -> None:
        """Wait up to 30 s for outstanding acknowledgements, then close the journal."""
        self._wait_acknowledged()
        self._journal.close()

    def _wait_acknowledged(self) -> bool:
        """Block until nothing is open, for 30 s at most; return whether nothing is."""
        deadline_s = self._clock_s() + _SEND_S
        while self._open and self._clock_s() < deadline_s:
            self._poll_producer(_POLL_S)
        return not self._open

    def _poll_producer(self, timeout_s: float) -> None:
        self._producer.poll(timeout_s)
        if self._open and self._clock_s() - self._progress_s >= _RENEW_S:
            former, self._producer = self._producer, self._new_producer()
            unsent, self._open = list(self._open.values()), {}
            discard_producer(former)
            for record in unsent:
                self._produce(record)

    def _produce(self, record: _Record) -> None:
        self._attempts += 1
        number = self._attempts

        def on_delivery(error: KafkaError | None, message: Message) -> None:
            if self._open.pop(number, None) is not None:  # otherwise a later attempt replaces it
                self._progress_s = self._clock_s()
                self._write_line(record, error, message)

        headers: list[tuple[str, str | bytes | None]] = []
        headers.extend(event_headers(record.envelope) if record.envelope is not None else ())
        if not self._open:
            self._progress_s = self._clock_s()
        self._open[number] = record
        self._producer.produce(self._topic, record.value, record.key, headers=headers, on_delivery=on_delivery)

    def _write_line(self, record: _Record, error: KafkaError | None, message: Message) -> None:
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

    def _make_record(self, kind: BrokenRecord, session: PlannedSession) -> _Record:
        key = SessionKey(session.tenant_id, session.session_id).encoded()
        match kind:
            case "wrong_bytes":
                return _Record(key, b"this is no Avro", None)
            case "unknown_schema":
                return _Record(key, b"\xc3\x01" + b"\xee" * 8 + b"some body", None)
            case "bad_key":
                envelope = self._make_envelope(session)
                key = b"no session at all"
            case "key_mismatch":
                envelope = self._make_envelope(session)._replace(session_id=str(uuid.uuid4()))
            case "foreign_tenant":
                envelope = self._make_envelope(session)._replace(tenant_id="mallory")
            case "stale_epoch":
                envelope = self._make_envelope(session, counted=True)._replace(epoch=0)
            case "duplicate":
                envelope = self._make_envelope(session, counted=True)
        value = encode_event(Event(envelope, ProgressReported(0.5, 1.0, kind)))
        return _Record(key, value, envelope, times=2 if kind == "duplicate" else 1)

    def _make_envelope(self, session: PlannedSession, *, counted: bool = False) -> Envelope:
        """Return a valid envelope.

        `counted`: the processor will count its sequence number, so the next one must be higher.
        """
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
