"""Policy `spool`: every event is written ahead to the spool file, then handed to librdkafka.

While librdkafka has room, `send` does both. Once it has none, events stay in the file and a sender thread hands them on
in order; `send` then only appends. What dead processes left is handed on first. After a failure that is not the
record's own fault, and where nothing is acknowledged for long, everything that is open is sent again from the file, in
order, by a new producer; never one alone.
"""

import threading
import time
from collections import deque

from confluent_kafka import KafkaError, KafkaException, Message

from sessionary.producers.delivery.spool import AGE_LIMIT_MS, Frame, Place, Spool
from sessionary.producers.delivery.transport import DirectTransport, receipt_of
from sessionary.producers.errors import ClientClosed, Invalid, Unavailable
from sessionary.producers.ports import OnError, OnReceipt, OutRecord, Receipt
from sessionary.producers.settings import ProducerSettings
from sessionary.schemas.codec import Decoder, Event
from sessionary.schemas.headers import event_headers

_FRAMES_PER_READ = 32
_REOPEN_PAUSE_S = 1.0
_ROOM_WAIT_S = 0.02
# librdkafka was seen to find no broker again for minutes after one had been killed, without a word. So long without an
# acknowledgement, and a new producer tries; then twice as long, as the broker may really be away.
_STALL_S, _STALL_S_MAX = 15.0, 240.0
# The broker refuses this record itself; sending it again cannot help.
_OWN_FAULT = frozenset(
    {
        KafkaError.MSG_SIZE_TOO_LARGE,
        KafkaError.INVALID_MSG,
        KafkaError.INVALID_RECORD,
    }
)


def restored(frame: Frame, decoder: Decoder) -> OutRecord:
    """Return the record that a frame was made of. Raises `DecodeError`."""
    event = decoder.decode_event(frame.value)
    if not isinstance(event, Event):
        raise Invalid("unknown_event_type", "a tick in a spool")
    envelope = event.envelope
    return OutRecord(
        frame.key,
        frame.value,
        event_headers(envelope, frame.traceparent),
        envelope.event_id,
        envelope.event_type,
        envelope.tenant_id,
        envelope.session_id,
        envelope.producer_id,
        envelope.producer_seq,
        frame.traceparent,
    )


class _Sent:
    """A record in librdkafka's hands: its delivery callback."""

    __slots__ = ("generation", "owner", "place", "record")

    def __init__(self, owner: "SpooledTransport", record: OutRecord, place: Place, generation: int) -> None:
        self.owner = owner
        self.record = record
        self.place = place
        self.generation = generation

    def __call__(self, error: KafkaError | None, message: Message) -> None:
        self.owner.reported.append((self, error, receipt_of(error, message)))


class SpooledTransport(DirectTransport):
    """See `ports.Transport`. `send` never blocks and raises `ClientClosed` only."""

    def __init__(self, settings: ProducerSettings, producer_id: str, on_error: OnError) -> None:
        self._spool = Spool(settings.spool_folder, producer_id, settings.spool_bytes_max)
        self._generation = 0
        self._broken = False
        self._moved_s, self._patience_s = time.monotonic(), _STALL_S
        self.reported: deque[tuple[_Sent, KafkaError | None, Receipt]] = deque()  # Filled by `_Sent`
        super().__init__(settings, on_error)
        self._decoder = Decoder()
        self._full = False
        self._refused: KafkaError | None = None  # Told by librdkafka while the lock was held
        self._given_up: list[Exception] = []
        self._tally.replayed = self._spool.taken_over
        self._work = threading.Condition(self._lock)
        for torn in self._spool.torn:
            on_error(Invalid("undecodable", torn))
        self._sender = threading.Thread(target=self._run, name="sessionary-spool", daemon=True)
        self._sender.start()

    def send(self, record: OutRecord, on_receipt: OnReceipt | None = None) -> None:
        """Take one record: into the file, and to librdkafka unless others wait before it."""
        frame = Frame(time.time_ns() // 1_000_000, record.key, record.traceparent, record.value)
        with self._lock:
            if self._closed:
                raise ClientClosed("the client is closed")
            direct = not self._broken and self._spool.drained
            try:
                place = self._spool.append(frame, on_receipt)
            except OSError as error:
                full: OSError | None = error
            else:
                full = None
                self._full = False
                self._tally.sent += 1
                if not direct or not self._hand_on(record, place):
                    self._tally.spooled += 1
                    self._work.notify()
        if full is not None:
            self._drop(record, on_receipt, f"dropped: {full}")
            if not self._full:
                self._full = True
                self._on_error(Unavailable(f"events are dropped: {full}", _REOPEN_PAUSE_S))

    def _polled(self) -> None:
        """Settle the delivery reports of one round; the agent wants the lock too."""
        reports = [self.reported.popleft() for _ in range(len(self.reported))]
        if not reports:
            with self._lock:
                self._spool.truncate()
                waited_s, generation = self._stalled_s(), self._generation
            if waited_s:
                what = f"nothing was acknowledged for {waited_s:.0f} s; all that is open is sent again"
                self._fail(generation, KafkaError(KafkaError._TIMED_OUT, what))
            return
        outside = next(((sent, error) for sent, error, _ in reports if error and error.code() not in _OWN_FAULT), None)
        settled: list[tuple[OutRecord, Receipt, OnReceipt | None]] = []
        with self._lock:
            for sent, error, receipt in reports:
                if sent.generation != self._generation or (error and error.code() not in _OWN_FAULT):
                    continue  # it is sent again; where it was written after all, the judge drops the double
                settled.append((sent.record, receipt, self._spool.done(sent.place)))
        if outside is not None:
            self._fail(outside[0].generation, outside[1])
        self._settle(settled)

    def _stalled_s(self) -> float:
        """Return for how long nothing has moved, 0 while that is not too long. Hold the lock."""
        now_s = time.monotonic()
        if not self._spool.outstanding or self._broken:
            self._moved_s = now_s
        waited_s = now_s - self._moved_s
        if waited_s < self._patience_s:
            return 0.0
        self._moved_s, self._patience_s = now_s, min(2 * self._patience_s, _STALL_S_MAX)
        return waited_s

    def _settle(self, settled: list[tuple[OutRecord, Receipt, OnReceipt | None]]) -> None:
        failed = 0
        for record, receipt, on_receipt in settled:
            self._tell(record, receipt, on_receipt)
            if receipt.error is not None:
                failed += 1
                self._on_error(Invalid("invalid_value", f"event {record.event_id}: {receipt.error}"))
        if len(settled) > failed:
            self._wire.well()
        with self._lock:
            self._tally.failed += failed
            self._tally.delivered += len(settled) - failed
            if settled:
                self._moved_s, self._patience_s = time.monotonic(), _STALL_S
            self._tally.changed.notify_all()
            self._work.notify()

    def _fail(self, generation: int, error: KafkaError) -> None:
        with self._lock:
            if generation != self._generation or self._closed:
                return
            self._generation += 1
            self._broken = True
            self._spool.rewind()
            self._work.notify()
        self._wire.trouble(error)

    def _hand_on(self, record: OutRecord, place: Place) -> bool:
        """Give a record to librdkafka; False where it has no room or is broken. Hold the lock."""
        try:
            self._wire.produce(record, _Sent(self, record, place, self._generation))
        except BufferError:
            return False
        except KafkaException as error:
            self._generation += 1
            self._broken = True
            self._refused = error.args[0]
            self._spool.rewind()
            self._work.notify()
            return False
        self._spool.sent(place)
        return True

    def _run(self) -> None:
        """Hand on what waits in the file, until closed."""
        while True:
            with self._lock:
                while not self._closed and not self._broken and self._spool.drained:
                    self._work.wait()
                if self._closed:
                    return
                broken, refused, self._refused = self._broken, self._refused, None
            if refused is not None:
                self._wire.trouble(refused)
            if broken:
                self._reopen()
            self._drain()

    def _reopen(self) -> None:
        with self._lock:
            self._work.wait_for(lambda: self._closed, _REOPEN_PAUSE_S)
            if self._closed:
                return
        self._wire.reopen()
        with self._lock:
            self._broken = False

    def _drain(self) -> None:
        with self._lock:
            waits = not all(self._pass_on(place, frame) for place, frame in self._spool.read(_FRAMES_PER_READ))
            if waits and not self._closed:
                self._work.wait(_ROOM_WAIT_S)
            given_up, self._given_up = self._given_up, []
        for error in given_up:  # outside the lock: a listener may use the client
            self._on_error(error)

    def _pass_on(self, place: Place, frame: Frame) -> bool:
        """Hand on one frame, or give it up; False where it must wait. Hold the lock."""
        if self._closed or self._broken:
            return False
        if time.time_ns() // 1_000_000 - frame.written_ms > AGE_LIMIT_MS:
            kept = self._spool.expire(frame)
            self._tally.expired += 1
            self._give_up(place, Invalid("session_archived", f"an event is too old to be replayed; kept in {kept}"))
            return True
        try:
            record = restored(frame, self._decoder)
        except Invalid as error:
            self._tally.failed += 1
            self._give_up(place, error)
            return True
        return self._hand_on(record, place)

    def _give_up(self, place: Place, why: Exception) -> None:
        self._spool.sent(place)
        self._spool.done(place)
        self._tally.changed.notify_all()
        self._given_up.append(why)

    def _stop(self) -> None:
        with self._lock:
            self._generation += 1  # what the purge reports is no news: the file has it
            self._work.notify_all()
        self._sender.join()
        self._wire.close()
        with self._lock:
            self._spool.close()


__all__ = ["SpooledTransport", "restored"]
