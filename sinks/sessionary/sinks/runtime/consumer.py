"""The loop of one sink: Kafka records in, batches out, offsets and intents committed in between.

One thread does everything; librdkafka's own thread keeps the membership alive meanwhile. While ClickHouse is away the
partitions are paused and the loop goes on polling, so that the group does not take the sink for dead.
"""

import logging
import threading
import time
from collections.abc import Callable
from itertools import groupby, repeat
from operator import attrgetter, itemgetter
from typing import cast

from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaError, KafkaException, Message, TopicPartition

from sessionary.sinks.core.definitions import SinkDefinition
from sessionary.sinks.core.intent import Limits, PartitionPlan
from sessionary.sinks.core.rows import RawRecord
from sessionary.sinks.errors import RETRY_FIRST_S, RETRY_LAST_S, Fenced, OperatorError, Transient
from sessionary.sinks.metrics import SinkMetrics
from sessionary.sinks.runtime.flusher import Flusher
from sessionary.sinks.runtime.watchdog import Watchdog
from sessionary.sinks.settings import SinkSettings

_POLL_S = 0.05
_MESSAGES_PER_CALL = 2_000
_CALLS_PER_TURN = 5
_REPORT_S = 1.0
_COMMITTED_TIMEOUT_S = 10.0
_COMMIT_S_MAX = 30.0
# Errors of Kafka that stay until somebody acts.
_KAFKA_OPERATOR = {
    KafkaError.UNKNOWN_TOPIC_OR_PART: "no_topic",
    KafkaError.TOPIC_AUTHORIZATION_FAILED: "kafka_right",
    KafkaError.GROUP_AUTHORIZATION_FAILED: "kafka_right",
    KafkaError._AUTHENTICATION: "kafka_authentication",
}
# A consumer that met a fatal error answers `_FATAL` to every call from then on, and fetches nothing any more.
_SHUT_OUT = (KafkaError.FENCED_INSTANCE_ID, KafkaError._FATAL)
_ms = itemgetter(1)  # of a message's timestamp, behind its kind
_headers = attrgetter("headers")  # the method: headers are made when they are asked for
_new = tuple.__new__  # as a NamedTuple's own constructor, in half the time
_log = logging.getLogger(__name__)


def consumer_config(definition: SinkDefinition, settings: SinkSettings) -> dict[str, str | int | float | bool]:
    """Return the librdkafka configuration of one sink's consumer."""
    config: dict[str, str | int | float | bool] = {
        **settings.client_config(),
        "group.id": settings.group(definition.kind),
        "isolation.level": definition.isolation,
        "enable.auto.commit": False,
        "enable.auto.offset.store": False,
        "enable.partition.eof": True,
        "auto.offset.reset": "earliest",
        # All partitions are given anew at each rebalance, so that every buffer is dropped at every assignment.
        "partition.assignment.strategy": "range",
        "session.timeout.ms": settings.sink_session_timeout_ms,
        "heartbeat.interval.ms": max(500, settings.sink_session_timeout_ms // 6),
        "topic.metadata.refresh.interval.ms": 10_000,
        "queued.max.messages.kbytes": 65_536,
        # A partition whose queue is full is asked for again after this long; by default a second.
        "fetch.queue.backoff.ms": 5,
    }
    if settings.instance is not None:
        config["group.instance.id"] = f"{settings.group(definition.kind)}.{settings.instance}"
    return config


class SinkConsumer:
    """One sink. `run` blocks until told to stop; not thread-safe."""

    def __init__(
        self, definition: SinkDefinition, settings: SinkSettings, flusher: Flusher, metrics: SinkMetrics
    ) -> None:
        self._topic: str = getattr(settings.topics, definition.topic)
        self._limits = Limits(settings.sink_flush_rows, settings.sink_flush_bytes, settings.sink_flush_seconds)
        self._flusher = flusher
        self._metrics = metrics
        self._plans: dict[int, PartitionPlan] = {}
        self._unplanned: list[TopicPartition] = []  # ours, but nobody has told yet where the group stands
        self._assignments = 0
        self.watchdog = Watchdog(_COMMIT_S_MAX)
        self._blocked_until: float | None = None
        self._trouble: str | None = None
        self._kafka_trouble = False
        self._retry_s = RETRY_FIRST_S
        self._report_at = 0.0
        config: dict[str, object] = {**consumer_config(definition, settings), "error_cb": self._on_error}
        self._consumer = Consumer(config, logger=_log)

    def run(self, stop: threading.Event) -> None:
        """Consume until `stop`, then write what was gathered and leave. Raises `Fenced`, `KafkaException`."""
        self._consumer.subscribe(
            [self._topic], on_assign=self._on_assign, on_revoke=self._on_revoke, on_lost=self._on_lost
        )
        try:
            while not stop.is_set():
                self._metrics.beat()
                if self._unplanned:
                    self._plan()
                self._gather()
                self._advance(lambda plan: plan.due(time.monotonic()))
                self._report()
            if self._blocked_until is None:
                self._advance(lambda plan: plan.waiting > 0 and not plan.replaying)
            self._report(now=True)
        finally:
            # Leaving revokes: that commits where each partition stands.
            self._consumer.close()
            self._flusher.close()

    def _gather(self) -> None:
        """Take what has come, until a batch is due or nothing more is there. Waits 50 ms at most."""
        for _ in range(_CALLS_PER_TURN):
            assignments = self._assignments
            messages = self._consumer.consume(_MESSAGES_PER_CALL, _POLL_S)
            if assignments != self._assignments:
                # Some were fetched before the assignment that came in between: its plans must not take them.
                self._start()
                return
            now = time.monotonic()
            for (partition, is_record), found in groupby(messages, _place):
                if not is_record:
                    for message in found:
                        self._event(message)
                elif (plan := self._plans.get(partition)) is not None:
                    plan.add(_raw(self._topic, partition, list(found)), now, self._watermarks(partition)[1])
                    self._kafka_well()
            if len(messages) < _MESSAGES_PER_CALL or any(plan.due(now) for plan in self._plans.values()):
                return

    def _event(self, message: Message) -> None:
        """Take what is no record: an error, or a log's end."""
        error, partition, offset = cast(KafkaError, message.error()), message.partition(), message.offset()
        if error.code() != KafkaError._PARTITION_EOF:
            self._on_error(error)
        elif partition in self._plans and offset is not None:
            self._plans[partition].reached_end(offset)
            self._kafka_well()

    def _advance(self, wanted: Callable[[PartitionPlan], bool]) -> None:
        """Write what is wanted or still under way; commit the end of partitions that are done."""
        if self._blocked_until is not None and time.monotonic() < self._blocked_until:
            return
        try:
            for partition, plan in self._plans.items():
                if plan.in_flight is not None or wanted(plan):
                    self._write(partition, plan)
                if plan.at_end and not plan.waiting:
                    self._close(partition, plan)
        except (Transient, OperatorError) as error:
            self._stand_still(error)
        else:
            self._go_on()

    def _write(self, partition: int, plan: PartitionPlan) -> None:
        batch = plan.in_flight or plan.take(time.monotonic(), time.time_ns() // 1_000_000)
        if batch.intent is not None:
            self._commit(partition, batch.first, batch.intent.encoded())
            plan.declared()
        self._flusher.write(partition, batch)
        plan.wrote()

    def _close(self, partition: int, plan: PartitionPlan) -> None:
        offset = plan.closing_commit()
        if offset is not None:
            self._commit(partition, offset, "")
            plan.closed(offset)

    def _commit(self, partition: int, offset: int, metadata: str) -> None:
        target = TopicPartition(self._topic, partition, offset, metadata=metadata)
        try:
            with self.watchdog.watching():
                done = self._consumer.commit(offsets=[target], asynchronous=False)
        except KafkaException as error:
            raise self._commit_error(error.args[0]) from error
        for answer in done or ():
            if answer.error is not None:
                raise self._commit_error(answer.error)

    def _commit_error(self, error: KafkaError) -> Exception:
        """A member that was shut out for good ends; any other trouble passes, or the partition is taken from us."""
        if error.fatal() or error.code() in _SHUT_OUT:
            return Fenced(str(error))
        return Transient("commit", str(error))

    def _stand_still(self, error: Transient | OperatorError) -> None:
        """Pause everything and look again later; each failure in a row doubles the wait, up to 10 s."""
        self._metrics.retry(error.reason)
        if isinstance(error, OperatorError):
            self._metrics.block(error.reason)
        if error.reason != self._trouble:
            _log.warning("standing still: %s", error)
        self._trouble = error.reason
        if self._blocked_until is None:
            self._consumer.pause(self._assigned())
        self._blocked_until = time.monotonic() + self._retry_s
        self._retry_s = min(self._retry_s * 2, RETRY_LAST_S)

    def _go_on(self) -> None:
        if self._blocked_until is None:
            return
        _log.warning("going on after %s", self._trouble)
        self._blocked_until = self._trouble = None
        self._retry_s = RETRY_FIRST_S
        self._metrics.unblock()
        self._consumer.resume(self._assigned())

    def _assigned(self) -> list[TopicPartition]:
        return [TopicPartition(self._topic, partition) for partition in self._plans]

    def _on_error(self, error: KafkaError) -> None:
        if error.fatal() or error.code() in _SHUT_OUT:
            raise Fenced(str(error))
        reason = _KAFKA_OPERATOR.get(error.code())
        self._metrics.retry(reason or "kafka")
        if not self._kafka_trouble:
            _log.warning("kafka: %s", error)
        self._kafka_trouble = True
        if reason is not None and self._blocked_until is None:
            self._metrics.block(reason)

    def _kafka_well(self) -> None:
        if not self._kafka_trouble:
            return
        self._kafka_trouble = False
        if self._blocked_until is None:
            self._metrics.unblock()

    def _on_assign(self, _consumer: Consumer, partitions: list[TopicPartition]) -> None:
        self._plans.clear()
        self._unplanned = list(partitions)
        self._assignments += 1
        self._plan()

    def _plan(self) -> None:
        """Ask where the group stands, and begin there; where Kafka does not say, fetch nothing and be asked again."""
        try:
            found = self._consumer.committed(self._unplanned, timeout=_COMMITTED_TIMEOUT_S) if self._unplanned else []
            errors = [place.error for place in found if place.error is not None]
        except KafkaException as error:
            found, errors = [], [error.args[0]]
        if errors:
            self._on_error(errors[0])
            _log.warning("the group's offsets are not to be had, asking again: %s", errors[0])
        else:
            self._unplanned = []
        for place in found if not errors else ():
            committed = place.offset if place.offset >= 0 else None
            self._plans[place.partition] = PartitionPlan(self._limits, committed, place.metadata)
        self._start()

    def _start(self) -> None:
        """Begin to fetch where the plans begin: nothing has been added to them yet."""
        starts = [
            TopicPartition(self._topic, partition, plan.landed if plan.landed is not None else OFFSET_BEGINNING)
            for partition, plan in self._plans.items()
        ]
        self._consumer.assign(starts)
        # Paused partitions stay so when they are taken away and given again: say which it is, either way.
        if self._blocked_until is not None:
            self._consumer.pause(starts)
        else:
            self._consumer.resume(starts)

    def _on_revoke(self, _consumer: Consumer, partitions: list[TopicPartition]) -> None:
        for lost in partitions:
            plan = self._plans.get(lost.partition)
            if plan is not None:
                try:
                    self._close(lost.partition, plan)
                except (Transient, Fenced) as error:
                    # The next owner then replays the last block, which is harmless.
                    _log.info("partition %d: not closed: %s", lost.partition, error)
        self._on_lost(_consumer, partitions)

    def _on_lost(self, _consumer: Consumer, partitions: list[TopicPartition]) -> None:
        self._unplanned = []
        for lost in partitions:
            if self._plans.pop(lost.partition, None) is not None:
                self._metrics.forget(lost.partition)

    def _report(self, *, now: bool = False) -> None:
        at = time.monotonic()
        if at < self._report_at and not now:
            return
        self._report_at = at + _REPORT_S
        wall_ms = time.time_ns() // 1_000_000
        for partition, plan in self._plans.items():
            landed = plan.landed or 0
            done = plan.at_end and plan.in_flight is None and not plan.waiting
            _low, high = self._watermarks(partition)
            age_s = max(0.0, (wall_ms - plan.oldest_ms) / 1_000) if plan.oldest_ms is not None else 0.0
            self._metrics.position(partition, landed, 0 if done else max(0, high - landed), age_s)

    def _watermarks(self, partition: int) -> tuple[int, int]:
        try:
            known = self._consumer.get_watermark_offsets(TopicPartition(self._topic, partition), cached=True)
        except KafkaException:
            known = None  # nothing fetched yet
        return known or (0, 0)


def _place(message: Message) -> tuple[int, bool]:
    return cast(int, message.partition()), message.error() is None


def _raw(topic: str, partition: int, messages: list[Message]) -> list[RawRecord]:
    """Return fetched messages as records; a loop of the interpreter's own would take half as long again."""
    fields = zip(
        repeat(topic),
        repeat(partition),
        map(Message.offset, messages),
        map(_ms, map(Message.timestamp, messages)),
        map(Message.key, messages),
        map(Message.value, messages),
        map(_headers, messages),
        strict=False,  # the first two never end
    )
    return list(map(_new, repeat(RawRecord), fields))


__all__ = ["SinkConsumer", "consumer_config"]
