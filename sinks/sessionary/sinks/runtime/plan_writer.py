"""Writes the blocks of plans, with the commits of offsets and intents around each.

Due blocks of idle records go out together with those of other partitions that wait: an insert costs
the same for one row and for a thousand.
"""

from collections.abc import Callable, Iterable, Mapping
from typing import Final

from confluent_kafka import TopicPartition

from sessionary.schemas.topics import SinkTopic
from sessionary.sinks.core.block_due import IDLE_RECORDS, BlockLimits
from sessionary.sinks.core.intent import Intent, PartitionPlan, Piece, RecordBlock, share_block
from sessionary.sinks.core.rows.shared import RawRecord
from sessionary.sinks.runtime.group_offsets import commit_offsets
from sessionary.sinks.runtime.hung_calls import CallWatchdog
from sessionary.sinks.runtime.log_watch import HostClock
from sessionary.sinks.runtime.ports import BlockTarget, KafkaConsumer
from sessionary.sinks.settings import SinkSettings

# The intents of one block must fit into the metadata of a commit (4,096 bytes).
_SHARED_MAX: Final = 64
_SHARED_ROWS_MAX: Final = 50_000

# Reads records of a topic again, by partition and first and last offset. Blocks.
# Raises `Transient`, `OperatorError`.
ReadRanges = Callable[[str, Mapping[int, tuple[int, int]]], Mapping[int, list[RawRecord]]]


def block_limits(settings: SinkSettings, topic: SinkTopic) -> BlockLimits:
    """Return how much of a partition is collected for a block. `topic`: the sink's topic."""
    return BlockLimits(
        settings.sink_flush_rows,
        settings.sink_flush_bytes,
        settings.sink_flush_seconds,
        settings.sink_idle_seconds,
        IDLE_RECORDS.get(topic),
    )


class PlanWriter:
    """Writes the blocks of the plans of one sink. Methods block; not thread-safe.

    They raise `Fenced`, and `Transient` or `OperatorError`: then the same block is tried again.
    """

    def __init__(
        self,
        topic: str,
        current_consumer: Callable[[], KafkaConsumer],
        target: BlockTarget,
        clock: HostClock,
        watchdog: CallWatchdog,
        read_ranges: ReadRanges,
    ) -> None:
        self._topic, self._target, self._clock = topic, target, clock
        self._current_consumer, self._watchdog, self._read_ranges = current_consumer, watchdog, read_ranges
        self._shared: dict[int, PartitionPlan] = {}  # whose blocks are in flight together

    @property
    def shared_partitions(self) -> frozenset[int]:
        """The partitions whose blocks are in flight together."""
        return frozenset(self._shared)

    def forget_plans(self) -> None:
        """Forget the blocks in flight: other plans follow."""
        self._shared = {}

    def write_block(self, partition: int, plan: PartitionPlan) -> None:
        """Write the block in flight, or the next one."""
        block = plan.in_flight or plan.take_block(self._clock.monotonic_s(), self._clock.wall_ms())
        self._declare({partition: plan})
        self._target.write_block(partition, block)
        plan.mark_written()

    def write_idle(
        self, plans: Mapping[int, PartitionPlan], is_wanted: Callable[[PartitionPlan], bool]
    ) -> Mapping[int, PartitionPlan]:
        """Write the idle records of several partitions as one block, if one of them is wanted.

        Return the plans that were written; `commit_ends` follows.

        The records of a single partition are left to `write_block`. A block in flight waits until
        the plans of all its partitions are among `plans`.
        """
        if not self._shared:
            waiting = {partition: plan for partition, plan in sorted(plans.items()) if plan.holds_idle_only}
            if not any(map(is_wanted, waiting.values())):
                return {}
            self._shared = _choose_plans(waiting)
            self._take_shared()
        if not self._shared or not self._shared.keys() <= plans.keys():
            return {}
        self._declare(self._shared)
        shared = share_block({number: block for number, plan in self._shared.items() if (block := plan.in_flight)})
        self._target.write_block(shared.pieces[0].partition, shared)
        for plan in self._shared.values():
            plan.mark_written()
        written, self._shared = self._shared, {}
        return written

    def commit_ends(self, plans: Mapping[int, PartitionPlan]) -> None:
        """Commit the landed offsets of plans, unless a block is under way or they are committed."""
        ends = {partition: plan.closing_commit() for partition, plan in plans.items()}
        due = {partition: offset for partition, offset in ends.items() if offset is not None}
        if due:
            self._commit(
                [self._place(partition, offset, plans[partition].closing_metadata) for partition, offset in due.items()]
            )
            for partition, offset in due.items():
                plans[partition].mark_closed(offset)

    def replay_shared(self, plans: Iterable[PartitionPlan]) -> None:
        """Write the shared blocks that former owners declared, before anything is read."""
        written: set[tuple[Piece, ...]] = set()
        for plan in plans:
            intent = plan.shared_replay
            if intent is None:
                continue
            if intent.pieces not in written:
                self._target.write_block(intent.pieces[0].partition, self._read_shared(intent))
                written.add(intent.pieces)
            plan.mark_replayed()

    def _take_shared(self) -> None:
        now_s, now_ms = self._clock.monotonic_s(), self._clock.wall_ms()
        blocks = {partition: plan.take_block(now_s, now_ms) for partition, plan in self._shared.items()}
        if blocks:
            shared = share_block(blocks)
            for plan in self._shared.values():
                plan.share_intent(shared)

    def _read_shared(self, intent: Intent) -> RecordBlock:
        """Return the block that an intent names, as its owner took it."""
        found = self._read_ranges(self._topic, {piece.partition: (piece.first, piece.last) for piece in intent.pieces})
        blocks = {
            piece.partition: RecordBlock(piece.first, piece.last, found[piece.partition], None, intent, intent.topic_id)
            for piece in intent.pieces
        }
        return share_block(blocks)

    def _declare(self, plans: Mapping[int, PartitionPlan]) -> None:
        """Commit the intents of the blocks in flight, in one commit, unless that is done."""
        places: list[TopicPartition] = []
        for partition, plan in plans.items():
            block = plan.in_flight
            if block is not None and block.intent is not None:
                places.append(self._place(partition, block.first, block.intent.to_metadata()))
        if places:
            self._commit(places)
            for place in places:
                plans[place.partition].mark_declared()

    def _commit(self, places: list[TopicPartition]) -> None:
        commit_offsets(self._current_consumer(), self._watchdog, places)

    def _place(self, partition: int, offset: int, metadata: str) -> TopicPartition:
        return TopicPartition(self._topic, partition, offset, metadata=metadata)


def _choose_plans(waiting: Mapping[int, PartitionPlan]) -> dict[int, PartitionPlan]:
    """Return the plans whose records fit into one block; none if that is a single one."""
    chosen: dict[int, PartitionPlan] = {}
    rows = 0
    for partition, plan in waiting.items():
        rows += plan.waiting_records
        if chosen and (rows > _SHARED_ROWS_MAX or len(chosen) == _SHARED_MAX):
            break
        chosen[partition] = plan
    return chosen if len(chosen) > 1 else {}
