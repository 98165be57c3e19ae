"""librdkafka: one idempotent producer, polled by a thread of its own. Names what librdkafka only hints at.

`partitioner=murmur2_random` is Kafka's own; librdkafka's default would put most sessions on a partition that the
processor does not expect them on.
"""

import contextlib
import threading
import time
from collections.abc import Callable
from typing import cast

from confluent_kafka import KafkaError, KafkaException, Message, Producer

from sessionary.producers.errors import AuthenticationFailed, Unavailable
from sessionary.producers.ports import OnError, OutRecord
from sessionary.producers.settings import ProducerSettings
from sessionary.schemas.topics import EVENT_BYTES_MAX

_POLL_S = 0.1
_MESSAGES_MAX = 1_000_000
DeliveryCallback = Callable[[KafkaError | None, Message], None]

_AUTHENTICATION = frozenset({KafkaError._AUTHENTICATION, KafkaError.SASL_AUTHENTICATION_FAILED})
_AUTHORISATION = frozenset(
    {
        KafkaError.TOPIC_AUTHORIZATION_FAILED,
        KafkaError.CLUSTER_AUTHORIZATION_FAILED,
        KafkaError.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
    }
)


def named_error(error: KafkaError, settings: ProducerSettings) -> AuthenticationFailed | Unavailable:
    """Return what a librdkafka error means to an agent."""
    if error.code() in _AUTHENTICATION:
        who = f"principal {settings.sasl_username!r}" if settings.sasl_username else "a client without a principal"
        return AuthenticationFailed(f"Kafka at {settings.bootstrap_servers} refuses {who}: {error.str()}")
    if error.code() in _AUTHORISATION:
        return AuthenticationFailed(
            f"principal {settings.sasl_username!r} may not write to {settings.topics.events}: {error.str()}"
        )
    return Unavailable(f"Kafka at {settings.bootstrap_servers}: {error.str()}", 1.0)


def producer_config(settings: ProducerSettings) -> dict[str, object]:
    """Return the librdkafka configuration of the event producer."""
    spooling = settings.delivery_policy == "spool"
    return {
        **settings.client_config(),
        "enable.idempotence": True,
        "acks": "all",
        "partitioner": "murmur2_random",
        "linger.ms": 5,
        "compression.type": "lz4",
        "message.max.bytes": EVENT_BYTES_MAX,
        "queue.buffering.max.kbytes": max(settings.queue_bytes_max >> 10, 1),
        "queue.buffering.max.messages": _MESSAGES_MAX,
        # Only the spool may keep an event for ever: it is on disk.
        "message.timeout.ms": 0 if spooling else int(settings.delivery_timeout_s * 1000),
        "reconnect.backoff.max.ms": 1000,
        "socket.keepalive.enable": True,
    }


class Wire:
    """The producer and its poll thread. Thread-safe; `reopen` and `close` by one thread at a time.

    `on_trouble` hears of each kind of trouble once, until `well` is called. `polled` is called on the poll thread after
    every round of delivery reports, which are many at a time under load, and at least every 0.1 s.
    """

    def __init__(self, settings: ProducerSettings, on_trouble: OnError, polled: Callable[[], None]) -> None:
        self._settings = settings
        self._on_trouble = on_trouble
        self._polled = polled
        self._topic = settings.topics.events
        self._reported: set[type[Exception]] = set()
        self.authentication: AuthenticationFailed | None = None
        self._stop = threading.Event()
        self._producer = self._made()
        self._thread = threading.Thread(target=self._poll, name="sessionary-delivery", daemon=True)
        self._thread.start()

    def produce(self, record: OutRecord, on_delivery: DeliveryCallback | None) -> None:
        """Hand one record to librdkafka; never blocks. Raises `BufferError` (its queue is full), `KafkaException`."""
        headers = cast("list[tuple[str, str | bytes | None]]", record.headers)
        self._producer.produce(self._topic, record.value, record.key, on_delivery=on_delivery, headers=headers)

    def trouble(self, error: KafkaError) -> None:
        """Remember and report what `error` means."""
        named = named_error(error, self._settings)
        if isinstance(named, AuthenticationFailed):
            self.authentication = named
        if type(named) not in self._reported:
            self._reported.add(type(named))
            self._on_trouble(named)

    def well(self) -> None:
        """Note that an event was delivered: trouble is over."""
        if self._reported or self.authentication is not None:
            self._reported.clear()
            self.authentication = None

    def reopen(self) -> None:
        """Drop what the producer holds, without waiting, and begin with a new one: a fatal error never heals."""
        former, self._producer = self._producer, self._made()
        self._discard(former)
        threading.Thread(target=_let_go, args=(former,), name="sessionary-discard", daemon=True).start()

    def close(self) -> None:
        """Stop polling and drop what the producer holds."""
        self._stop.set()
        self._thread.join()
        self._discard(self._producer)

    def _made(self) -> Producer:
        return Producer({**producer_config(self._settings), "error_cb": self.trouble})

    def _discard(self, producer: Producer) -> None:
        with contextlib.suppress(KafkaException):
            producer.purge(in_queue=True, in_flight=True, blocking=False)
        producer.poll(0)

    def _poll(self) -> None:
        while not self._stop.is_set():
            self._producer.poll(_POLL_S)
            self._polled()


def _let_go(producer: Producer) -> None:
    """Hold the last reference: dropping it waits for librdkafka's threads, and nobody else is to wait for these."""
    time.sleep(2 * _POLL_S)  # until the poll thread has come back from it
    producer.poll(0)


__all__ = ["DeliveryCallback", "Wire", "named_error", "producer_config"]
