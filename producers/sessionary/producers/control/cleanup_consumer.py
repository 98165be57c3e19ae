"""Reads the clean-up requests for one service from Kafka.

The offset of a request is committed once its answer has its place in the log.
"""

import threading
import time

from confluent_kafka import Consumer, KafkaException, Message

from sessionary.producers.errors import ProducerError, QueueFull, Unavailable
from sessionary.producers.ports import OnCleanupRequest, OnError, Receipt
from sessionary.producers.settings import ProducerSettings
from sessionary.schemas.codec import Decoder
from sessionary.schemas.errors import DecodeError
from sessionary.schemas.records import CleanupRequest

_REQUESTS_PER_POLL = 200
_OPEN_REQUESTS_MAX = 1_000
_POLL_S = 0.1
_POLL_WHILE_OPEN_S = 0.005
_RETRY_S = 0.5


class KafkaCleanupConsumer:
    """`CleanupConsumer` of the cleanup topic, group `<prefix>.cleanup.<tenant>:<service>`.

    Names have no colon, so no two services share a group. Requests of other tenants or services
    are skipped.
    """

    def __init__(self, settings: ProducerSettings, tenant_id: str, service_id: str, on_error: OnError) -> None:
        self._settings = settings
        self._tenant_id = tenant_id
        self._service_id = service_id
        self._on_error = on_error
        self._decoder = Decoder()
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None

    def start(self, on_request: OnCleanupRequest) -> None:
        """Start the consumer's thread. Raises `ProducerError` on a second call."""
        if self._thread is not None:
            raise ProducerError("this client already has a clean-up handler; call on_cleanup once")
        thread = threading.Thread(target=self._run_consumer, args=(on_request,), name="sessionary-cleanup", daemon=True)
        self._thread = thread
        thread.start()

    def close(self) -> None:
        """Stop after the current request. Blocks until the thread has ended."""
        self._stop.set()
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join()

    def _new_consumer(self) -> Consumer:
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

    def _run_consumer(self, on_request: OnCleanupRequest) -> None:
        consumer = self._new_consumer()
        consumer.subscribe([self._settings.topics.cleanup])
        waiting: list[_OpenRequest] = []
        try:
            while not self._stop.is_set():
                # Answers are delivered meanwhile; pausing instead would cost a new fetch each time.
                pause_s = _POLL_WHILE_OPEN_S if waiting else _POLL_S
                if room := _OPEN_REQUESTS_MAX - len(waiting):
                    opened = map(self._open_request, consumer.consume(min(_REQUESTS_PER_POLL, room), pause_s))
                    waiting += [one for one in opened if one is not None]
                else:
                    self._stop.wait(pause_s)
                for one in waiting:
                    if not self._stop.is_set():
                        one.try_answer(on_request)
                waiting = self._commit_answered(consumer, waiting)
        except Exception as error:  # noqa: BLE001 - a thread must not die without a report
            self._on_error(error)
        finally:
            consumer.close()

    def _open_request(self, message: Message) -> "_OpenRequest | None":
        if (error := message.error()) is not None:
            self._on_error(Unavailable(f"clean-up requests: {error.str()}", _RETRY_S))
            return None
        return _OpenRequest(message, self._decode_request(message))

    def _commit_answered(self, consumer: Consumer, waiting: list["_OpenRequest"]) -> list["_OpenRequest"]:
        """Commit each partition up to its first unanswered request; return the requests left."""
        left: list[_OpenRequest] = []
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
        except KafkaException as error:  # the partition was revoked: its next owner reads again
            self._on_error(Unavailable(f"clean-up offsets: {error}", _RETRY_S))
        return left

    def _decode_request(self, message: Message) -> CleanupRequest | None:
        try:
            request = self._decoder.decode_record(message.value())
        except DecodeError as error:
            self._on_error(error)
            return None
        ours = (self._tenant_id, self._service_id)
        if isinstance(request, CleanupRequest) and (request.tenant_id, request.service_id) == ours:
            return request
        return None


class _OpenRequest:
    """A request whose answer is not in the log yet."""

    def __init__(self, message: Message, request: CleanupRequest | None) -> None:
        """`request` is None if the message is not for this service."""
        self.message = message
        self._request = request
        self._next_try = 0.0
        self._answer_sent = False
        self.delivered = request is None

    def try_answer(self, on_request: OnCleanupRequest) -> None:
        """Answer, or answer again if the last answer was lost."""
        if self._request is None or self.delivered or self._answer_sent or time.monotonic() < self._next_try:
            return
        self._next_try = time.monotonic() + _RETRY_S
        self._answer_sent = True
        try:
            on_request(self._request, self._on_receipt)
        except QueueFull:
            self._answer_sent = False

    def _on_receipt(self, receipt: Receipt) -> None:
        self.delivered = receipt.error is None
        self._answer_sent = False


__all__ = ["KafkaCleanupConsumer"]
