"""Fetches the records of owned partitions with librdkafka, and hands them to the event loop in batches.

Faust's consumer (aiokafka) keeps the group's membership; its own fetching would take a quarter of a worker's time and
hold the interpreter's lock while it does. Here records are fetched and unpacked by librdkafka's threads; one thread of
ours turns them into tuples. It belongs to no group: what it fetches, and from where, is said by each partition's owner.

    fetch → pause/resume … → drop          commands of one partition, in this order; each returns at once
"""

import asyncio
import logging
import threading
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from itertools import groupby, repeat
from operator import itemgetter
from typing import NamedTuple, cast

from confluent_kafka import Consumer, KafkaError, KafkaException, Message, TopicPartition

from sessionary.stream_processors.core.partition import LogRecord
from sessionary.stream_processors.settings import ProcessorSettings

_log = logging.getLogger(__name__)
FETCH_WAIT_MS = 10  # a fetch over idle partitions may wait this long before busy ones are asked again
_BATCH_RECORDS = 4_000
_AHEAD_BYTES_MAX = 8 << 20  # fetched and not yet folded; then the thread waits, and takes more at a time
_AHEAD_WAIT_S = 0.1  # but not longer: what is ahead may be a partition's that stands still
_WAITING_MAX = 16  # batches not yet taken by the event loop
_LOOK_S = 0.02
_ms = itemgetter(1)  # of a message's timestamp, behind its kind
_new = tuple.__new__  # as a NamedTuple's own constructor, in half the time


class _Record(LogRecord):
    """A record with its message in the headers' place: they are unpacked when somebody asks; only a refusal does."""

    __slots__ = ()

    @property
    def headers(self) -> Sequence[tuple[str, bytes]]:
        """See `LogRecord`."""
        found = cast(Message, self[4]).headers() or []
        pairs = found.items() if isinstance(found, dict) else found
        return [(name, value.encode() if isinstance(value, str) else value or b"") for name, value in pairs]


class Fetched(NamedTuple):
    """Records of one partition, in the order of their offsets; at least one."""

    partition: int
    records: Sequence[LogRecord]


class Fetcher:
    """One worker's fetching. `start` and `next` belong to the event loop, the commands to any thread."""

    def __init__(self, settings: ProcessorSettings) -> None:
        self._topic = settings.topics.events
        self._consumer = Consumer(
            {
                **settings.client_config(),
                "group.id": f"{settings.group_id}.reader",
                "isolation.level": "read_committed",
                "enable.auto.commit": False,
                "enable.auto.offset.store": False,
                # Where the position is no longer in the log the owner sees what the log begins with, and decides.
                "auto.offset.reset": "earliest",
                "fetch.wait.max.ms": FETCH_WAIT_MS,
                "queued.min.messages": 20_000,
                # A partition whose queue is full is asked for again after this long; by default a second, which capped
                # a backlog at some 36,000 records a second.
                "fetch.queue.backoff.ms": 5,
                "queued.max.messages.kbytes": 16_384,
            }
        )
        self._commands: deque[Callable[[], None]] = deque()
        self._waiting: deque[Fetched] = deque()
        self._ahead_bytes = 0
        self._room = threading.Condition()
        self._arrived = asyncio.Event()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._stopped = False
        self._thread = threading.Thread(target=self._run, name="fetcher", daemon=True)

    def start(self) -> None:
        """Begin. Call it on the event loop that takes the records."""
        self._loop = asyncio.get_running_loop()
        self._thread.start()

    def close(self) -> None:
        """End; what was not taken is dropped. Waits for the thread, which is bounded."""
        with self._room:
            self._stopped = True
            self._room.notify()
        if self._thread.is_alive():
            self._thread.join(5.0)

    async def next(self, timeout_s: float) -> Sequence[Fetched]:
        """Return what has been fetched since; nothing where nothing comes within the time."""
        if not self._waiting:
            self._arrived.clear()
            if not self._waiting:
                try:
                    await asyncio.wait_for(self._arrived.wait(), timeout_s)
                except TimeoutError:
                    return ()
        with self._room:
            taken = tuple(self._waiting)
            self._waiting.clear()
            self._room.notify()
        return taken

    def took(self, size: int) -> None:
        """Take note that records of so many bytes are folded or dropped; negative where they were put back."""
        with self._room:
            self._ahead_bytes -= size
            if self._ahead_bytes < _AHEAD_BYTES_MAX // 2:
                self._room.notify()

    def fetch(self, partition: int, offset: int) -> None:
        """Fetch a partition from `offset` on; what was fetched of it before is dropped."""

        def begin() -> None:
            self._unassign(partition)
            self._consumer.incremental_assign([TopicPartition(self._topic, partition, offset)])

        self._commands.append(begin)

    def drop(self, partition: int) -> None:
        """Fetch nothing more of a partition."""
        self._commands.append(lambda: self._unassign(partition))

    def pause(self, partition: int) -> None:
        """Hold a partition's fetching."""
        self._commands.append(lambda: self._consumer.pause(self._assigned(partition)))

    def resume(self, partition: int) -> None:
        """Go on with a partition."""
        self._commands.append(lambda: self._consumer.resume(self._assigned(partition)))

    def _assigned(self, partition: int) -> list[TopicPartition]:
        return [place for place in self._consumer.assignment() if place.partition == partition]

    def _unassign(self, partition: int) -> None:
        if places := self._assigned(partition):
            self._consumer.incremental_unassign(places)
        with self._room:
            kept = [fetched for fetched in self._waiting if fetched.partition != partition]
            self._waiting.clear()
            self._waiting.extend(kept)

    def _run(self) -> None:
        try:
            while not self._stopped:
                self._turn()
        finally:
            self._consumer.close()

    def _turn(self) -> None:
        while self._commands:
            command = self._commands.popleft()
            try:
                command()
            except KafkaException as error:
                _log.warning("fetching: %s", error.args[0])
        with self._room:
            if len(self._waiting) >= _WAITING_MAX:
                self._room.wait(_LOOK_S)
                return
            if self._ahead_bytes > _AHEAD_BYTES_MAX:
                self._room.wait(_AHEAD_WAIT_S)
        first = self._consumer.poll(_LOOK_S)
        if first is None:
            return
        self._hand_over(first, self._consumer.consume(_BATCH_RECORDS, 0))

    def _hand_over(self, first: Message, more: Sequence[Message]) -> None:
        batches = _batches([first, *more])
        with self._room:
            self._waiting.extend(Fetched(partition, records) for partition, records in batches.items())
        if self._loop is not None and not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._arrived.set)


def _batches(messages: list[Message]) -> dict[int, list[LogRecord]]:
    """Sort records by partition; what is no record but an error is reported."""
    if errors := [error for error in map(Message.error, messages) if error is not None]:
        for error in errors:
            _report(error)
        messages = [message for message in messages if message.error() is None]
    batches: dict[int, list[LogRecord]] = {}
    for partition, found in groupby(messages, Message.partition):
        batches.setdefault(partition or 0, []).extend(_records(list(found)))
    return batches


def _records(messages: list[Message]) -> Iterable[LogRecord]:
    """Return messages of one partition as records; a loop of the interpreter's own would take half as long again."""
    times = map(_ms, map(Message.timestamp, messages))
    fields = zip(
        map(Message.offset, messages),
        times,
        map(Message.key, messages),
        map(Message.value, messages),
        messages,
        strict=True,
    )
    return map(_new, repeat(_Record), fields)


def _report(error: KafkaError) -> None:
    """Say what is wrong; librdkafka goes on by itself."""
    _log.warning("fetching: %s", error.str())


__all__ = ["FETCH_WAIT_MS", "Fetched", "Fetcher"]
