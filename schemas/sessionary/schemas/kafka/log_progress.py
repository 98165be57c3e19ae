"""Finds partitions that stand still, and consumers to be replaced, by observing a log; pure.

A client of librdkafka may lose its last broker for ever, without a sign. It then reads nothing
more; after its session time-out it has no partitions either. And its request to join the group
waits for minutes for the answer of a coordinator that has fallen silent.
"""

import contextlib
from collections.abc import Callable, Iterable, Mapping
from typing import Final, NamedTuple

from confluent_kafka import IsolationLevel, KafkaException, TopicPartition
from confluent_kafka.admin import AdminClient, OffsetSpec  # type: ignore[attr-defined]

from sessionary.schemas.kafka.clients import AdminConnection, take_answer

# Asks for the ends of a topic's partitions.


class LogEnd(NamedTuple):
    """Where a partition's log ends."""

    offset: int  # the next record's
    leader_epoch: int | None  # None: unknown


class LogEndClient:
    """Asks again and again over one connection. For one thread.

    `partition_count` is the topic's number of partitions by the last answer; None before it.
    """

    def __init__(self, connection: AdminConnection, *, committed_only: bool) -> None:
        """`committed_only`: a log ends before the first record of an open transaction."""
        self._connection = connection
        self._isolation = IsolationLevel.READ_COMMITTED if committed_only else IsolationLevel.READ_UNCOMMITTED
        self.partition_count: int | None = None

    def ask_ends(self, topic: str, partitions: Iterable[int], timeout_s: float) -> dict[int, LogEnd]:
        """Return the end of each partition that answers.

        Blocks for twice `timeout_s`, and a second more at most.
        """
        latest: OffsetSpec = OffsetSpec.latest()  # type: ignore[no-untyped-call]
        wanted = {TopicPartition(topic, partition): latest for partition in partitions}
        ends = self._ask(self._connection.open_client(), topic, wanted, timeout_s)
        if len(ends) < len(wanted):
            self._connection.end_client()
        return ends

    def _ask(
        self, admin: AdminClient, topic: str, wanted: dict[TopicPartition, OffsetSpec], timeout_s: float
    ) -> dict[int, LogEnd]:
        try:
            # Otherwise librdkafka keeps asking with the leader epoch that it knew at first, and a
            # broker that was elected since refuses that epoch (FENCED_LEADER_EPOCH).
            described = admin.list_topics(topic, timeout=timeout_s).topics[topic]
        except KafkaException:
            return {}
        if described.error is not None:
            return {}
        self.partition_count = len(described.partitions)
        if not wanted:
            return {}
        ends: dict[int, LogEnd] = {}
        answers = admin.list_offsets(wanted, isolation_level=self._isolation, request_timeout=timeout_s)
        for place, answer in answers.items():
            with contextlib.suppress(KafkaException, TimeoutError):
                found = take_answer(answer, timeout_s)
                if found.offset >= 0:  # negative: unknown
                    ends[place.partition] = LogEnd(found.offset, found.leader_epoch)
        return ends


ASK_EVERY_S: Final = 5.0  # between two questions where a log ends
RENEW_S: Final = 10.0
JOIN_S: Final = 20.0  # longer than a group takes to notice that a member is gone
_TIMELY_S: Final = 3 * ASK_EVERY_S


class LogAnswer(NamedTuple):
    """The ends of the partitions that answered; `number` counts the answers."""

    number: int
    ends: Mapping[int, int]


class StalledPartition(NamedTuple):
    """A partition whose reader stands still although its log grows."""

    position: int  # the next offset that the reader is to pass
    log_end: int  # the offset that the log's next record will have
    stalled_s: float  # for how long, at least

    def __str__(self) -> str:
        return f"at offset {self.position} for {self.stalled_s:.0f} s, the log ends at {self.log_end}"


class _Behind(NamedTuple):
    position: int
    log_end: int
    still_s: float  # for how long it had stood still when it was last observed
    observed_s: float
    answers: bool  # its log did then

    def still_until(self, now_s: float) -> float:
        return self.still_s + (now_s - self.observed_s if self.answers else 0.0)


class LogProgress:
    """The progress of one reader through the partitions of one topic.

    A partition is behind while its log ends beyond its position. It stands still from the first
    observation at that position on. Only time between two answers in a row counts. A question
    without an answer does not start the count again: a busy broker may miss one now and then. One
    thread observes; any thread may ask.
    """

    def __init__(self) -> None:
        self._behind: dict[int, _Behind] = {}

    def observe(self, positions: Mapping[int, int], log_ends: Mapping[int, int], now_s: float) -> None:
        """Take the positions of the partitions that should move, and the ends of those that answer.

        `now_s` is monotonic.
        """
        behind: dict[int, _Behind] = {}
        for partition, position in positions.items():
            end, seen = log_ends.get(partition), self._behind.get(partition)
            if seen is not None and seen.position != position:
                seen = None
            if end is not None and position < end:
                still_s = 0.0 if seen is None else seen.still_until(now_s)
                behind[partition] = _Behind(position, end, still_s, now_s, answers=True)
            elif end is None and seen is not None:
                behind[partition] = seen._replace(observed_s=now_s, answers=False)
        self._behind = behind

    def stalled_partitions(self, now_s: float, limit_s: float) -> dict[int, StalledPartition]:
        """Return the partitions that have stood still for `limit_s`, by number."""
        return {
            partition: StalledPartition(behind.position, behind.log_end, behind.still_until(now_s))
            for partition, behind in sorted(self._behind.items())
            if behind.answers and behind.still_until(now_s) >= limit_s
        }


class StuckConsumerDetector:
    """Decides when a consumer is replaced: it stands still although its log answers another client.

    One thread calls it; `now_s` is always monotonic.
    """

    def __init__(self, join_s: float = JOIN_S) -> None:
        """`join_s`: how long a consumer may have no assignment while its group waits for others."""
        self._join_s = join_s
        self._progress = LogProgress()
        self._seen = 0
        self._seen_s: float | None = None
        self._drained = False
        self._unassigned_s: float | None = None
        self._unreachable_s: float | None = None

    def note_fetch(self, *, drained: bool) -> None:
        """Note that the loop took what had arrived; `drained`: all of it."""
        self._drained = self._drained or drained

    def find_fault(
        self,
        answer: LogAnswer,
        next_offsets: Mapping[int, int] | None,
        now_s: float,
        *,
        is_paused: bool,
        reaches_broker: Callable[[], bool],
        awaits_members: Callable[[], bool] = lambda: False,
    ) -> str | None:
        """Return why the consumer is to be replaced, or None; call it in each turn of the loop.

        `next_offsets`: of each assigned partition, the next one to be read; None without an
        assignment. `is_paused`: nothing is fetched on purpose. `reaches_broker` asks the consumer
        itself; it is called only if the consumer has no partition by which that would show.
        `awaits_members` asks whether the group's rebalance waits for other members; it is called
        only if an assignment is late.
        """
        if answer.number == self._seen:
            return None
        # While the loop was busy, or left something unread, the consumer is not to blame.
        timely = self._seen_s is not None and now_s - self._seen_s < _TIMELY_S
        watched = timely and self._drained and not is_paused
        self._seen, self._seen_s, self._drained = answer.number, now_s, False
        self._progress.observe(next_offsets or {} if watched else {}, answer.ends, now_s)
        if stalled := self._progress.stalled_partitions(now_s, RENEW_S):
            return ", ".join(f"partition {partition} {one}" for partition, one in stalled.items())
        if not (timely and answer.ends) or next_offsets:
            self._unassigned_s = self._unreachable_s = None
        elif next_offsets is None:
            self._unassigned_s = self._unassigned_s or now_s
            waited_s = now_s - self._unassigned_s
            if waited_s >= self._join_s or (waited_s >= JOIN_S and not awaits_members()):
                return f"its group has given no assignment for {waited_s:.0f} s"
        elif reaches_broker():
            self._unreachable_s = None
        else:
            self._unreachable_s = self._unreachable_s or now_s
            if now_s - self._unreachable_s >= RENEW_S:
                return f"it has reached no broker for {now_s - self._unreachable_s:.0f} s"
        return None
