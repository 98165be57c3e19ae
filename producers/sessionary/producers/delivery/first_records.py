"""The first record of a producer to each partition goes alone, until it is acknowledged.

A broker that does not know a producer on a partition takes whatever sequence number comes first
(`ProducerAppendInfo.checkSequence` of Kafka). So nothing guards the order of a producer's first
batches. If the first one is refused for a moment, because too few replicas are in sync, and the
second one is taken, the first never gets in. librdkafka reports it as delivered all the same,
without an offset, because a later batch was acknowledged. Once a batch is acknowledged the broker
knows the producer, and refuses records out of order.
"""

import threading
import time
from collections import deque
from collections.abc import Callable
from functools import lru_cache
from typing import Final, NamedTuple, cast

from confluent_kafka import KafkaError, KafkaException, Message

from sessionary.producers.ports import OutRecord
from sessionary.schemas.ids import partition_of

DeliveryCallback = Callable[[KafkaError | None, Message], None]
Queue = Callable[[OutRecord, DeliveryCallback | None], None]  # raises `BufferError`, `KafkaException`
# Half of the time after which a broker forgets a silent producer (`producer.id.expiration.ms`).
_TRUSTED_S: Final = 43_200.0
_UNKNOWN_PLACE: Final = 0  # of every record, while the number of partitions is not known
_place_of = lru_cache(maxsize=1 << 14)(partition_of)  # sessions have many events


class _Held(NamedTuple):
    """A record that waits for the first one to its partition."""

    record: OutRecord
    on_delivery: DeliveryCallback | None
    since_s: float


class _First:
    """The delivery callback of the first record to a partition."""

    __slots__ = ("on_delivery", "owner", "place")

    def __init__(self, owner: "FirstRecords", place: int, on_delivery: DeliveryCallback | None) -> None:
        self.owner = owner
        self.place = place
        self.on_delivery = on_delivery

    def __call__(self, error: KafkaError | None, message: Message) -> None:
        if self.on_delivery is not None:
            self.on_delivery(error, message)
        self.owner.answered.append((self.place, None if error is not None else message.partition()))


class FirstRecords:
    """Queues the records of one librdkafka producer.

    Thread-safe; `release` by the poll thread only. `queue` puts a record into librdkafka's queue.
    `count_partitions` returns the number of partitions, or None if it is not known yet; it may
    block. Up to `bytes_max` bytes are held back, each record for `timeout_s` (0: for ever).
    """

    def __init__(
        self,
        queue: Queue,
        count_partitions: Callable[[], int | None],
        bytes_max: int,
        timeout_s: float,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._queue = queue
        self._count_partitions = count_partitions
        self._bytes_max = bytes_max
        self._timeout_s = timeout_s
        self._clock = clock
        self._lock = threading.Lock()
        self._partitions: int | None = None
        self._known: set[int] = set()  # the partitions on which the broker knows the producer
        self._trusted_until_s = clock() + _TRUSTED_S
        self._held: dict[int, deque[_Held]] = {}  # by partitions whose first record is under way
        self._held_bytes = 0
        self._unfinished: list[tuple[int, int | None]] = []  # of `answered`, to be looked at again
        self.answered: deque[tuple[int, int | None]] = deque()  # place, and partition; None: it failed

    def produce(self, record: OutRecord, on_delivery: DeliveryCallback | None) -> None:
        """Queue a record, or hold it back; never blocks. Raises `BufferError`, `KafkaException`."""
        # Without the lock: a partition becomes known only after the held records are queued.
        partitions = self._partitions
        if partitions is not None and (
            len(self._known) == partitions or _place_of(record.key, partitions) in self._known
        ):
            self._queue(record, on_delivery)
            return
        with self._lock:
            self._produce_locked(_Held(record, on_delivery, self._clock()))

    def release(self) -> None:
        """Queue the records that waited for an acknowledged first record. May block briefly."""
        if self._clock() >= self._trusted_until_s:
            self._known, self._trusted_until_s = set(), self._clock() + _TRUSTED_S
        if not self.answered and not self._unfinished:
            return
        answers, self._unfinished = [*self._unfinished], []
        answers += [self.answered.popleft() for _ in range(len(self.answered))]
        for place, partition in answers:
            count = self._partitions
            if partition is not None and count is None and (count := self._count_partitions()) is None:
                self._unfinished.append((place, partition))
                continue
            with self._lock:
                if partition is None:
                    self._try_next(place)
                elif self._partitions is None:
                    self._partitions = count
                    self._sort_held(partition)
                else:
                    self._release_place(place)

    def place_of(self, key: bytes) -> int | None:
        """Return the partition of a key, or None while the number of partitions is not known."""
        return None if self._partitions is None else _place_of(key, self._partitions)

    def _place_of(self, record: OutRecord) -> int:
        return _UNKNOWN_PLACE if self._partitions is None else _place_of(record.key, self._partitions)

    def _produce_locked(self, waiting: _Held) -> None:
        record, on_delivery, _ = waiting
        place = self._place_of(record)
        if place in self._known:
            self._queue(record, on_delivery)
            return
        held = self._held.get(place)
        if held is None:
            self._queue(record, _First(self, place, on_delivery))
            self._held[place] = deque()
            return
        if self._held_bytes + len(record.value) > self._bytes_max:
            raise BufferError("too many records wait for the first one to their partition")
        self._hold(held, waiting)

    def _hold(self, held: deque[_Held], waiting: _Held) -> None:
        held.append(waiting)
        self._held_bytes += len(waiting.record.value)

    def _take(self, held: deque[_Held]) -> _Held:
        self._held_bytes -= len(held[0].record.value)
        return held.popleft()

    def _sort_held(self, known: int) -> None:
        """Give each record that is held back its partition: their number is known now.

        The broker knows the producer on the partition `known`.
        """
        waiting = self._held.pop(_UNKNOWN_PLACE)
        self._held_bytes = 0
        self._held[known] = deque()
        for one in waiting:
            self._hold(self._held.setdefault(self._place_of(one.record), deque()), one)
        for place in list(self._held):
            if place == known:
                self._release_place(place)
            else:
                self._try_next(place)

    def _release_place(self, place: int) -> None:
        """Queue the records held back for a partition, as the broker knows the producer there."""
        held = self._held[place]
        while held:
            try:
                self._queue(held[0].record, held[0].on_delivery)
            except BufferError:
                self._unfinished.append((place, place))
                return
            except KafkaException as error:
                _report(held[0], error.args[0])
            self._take(held)
        del self._held[place]
        self._known = self._known | {place}

    def _try_next(self, place: int) -> None:
        """Send the next record to a partition as the first one: there is none, or it failed."""
        held = self._held[place]
        while held:
            if self._timeout_s and self._clock() - held[0].since_s >= self._timeout_s:
                _report(self._take(held), KafkaError(KafkaError._MSG_TIMED_OUT))
                continue
            try:
                self._queue(held[0].record, _First(self, place, held[0].on_delivery))
            except BufferError:
                self._unfinished.append((place, None))
                return
            except KafkaException as error:
                _report(self._take(held), error.args[0])
                continue
            self._take(held)
            return
        del self._held[place]


def _report(held: _Held, error: KafkaError) -> None:
    """Report a record that librdkafka did not take. There is no message of it."""
    if held.on_delivery is not None:
        held.on_delivery(error, cast(Message, None))
