"""Delivery to Kafka. The policy says what happens to an event for which librdkafka has no room:

spool   it stays in the write-ahead file and follows in order; `send` never blocks (module `spooled`)
block   `send` waits, bounded, then raises `QueueFull`
drop    it is lost, counted, and visible to everybody as a gap, as its sequence number is taken
"""

import threading
import time
from collections import deque
from typing import NamedTuple

from confluent_kafka import KafkaError, KafkaException, Message

from sessionary.producers.delivery.journal import Journal
from sessionary.producers.delivery.kafka_producer import Wire
from sessionary.producers.errors import ClientClosed, QueueFull, SettingsError
from sessionary.producers.ports import Counters, OnError, OnReceipt, OutRecord, Receipt
from sessionary.producers.settings import ProducerSettings

_ROOM_WAIT_S = 0.05


class Tally:
    """The counters while they move. Hold `lock` to change one."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.changed = threading.Condition(self.lock)
        self.sent = self.delivered = self.spooled = self.dropped = self.failed = 0
        self.heartbeats = self.heartbeats_dropped = self.replayed = self.expired = 0

    def counters(self) -> Counters:
        """Return them as they are."""
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
        )

    @property
    def outstanding(self) -> int:
        """Events whose fate is open."""
        return self.sent + self.replayed - self.delivered - self.dropped - self.failed - self.expired


class _Report(NamedTuple):
    """A delivery report that is not settled yet."""

    record: OutRecord
    on_receipt: OnReceipt | None
    error: KafkaError | None
    receipt: Receipt


class DirectTransport:
    """Policies `block` and `drop`: librdkafka's queue and nothing behind it. See `ports.Transport`."""

    def __init__(self, settings: ProducerSettings, on_error: OnError) -> None:
        self._settings = settings
        self._on_error = on_error
        self._tally = Tally()
        self._lock = self._tally.lock
        self._journal = _opened_journal(settings, on_error)
        self._closed = False
        self._ended = False
        self._reports: deque[_Report] = deque()
        self._wire = Wire(settings, on_error, self._polled)

    @property
    def may_block(self) -> bool:
        """True for policy `block`."""
        return self._settings.delivery_policy == "block"

    @property
    def counters(self) -> Counters:
        """What became of the records so far."""
        return self._tally.counters()

    def send(self, record: OutRecord, on_receipt: OnReceipt | None = None) -> None:
        """Take one record. Raises `QueueFull` (policy `block`), `ClientClosed`."""

        def delivered(error: KafkaError | None, message: Message) -> None:
            self._reports.append(_Report(record, on_receipt, error, receipt_of(error, message)))

        deadline: float | None = None
        while True:
            if self._closed:
                raise ClientClosed("the client is closed")
            try:
                self._wire.produce(record, delivered)
                break
            except BufferError:
                if not self.may_block:
                    self._drop(record, on_receipt, "dropped: the queue is full")
                    return
                now = time.monotonic()
                deadline = deadline if deadline is not None else now + self._settings.block_timeout_s
                if now >= deadline:
                    raise QueueFull(f"no room for {self._settings.block_timeout_s:g} s") from None
                with self._lock:
                    self._tally.changed.wait(min(_ROOM_WAIT_S, deadline - now))
            except KafkaException as error:
                self._wire.trouble(error.args[0])
                self._drop(record, on_receipt, f"dropped: {error}")
                return
        with self._lock:
            self._tally.sent += 1

    def beat(self, record: OutRecord) -> None:
        """Send a heartbeat now or never."""
        try:
            self._wire.produce(record, None)
        except (BufferError, KafkaException):
            with self._lock:
                self._tally.heartbeats_dropped += 1
        else:
            with self._lock:
                self._tally.heartbeats += 1

    def flush(self, timeout_s: float) -> int:
        """Wait until everything is acknowledged; return what is not. Raises `AuthenticationFailed`."""
        left = self._drained(timeout_s, give_up_unauthenticated=True)
        if left and self._wire.authentication is not None:
            raise self._wire.authentication
        return left

    def close(self, timeout_s: float) -> int:
        """Drain, stop, return what is left."""
        with self._lock:
            if self._ended:
                return 0
            self._ended = True
        left = self._drained(timeout_s, give_up_unauthenticated=True)
        with self._lock:
            self._closed = True
            self._tally.changed.notify_all()
        self._stop()
        if self._journal is not None:
            self._journal.close()
        return left

    def _drained(self, timeout_s: float, *, give_up_unauthenticated: bool) -> int:
        deadline = time.monotonic() + timeout_s
        with self._lock:
            while self._tally.outstanding > 0 and (left_s := deadline - time.monotonic()) > 0:
                if give_up_unauthenticated and self._wire.authentication is not None:
                    break
                self._tally.changed.wait(min(left_s, _ROOM_WAIT_S))
            return max(self._tally.outstanding, 0)

    def _stop(self) -> None:
        self._wire.close()
        self._polled()  # what was purged is lost: count it

    def _polled(self) -> None:
        """Settle the delivery reports of one round: the lock is taken once for all, the agent wants it too."""
        reports = [self._reports.popleft() for _ in range(len(self._reports))]
        if not reports:
            return
        failed = [report.error for report in reports if report.error is not None]
        for error in failed:
            self._wire.trouble(error)
        if len(failed) < len(reports):
            self._wire.well()
        for report in reports:
            self._tell(report.record, report.receipt, report.on_receipt)
        with self._lock:
            self._tally.delivered += len(reports) - len(failed)
            self._tally.failed += len(failed)
            self._tally.changed.notify_all()

    def _drop(self, record: OutRecord, on_receipt: OnReceipt | None, why: str) -> None:
        with self._lock:
            self._tally.sent += 1
            self._tally.dropped += 1
        self._tell(record, Receipt(None, None, why), on_receipt)

    def _tell(self, record: OutRecord, receipt: Receipt, on_receipt: OnReceipt | None) -> None:
        if self._journal is not None:
            self._journal.note(record, receipt)
        if on_receipt is not None:
            on_receipt(receipt)


def receipt_of(error: KafkaError | None, message: Message) -> Receipt:
    """Return what a delivery report says."""
    if error is not None:
        return Receipt(None, None, error.str())
    return Receipt(message.partition(), message.offset())


def _opened_journal(settings: ProducerSettings, on_error: OnError) -> Journal | None:
    if settings.journal_path is None:
        return None
    try:
        return Journal(settings.journal_path, on_error)
    except OSError as error:
        raise SettingsError(f"SESSIONARY_JOURNAL_PATH: {error}") from None


__all__ = ["DirectTransport", "Tally", "receipt_of"]
