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

from sessionary.producers.emitter import Emitter
from sessionary.producers.errors import ProducerError, QueueFull, Unavailable
from sessionary.producers.ports import CleanupAnswer, OnError, OnReceipt, Receipt
from sessionary.producers.settings import ProducerSettings
from sessionary.schemas.codec import Decoder
from sessionary.schemas.common import CleanupAction
from sessionary.schemas.errors import DecodeError
from sessionary.schemas.events import ResourcesReleased
from sessionary.schemas.ids import SessionKey
from sessionary.schemas.records import CleanupRequest

CleanupHandler = Callable[[CleanupRequest], Iterable[CleanupAction] | None]
ANSWERED_MAX = 10_000
_DETAIL_LENGTH_MAX = 1_000
_BATCH = 200
_CONSUME_S = 0.1
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

    def _remember(self, cleanup_id: str, unsent: ResourcesReleased | None) -> None:
        self._answered[cleanup_id] = unsent
        if len(self._answered) > ANSWERED_MAX:
            self._answered.popitem(last=False)


class KafkaCleanups:
    """`CleanupSource`: a consumer of the cleanup topic in the group `<prefix>.cleanup.<service>`."""

    def __init__(self, settings: ProducerSettings, service_id: str, on_error: OnError) -> None:
        self._settings = settings
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
                **self._settings.librdkafka(),
                "group.id": f"{self._settings.topic_prefix}.cleanup.{self._service_id}",
                "isolation.level": "read_committed",
                "auto.offset.reset": "earliest",
                "enable.auto.commit": False,
                "enable.auto.offset.store": False,
                "log_level": 0,
            }
        )

    def _run(self, answer: CleanupAnswer) -> None:
        consumer = self._consumer()
        consumer.subscribe([self._settings.topics.cleanup])
        try:
            while not self._stop.is_set():
                messages = consumer.consume(_BATCH, _CONSUME_S)
                if messages:
                    self._answered(consumer, messages, answer)
        except Exception as error:  # noqa: BLE001 - a thread that dies must not vanish without a word
            self._on_error(error)
        finally:
            consumer.close()

    def _answered(self, consumer: Consumer, messages: list[Message], answer: CleanupAnswer) -> None:
        """Answer a batch; commit once every answer is delivered, or leave it to the next reader of the group."""
        good = [message for message in messages if message.error() is None]
        for message in messages:
            if (error := message.error()) is not None:
                self._on_error(Unavailable(f"clean-up requests: {error.str()}", _RETRY_S))
        consumer.pause(consumer.assignment())
        try:
            open_ = [_Open(request) for message in good if (request := self._request(message)) is not None]
            while open_:
                for one in open_:
                    if self._stop.is_set():
                        return
                    one.go_on(answer)
                consumer.poll(_CONSUME_S / 10)  # stays in the group while the answers travel
                open_ = [one for one in open_ if not one.delivered]
        finally:
            consumer.resume(consumer.assignment())
        self._commit(consumer, good)

    def _commit(self, consumer: Consumer, messages: list[Message]) -> None:
        try:
            for message in messages:
                consumer.store_offsets(message)
            if messages:
                consumer.commit(asynchronous=False)
        except KafkaException as error:  # a rebalance took the partition: its next owner reads again
            self._on_error(Unavailable(f"clean-up offsets: {error}", _RETRY_S))

    def _request(self, message: Message) -> CleanupRequest | None:
        try:
            request = self._decoder.record(message.value())
        except DecodeError as error:
            self._on_error(error)
            return None
        if isinstance(request, CleanupRequest) and request.service_id == self._service_id:
            return request
        return None


class _Open:
    """A request whose answer is not in the log yet."""

    def __init__(self, request: CleanupRequest) -> None:
        self._request = request
        self._next_try = 0.0
        self._travels = False
        self.delivered = False

    def go_on(self, answer: CleanupAnswer) -> None:
        """Answer, or answer again where the last answer was lost."""
        if self.delivered or self._travels or time.monotonic() < self._next_try:
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
