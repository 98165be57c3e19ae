"""The group's offsets: how they are committed, and the meaning of their errors."""

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Final

from confluent_kafka import KafkaError, KafkaException, Message, TopicPartition

from sessionary.schemas.telemetry.role_logs import role_logger
from sessionary.sinks.core.block_due import BlockLimits
from sessionary.sinks.core.intent import PartitionPlan, parse_metadata
from sessionary.sinks.errors import Fenced, Transient
from sessionary.sinks.runtime.blocked_partitions import BlockedPartitions, fetch_again
from sessionary.sinks.runtime.hung_calls import CallWatchdog
from sessionary.sinks.runtime.ports import KafkaConsumer

LOG_GAP: Final = "log_gap"
LOG_TRUNCATED: Final = "log_truncated"
TOPIC_REPLACED: Final = "topic_replaced"
_BOUNDS_S: Final = 5.0
# An operator's options.
_HELP: Final = (
    "sessionary integrity check lists the missing records. To give them up, restart this sink once with "
    "SESSIONARY_SINK_ACCEPT_GAPS={}: the sink continues where the log begins"
)
_COPIES: Final = "SESSIONARY_SINK_ACCEPT_TOPICS={}: it continues at its offset"
# After a fatal error a consumer answers `_FATAL` to every call, and fetches nothing any more.
_FENCED_CODES: Final = (KafkaError.FENCED_INSTANCE_ID, KafkaError._FATAL)
# The log has no record at the offset from which a partition is read.
_OUTSIDE_CODES: Final = (
    KafkaError._AUTO_OFFSET_RESET,
    KafkaError._LOG_TRUNCATION,
    KafkaError.OFFSET_OUT_OF_RANGE,
)
# Errors of Kafka that last until an operator acts.
OPERATOR_REASONS: Final = {
    KafkaError.UNKNOWN_TOPIC_OR_PART: "no_topic",
    KafkaError.TOPIC_AUTHORIZATION_FAILED: "kafka_right",
    KafkaError.GROUP_AUTHORIZATION_FAILED: "kafka_right",
    KafkaError._AUTHENTICATION: "kafka_authentication",
}
_log = role_logger(__name__)


def is_fenced(error: KafkaError) -> bool:
    """Return whether an error ends the group's member for good."""
    return error.fatal() or error.code() in _FENCED_CODES


def is_outside_log(message: Message) -> bool:
    """Return whether a message says that the log does not have the offset to be read next."""
    error = message.error()
    return error is not None and error.code() in _OUTSIDE_CODES


def commit_offsets(consumer: KafkaConsumer, watchdog: CallWatchdog, places: list[TopicPartition]) -> None:
    """Commit offsets with their metadata, in one request. Blocks without a limit.

    Raises `Fenced`; `Transient` for any other error: it passes, or Kafka revokes the partition.
    """
    try:
        with watchdog.watch_call():
            answers = consumer.commit(offsets=places, asynchronous=False)
        errors = [answer.error for answer in answers or () if answer.error is not None]
    except KafkaException as failure:
        errors = [failure.args[0]]
    for error in errors:
        raise Fenced(str(error)) if is_fenced(error) else Transient("commit", str(error))


def high_watermark(consumer: KafkaConsumer, topic: str, partition: int) -> int:
    """Return the end of a partition's log as far as is known, 0 before the first fetch."""
    try:
        known = consumer.get_watermark_offsets(TopicPartition(topic, partition), cached=True)
    except KafkaException:
        return 0
    return known[1] if known else 0


def describe_outside(consumer: KafkaConsumer, place: TopicPartition) -> tuple[str, int, str] | None:
    """Return why the log does not have the offset of `place`, where the log begins, and a sentence.

    None if it has the offset: librdkafka was at another one, which it took from a damaged batch.
    Blocks for 5 s at most. Raises `KafkaException`.
    """
    low, high = consumer.get_watermark_offsets(place, _BOUNDS_S, cached=False) or (0, 0)
    name = f"{place.topic}-{place.partition}"
    if place.offset < low:
        return (
            LOG_GAP,
            low,
            f"records of {name} were deleted before they were read: the next offset is {place.offset}, but the log "
            f"begins at {low}",
        )
    if place.offset <= high:
        return None
    return (
        LOG_TRUNCATED,
        low,
        f"{name} lost records that were read already: the next offset is {place.offset}, but the log ends at {high}",
    )


class LogGuard:
    """Checks that the group's offsets belong to the log, and that the log has them.

    `topic_id`: of the topic for which partitions are planned; None if it has none.
    """

    def __init__(
        self,
        topic: str,
        limits: BlockLimits,
        accepted_gaps: Collection[int],
        blocked: BlockedPartitions,
        *,
        copies: Collection[str] = (),
    ) -> None:
        """`accepted_gaps`: the partitions that continue where the log begins.

        `copies`: ids of topics that have the records of the former topic of their name. Ids, so
        that a topic that is made again later is none of them.
        """
        self._copies = copies
        self._topic = topic
        self._limits = limits
        self._accepted_gaps = accepted_gaps
        self._blocked = blocked
        self.topic_id: str | None = None

    def plan_partitions(
        self,
        places: Sequence[TopicPartition],
        read_ids: Callable[[], set[str]],
        read_next: Callable[[str], Mapping[int, int]],
    ) -> dict[int, PartitionPlan]:
        """Plan partitions from the group's offsets on; halt those whose offset is of another topic.

        With a topic, Kafka deletes the groups' offsets for it. So `read_ids` is asked for the ids
        of the topics that have rows, if an offset is unknown, and `read_next` for the offsets after
        the rows of a topic, if its copy is accepted. Raises the errors of both.
        """
        self._blocked.forget_partitions()
        is_unknown = self.topic_id is not None and any(place.offset < 0 for place in places)
        stored = read_ids() if is_unknown else set[str]()
        stored_id = None if self.topic_id in stored else next(iter(sorted(stored)), None)
        after_rows: Mapping[int, int] | None = None
        plans: dict[int, PartitionPlan] = {}
        for place in places:
            committed = place.offset if place.offset >= 0 else None
            former = parse_metadata(place.metadata).topic_id if committed is not None else stored_id
            is_sure = committed is not None or len(stored) == 1  # else it is not known which topic was copied
            if former is not None and self.is_replaced(former) and self.topic_id in self._copies and is_sure:
                if committed is None:
                    after_rows = read_next(former) if after_rows is None else after_rows
                    committed = after_rows.get(place.partition)
                _log.warning(
                    "partition %(partition)d: %(topic)s is accepted as a copy, and reading continues at %(offset)d",
                    topic=self._topic,
                    partition=place.partition,
                    offset=committed or 0,
                )
            elif self.is_replaced(former):
                if place.partition not in self._accepted_gaps:
                    self._block_for_good(place.partition, former, self.topic_id)
                    continue
                _log.error(
                    "partition %(partition)d: reading of the new topic %(topic)s begins",
                    topic=self._topic,
                    partition=place.partition,
                )
                committed = None
            plans[place.partition] = PartitionPlan(self._limits, committed, place.metadata, self.topic_id)
        return plans

    def is_replaced(self, topic_id: str | None) -> bool:
        """Return whether an id is known to be another topic's."""
        return topic_id is not None and self.topic_id is not None and topic_id != self.topic_id

    def halt_partition(self, consumer: KafkaConsumer, partition: int, topic_id: str | None) -> None:
        """Halt a partition whose topic has been made again since, with the id `topic_id`."""
        consumer.pause([TopicPartition(self._topic, partition)])
        self._block_for_good(partition, self.topic_id, topic_id)

    def leave_gap(
        self,
        consumer: KafkaConsumer,
        partition: int,
        plan: PartitionPlan,
        next_offsets: Mapping[int, int],
        now_s: float,
    ) -> PartitionPlan:
        """Block a partition whose log has lost the next offset; return its plan.

        If the gap is accepted, the partition continues where the log begins. `next_offsets` are
        those of all partitions that are assigned.
        """
        place = TopicPartition(self._topic, partition, plan.next_offset)
        try:
            outside = describe_outside(consumer, place)
        except KafkaException as error:
            self._blocked.block_partition(consumer, partition, LOG_GAP, f"{place} is not in the log: {error}", now_s)
            return plan
        if outside is None:
            fetch_again(consumer, self._topic, next_offsets)
            return plan
        reason, low, what = outside
        if partition not in self._accepted_gaps:
            what = f"{what}. {_HELP.format(partition)}"
            self._blocked.block_partition(consumer, partition, reason, what, now_s)
            return plan
        _log.error(
            "partition %(partition)d: %(what)s; this is accepted, and reading continues at %(offset)d",
            what=what,
            partition=partition,
            offset=low,
            reason=reason,
        )
        if reason == LOG_GAP:
            plan.skip_to(low)
        else:
            plan = PartitionPlan(self._limits, None, None, self.topic_id)
        fetch_again(consumer, self._topic, {**next_offsets, partition: low})
        return plan

    def _block_for_good(self, partition: int, former: str | None, topic_id: str | None) -> None:
        what = (
            f"another topic is named {self._topic} now: its id was {former}, and is {topic_id}. It was deleted and "
            "made again, or the pipeline was moved to a copy"
        )
        copies = "If it has the same records at the same offsets, restart this sink once with " + _COPIES.format(
            topic_id
        )
        self._blocked.halt_partition(partition, TOPIC_REPLACED, f"{what}. {copies}. Else {_HELP.format(partition)}")
