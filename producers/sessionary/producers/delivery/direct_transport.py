"""Delivery to Kafka without a spool. If librdkafka has no room for an event, the policy decides:

spool   the event stays in the spool file and follows in order; `send` never blocks
        (package `spool`)
block   `send` waits for a bounded time, then raises `QueueFull`
drop    the event is lost and counted; its sequence number is used, so the loss is audited as a gap

A producer that is stuck, or that has failed for good, is replaced: the new one sends all events
that are not acknowledged again, in order, unless they are older than `delivery_timeout_s`.
"""

import json
import os
import threading
import time
from collections import Counter, deque
from pathlib import Path
from types import MappingProxyType
from typing import NamedTuple

from confluent_kafka import KafkaError, KafkaException, Message

from sessionary.producers.delivery.kafka_producer import KafkaProducer, StallWatch
from sessionary.producers.errors import ClientClosed, QueueFull, SettingsError
from sessionary.producers.ports import Backlog, Counters, OnError, OnReceipt, OutRecord, Receipt
from sessionary.producers.settings import ProducerSettings

# The counters of a client while they change.


class EventCounts:
    """Mutable form of `Counters`. Hold `lock` to change one; notify `changed` after a delivery."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.changed = threading.Condition(self.lock)
        self.sent = self.delivered = self.spooled = self.dropped = self.failed = 0
        self.heartbeats = self.heartbeats_dropped = self.replayed = self.expired = self.damaged = 0
        self.errors: Counter[str] = Counter()  # by reason

    def count_error(self, reason: str) -> None:
        """Count an error of delivery. Takes the lock."""
        with self.lock:
            self.errors[reason] += 1

    def as_counters(self) -> Counters:
        """Return the counts as an immutable value."""
        return Counters(
            self.sent,
            self.delivered,
            self.spooled,
            self.dropped,
            self.failed,
            self.heartbeats,
            self.heartbeats_dropped,
            self.replayed,
            self.expired,
            damaged=self.damaged,
            errors=MappingProxyType(dict(self.errors)),
        )

    @property
    def outstanding(self) -> int:
        """Number of events that are neither delivered nor given up."""
        return self.sent + self.replayed - self.delivered - self.dropped - self.failed - self.expired


# The journal: one NDJSON line for each event that was delivered or lost, for audits.


class Journal:
    """Appends each line in one write, so that several processes may share a file."""

    def __init__(self, path: Path, on_error: OnError) -> None:
        """Open the file. Raises `OSError`. Later write errors go to `on_error`, once."""
        self._fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        self._on_error = on_error
        self._failed = False

    def append_line(self, record: OutRecord, receipt: Receipt) -> None:
        """Write the event's line. Never raises."""
        line = {
            "event_id": record.event_id,
            "event_type": record.event_type,
            "tenant_id": record.tenant_id,
            "session_id": record.session_id,
            "producer_id": record.producer_id,
            "producer_seq": record.producer_seq,
            "partition": receipt.partition,
            "offset": receipt.offset,
            "error": receipt.error,
        }
        try:
            os.write(self._fd, json.dumps(line, separators=(",", ":")).encode() + b"\n")
        except OSError as error:
            if not self._failed:
                self._failed = True
                self._on_error(error)

    def close(self) -> None:
        """Close the file."""
        os.close(self._fd)


_ROOM_WAIT_S = 0.05
_REPLACE_PAUSE_S = 1.0
_THREADS_S, _THREADS_PART = 0.2, 0.1  # of the time of `close`, for the threads: a poll takes 0.1 s
# Errors after which an idempotent producer sends nothing any more.
_FATAL = frozenset(
    {
        KafkaError._FATAL,
        KafkaError._FENCED,
        KafkaError.INVALID_PRODUCER_EPOCH,
        KafkaError.INVALID_PRODUCER_ID_MAPPING,
        KafkaError.OUT_OF_ORDER_SEQUENCE_NUMBER,
        KafkaError.UNKNOWN_PRODUCER_ID,
    }
)


class _OpenEvent(NamedTuple):
    """An event that is not acknowledged."""

    record: OutRecord
    on_receipt: OnReceipt | None
    taken_s: float


class _Attempt:
    """One delivery of an event: its delivery callback."""

    __slots__ = ("event", "generation", "owner")

    def __init__(self, owner: "DirectTransport", event: _OpenEvent, generation: int) -> None:
        self.owner = owner
        self.event = event
        self.generation = generation

    def __call__(self, error: KafkaError | None, message: Message) -> None:
        self.owner.attempts.append((self, error, receipt_of(error, message)))


class DirectTransport:
    """`Transport` for the policies `block` and `drop`: only librdkafka's queue in memory."""

    def __init__(self, settings: ProducerSettings, on_error: OnError) -> None:
        self._settings = settings
        self._on_error = on_error
        self._counts = EventCounts()
        self._lock = self._counts.lock
        self._journal = _open_journal(settings, on_error)
        self._closed = False
        self._close_begun = False
        self.attempts: deque[tuple[_Attempt, KafkaError | None, Receipt]] = deque()
        self._open: dict[str, _OpenEvent] = {}  # in the order in which they were taken, by their ids
        # Held while an event is queued or settled, and while the producer changes; before `_lock`.
        self._queueing = threading.Lock()
        self._generation = 0  # of the producer
        self._replace_at_s: float | None = None  # the producer is unusable, and will be replaced then
        self._waiting: deque[_OpenEvent] = deque()  # open, and not queued in the current producer
        self._waiting_bytes = 0
        self._watch = StallWatch(settings.topics.events)
        self._stalled_s = 0.0
        calls = (self._settle_reports, self._counts.count_error, self._read_statistics)
        try:
            self._kafka = KafkaProducer(settings, on_error, *calls)
        except BaseException:
            self._close_journal()
            raise

    @property
    def may_block(self) -> bool:
        """True for policy `block`."""
        return self._settings.delivery_policy == "block"

    @property
    def counters(self) -> Counters:
        """The counters as they are now."""
        return self._counts.as_counters()

    @property
    def backlog(self) -> Backlog:
        """The events that are not acknowledged now."""
        with self._queueing:
            oldest_s = min((event.taken_s for event in self._open.values()), default=None)
        age_s = 0.0 if oldest_s is None else time.monotonic() - oldest_s
        return Backlog(max(self._counts.outstanding, 0), oldest_age_s=age_s)

    def send(self, record: OutRecord, on_receipt: OnReceipt | None = None) -> None:
        """Take one record. Blocks only under policy `block`. Raises `QueueFull`, `ClientClosed`."""
        event = _OpenEvent(record, on_receipt, time.monotonic())
        while not self._queue_event(event):
            if not self.may_block:
                self._drop_record(record, on_receipt, "dropped: the queue is full", "queue_full")
                return
            left_s = event.taken_s + self._settings.block_timeout_s - time.monotonic()
            if left_s <= 0:
                self._counts.count_error("queue_full")
                raise QueueFull(
                    f"the delivery queue stayed full for {self._settings.block_timeout_s:g} s; the event was not taken"
                )
            with self._lock:
                self._counts.changed.wait(min(_ROOM_WAIT_S, left_s))

    def _queue_event(self, event: _OpenEvent) -> bool:
        """Take an event; False if there is no room for it. Counts it as sent, and never blocks."""
        error: KafkaError | None = None
        with self._queueing:
            if self._closed:
                raise ClientClosed("the client is closed; create a new one")
            generation = self._generation
            # Before the queue has it: its delivery report may come at once.
            self._open[event.record.event_id] = event
            try:
                if not self._has_room(event):
                    del self._open[event.record.event_id]
                    return False
            except KafkaException as raised:
                error = raised.args[0]
                if _is_fatal(error):
                    self._let_wait(event)
                else:
                    del self._open[event.record.event_id]
        if error is not None and not _is_fatal(error):
            self._kafka.report_error(error)
            self._drop_record(event.record, event.on_receipt, f"dropped: {error}")
            return True
        with self._lock:
            self._counts.sent += 1
        if error is not None:
            self._give_producer_up(generation, error)
        return True

    def _has_room(self, event: _OpenEvent) -> bool:
        """Queue an event in the producer, or behind those that wait for a new one."""
        if self._replace_at_s is not None or self._waiting:
            if self._waiting_bytes >= self._settings.queue_bytes_max:
                return False
            self._let_wait(event)
            return True
        try:
            self._kafka.produce_record(event.record, _Attempt(self, event, self._generation))
        except BufferError:
            return False
        return True

    def _let_wait(self, event: _OpenEvent) -> None:
        self._waiting.append(event)
        self._waiting_bytes += len(event.record.value)

    def place_of(self, key: bytes) -> int | None:
        """Return the partition of a key, or None while the number of partitions is not known."""
        return self._kafka.place_of(key)

    def send_heartbeat(self, record: OutRecord) -> None:
        """Queue a heartbeat, or drop it if there is no room. Never blocks."""
        generation = self._generation
        try:
            self._kafka.produce_record(record, None)
        except (BufferError, KafkaException) as error:
            with self._lock:
                self._counts.heartbeats_dropped += 1
            if isinstance(error, KafkaException) and _is_fatal(error.args[0]):
                self._give_producer_up(generation, error.args[0])
        else:
            with self._lock:
                self._counts.heartbeats += 1

    def wait_taken_over(self, key: bytes, timeout_s: float) -> bool:
        """Return True: a dead process leaves nothing."""
        return True

    def flush(self, timeout_s: float) -> int:
        """Wait until all events are acknowledged; return how many are not.

        Blocks for up to `timeout_s`. Raises `AuthenticationFailed` as soon as it is known.
        """
        left = self._wait_acknowledged(timeout_s)
        if left and self._kafka.authentication_error is not None:
            raise self._kafka.authentication_error
        return left

    def close(self, timeout_s: float) -> int:
        """Drain, stop, and return how many events are not acknowledged; all within `timeout_s`.

        The last part of that time is left to the threads. One that takes longer ends later.
        """
        deadline = time.monotonic() + timeout_s
        with self._lock:
            if self._close_begun:
                return 0
            self._close_begun = True
        try:
            left = self._wait_acknowledged(timeout_s - min(_THREADS_S, timeout_s * _THREADS_PART))
        except BaseException:  # an interrupt of the user: the next call continues
            self._close_begun = False
            raise
        with self._queueing, self._lock:
            self._closed = True
            self._counts.changed.notify_all()
        self._stop_threads(deadline)
        self._close_journal()
        return left

    def _close_journal(self) -> None:
        if self._journal is not None:
            self._journal.close()

    def _wait_acknowledged(self, timeout_s: float) -> int:
        deadline = time.monotonic() + timeout_s
        with self._lock:
            while self._counts.outstanding > 0 and (left_s := deadline - time.monotonic()) > 0:
                if self._kafka.authentication_error is not None:
                    break
                self._counts.changed.wait(min(left_s, _ROOM_WAIT_S))
            return max(self._counts.outstanding, 0)

    def _stop_threads(self, deadline: float) -> None:
        self._kafka.close(deadline - time.monotonic())
        self._settle_reports()  # counts purged events as failed
        with self._queueing:
            left = [(event, Receipt(None, None, "the client was closed")) for event in self._open.values()]
            self._open.clear()
        self._settle_events(left)

    def _read_statistics(self, statistics: str) -> None:
        """Take librdkafka's statistics. Called on the poll thread, before `_settle_reports`."""
        self._stalled_s = self._watch.find_stall(statistics, time.monotonic())

    def _check_progress(self) -> None:
        """Give a producer up that is stuck. Called on the poll thread."""
        stalled_s, self._stalled_s = self._stalled_s, 0.0
        if stalled_s:
            what = f"a partition acknowledged nothing for {stalled_s:.0f} s; all open events are sent again"
            self._give_producer_up(self._generation, KafkaError(KafkaError._TIMED_OUT, what))

    def _settle_reports(self) -> None:
        """Count one round of delivery reports. Takes the locks once, as the agent needs them."""
        attempts = [self.attempts.popleft() for _ in range(len(self.attempts))]
        settled: list[tuple[_OpenEvent, Receipt]] = []
        failures: list[KafkaError] = []
        fatal: KafkaError | None = None
        with self._queueing:
            generation = self._generation
            for attempt, error, receipt in attempts:
                if attempt.generation != generation:
                    continue  # sent again; if the broker has it, the processor drops the duplicate
                if error is not None and _is_fatal(error):
                    fatal = error
                    break  # later events are sent again too, after this one
                if error is not None:
                    failures.append(error)
                del self._open[attempt.event.record.event_id]
                settled.append((attempt.event, receipt))
        for error in failures:
            self._kafka.report_error(error)
        if settled:
            self._settle_events(settled)
        if fatal is not None:
            self._give_producer_up(generation, fatal)
        self._check_progress()
        if self._replace_at_s is not None or self._waiting:
            self._queue_waiting()

    def _settle_events(self, settled: list[tuple[_OpenEvent, Receipt]]) -> None:
        """Report the receipts of events that are no longer open, and count them."""
        failed = 0
        for event, receipt in settled:
            failed += receipt.error is not None
            self._report_receipt(event.record, receipt, event.on_receipt)
        if failed < len(settled):
            self._kafka.clear_errors()
        with self._lock:
            self._counts.delivered += len(settled) - failed
            self._counts.failed += failed
            self._counts.changed.notify_all()

    def _give_producer_up(self, generation: int, error: KafkaError) -> None:
        """Have the producer replaced, unless it was since. All open events wait for the new one."""
        with self._queueing:
            if generation != self._generation or self._closed or self._replace_at_s is not None:
                return
            self._generation += 1
            self._replace_at_s = time.monotonic() + _REPLACE_PAUSE_S
            self._waiting.clear()
            self._waiting_bytes = 0
            for event in self._open.values():
                self._let_wait(event)
        self._kafka.report_error(error)

    def _queue_waiting(self) -> None:
        """Replace the producer if it is time, and queue what waits for it. On the poll thread."""
        now_s = time.monotonic()
        if self._closed:
            return
        if self._replace_at_s is not None:
            if now_s < self._replace_at_s:
                return
            self._kafka.replace_producer()
        settled: list[tuple[_OpenEvent, Receipt]] = []
        failures: list[KafkaError] = []
        fatal: KafkaError | None = None
        with self._queueing:
            self._replace_at_s = None
            generation = self._generation
            while self._waiting and not self._closed:
                event, receipt = self._waiting[0], None
                if now_s - event.taken_s > self._settings.delivery_timeout_s:
                    receipt = Receipt(None, None, "not acknowledged in time")
                else:
                    try:
                        self._kafka.produce_record(event.record, _Attempt(self, event, generation))
                    except BufferError:
                        break
                    except KafkaException as raised:
                        if _is_fatal(raised.args[0]):
                            fatal = raised.args[0]
                            break
                        failures.append(raised.args[0])
                        receipt = Receipt(None, None, str(raised.args[0]))
                self._waiting.popleft()
                self._waiting_bytes -= len(event.record.value)
                if receipt is not None:
                    del self._open[event.record.event_id]
                    settled.append((event, receipt))
        for error in failures:
            self._kafka.report_error(error)
        if settled:
            self._settle_events(settled)
        if fatal is not None:
            self._give_producer_up(generation, fatal)

    def _drop_record(
        self, record: OutRecord, on_receipt: OnReceipt | None, why: str, reason: str | None = None
    ) -> None:
        """Count a lost event. `reason`: of the error, unless it is counted already."""
        with self._lock:
            self._counts.sent += 1
            self._counts.dropped += 1
            if reason is not None:
                self._counts.errors[reason] += 1
        self._report_receipt(record, Receipt(None, None, why), on_receipt)

    def _report_receipt(self, record: OutRecord, receipt: Receipt, on_receipt: OnReceipt | None) -> None:
        if self._journal is not None:
            self._journal.append_line(record, receipt)
        if on_receipt is not None:
            on_receipt(receipt)


def _is_fatal(error: KafkaError) -> bool:
    return error.fatal() or error.code() in _FATAL


def receipt_of(error: KafkaError | None, message: Message) -> Receipt:
    """Return a delivery report as a receipt."""
    if error is not None:
        return Receipt(None, None, error.str())
    return Receipt(message.partition(), message.offset())


def _open_journal(settings: ProducerSettings, on_error: OnError) -> Journal | None:
    if settings.journal_path is None:
        return None
    try:
        return Journal(settings.journal_path, on_error)
    except OSError as error:
        on_error(SettingsError(f"SESSIONARY_JOURNAL_PATH: no journal is written: {error}"))
        return None
