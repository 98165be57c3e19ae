"""The loop of one sink: Kafka records in, blocks out, offsets and intents committed in between.

One thread does everything, while librdkafka's own thread keeps the group membership alive. While
ClickHouse is unreachable, the partitions are paused and the loop keeps polling, so that the group
does not remove the sink.

A client of librdkafka may lose its last broker for ever. A consumer that reads nothing of a growing
log, or gets no assignment, is replaced. As after a restart, each partition begins at the group's
offset.
"""

import threading
from collections.abc import Callable
from typing import Any, Final, cast

from confluent_kafka import OFFSET_BEGINNING, KafkaError, KafkaException, Message, TopicPartition

from sessionary.schemas.kafka.clients import close_in_background, is_unreadable_batch
from sessionary.schemas.kafka.log_progress import StuckConsumerDetector
from sessionary.schemas.telemetry.role_logs import error_fields, role_logger
from sessionary.sinks.core.intent import PartitionPlan
from sessionary.sinks.core.sink_kinds import SinkDefinition
from sessionary.sinks.errors import RETRY_FIRST_S, RETRY_LAST_S, Fenced, OperatorError, Transient
from sessionary.sinks.metrics import SinkMetrics
from sessionary.sinks.runtime import group_offsets
from sessionary.sinks.runtime.blocked_partitions import BlockedPartitions
from sessionary.sinks.runtime.hung_calls import CallWatchdog
from sessionary.sinks.runtime.kafka_client import records_from_messages, split_messages
from sessionary.sinks.runtime.log_watch import HostClock, LogWatch, PositionReport
from sessionary.sinks.runtime.plan_writer import PlanWriter, ReadRanges, block_limits
from sessionary.sinks.runtime.ports import BlockTarget, ConsumerFactory, KafkaConsumer
from sessionary.sinks.settings import SinkSettings

# How long a sink pauses after a fault: each fault in a row doubles the pause, up to 10 s.


class RetryPause:
    """The pause of one sink. `now` is always monotonic time in seconds."""

    def __init__(self) -> None:
        self._until: float | None = None
        self._next_s = RETRY_FIRST_S
        self.reason: str | None = None  # of the last fault, None without one

    @property
    def is_active(self) -> bool:
        """Whether a fault has occurred and `end` was not called since."""
        return self._until is not None

    def holds_back(self, now: float) -> bool:
        """Whether the next attempt must wait."""
        return self._until is not None and now < self._until

    def extend(self, reason: str, now: float) -> None:
        """Pause from now on, twice as long as after the fault before."""
        self.reason = reason
        self._until = now + self._next_s
        self._next_s = min(self._next_s * 2, RETRY_LAST_S)

    def end(self) -> None:
        """End the pause; the next one is short again."""
        self._until = self.reason = None
        self._next_s = RETRY_FIRST_S


COMMIT_S_MAX: Final = 30.0  # a commit that takes longer hangs
_CLOSE_S: Final = 15.0
_METADATA_S: Final = 1.0
_POLL_S: Final = 0.05
_QUIET_S: Final = 0.5
_MESSAGES_PER_CALL: Final = 2_000
_CALLS_PER_TURN: Final = 5
_COMMITTED_TIMEOUT_S: Final = 10.0
_log = role_logger(__name__)


class SinkConsumer:
    """One sink. `run` blocks until it is asked to stop; not thread-safe."""

    def __init__(
        self,
        definition: SinkDefinition,
        settings: SinkSettings,
        metrics: SinkMetrics,
        *,
        target: BlockTarget,
        open_consumer: ConsumerFactory,
        clock: HostClock,
        watchdog: CallWatchdog,
        log_watch: LogWatch,
        ask_topic_id: Callable[[], str | None],
        read_ranges: ReadRanges,
    ) -> None:
        """`watchdog`: watches commits; the caller starts it if the process may end.

        `log_watch`: reports the ends of the log; the caller starts it. `ask_topic_id` returns the
        id of the sink's topic, or raises `KafkaException`; it blocks. `read_ranges` reads records
        again, of any partition.
        """
        self._kind = definition.kind
        self._topic: str = getattr(settings.topics, definition.topic)
        self._ask_topic_id = ask_topic_id
        self._metrics = metrics
        self._target = target
        self._clock = clock
        self._plans: dict[int, PartitionPlan] = {}
        self._unplanned: list[TopicPartition] = []  # assigned, the group's offsets still unknown
        self._assigned = False
        self._assignments = 0
        self._pause = RetryPause()
        self._kafka_failed = False
        self._is_quiet = False  # nothing has arrived, and nothing is to be written soon
        self._open_consumer = open_consumer
        self._consumer: KafkaConsumer
        self._consumers = 0  # opened so far
        self._log_watch = log_watch
        self._positions = PositionReport(metrics, log_watch, clock)
        self._stuck = StuckConsumerDetector()
        self._blocked = BlockedPartitions(self._topic, metrics, target.find_skip)
        self._writer = PlanWriter(self._topic, lambda: self._consumer, target, clock, watchdog, read_ranges)
        self._guard = group_offsets.LogGuard(
            *(self._topic, block_limits(settings, definition.topic), settings.accepted_gaps, self._blocked),
            copies=settings.accepted_topics,
        )

    def run(self, stop: threading.Event) -> None:
        """Consume until `stop`, then write what was collected and leave the group. Blocks.

        Raises `Fenced`, `KafkaException`.
        """
        self._join_group()
        try:
            while not stop.is_set():
                self._metrics.mark_alive()
                if self._unplanned and not self._pause.holds_back(self._clock.monotonic_s()):
                    self._plan_partitions()
                self._retry_blocked()
                self._fetch_records()
                self._write_blocks(lambda plan: plan.is_due(self._clock.monotonic_s()))
                self._report_positions()
                self._check_progress()
            if not self._pause.is_active:
                self._write_blocks(lambda plan: plan.waiting_records > 0 and not plan.is_replaying)
            self._report_positions(now=True)
        finally:
            # Leaving the group revokes the partitions, which commits their positions.
            closing = close_in_background(self._consumer)
            closing.join(_CLOSE_S)
            if closing.is_alive():
                _log.warning("the consumer did not close within %(limit_s)g s", limit_s=_CLOSE_S)
            self._target.close()

    def _join_group(self) -> None:
        """Open a consumer and subscribe it; callbacks of former consumers have no effect."""
        self._consumers += 1
        number = self._consumers

        def while_current(callback: Callable[..., None]) -> Callable[..., None]:
            def call_back(*arguments: Any) -> None:
                if number == self._consumers:
                    callback(*arguments)

            return call_back

        self._consumer = self._open_consumer(while_current(self._on_error))
        self._consumer.subscribe(
            [self._topic],
            on_assign=while_current(self._on_assign),
            on_revoke=while_current(self._on_revoke),
            on_lost=while_current(self._on_lost),
        )

    def _check_progress(self) -> None:
        """Replace the consumer if it stands still although the log answers another client."""
        fault = self._stuck.find_fault(
            self._log_watch.answer,
            self._wanted_offsets() if self._has_plans else None,
            self._clock.monotonic_s(),
            is_paused=self._pause.is_active,
            reaches_broker=self._reaches_broker,
        )
        if fault is not None:
            self._renew_consumer(fault)

    def _wanted_offsets(self) -> dict[int, int]:
        """Return the next offset of each partition that should move."""
        held = self._blocked.holds
        return {number: plan.next_offset for number, plan in self._plans.items() if not held(number)}

    def _retry_blocked(self) -> None:
        if not self._pause.is_active:
            self._blocked.retry_due(self._consumer, self._next_offsets(), self._clock.monotonic_s())

    def _next_offsets(self) -> dict[int, int]:
        return {partition: plan.next_offset or OFFSET_BEGINNING for partition, plan in self._plans.items()}

    @property
    def _has_plans(self) -> bool:
        """Whether the group gave an assignment, and each of its partitions has a plan."""
        return self._assigned and not self._unplanned

    def _reaches_broker(self) -> bool:
        try:
            self._consumer.list_topics(self._topic, timeout=_METADATA_S)
        except KafkaException:
            return False
        return True

    def _renew_consumer(self, why: str) -> None:
        """Begin again with a new consumer, at the group's offsets. The former may never close."""
        _log.error("the sink stands still and begins again with a new consumer: %(why)s", why=why)
        self._metrics.count_retry("consumer_renewed")
        self._on_lost(None, self._planned_partitions())
        self._stuck = StuckConsumerDetector()
        former = self._consumer
        self._join_group()
        close_in_background(former)

    def _fetch_records(self) -> None:
        """Collect records until a block is due or no more have arrived.

        Waits 50 ms at most; while nothing happens, half a second for the first record.
        """
        for _ in range(_CALLS_PER_TURN):
            assignments, quiet, messages = self._assignments, self._is_quiet, list[Message]()
            if quiet:
                messages = self._consumer.consume(1, _QUIET_S)
            self._is_quiet = False
            messages += self._consumer.consume(_MESSAGES_PER_CALL, 0.0 if quiet and not messages else _POLL_S)
            self._stuck.note_fetch(drained=len(messages) < _MESSAGES_PER_CALL)
            if assignments != self._assignments:
                # An assignment came in between: its plans must not take messages fetched before.
                self._start_fetching()
                return
            now = self._clock.monotonic_s()
            for partition, is_record, found in split_messages(messages):
                if self._blocked.holds(partition):
                    continue
                if not is_record:
                    for message in found:
                        if not self._blocked.holds(partition):  # the one before may have blocked it
                            self._handle_event(message)
                elif (plan := self._plans.get(partition)) is not None:
                    records = records_from_messages(self._topic, partition, found)
                    high = group_offsets.high_watermark(self._consumer, self._topic, partition)
                    plan.add_records(records, now, high, self._clock.wall_ms())
                    self._clear_kafka_failure()
                    self._blocked.end_block(partition)
            self._is_quiet = not messages and self._has_plans and not any(plan.is_busy for plan in self._plans.values())
            if len(messages) < _MESSAGES_PER_CALL or any(plan.is_due(now) for plan in self._plans.values()):
                return

    def _handle_event(self, message: Message) -> None:
        """Handle a message that is not a record: an error, or the end of a partition."""
        error, partition, offset = cast(KafkaError, message.error()), message.partition(), message.offset()
        if is_unreadable_batch(message) and partition in self._plans:
            self._blocked.block_unreadable(self._consumer, message, self._clock.monotonic_s())
        elif group_offsets.is_outside_log(message) and partition in self._plans:
            plan, now = self._plans[partition], self._clock.monotonic_s()
            self._plans[partition] = self._guard.leave_gap(self._consumer, partition, plan, self._next_offsets(), now)
        elif error.code() != KafkaError._PARTITION_EOF:
            self._on_error(error)
        elif partition in self._plans and offset is not None and not self._blocked.holds(partition):
            self._plans[partition].reached_end(offset)
            self._clear_kafka_failure()
            self._blocked.end_block(partition)

    def _write_blocks(self, is_wanted: Callable[[PartitionPlan], bool]) -> None:
        """Write blocks that are wanted or in flight; commit the end of partitions read to it."""
        if self._unplanned or self._pause.holds_back(self._clock.monotonic_s()):
            return
        if self._guard.is_replaced(self._log_watch.topic_id):
            self._writer.forget_plans()
            for partition in tuple(self._plans):
                del self._plans[partition]
                self._positions.forget_partition(partition)
                self._guard.halt_partition(self._consumer, partition, self._log_watch.topic_id)
        try:
            self._write_idle(is_wanted)
            shared = self._writer.shared_partitions
            for partition, plan in self._writable_plans().items():
                if partition not in shared:
                    self._write_partition(partition, plan, is_wanted)
        except (Transient, OperatorError) as error:
            self._pause_after(error)
        else:
            self._end_pause()

    def _writable_plans(self) -> dict[int, PartitionPlan]:
        return {one: plan for one, plan in self._plans.items() if not self._blocked.holds_writes(one)}

    def _write_idle(self, is_wanted: Callable[[PartitionPlan], bool]) -> None:
        try:
            for partition in (written := self._writer.write_idle(self._writable_plans(), is_wanted)):
                self._blocked.end_block(partition, is_write=True)
            self._writer.commit_ends(written)
        except (Transient, OperatorError) as error:
            partitions = self._writer.shared_partitions
            self._blocked.block_writes(self._consumer, partitions, error, self._clock.monotonic_s())

    def _write_partition(self, partition: int, plan: PartitionPlan, is_wanted: Callable[[PartitionPlan], bool]) -> None:
        try:
            if plan.in_flight is not None or is_wanted(plan):
                self._writer.write_block(partition, plan)
                self._blocked.end_block(partition, is_write=True)
            if plan.holds_idle_only or (plan.at_end and not plan.waiting_records):
                self._writer.commit_ends({partition: plan})
        except (Transient, OperatorError) as error:
            self._blocked.block_writes(self._consumer, [partition], error, self._clock.monotonic_s())

    def _pause_after(self, error: Transient | OperatorError) -> None:
        """Pause all partitions, and try again after the pause."""
        self._metrics.count_retry(error.reason)
        if isinstance(error, OperatorError):
            self._metrics.set_blocked(error.reason)
        if error.reason != self._pause.reason:
            _log.warning("the sink pauses, and tries again: %(error)s", **error_fields(error))
        if not self._pause.is_active:
            self._consumer.pause(self._planned_partitions())
        self._pause.extend(error.reason, self._clock.monotonic_s())
        self._metrics.set_paused(str(error))

    def _end_pause(self) -> None:
        if not self._pause.is_active:
            return
        _log.warning("the sink continues after %(reason)s", reason=self._pause.reason)
        self._pause.end()
        self._metrics.set_paused(None)
        self._metrics.clear_blocked()
        self._consumer.resume(
            [place for place in self._planned_partitions() if not self._blocked.holds(place.partition)]
        )

    def _planned_partitions(self) -> list[TopicPartition]:
        return [TopicPartition(self._topic, partition) for partition in self._plans]

    def _on_error(self, error: KafkaError) -> None:
        if group_offsets.is_fenced(error):
            raise Fenced(str(error))
        reason = group_offsets.OPERATOR_REASONS.get(error.code())
        self._metrics.count_retry(reason or "kafka")
        if not self._kafka_failed:
            _log.warning("Kafka reports an error: %(error)s", **error_fields(error))
        self._kafka_failed = True
        if reason is not None and not self._pause.is_active:
            self._metrics.set_blocked(reason)

    def _clear_kafka_failure(self) -> None:
        if not self._kafka_failed:
            return
        self._kafka_failed = False
        if not self._pause.is_active:
            self._metrics.clear_blocked()

    def _on_assign(self, _consumer: Any, partitions: list[TopicPartition]) -> None:
        self._plans.clear()
        self._writer.forget_plans()
        self._unplanned = list(partitions)
        self._assigned = True
        self._assignments += 1
        self._plan_partitions()

    def _plan_partitions(self) -> None:
        """Start at the group's offsets; if Kafka does not report them, ask again next turn."""
        found: list[TopicPartition] = []
        try:
            if self._unplanned:
                self._guard.topic_id = self._ask_topic_id()
                found = self._consumer.committed(self._unplanned, timeout=_COMMITTED_TIMEOUT_S)
            for place in found:
                if place.error is not None:
                    raise KafkaException(place.error)
            self._target.check_writable()
            plans = self._guard.plan_partitions(found, self._target.read_topic_ids, self._target.read_next_offsets)
            self._writer.replay_shared(plans.values())
        except KafkaException as error:
            self._on_error(error.args[0])
            _log.warning("the group's offsets are not known, and asked for again: %(error)s", **error_fields(error))
        except (Transient, OperatorError) as error:  # of ClickHouse
            self._pause_after(error)
        else:
            self._unplanned = []
            self._plans.update(plans)
            _log.info("sink %(sink)s is ready: %(partitions)d partitions", sink=self._kind, partitions=len(self._plans))
        self._start_fetching()

    def _start_fetching(self) -> None:
        """Fetch from where the plans start; no records have been added to them yet."""
        starts = [
            TopicPartition(self._topic, partition, plan.landed if plan.landed is not None else OFFSET_BEGINNING)
            for partition, plan in self._plans.items()
        ]
        self._consumer.assign(starts)
        self._blocked.forget_partitions(self._plans)
        # A paused partition stays paused when it is revoked and assigned again: set it either way.
        if self._pause.is_active:
            self._consumer.pause(starts)
        else:
            self._consumer.resume(starts)

    def _on_revoke(self, _consumer: Any, partitions: list[TopicPartition]) -> None:
        for revoked in partitions:
            plan = self._plans.get(revoked.partition)
            if plan is not None:
                try:
                    self._writer.commit_ends({revoked.partition: plan})
                except (Transient, Fenced) as error:
                    # The next owner replays the last block, which is harmless.
                    fields = {"partition": revoked.partition, **error_fields(error)}
                    _log.info("partition %(partition)d: its end is not committed: %(error)s", **fields)
        self._on_lost(_consumer, partitions)

    def _on_lost(self, _consumer: Any, partitions: list[TopicPartition]) -> None:
        self._unplanned = []
        self._assigned = False
        self._writer.forget_plans()
        for lost in partitions:
            if self._plans.pop(lost.partition, None) is not None:
                self._positions.forget_partition(lost.partition)
            self._blocked.forget_partition(lost.partition)

    def _report_positions(self, *, now: bool = False) -> None:
        self._positions.report_positions(
            self._plans,
            lambda partition: group_offsets.high_watermark(self._consumer, self._topic, partition),
            self._blocked.is_blocked,
            has_plans=self._has_plans,
            now=now,
        )
