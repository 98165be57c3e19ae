"""Ticks: records that an owner appends to its own partition so that its clock moves in silence.

A tick only says that time has passed; the broker stamps it. A tick too many, or one of a worker
that lost its partition, does no harm. A tick too few makes a timeout late, never wrong.
"""

import logging
from collections.abc import Mapping
from typing import NamedTuple

from confluent_kafka import KafkaError, KafkaException, Message, Producer

from sessionary.schemas.codec import encode_record
from sessionary.schemas.kafka.clients import discard_producer
from sessionary.schemas.records import Tick
from sessionary.stream_processors.metrics import Metrics
from sessionary.stream_processors.settings import ProcessorSettings

_log = logging.getLogger(__name__)
STEADY_MS = 1_000
_STEADY_PARTITIONS = 64  # with more of them the pause grows, up to twice as long
_HOLE_SHARE = 0.4  # of the silence that is taken for an outage; the pause may grow up to it
DUE_MS = 100
LOOK_S = 0.02
RENEW_MS = 10_000  # longer than a tick may take


class LastTick(NamedTuple):
    """When a partition's last tick was sent (ms since the epoch), and if it is under way."""

    at_ms: float
    under_way: bool


def steady_pause_ms(partitions: int, hole_ms: int) -> float:
    """Return the time between two ticks of a silent partition, of a worker with so many open ones.

    A tick costs a request, a fetch and a fold, so many partitions have ticks less often.
    """
    grown_ms = STEADY_MS * min(2.0, partitions / _STEADY_PARTITIONS)
    return max(STEADY_MS, min(grown_ms, _HOLE_SHARE * hole_ms))


def is_tick_due(now_ms: float, deadline_ms: int | None, sent: LastTick | None, steady_ms: float = STEADY_MS) -> bool:
    """Return True each `steady_ms` while sessions live, and when the earliest deadline has passed.

    False without a deadline, while the last tick is under way, and within `DUE_MS` of it.
    """
    if deadline_ms is None:
        return False
    if sent is None:
        return True
    if sent.under_way:
        return False
    since_ms = now_ms - sent.at_ms
    return since_ms >= steady_ms or (now_ms >= deadline_ms and since_ms >= DUE_MS)


class Ticker:
    """Sends ticks. One thread calls it."""

    def __init__(self, settings: ProcessorSettings, metrics: Metrics) -> None:
        self._settings = settings
        self._topic = settings.topics.events
        self._metrics = metrics
        self._value = encode_record(Tick(settings.worker_name))
        self._sent: dict[int, LastTick] = {}
        self._failed = False
        self._made_ms = 0.0
        self._producer = self._made()

    def send_due_ticks(self, now_ms: float, deadlines: Mapping[int, int | None]) -> None:
        """Send the ticks that are due. Does not block.

        `deadlines` holds the earliest deadline of every open partition, in ms since the epoch;
        None: no session lives there.
        """
        steady_ms = steady_pause_ms(len(deadlines), self._settings.hole_ms)
        for partition, deadline_ms in deadlines.items():
            if is_tick_due(now_ms, deadline_ms, self._sent.get(partition), steady_ms):
                self._send_tick(partition, now_ms)
        self._producer.poll(0)
        if self._failed and now_ms - self._made_ms >= RENEW_MS:
            self._renew(now_ms)

    def close(self) -> None:
        """Wait at most 1 s for ticks under way."""
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
        """Begin with a new producer.

        librdkafka was seen to find no broker again for minutes after one was killed.
        """
        former, self._producer = self._producer, self._made()
        self._failed, self._made_ms = False, now_ms
        discard_producer(former)

    def _send_tick(self, partition: int, now_ms: float) -> None:
        def on_delivery(error: KafkaError | None, _: Message) -> None:
            self._sent[partition] = LastTick(now_ms, under_way=False)
            if error is None:
                self._metrics.ticks_sent.inc()
            else:
                self._failed = True
                self._metrics.errors.labels("tick").inc()

        self._sent[partition] = LastTick(now_ms, under_way=True)
        try:
            self._producer.produce(self._topic, self._value, partition=partition, on_delivery=on_delivery)
        except (BufferError, KafkaException) as error:
            self._sent[partition], self._failed = LastTick(now_ms, under_way=False), True
            self._metrics.errors.labels("tick").inc()
            _log.warning("partition %d: a tick was not sent: %s", partition, error)


__all__ = ["DUE_MS", "LOOK_S", "RENEW_MS", "STEADY_MS", "LastTick", "Ticker", "is_tick_due", "steady_pause_ms"]
