"""Ticks: records that an owner appends to its own partition so that its clock moves in silence.

A tick only says that time has passed; the broker stamps it. A tick too many, or one of a worker
that lost its partition, does no harm. A tick too few makes a timeout late, never wrong.

Announced rules begin with a record that is sent the same way, and again until it is in the log. It
is signed: any client may write to the log. A tick is not, as any record of a client moves the clock
as well. The same producer reports when a partition's last transaction was acknowledged, unless
another transaction follows and reports it.
"""

import time
from collections.abc import Mapping, MutableMapping, Sequence
from typing import NamedTuple

from confluent_kafka import KafkaError, KafkaException, Message, Producer

from sessionary.schemas.codec import encode_record
from sessionary.schemas.kafka.clients import discard_producer
from sessionary.schemas.records import BatchAcknowledged, RulesActivation, Tick
from sessionary.schemas.telemetry.role_logs import error_fields, role_logger
from sessionary.schemas.types import AnnouncedRules
from sessionary.stream_processors.metrics import Metrics
from sessionary.stream_processors.settings import ProcessorSettings

_log = role_logger(__name__)
STEADY_MS = 1_000
_STEADY_PARTITIONS = 64  # with more of them the pause grows, up to twice as long
_OUTAGE_SHARE = 0.4  # of the silence that is taken for an outage; the pause may grow up to it
DUE_MS = 100
IDLE_MS = 2 * STEADY_MS  # a partition may be set to commit each tick
# A share of the pause between two ticks: a partition that is due so soon has its tick with one that
# is due. So ticks of many partitions come in a few rounds, and one fetch brings those of a round.
_ROUND_SHARE = 0.25
_LOOK_S = 0.02
RENEW_MS = 10_000  # longer than a tick may take


class LastTick(NamedTuple):
    """When a partition's last record was sent (ms since the epoch), and if it is under way."""

    at_ms: float
    under_way: bool


def steady_pause_ms(partitions: int, outage_ms: int) -> float:
    """Return the time between two ticks of a silent partition, of a worker with so many open ones.

    A tick costs a request, a fetch and a fold, so many partitions have ticks less often.
    """
    grown_ms = STEADY_MS * min(2.0, partitions / _STEADY_PARTITIONS)
    return max(STEADY_MS, min(grown_ms, _OUTAGE_SHARE * outage_ms))


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


def due_partitions(
    now_ms: float, deadlines: Mapping[int, int | None], sent: Mapping[int, LastTick], steady_ms: float = STEADY_MS
) -> list[int]:
    """Return the partitions that have a tick now: those that are due, and those that are due soon.

    The latter have one only if another partition's steady tick is due.
    """
    due = [number for number, at_ms in deadlines.items() if is_tick_due(now_ms, at_ms, sent.get(number), steady_ms)]
    if any(number in sent and now_ms - sent[number].at_ms >= steady_ms for number in due):
        soon_ms = (1 - _ROUND_SHARE) * steady_ms
        due = [number for number, at_ms in deadlines.items() if is_tick_due(now_ms, at_ms, sent.get(number), soon_ms)]
    return due


def look_pause_s(partitions: int) -> float:
    """Return the time between two checks for due ticks, of a worker with so many open partitions.

    A check asks each partition.
    """
    return _LOOK_S * max(1.0, partitions / _STEADY_PARTITIONS)


class Ticker:
    """Sends ticks. One thread calls it."""

    def __init__(self, settings: ProcessorSettings, metrics: Metrics) -> None:
        self._settings = settings
        self._topic = settings.topics.events
        self._metrics = metrics
        self._value = encode_record(Tick(settings.worker_name))
        self._keys = settings.keys
        self._sent: dict[int, LastTick] = {}
        self._activations_sent: dict[int, LastTick] = {}
        # By partition that needs ticks: when the last one was acknowledged, or the need began.
        self._acknowledged_ms: dict[int, float] = {}
        self._failed = False
        self._made_ms = 0.0
        self._producer = self._made()

    def send_due_ticks(self, now_ms: float, deadlines: Mapping[int, int | None]) -> None:
        """Send the ticks that are due. Does not block.

        `deadlines` holds the earliest deadline of every open partition, in ms since the epoch;
        None: no session lives there.
        """
        steady_ms = steady_pause_ms(len(deadlines), self._settings.outage_ms)
        needing, known = [number for number, at_ms in deadlines.items() if at_ms is not None], self._acknowledged_ms
        self._acknowledged_ms = {number: known.get(number, now_ms) for number in needing}
        for partition in due_partitions(now_ms, deadlines, self._sent, steady_ms):
            self._send(partition, now_ms, self._value, self._sent)
        self._producer.poll(0)
        if self._failed and now_ms - self._made_ms >= RENEW_MS:
            self._renew(now_ms)

    def tick_ages_s(self, now_ms: float) -> dict[int, float]:
        """Return the time since the last acknowledged tick of each partition that needs ticks.

        If none was acknowledged yet: since the partition began to need them. In seconds.
        """
        return {number: max(0.0, now_ms - at_ms) / 1_000 for number, at_ms in self._acknowledged_ms.items()}

    def send_due_activations(self, now_ms: float, announced: Mapping[int, AnnouncedRules]) -> None:
        """Send the records with which announced rules begin, once a second each. Does not block.

        `announced`: of every open partition that has some. `send_due_ticks` must follow.
        """
        for partition in self._activations_sent.keys() - announced.keys():
            del self._activations_sent[partition]
        for partition, begins in announced.items():
            sent = self._activations_sent.get(partition)
            if sent is None or not (sent.under_way or now_ms - sent.at_ms < STEADY_MS):
                activation = RulesActivation(*begins.rules, begins.principal, self._settings.worker_name)
                value = encode_record(activation)
                self._send(partition, now_ms, value, self._activations_sent, [self._keys.sign(None, value)])

    def send_acknowledgements(
        self, now_ms: float, acknowledged: MutableMapping[int, BatchAcknowledged], idle_ms: int = IDLE_MS
    ) -> None:
        """Send those that are `idle_ms` old, and remove them from `acknowledged`. Does not block.

        Each is sent once: nothing breaks if it is lost.
        """
        for partition, batch in list(acknowledged.items()):
            if now_ms - batch.acknowledged_at / 1_000 >= idle_ms:
                del acknowledged[partition]
                try:
                    self._producer.produce(self._settings.topics.batches, encode_record(batch), partition=partition)
                except (BufferError, KafkaException) as error:
                    self._failed = True
                    _log.warning(
                        "partition %(partition)d: an acknowledgement was not reported: %(error)s",
                        partition=partition,
                        **error_fields(error),
                    )

    def close(self) -> None:
        """Wait at most 1 s for records under way."""
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

    def _send(
        self,
        partition: int,
        now_ms: float,
        value: bytes,
        sent: MutableMapping[int, LastTick],
        headers: Sequence[tuple[str, bytes]] = (),
    ) -> None:
        def on_delivery(error: KafkaError | None, _: Message) -> None:
            sent[partition] = LastTick(now_ms, under_way=False)
            if error is not None:
                self._failed = True
                self._metrics.errors.labels("tick").inc()
            elif sent is self._sent:
                self._metrics.ticks_sent.inc()
                if partition in self._acknowledged_ms:
                    self._acknowledged_ms[partition] = time.time() * 1_000

        sent[partition] = LastTick(now_ms, under_way=True)
        try:
            self._producer.produce(
                self._topic, value, partition=partition, headers=list(headers), on_delivery=on_delivery
            )
        except (BufferError, KafkaException) as error:
            sent[partition], self._failed = LastTick(now_ms, under_way=False), True
            self._metrics.errors.labels("tick").inc()
            _log.warning(
                "partition %(partition)d: a tick was not sent: %(error)s", partition=partition, **error_fields(error)
            )
