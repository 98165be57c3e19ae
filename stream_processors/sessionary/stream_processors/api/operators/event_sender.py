"""Appends single events to the events topic for people; blocks, so that a thread calls it."""

import threading
from typing import Final, NamedTuple

from confluent_kafka import KafkaError, KafkaException, Message, Producer

from sessionary.schemas.codec import Event, encode_event
from sessionary.schemas.headers import event_headers
from sessionary.schemas.ids import SessionKey
from sessionary.schemas.kafka.clients import discard_producer
from sessionary.stream_processors.errors import Lost
from sessionary.stream_processors.settings import ProcessorSettings

_TIMEOUT_S: Final = 8.0


class Place(NamedTuple):
    """Where an event is in the log."""

    partition: int
    offset: int


class EventSender:
    """Sends events, one at a time. Thread-safe. Its producer is made with the first event.

    A producer that failed is replaced: librdkafka was seen to find no broker again for minutes.
    """

    def __init__(self, settings: ProcessorSettings) -> None:
        self._settings = settings
        self._lock = threading.Lock()
        self._producer: Producer | None = None

    def send_event(self, event: Event) -> Place:
        """Append an event to its session's partition; return its place. Blocks for up to 8 s.

        Raises `Lost` if it is not acknowledged; it may be in the log all the same.
        """
        told: list[tuple[KafkaError | None, Message]] = []
        envelope = event.envelope
        key = SessionKey(envelope.tenant_id, envelope.session_id).encoded()
        with self._lock:
            producer = self._producer = self._producer or self._made()
            try:
                producer.produce(
                    self._settings.topics.events,
                    encode_event(event),
                    key,
                    headers=list(event_headers(envelope)),
                    on_delivery=lambda error, message: told.append((error, message)),
                )
                producer.flush(_TIMEOUT_S)
            except (BufferError, KafkaException) as error:
                self._drop()
                raise Lost(f"{envelope.event_type} was not sent: {error}") from error
            if not told or told[0][0] is not None:
                self._drop()
                raise Lost(f"{envelope.event_type} was not acknowledged: {told[0][0] if told else 'no answer'}")
        message = told[0][1]
        partition, offset = message.partition(), message.offset()
        if partition is None or offset is None or offset < 0:
            raise Lost(f"the place of {envelope.event_type} in the log is not known")
        return Place(partition, offset)

    def close(self) -> None:
        """Drop the producer; nothing is under way."""
        with self._lock:
            self._drop()

    def _drop(self) -> None:
        producer, self._producer = self._producer, None
        if producer is not None:
            discard_producer(producer)

    def _made(self) -> Producer:
        return Producer(
            {
                **self._settings.client_config(),
                "linger.ms": 0,
                "message.timeout.ms": int(_TIMEOUT_S * 1_000),
                "partitioner": "murmur2_random",
            }
        )
