"""Policy `spool`: every event is written ahead to the spool file, then queued in librdkafka.

`send` only appends. A sender thread queues the new events some milliseconds later: queueing wakes
librdkafka's threads, which costs an agent that emits now and then a fifth of the call and more.
While events come, the sender looks for them by itself, so that no call has to wake it either.

New events are kept in memory until they are queued. Once librdkafka has no room, the sender queues
the file's events in order. Events of dead processes are sent in between, by turns. Only an event
whose session has such events waits for their acknowledgement; the own events behind it wait too.
After a failure that is not the record's own fault, or a long time without any acknowledgement, a
new producer sends all unacknowledged events again from the file, in order; never a single one
alone.
"""

import math
import threading
import time
from collections import deque
from collections.abc import Mapping
from pathlib import Path

from confluent_kafka import KafkaError, KafkaException, Message

from sessionary.producers.delivery.direct_transport import DirectTransport, receipt_of
from sessionary.producers.delivery.kafka_producer import error_reason
from sessionary.producers.delivery.spool.labels import folders_of_prefix, label_folder
from sessionary.producers.delivery.spool.orphans import Claim, Clusters, release_claim
from sessionary.producers.delivery.spool.segment import Frame, FramePosition
from sessionary.producers.delivery.spool.spool import AGE_LIMIT_MS, OldEvents, Spool
from sessionary.producers.errors import (
    ClientClosed,
    Invalid,
    ProducerError,
    SpoolDamaged,
    SpoolRemoved,
    Unavailable,
)
from sessionary.producers.ports import Backlog, OnError, OnReceipt, OutRecord, Receipt
from sessionary.producers.process.guards import join_thread, start_thread
from sessionary.producers.settings import ProducerSettings
from sessionary.schemas.codec import Decoder, Event, read_identity
from sessionary.schemas.codec.compiled_helpers import new_instance
from sessionary.schemas.headers import EventIdentity, event_headers
from sessionary.schemas.types import Envelope

# The record to be sent of a frame in the spool, whichever process and release wrote it.


def record_from_frame(frame: Frame, decoder: Decoder) -> OutRecord:
    """Return the record that was written as `frame`. Raises `Invalid` if it cannot be read."""
    envelope: Envelope | EventIdentity | None = read_identity(frame.value)
    if envelope is None:
        event = decoder.decode_event(frame.value)
        if not isinstance(event, Event):
            raise Invalid("unknown_event_type", "the spool holds a tick, not an event")
        envelope = event.envelope
    try:
        headers = event_headers(envelope, frame.traceparent)
    except (ValueError, OverflowError, OSError) as error:
        what = f"event {envelope.event_id} occurred at {envelope.occurred_at} us"
        raise Invalid("invalid_value", f"{what}, which no header can hold: {error}") from error
    return OutRecord(
        frame.key,
        frame.value,
        headers,
        envelope.event_id,
        envelope.event_type,
        envelope.tenant_id,
        envelope.session_id,
        envelope.producer_id,
        envelope.producer_seq,
        frame.traceparent,
    )


_FRAMES_PER_READ = 32
_REPLACE_PAUSE_S = 1.0
_ROOM_WAIT_S = 0.02
_LOOK_PAUSE_S = 0.005  # between two looks for new events: those that come meanwhile form one batch
_FILES_PAUSE_S = 1.0  # between two looks at the files
_LOOKS_MAX = 4  # in vain, before the sender sleeps
_NEW_EVENTS_MAX = 500  # that wait for the sender; then `send` queues them
# Errors of the record itself: sending it again cannot help.
_OWN_FAULT = frozenset(
    {
        KafkaError.MSG_SIZE_TOO_LARGE,
        KafkaError.INVALID_MSG,
        KafkaError.INVALID_RECORD,
    }
)


class _InFlight:
    """A record that librdkafka has: its delivery callback."""

    __slots__ = ("generation", "owner", "position", "record")

    def __init__(self, owner: "SpoolTransport", record: OutRecord, position: FramePosition, generation: int) -> None:
        self.owner = owner
        self.record = record
        self.position = position
        self.generation = generation

    def __call__(self, error: KafkaError | None, message: Message) -> None:
        self.owner.delivery_reports.append((self, error, receipt_of(error, message)))


class SpoolTransport(DirectTransport):
    """`Transport` for policy `spool`. `send` never blocks and raises only `ClientClosed`."""

    def __init__(
        self, settings: ProducerSettings, producer_id: str, on_error: OnError, old: OldEvents = "wait"
    ) -> None:
        """`old`: the treatment of dead processes' events that seem too old."""
        self._folder = settings.spool_folder
        parts = (self._folder, producer_id, settings.spool_bytes_max)
        self._spool = Spool(*parts, memory_bytes_max=settings.queue_bytes_max, old=old)
        self._cluster_id: str | None = None
        self._old_reported = self._removed_reported = False
        self._kept_at_close = 0
        self._look_at_files_s = math.inf  # the poll thread begins before this is complete
        self._broken = False
        self.delivery_reports: deque[tuple[_InFlight, KafkaError | None, Receipt]] = deque()
        try:
            super().__init__(settings, on_error)
        except BaseException:  # a setting, or no thread: the folder is left to the next client
            self._spool.close()
            raise
        self._decoder = Decoder()
        self._full = False
        self._in_memory = False  # As far as it knows
        self._produce_error: KafkaError | None = None  # Raised by `produce` while the lock was held
        self._given_up: list[tuple[Exception, OnReceipt | None]] = []
        self._counts.replayed = self._spool.taken_over
        self._new_events: deque[tuple[OutRecord, FramePosition]] = deque()  # all that are behind the cursor, or none
        self._looks_left = 0  # 0: the sender sleeps, or does other work
        self._work = threading.Condition(self._lock)
        label_folder(self._folder, settings.bootstrap_servers, settings.topic_prefix)
        self._report_damages()
        self._look_at_files_s = time.monotonic() + _FILES_PAUSE_S
        self._sender = threading.Thread(target=self._run_sender, name="sessionary-spool", daemon=True)
        try:
            start_thread(self._sender)
        except ProducerError:
            self._kafka.close(_FILES_PAUSE_S)
            self._spool.close()
            self._close_journal()
            raise

    @property
    def backlog(self) -> Backlog:
        """The events that are not acknowledged now; of dead processes too, whose spool this is."""
        with self._lock:
            if self._closed:
                return Backlog()
            oldest_ms, events = self._spool.oldest_ms(), max(self._counts.outstanding, 0)
            spool_events, spool_bytes = self._spool.outstanding, self._spool.bytes_held
        age_s = 0.0 if oldest_ms is None else max(time.time() - oldest_ms / 1e3, 0.0)
        return Backlog(events, spool_events, spool_bytes, age_s)

    @property
    def may_take_over(self) -> bool:
        """True while further dead processes' events wait for those that were taken over."""
        with self._lock:
            return not self._closed and self._spool.may_take_over

    def send(self, record: OutRecord, on_receipt: OnReceipt | None = None) -> None:
        """Append one record to the file; it is queued soon, behind earlier ones. Never blocks."""
        written_ms = time.time_ns() // 1_000_000
        frame = new_instance(Frame, (written_ms, record.key, record.traceparent, record.value))
        spool = self._spool
        with self._lock:
            if self._closed:
                raise ClientClosed("the client is closed; create a new one")
            new_events = self._new_events
            direct = not self._broken and spool.may_send(record.key, follows=bool(new_events))
            if not direct:
                self._queue_new_events()  # so that none of them is behind one that waits in the file
            try:
                position = spool.append_frame(frame, on_receipt)
            except OSError as error:
                full: OSError | None = error
            else:
                full = None
                self._full = False
                self._counts.sent += 1
                disk_error = spool.disk_error
                if disk_error is not None:
                    self._counts.errors["not_on_disk"] += 1
                if direct:
                    new_events.append((record, position))  # the sender looks for it soon
                    if not self._looks_left or len(new_events) >= _NEW_EVENTS_MAX:
                        self._rouse_sender()
                else:
                    self._counts.spooled += 1
                    self._work.notify()
        if full is None and (disk_error is not None) != self._in_memory:
            self._in_memory = disk_error is not None
            if disk_error is not None:
                why = f"events are kept in memory, and lost with the process: no file can be made: {disk_error}"
                self._on_error(Unavailable(why, _REPLACE_PAUSE_S))
        if full is not None:
            self._drop_record(record, on_receipt, f"dropped: {full}", "spool_full")
            if not self._full:
                self._full = True
                self._on_error(Unavailable(f"events are dropped: {full}", _REPLACE_PAUSE_S))

    def wait_taken_over(self, key: bytes, timeout_s: float) -> bool:
        """Wait until no event of a dead process with this key is open; False after `timeout_s`."""
        with self._lock:
            return self._counts.changed.wait_for(
                lambda: self._closed or not self._spool.holds_orphans_of(key), timeout_s
            )

    def send_heartbeat(self, record: OutRecord) -> None:
        """Queue a heartbeat behind all events, or drop it if there is no room. Never blocks."""
        if self._new_events:  # no event of its session comes meanwhile: the caller has its lock
            with self._lock:
                self._queue_new_events()
        DirectTransport.send_heartbeat(self, record)  # in half the time of `super()`

    def _rouse_sender(self) -> None:
        """Wake the sender for new events; queue them if they are too many for it. Hold the lock."""
        if len(self._new_events) >= _NEW_EVENTS_MAX:
            self._queue_new_events()
        elif not self._looks_left:
            self._looks_left = _LOOKS_MAX
            self._work.notify()

    def _queue_new_events(self) -> None:
        """Queue the new events in librdkafka, as far as it has room. Hold the lock."""
        while self._new_events and not self._closed:
            waiting = len(self._new_events)
            if not self._queue_record(*self._new_events[0]):
                self._counts.spooled += waiting  # from now on they are read from the file
                self._new_events.clear()
                self._work.notify()
                return
            self._new_events.popleft()

    def _settle_reports(self) -> None:
        """Settle one round of delivery reports. Takes the lock briefly: the agent needs it."""
        self._check_progress()
        if time.monotonic() >= self._look_at_files_s:
            self._look_at_files_s = time.monotonic() + _FILES_PAUSE_S
            self._restore_files()
            self._look_for_orphans()
        reports = [self.delivery_reports.popleft() for _ in range(len(self.delivery_reports))]
        if not reports:
            with self._lock:
                if not self._closed:  # `close` may not have waited for this thread
                    self._spool.truncate_tail()
            return
        outside = next(((sent, error) for sent, error, _ in reports if error and error.code() not in _OWN_FAULT), None)
        settled: list[tuple[OutRecord, Receipt, OnReceipt | None]] = []
        with self._lock:
            for sent, error, receipt in reports:
                if sent.generation != self._generation or (error and error.code() not in _OWN_FAULT):
                    continue  # sent again; if the broker has it, the processor drops the duplicate
                if error:
                    self._counts.errors[error_reason(error)] += 1
                settled.append((sent.record, receipt, self._spool.mark_done(sent.position)))
            if not self._closed:  # before anyone is told: a process that is killed then has left nothing
                self._spool.truncate_tail()
        if outside is not None:
            self._give_producer_up(outside[0].generation, outside[1])
        self._report_settled(settled)

    def adopt_cluster(self, cluster_id: str) -> None:
        """Take over dead processes of the cluster that named its servers otherwise."""
        self._cluster_id = cluster_id
        with self._lock:
            if not self._closed:
                self._spool.note_cluster(cluster_id)
        try:
            others = folders_of_prefix(self._folder, self._settings.topic_prefix)
            self.add_folders(dict.fromkeys(others, frozenset({cluster_id})))
        except OSError as error:
            self._on_error(Unavailable(f"other folders of the spool are left: {error}", _REPLACE_PAUSE_S))

    @property
    def old_left(self) -> int:
        """Number of dead processes whose events wait, as they seem too old."""
        with self._lock:
            return self._spool.old_left

    def add_folders(self, folders: Mapping[Path, Clusters]) -> None:
        """Take over dead processes in other folders too, if they are for one of the clusters."""
        with self._lock:
            if not self._closed:
                self._spool.add_folders(folders)
                self._work.notify()

    def _look_for_orphans(self) -> None:
        """Find further dead processes once the cluster is known, or their time has come."""
        if (cluster_id := self._kafka.cluster_id) not in (None, self._cluster_id):
            self.adopt_cluster(cluster_id)
        with self._lock:
            old = 0 if self._old_reported else self._spool.old_left
            if not self._closed and self._spool.look_again():
                self._work.notify()
        if old:
            self._old_reported = True
            self._on_error(
                ProducerError(
                    f"{old} dead processes left events in {self._folder} that are older than "
                    f"{AGE_LIMIT_MS // 86_400_000} days by the clock of this machine, which may be ahead: they wait "
                    "until the clock is right, or a client has lived for a day and gives them up. To decide now: "
                    "sessionary spool drain with --old send or --old expire"
                )
            )

    def _restore_files(self) -> None:
        """Write the events anew that are in no file any more. Looks without the lock."""
        with self._lock:
            watched = self._spool.watched_files()
        if not watched.find_lost():
            self._removed_reported = False
            return
        removed, kept, failure = 0, 0, None
        try:
            with self._lock:
                watched = self._spool.watched_files()  # some may have been done
                removed = watched.count_removed()
                self._spool.restore_locks()
            for segment in watched.segments:
                with self._lock:  # for one at a time: the agent needs it
                    kept += self._spool.restore_segment(segment)
        except OSError as error:
            failure = error
        at_risk = 0
        if failure is not None:
            with self._lock:
                at_risk = self._spool.keep_in_memory(failure)
        label_folder(self._folder, self._settings.bootstrap_servers, self._settings.topic_prefix)
        if removed and not self._removed_reported:
            self._counts.count_error("spool_removed")
            self._in_memory = self._in_memory or failure is not None
            self._on_error(SpoolRemoved(self._folder, removed, kept, at_risk, failure))
        self._removed_reported = bool(removed) and failure is not None

    def _report_settled(self, settled: list[tuple[OutRecord, Receipt, OnReceipt | None]]) -> None:
        failed = 0
        for record, receipt, on_receipt in settled:
            self._report_receipt(record, receipt, on_receipt)
            if receipt.error is not None:
                failed += 1
                self._on_error(Invalid("invalid_value", f"event {record.event_id}: {receipt.error}"))
        if len(settled) > failed:
            self._kafka.clear_errors()
        with self._lock:
            self._counts.failed += failed
            self._counts.delivered += len(settled) - failed
            self._counts.changed.notify_all()
            # Each waking costs a hand-over of the interpreter's lock, also to the agent's threads.
            if not self._closed and (not self._spool.at_end or self._spool.may_take_over):
                self._work.notify()

    def _give_producer_up(self, generation: int, error: KafkaError) -> None:
        with self._lock:
            if generation != self._generation or self._closed:
                return
            self._generation += 1
            self._broken = True
            self._rewind()
        self._kafka.report_error(error)

    def _rewind(self) -> None:
        """Let the sender read all events that are not acknowledged from the file. Hold the lock."""
        self._new_events.clear()
        self._spool.rewind_cursor()
        self._work.notify()

    def _queue_record(self, record: OutRecord, position: FramePosition) -> bool:
        """Queue a record in librdkafka; False if it has no room or failed. Hold the lock."""
        try:
            self._kafka.produce_record(record, _InFlight(self, record, position, self._generation))
        except BufferError:
            return False
        except KafkaException as error:
            self._generation += 1
            self._broken = True
            self._produce_error = error.args[0]
            self._rewind()
            return False
        self._spool.mark_sent(position)
        return True

    def _run_sender(self) -> None:
        """Queue the records that wait in the file, until closed; an error only delays them."""
        while True:
            try:
                self._send_until_closed()
                return
            except Exception as error:  # noqa: BLE001 - without this thread the spool is never sent
                self._on_error(error)
                with self._lock:
                    self._work.wait_for(lambda: self._closed, _REPLACE_PAUSE_S)

    @property
    def _has_work(self) -> bool:
        """True if the sender has more to do than to queue new events. Hold the lock."""
        spool = self._spool
        own_wait = not self._new_events and not spool.own_at_end
        return self._broken or own_wait or spool.orphans_wait or spool.may_take_over

    def _look_for_new_events(self) -> None:
        """Queue new events as they come, until there are none for a while, or other work."""
        while self._looks_left:
            with self._lock:
                if self._closed or self._has_work:
                    self._looks_left = 0
                    return
                self._looks_left = _LOOKS_MAX if self._new_events else self._looks_left - 1
                self._queue_new_events()
            time.sleep(_LOOK_PAUSE_S)

    def _send_until_closed(self) -> None:
        while True:
            self._look_for_new_events()
            with self._lock:
                while not self._closed and not self._has_work and not self._looks_left:
                    self._work.wait()
                if self._closed:
                    return
                if not self._has_work:
                    continue
                broken, produce_error, self._produce_error = self._broken, self._produce_error, None
            if produce_error is not None:
                self._kafka.report_error(produce_error)
            if broken:
                self._replace_producer()
            self._send_waiting()
            self._take_over_more()

    def _replace_producer(self) -> None:
        with self._lock:
            self._work.wait_for(lambda: self._closed, _REPLACE_PAUSE_S)
            if self._closed:
                return
        self._kafka.replace_producer()
        with self._lock:
            self._broken = False

    def _send_waiting(self) -> None:
        with self._lock:
            self._queue_new_events()
            if self._closed:
                return
            found = self._spool.read_frames(_FRAMES_PER_READ)
            waits = not found or not all(self._send_frame(position, frame) for position, frame in found)
            if waits and not self._closed:
                self._work.wait(_ROOM_WAIT_S)
            given_up, self._given_up = self._given_up, []
        for error, on_receipt in given_up:  # outside the lock: the callbacks may use the client
            if on_receipt is not None:
                on_receipt(Receipt(None, None, str(error)))
            self._on_error(error)

    def _take_over_more(self) -> None:
        """Take over the next dead processes, once those before them are done."""
        with self._lock:
            if self._closed or not self._spool.may_take_over:
                return
        try:
            claim = self._spool.claim_orphans()  # without the lock: it reads files, and the agent must not wait
        except OSError as error:
            claim = Claim([], [], [], more=False)  # the next process tries again
            self._on_error(Unavailable(f"events of dead processes are left in the spool: {error}", _REPLACE_PAUSE_S))
        with self._lock:
            if self._closed:
                release_claim(claim)
                return
            self._counts.replayed += self._spool.take_over(claim)
        self._report_damages()

    def _report_damages(self) -> None:
        with self._lock:
            damages, self._spool.damages = self._spool.damages, []
            self._counts.damaged += sum(damage.lost for damage in damages)
            if damages:
                self._counts.errors["damaged_segment"] += len(damages)
        for damage in damages:
            self._on_error(damage)

    def _send_frame(self, position: FramePosition, frame: Frame | None) -> bool:
        """Queue one frame, or give it up; False if it must wait. Hold the lock."""
        if self._closed or self._broken:
            return False
        if frame is None:
            self._counts.failed += 1
            self._counts.damaged += 1
            self._counts.errors["damaged_segment"] += 1
            self._give_up(position, SpoolDamaged(position.segment.path, 1, f"damaged from byte {position.offset}"))
            return True
        if self._spool.is_expired(position.segment, frame):
            self._counts.expired += 1
            self._counts.errors["expired"] += 1
            self._give_up(
                position, Invalid("session_archived", f"an event is too old to be replayed; {self._keep_aside(frame)}")
            )
            return True
        try:
            record = record_from_frame(frame, self._decoder)
        except Invalid as error:
            self._counts.failed += 1
            self._counts.errors["unreadable_frame"] += 1
            unreadable = Invalid(error.reason, f"{error.detail}; {self._keep_aside(frame)}")
            self._give_up(position, unreadable)
            return True
        return self._queue_record(record, position)

    def _keep_aside(self, frame: Frame) -> str:
        """Store a frame that cannot be sent; return the outcome."""
        try:
            return f"it is kept in {self._spool.store_aside(frame)}"
        except OSError as error:
            return f"it is lost, as it cannot be kept aside: {error}"

    def _give_up(self, position: FramePosition, why: Exception) -> None:
        self._spool.mark_sent(position)
        self._given_up.append((why, self._spool.mark_done(position)))
        self._counts.changed.notify_all()

    def abandon_files(self) -> None:
        """Close the files of the parent process, in a forked child. Takes no lock."""
        self._spool.abandon()

    def close(self, timeout_s: float) -> int:
        """Drain, stop, and return how many events the spool keeps; all within `timeout_s`."""
        super().close(timeout_s)
        kept, self._kept_at_close = self._kept_at_close, 0
        return kept

    def _stop_threads(self, deadline: float) -> None:
        with self._lock:
            self._generation += 1  # ignores the reports of the purge: the file still has the events
            self._work.notify_all()
        join_thread(self._sender, deadline - time.monotonic())
        self._kafka.close(deadline - time.monotonic())
        self._restore_files()  # so that what is left is kept
        with self._lock:
            outstanding = self._spool.outstanding  # now: some were acknowledged meanwhile
            lost = self._spool.close()
            self._counts.failed += len(lost)
        self._kept_at_close = outstanding - len(lost)
        for on_receipt in lost:  # outside the lock: the callbacks may use the client
            if on_receipt is not None:
                on_receipt(Receipt(None, None, "the client was closed, and the event was in memory only"))
