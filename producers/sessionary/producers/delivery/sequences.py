"""The sequence numbers of a client's events: one count per session and producer, without gaps."""

import time
from collections.abc import Callable, Sequence
from threading import Condition, Lock, RLock

from sessionary.producers.delivery.record_ids import new_event_id
from sessionary.producers.errors import Unavailable
from sessionary.producers.ports import Receipt
from sessionary.schemas.ids import SessionKey
from sessionary.schemas.types import DataClass

SEQUENCES_MAX = 100_000
ENDED_MAX = 1_000


def new_producer_id() -> str:
    """Return an id for a process; a copy of it at another moment gets another one."""
    return new_event_id(time.time_ns() // 1_000)


class ProducerSequence:
    """One producer's numbers in one session. Hold `lock` from taking a number until it is sent.

    `data_classes` are those of the session, as far as the client knows.
    """

    __slots__ = ("_changed", "_forget", "_position", "_settled", "data_classes", "last", "lock", "lost", "producer_id")

    def __init__(self, producer_id: str, changed: Condition | None = None) -> None:
        """`changed` is notified of each receipt; sequences may share one."""
        self.producer_id = producer_id
        self.last = 0
        self.lost = 0  # events that were not delivered, according to their receipts
        self.data_classes: tuple[DataClass, ...] = ()
        self.lock = RLock()
        self._changed = changed or Condition()
        self._settled = 0  # receipts so far
        self._position: tuple[int, int] | None = None
        self._forget: Callable[[], None] | None = None  # once the last event of an ended session is settled

    def add_data_classes(self, data_classes: Sequence[DataClass]) -> None:
        """Add classes of the session. Events carry them from now on."""
        self.data_classes = tuple(dict.fromkeys((*self.data_classes, *data_classes)))

    def renew_producer(self) -> None:
        """Continue with a new producer id, from number 1. Hold `lock`."""
        with self._changed:
            self._settled -= self.last  # receipts of earlier events are still awaited
            self.producer_id, self.last, self._position = new_producer_id(), 0, None

    def on_receipt(self, receipt: Receipt) -> None:
        """Take an event's receipt; every number has one. Called on any thread."""
        with self._changed:
            self._settled += 1
            self.lost += receipt.error is not None
            if receipt.error is None and receipt.partition is not None and receipt.offset is not None:
                position = (receipt.partition, receipt.offset)
                self._position = position if self._position is None else max(self._position, position)
            self._changed.notify_all()
        if self._forget is not None:
            self._forget_settled()

    def forget_when_settled(self, forget: Callable[[], None]) -> None:
        """Call `forget` once, as soon as every event sent so far has its receipt."""
        self._forget = forget
        self._forget_settled()

    def _forget_settled(self) -> None:
        with self._changed:
            if self._settled < self.last:
                return
            forget, self._forget = self._forget, None
        if forget is not None:
            forget()

    def wait_position(self, timeout_s: float) -> tuple[int, int] | None:
        """Wait until all events sent so far are delivered or lost.

        Returns partition and offset of the last one whose position in the log is known, or None.
        Raises `Unavailable`.
        """
        last = self.last
        with self._changed:
            if not self._changed.wait_for(lambda: self._settled >= last, timeout_s):
                raise Unavailable(f"{last - self._settled} events of the session are not delivered yet", 1.0)
            return self._position

    def settled_position(self) -> tuple[int, int] | None:
        """Return partition and offset of the last event, or None while one is on its way."""
        last = self.last
        with self._changed:
            return self._position if self._settled >= last else None


class SequenceRegistry:
    """The sequences of a client's sessions that have not ended, at most `SEQUENCES_MAX`.

    A sequence that was evicted or forgotten never restarts at 1 under the same producer id, as the
    processor would take its events for duplicates. The session continues with a new producer id.
    """

    def __init__(self, producer_id: str, limit: int = SEQUENCES_MAX) -> None:
        self._producer_id = producer_id
        self._limit = limit
        self._evicted = False
        self._lock = Lock()
        self._changed = Condition()
        self._sequences: dict[SessionKey, ProducerSequence] = {}
        self._ended: dict[SessionKey, ProducerSequence] = {}
        self._ended_max = 0

    def sequence_for(self, key: SessionKey, *, new: bool = False) -> ProducerSequence:
        """Return the session's sequence; pass `new` if its session id was generated just now."""
        with self._lock:
            found = self._sequences.get(key) or self._ended.get(key)
            if found is None:
                may_be_evicted = self._evicted and not new
                producer_id = new_producer_id() if may_be_evicted else self._producer_id
                found = self._sequences[key] = ProducerSequence(producer_id, self._changed)
                if len(self._sequences) > self._limit:
                    del self._sequences[next(iter(self._sequences))]
                    self._evicted = True
            return found

    def keep_ended(self, most: int = ENDED_MAX) -> None:
        """Keep the sequences of the last `most` ended sessions, for answers that come later."""
        self._ended_max = most

    def forget_sequence(self, key: SessionKey, sequence: ProducerSequence) -> None:
        """Forget the sequence of a session that has ended, if it is still the session's."""
        with self._lock:
            if self._sequences.get(key) is sequence:
                del self._sequences[key]
                self._ended[key] = sequence
            if len(self._ended) > self._ended_max:
                del self._ended[next(iter(self._ended))]
                self._evicted = True
