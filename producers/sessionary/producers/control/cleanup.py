"""Clean-up: requests for this service come in, `resources_released` goes out.

A request is answered once per process (by its `cleanup_id`); after a crash it may be handled again, so a handler must
not mind being called twice for one id. The judge counts one confirmation only. The consumer's offset is committed
after the answer has its place in the log.
"""

import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Iterable
from itertools import islice

from confluent_kafka import Consumer, KafkaException, Message

from sessionary.producers.delivery.emitter import Emitter
from sessionary.producers.errors import ProducerError, QueueFull, Unavailable
from sessionary.producers.ports import CleanupAnswer, OnError, OnReceipt, Receipt
from sessionary.producers.settings import ProducerSettings
from sessionary.schemas.codec import Decoder
from sessionary.schemas.errors import DecodeError
from sessionary.schemas.events import ResourcesReleased, SessionPhaseChanged
from sessionary.schemas.ids import SessionKey
from sessionary.schemas.records import CleanupRequest
from sessionary.schemas.types import CleanupAction

CleanupHandler = Callable[[CleanupRequest], Iterable[CleanupAction] | None]
ANSWERED_MAX = 10_000
_DETAIL_LENGTH_MAX = 1_000
_BATCH = 200
_CONSUME_S = 0.1
# Reasons of requests for sessions that may yet be resumed.
_TIMEOUTS = frozenset({"inactive", "idle", "max_duration"})
_TRAVEL_S = 0.005
_OPEN_MAX = 1_000
_RETRY_S = 0.5


def _now_us() -> int:
    return time.time_ns() // 1000


def _check(action: object) -> None:
    """Raise `TypeError` for what could not be written into the answer."""
    match action:
        case CleanupAction(action=str(), done=bool(), at=int(), detail=None | str()):
            return
    raise TypeError(f"a clean-up handler gives CleanupAction(action, done, at, detail), not {action!r}")


def performed(
    request: CleanupRequest, handler: CleanupHandler, now_us: Callable[[], int] = _now_us
) -> list[CleanupAction]:
    """Run `handler`; return one action per requested one, in that order, then any it did beyond.

    What it raises marks the first action without a report as failed; those after it were not reached.
    """
    done: dict[str, CleanupAction] = {}
    fault: str | None = None
    reported = True
    try:
        answer = handler(request)
        reported = answer is not None
        # A handler may not report for ever.
        for action in islice(answer or (), 4 * (len(request.actions) + 1)):
            _check(action)
            done[action.action] = action._replace(detail=action.detail and action.detail[:_DETAIL_LENGTH_MAX])
    except Exception as error:  # noqa: BLE001 - whatever a handler raises is an answer: this action failed
        fault, reported = f"{type(error).__name__}: {error}"[:_DETAIL_LENGTH_MAX], True
    result: list[CleanupAction] = []
    for name in request.actions:
        if name in done:
            result.append(done.pop(name))
        elif not reported:
            result.append(CleanupAction(name, done=True, at=now_us()))
        else:
            result.append(CleanupAction(name, done=False, at=now_us(), detail=fault or "not reported"))
            fault = fault and "not reached"
    return result + list(done.values())


class Answerer:
    """`CleanupAnswer` by a handler. Called by one thread; receipts may come on another."""

    def __init__(
        self, handler: CleanupHandler, emitter: Callable[[SessionKey, int], Emitter], on_error: OnError
    ) -> None:
        """`emitter` speaks for a session at an epoch, in this process's sequence of that session."""
        self._handler = handler
        self._emitter = emitter
        self._on_error = on_error
        self._answered: OrderedDict[str, ResourcesReleased | None] = OrderedDict()

    def __call__(self, request: CleanupRequest, on_receipt: OnReceipt) -> None:
        """Do the clean-up and answer. Raises `QueueFull` (policy `block`): then call again, nothing is done twice."""
        known = request.cleanup_id in self._answered
        answer = self._answered.get(request.cleanup_id)
        if known and answer is None:  # sent before; its delivery is the transport's word
            on_receipt(Receipt(None, None))
            return
        if answer is None:
            actions = performed(request, self._handler)
            released = request.context_bytes if all(action.done for action in actions) else None
            answer = ResourcesReleased(request.cleanup_id, actions, released, host_lost=False)
            self._remember(request.cleanup_id, answer)
        sent = answer

        def receipt_came(receipt: Receipt) -> None:
            if receipt.error is not None:  # it was lost on the way: the next call sends it again
                self._answered[request.cleanup_id] = sent
            on_receipt(receipt)

        self._remember(request.cleanup_id, None)
        emitter = self._emitter(SessionKey(request.tenant_id, request.session_id), request.epoch)
        try:
            emitter.emit(answer, on_receipt=receipt_came)
        except QueueFull:
            self._remember(request.cleanup_id, answer)
            raise
        if request.reason_code not in _TIMEOUTS:
            self._clear(emitter)

    def _clear(self, emitter: Emitter) -> None:
        """S01: an ended session has released its resources, and clears its context."""
        try:
            emitter.emit(SessionPhaseChanged("clearing"))
        except QueueFull as error:  # the confirmation went out; its phase is not worth a second one
            self._on_error(error)

    def _remember(self, cleanup_id: str, unsent: ResourcesReleased | None) -> None:
        self._answered[cleanup_id] = unsent
        if len(self._answered) > ANSWERED_MAX:
            self._answered.popitem(last=False)


class KafkaCleanups:
    """`CleanupSource`: a consumer of the cleanup topic in the group `<prefix>.cleanup.<tenant>:<service>`.

    No name has a colon, so no two services share a group; a client hears of its own tenant's sessions only.
    """

    def __init__(self, settings: ProducerSettings, tenant_id: str, service_id: str, on_error: OnError) -> None:
        self._settings = settings
        self._tenant_id = tenant_id
        self._service_id = service_id
        self._on_error = on_error
        self._decoder = Decoder()
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None

    def start(self, answer: CleanupAnswer) -> None:
        """Consume on a thread of its own. Raises `ProducerError` the second time."""
        if self._thread is not None:
            raise ProducerError("this client has a clean-up handler already")
        self._thread = threading.Thread(target=self._run, args=(answer,), name="sessionary-cleanup", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Stop after the request at hand."""
        self._stop.set()
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join()

    def _consumer(self) -> Consumer:
        return Consumer(
            {
                **self._settings.client_config(),
                "group.id": f"{self._settings.topic_prefix}.cleanup.{self._tenant_id}:{self._service_id}",
                "isolation.level": "read_committed",
                "auto.offset.reset": "earliest",
                "enable.auto.commit": False,
                "enable.auto.offset.store": False,
                "fetch.wait.max.ms": 100,
            }
        )

    def _run(self, answer: CleanupAnswer) -> None:
        consumer = self._consumer()
        consumer.subscribe([self._settings.topics.cleanup])
        waiting: list[_Open] = []
        try:
            while not self._stop.is_set():
                # Answers travel meanwhile; pausing instead would cost a new fetch per batch.
                pause_s = _TRAVEL_S if waiting else _CONSUME_S
                if room := _OPEN_MAX - len(waiting):
                    opened = map(self._opened, consumer.consume(min(_BATCH, room), pause_s))
                    waiting += [one for one in opened if one is not None]
                else:
                    self._stop.wait(pause_s)
                for one in waiting:
                    if not self._stop.is_set():
                        one.go_on(answer)
                waiting = self._settled(consumer, waiting)
        except Exception as error:  # noqa: BLE001 - a thread that dies must not vanish without a word
            self._on_error(error)
        finally:
            consumer.close()

    def _opened(self, message: Message) -> "_Open | None":
        if (error := message.error()) is not None:
            self._on_error(Unavailable(f"clean-up requests: {error.str()}", _RETRY_S))
            return None
        return _Open(message, self._request(message))

    def _settled(self, consumer: Consumer, waiting: list["_Open"]) -> list["_Open"]:
        """Commit, per partition, up to the first request whose answer is not in the log yet; return those left."""
        left: list[_Open] = []
        held: set[int | None] = set()
        done: list[Message] = []
        for one in waiting:
            partition = one.message.partition()
            if partition in held or not one.delivered:
                held.add(partition)
                left.append(one)
            else:
                done.append(one.message)
        try:
            for message in done:
                consumer.store_offsets(message)
            if done:
                consumer.commit(asynchronous=True)
        except KafkaException as error:  # a rebalance took the partition: its next owner reads again
            self._on_error(Unavailable(f"clean-up offsets: {error}", _RETRY_S))
        return left

    def _request(self, message: Message) -> CleanupRequest | None:
        try:
            request = self._decoder.decode_record(message.value())
        except DecodeError as error:
            self._on_error(error)
            return None
        ours = (self._tenant_id, self._service_id)
        if isinstance(request, CleanupRequest) and (request.tenant_id, request.service_id) == ours:
            return request
        return None


class _Open:
    """A request whose answer is not in the log yet."""

    def __init__(self, message: Message, request: CleanupRequest | None) -> None:
        """`request` is None where the message asks nothing of this service."""
        self.message = message
        self._request = request
        self._next_try = 0.0
        self._travels = False
        self.delivered = request is None

    def go_on(self, answer: CleanupAnswer) -> None:
        """Answer, or answer again where the last answer was lost."""
        if self._request is None or self.delivered or self._travels or time.monotonic() < self._next_try:
            return
        self._next_try = time.monotonic() + _RETRY_S
        self._travels = True
        try:
            answer(self._request, self._on_receipt)
        except QueueFull:
            self._travels = False

    def _on_receipt(self, receipt: Receipt) -> None:
        self.delivered = receipt.error is None
        self._travels = False


__all__ = ["Answerer", "CleanupHandler", "KafkaCleanups", "performed"]
