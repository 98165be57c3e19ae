"""Makes a partition's clock move when nobody speaks: ticks, appended by the owner to its own partition.

A tick can only say that time has passed, and the broker stamps it: one too many, or one of a worker that has lost its
partition, does no harm. One too few makes a timeout late, never wrong.
"""

import contextlib
import logging
import threading
import time
from collections.abc import Mapping
from typing import NamedTuple

from confluent_kafka import KafkaError, KafkaException, Message, Producer

from sessionary.schemas.codec import encode_record
from sessionary.schemas.records import Tick
from sessionary.stream_processors.metrics import Metrics
from sessionary.stream_processors.settings import ProcessorSettings

_log = logging.getLogger(__name__)
STEADY_MS = 1_000
DUE_MS = 100
LOOK_S = 0.02
RENEW_MS = 10_000  # longer than a tick may take
_LET_GO_S = 0.1


class Sent(NamedTuple):
    """The last tick of a partition."""

    at_ms: float
    under_way: bool


def tick_due(now_ms: float, deadline_ms: int | None, sent: Sent | None) -> bool:
    """Whether a tick is to be sent: once a second while sessions live, and when the earliest deadline has passed.

    Nothing while nobody lives, nor while the last tick is not acknowledged, nor more than one in `DUE_MS`.
    """
    if deadline_ms is None:
        return False
    if sent is None:
        return True
    if sent.under_way:
        return False
    since_ms = now_ms - sent.at_ms
    return since_ms >= STEADY_MS or (now_ms >= deadline_ms and since_ms >= DUE_MS)


class Ticker:
    """Sends ticks; `look` and `close` are called by one thread."""

    def __init__(self, settings: ProcessorSettings, metrics: Metrics) -> None:
        self._settings = settings
        self._topic = settings.topics.events
        self._metrics = metrics
        self._value = encode_record(Tick(settings.worker_name))
        self._sent: dict[int, Sent] = {}
        self._failed = False
        self._made_ms = 0.0
        self._producer = self._made()

    def look(self, now_ms: float, deadlines: Mapping[int, int | None]) -> None:
        """Send what is due. `deadlines` holds every open partition. Does not block."""
        for partition, deadline_ms in deadlines.items():
            if tick_due(now_ms, deadline_ms, self._sent.get(partition)):
                self._send(partition, now_ms)
        self._producer.poll(0)
        if self._failed and now_ms - self._made_ms >= RENEW_MS:
            self._renew(now_ms)

    def close(self) -> None:
        """Wait shortly for ticks under way."""
        self._producer.flush(1.0)

    def _made(self) -> Producer:
        return Producer(
            {
                **self._settings.client_config(),
                "linger.ms": 0,
                "message.timeout.ms": 5_000,
                "partitioner": "murmur2_random",
            }
        )

    def _renew(self, now_ms: float) -> None:
        """Begin with a new producer. librdkafka was seen to find no broker again for minutes after one was killed."""
        former, self._producer = self._producer, self._made()
        self._failed, self._made_ms = False, now_ms
        with contextlib.suppress(KafkaException):
            former.purge(in_queue=True, in_flight=True, blocking=False)
        former.poll(0)
        # Dropping the last reference waits for librdkafka's threads.
        threading.Thread(target=_let_go, args=(former,), name="ticker-discard", daemon=True).start()

    def _send(self, partition: int, now_ms: float) -> None:
        def acknowledged(error: KafkaError | None, _: Message) -> None:
            self._sent[partition] = Sent(now_ms, under_way=False)
            if error is None:
                self._metrics.ticks_sent.inc()
            else:
                self._failed = True
                self._metrics.errors.labels("tick").inc()

        self._sent[partition] = Sent(now_ms, under_way=True)
        try:
            self._producer.produce(self._topic, self._value, partition=partition, on_delivery=acknowledged)
        except (BufferError, KafkaException) as error:
            self._sent[partition], self._failed = Sent(now_ms, under_way=False), True
            self._metrics.errors.labels("tick").inc()
            _log.warning("partition %d: no tick: %s", partition, error)


def _let_go(_producer: Producer) -> None:
    time.sleep(_LET_GO_S)  # until the caller has let go of it too


__all__ = ["DUE_MS", "LOOK_S", "RENEW_MS", "STEADY_MS", "Sent", "Ticker", "tick_due"]
