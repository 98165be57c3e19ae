"""Delivery to Kafka without a spool. If librdkafka has no room for an event, the policy decides:

spool   the event stays in the spool file and follows in order; `send` never blocks
        (package `spool`)
block   `send` waits for a bounded time, then raises `QueueFull`
drop    the event is lost and counted; its sequence number is used, so the loss is audited as a gap
"""

import time
from collections import deque
from typing import NamedTuple

from confluent_kafka import KafkaError, KafkaException, Message

from sessionary.producers.delivery.event_counts import EventCounts
from sessionary.producers.delivery.journal import Journal
from sessionary.producers.delivery.kafka_producer import KafkaProducer
from sessionary.producers.errors import ClientClosed, QueueFull, SettingsError
from sessionary.producers.ports import Backlog, Counters, OnError, OnReceipt, OutRecord, Receipt
from sessionary.producers.settings import ProducerSettings

_ROOM_WAIT_S = 0.05


class _DeliveryReport(NamedTuple):
    """A delivery report that is not counted yet."""

    record: OutRecord
    on_receipt: OnReceipt | None
    error: KafkaError | None
    receipt: Receipt


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
        self._reports: deque[_DeliveryReport] = deque()
        self._taken_s: dict[str, float] = {}  # of the events in librdkafka's queue, by their ids
        self._kafka = KafkaProducer(settings, on_error, self._settle_reports, self._counts.count_error)

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
        oldest_s = min(list(self._taken_s.values()), default=None)
        age_s = 0.0 if oldest_s is None else time.monotonic() - oldest_s
        return Backlog(max(self._counts.outstanding, 0), oldest_age_s=age_s)

    def send(self, record: OutRecord, on_receipt: OnReceipt | None = None) -> None:
        """Take one record. Blocks only under policy `block`. Raises `QueueFull`, `ClientClosed`."""

        def on_delivery(error: KafkaError | None, message: Message) -> None:
            self._reports.append(_DeliveryReport(record, on_receipt, error, receipt_of(error, message)))

        deadline: float | None = None
        while True:
            if self._closed:
                raise ClientClosed("the client is closed; create a new one")
            # Before the queue has it: its delivery report may come at once.
            self._taken_s[record.event_id] = time.monotonic()
            try:
                self._kafka.produce_record(record, on_delivery)
                break
            except BufferError:
                del self._taken_s[record.event_id]
                if not self.may_block:
                    self._drop_record(record, on_receipt, "dropped: the queue is full", "queue_full")
                    return
                now = time.monotonic()
                deadline = deadline if deadline is not None else now + self._settings.block_timeout_s
                if now >= deadline:
                    self._counts.count_error("queue_full")
                    raise QueueFull(
                        f"the delivery queue stayed full for {self._settings.block_timeout_s:g} s; "
                        "the event was not taken"
                    ) from None
                with self._lock:
                    self._counts.changed.wait(min(_ROOM_WAIT_S, deadline - now))
            except KafkaException as error:
                del self._taken_s[record.event_id]
                self._kafka.report_error(error.args[0])
                self._drop_record(record, on_receipt, f"dropped: {error}")
                return
        with self._lock:
            self._counts.sent += 1

    def send_heartbeat(self, record: OutRecord) -> None:
        """Queue a heartbeat, or drop it if there is no room. Never blocks."""
        try:
            self._kafka.produce_record(record, None)
        except (BufferError, KafkaException):
            with self._lock:
                self._counts.heartbeats_dropped += 1
        else:
            with self._lock:
                self._counts.heartbeats += 1

    def flush(self, timeout_s: float) -> int:
        """Wait until all events are acknowledged; return how many are not.

        Blocks for up to `timeout_s`. Raises `AuthenticationFailed` as soon as it is known.
        """
        left = self._wait_acknowledged(timeout_s)
        if left and self._kafka.authentication_error is not None:
            raise self._kafka.authentication_error
        return left

    def close(self, timeout_s: float) -> int:
        """Drain for up to `timeout_s`, stop, return how many events are not acknowledged."""
        with self._lock:
            if self._close_begun:
                return 0
            self._close_begun = True
        try:
            left = self._wait_acknowledged(timeout_s)
        except BaseException:  # an interrupt of the user: the next call goes on
            self._close_begun = False
            raise
        with self._lock:
            self._closed = True
            self._counts.changed.notify_all()
        self._stop_threads()
        if self._journal is not None:
            self._journal.close()
        return left

    def _wait_acknowledged(self, timeout_s: float) -> int:
        deadline = time.monotonic() + timeout_s
        with self._lock:
            while self._counts.outstanding > 0 and (left_s := deadline - time.monotonic()) > 0:
                if self._kafka.authentication_error is not None:
                    break
                self._counts.changed.wait(min(left_s, _ROOM_WAIT_S))
            return max(self._counts.outstanding, 0)

    def _stop_threads(self) -> None:
        self._kafka.close()
        self._settle_reports()  # counts what was purged as failed

    def _settle_reports(self) -> None:
        """Count one round of delivery reports. Takes the lock once, as the agent needs it too."""
        reports = [self._reports.popleft() for _ in range(len(self._reports))]
        if not reports:
            return
        failed = [report.error for report in reports if report.error is not None]
        for error in failed:
            self._kafka.report_error(error)
        if len(failed) < len(reports):
            self._kafka.clear_errors()
        for report in reports:
            self._taken_s.pop(report.record.event_id, None)
            self._report_receipt(report.record, report.receipt, report.on_receipt)
        with self._lock:
            self._counts.delivered += len(reports) - len(failed)
            self._counts.failed += len(failed)
            self._counts.changed.notify_all()

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


__all__ = ["DirectTransport", "receipt_of"]
