"""Handling of librdkafka clients that several roles share."""

import contextlib
import logging
import threading
import time
from collections.abc import Mapping
from concurrent.futures import Future
from typing import Final, Protocol, TypeVar

from confluent_kafka import KafkaError, KafkaException, Message, Producer, TopicCollection
from confluent_kafka.admin import AdminClient

from sessionary.schemas.settings import KafkaSettings
from sessionary.schemas.telemetry.log_fields import error_subject

_log = logging.getLogger(__name__)
# Settings of a producer that has no hurry, and that loses nothing. A broker that does not know a
# producer may take its second batch before the first one, which is then lost; so one request at a
# time. `sessionary.producers.delivery.first_records` has the reason, and what a busy producer does.
ORDERED: Final[Mapping[str, str | int | bool]] = {
    "acks": "all",
    "enable.idempotence": True,
    "max.in.flight.requests.per.connection": 1,
    "partitioner": "murmur2_random",
}
# Longer than the longest `poll` in which another thread may still hold the producer.
_LAST_POLL_S = 0.2
# For librdkafka's threads to drop what they have: some ms, unless one waits for a name's address.
_PURGE_S, _PURGE_POLL_S = 0.1, 0.01
_REPORTS_S, _REPORTS_POLL_S = 60.0, 0.1


def purge_producer(producer: Producer) -> None:
    """Drop what `producer` has queued or in flight; delivery callbacks report it.

    Blocks for 0.1 s at most. A thread of librdkafka may still wait for the address of a broker's
    name; its records are dropped after that, and reported by a later poll.
    """
    with contextlib.suppress(KafkaException):
        # The driver (2.16) takes `blocking` the wrong way round: False waits for all threads of
        # librdkafka, and holds the interpreter's lock: the whole process stands still.
        producer.purge(in_queue=True, in_flight=True, blocking=True)
    _serve_callbacks(producer, _PURGE_S, _PURGE_POLL_S)


def await_reports(producer: Producer) -> None:
    """Call the callbacks of purged records, until all are called; blocks for a minute at most.

    A callback that is never called keeps its references for ever.
    """
    _serve_callbacks(producer, _REPORTS_S, _REPORTS_POLL_S)


def _serve_callbacks(producer: Producer, timeout_s: float, poll_s: float) -> None:
    until_s = time.monotonic() + timeout_s
    while len(producer) and time.monotonic() < until_s:
        with contextlib.suppress(KafkaException):  # a fatal one is raised by the poll that comes to it, once
            producer.poll(poll_s)


def discard_producer(producer: Producer) -> None:
    """Purge a producer that a new one has replaced, and free it in the background.

    Blocks for 0.1 s at most.

    librdkafka was seen to find no broker for minutes after one had been killed, and never recovers
    from a fatal error; only a new producer helps. Freeing the old one waits for librdkafka's
    threads, so a daemon thread holds the last reference. The caller drops its own at once.
    """
    purge_producer(producer)
    threading.Thread(target=_hold_briefly, args=(producer,), name="sessionary-discard", daemon=True).start()


def flush_producer(producer: Producer, timeout_s: float) -> int:
    """Wait until all is delivered or reported; return how many records are left after `timeout_s`.

    As `Producer.flush`, but a fatal error is a `KafkaException`: flush continues to call delivery
    callbacks with the exception set, which CPython reports as a SystemError.
    """
    until_s = time.monotonic() + timeout_s
    while (left := len(producer)) and (left_s := until_s - time.monotonic()) > 0:
        producer.poll(left_s)
    return left


class ClosableConsumer(Protocol):
    """A consumer, by the one method that ends it."""

    def close(self) -> None:
        """Leave the group, if it is in one, and disconnect."""
        ...


def close_in_background(consumer: ClosableConsumer) -> threading.Thread:
    """Close a consumer in a daemon thread, and return that thread. Never blocks.

    Closing may hang if the consumer has lost its brokers: join the thread with a time-out, or not
    at all. The consumer's callbacks run in that thread.
    """

    def close_consumer() -> None:
        try:
            consumer.close()
        except Exception as error:  # noqa: BLE001 - a callback may raise anything, and the thread has no caller
            # Clients have no structlog; a role's log makes fields of these too.
            _log.info("closing a consumer: %s", error, extra=error_subject(error))

    thread = threading.Thread(target=close_consumer, name="sessionary-discard", daemon=True)
    thread.start()
    return thread


def discard_client(client: object) -> None:
    """Free a client that a new one replaces in the background. Never blocks.

    The caller drops its own reference at once.
    """
    threading.Thread(target=_drop_reference, args=([client],), name="sessionary-discard", daemon=True).start()


def _drop_reference(holder: list[object]) -> None:
    holder.clear()


def _hold_briefly(producer: Producer) -> None:
    time.sleep(_LAST_POLL_S)
    await_reports(producer)


# An admin client for questions that are asked again and again, and the answers to them.


_LATE_S: Final = 1.0  # the client reports a request's time-out itself, this much later at most
T = TypeVar("T")


class AdminConnection:
    """Opens an admin client when it is needed, and another one after a failure. For one thread.

    librdkafka may lose its last broker for ever: a node that was frozen answers for a moment that
    the cluster has no broker (librdkafka issue 5301). So a caller that gets no answer ends the
    client; the next question goes out by a new one, and an answer proves that brokers can be
    reached.
    """

    def __init__(self, settings: KafkaSettings) -> None:
        """Connect to nothing yet."""
        self._config = {**settings.client_config(), "allow.auto.create.topics": False}
        self._client: AdminClient | None = None

    def open_client(self) -> AdminClient:
        """Return the client; it connects in the background. Do not keep it."""
        if self._client is None:
            self._client = AdminClient(self._config)
        return self._client

    def end_client(self) -> None:
        """Disconnect, in the background."""
        client, self._client = self._client, None
        if client is not None:
            discard_client(client)

    def free_client(self) -> None:
        """Disconnect in the caller's thread.

        Blocks until librdkafka's threads have ended; each may wait for the address of a broker's
        name. Other threads of the process continue meanwhile.
        """
        self._client = None


def take_answer(answer: Future[T], timeout_s: float) -> T:
    """Return the answer to a request whose own time-out is `timeout_s`.

    Blocks for that long, and a second more at most. Raises `KafkaException`, `TimeoutError`.

    A future keeps its error, and the error's traceback keeps the frames that it passed. So if
    `Future.result` raised, client, future and error would hold each other, and the client's threads
    would stay until a full garbage collection, which a process that allocates little does not have
    for hours.
    """
    error = answer.exception(timeout_s + _LATE_S)
    if error is None:
        return answer.result()
    raise KafkaException(*error.args) if isinstance(error, KafkaException) else error


# Asks for a topic's id: a topic that was deleted and created again has another one.


_NO_ID = "AAAAAAAAAAAAAAAAAAAAAA"  # brokers before Kafka 2.8
_TO_URL_ALPHABET = str.maketrans("+/", "-_")


def ask_topic_id(connection: AdminConnection, topic: str, timeout_s: float) -> str | None:
    """Return the id of a topic as Kafka's tools print it; None if the broker gives topics none.

    Blocks for `timeout_s` and a second at most. Raises `KafkaException`.
    """
    try:
        answers = connection.open_client().describe_topics(TopicCollection([topic]), request_timeout=timeout_s)
        # librdkafka has the common alphabet of Base64, Kafka's tools the one for URLs.
        found = str(take_answer(answers[topic], timeout_s).topic_id).translate(_TO_URL_ALPHABET)
    except (KafkaException, TimeoutError) as error:
        connection.end_client()
        if isinstance(error, TimeoutError):
            raise KafkaException(KafkaError(KafkaError._TIMED_OUT)) from error
        raise
    return None if found == _NO_ID else found


# Batches that stay in a log although librdkafka cannot read them.
#
# It reports such a batch by a message with an error and the offset at which the batch begins. A
# batch that cannot be unpacked is fetched again without end; a batch with a wrong checksum is left
# out, so that the next message is of a later batch.


_CODES: Final = frozenset(
    {
        KafkaError._BAD_COMPRESSION,  # damaged, or zstd that unpacks to more than receive.message.max.bytes
        KafkaError._BAD_MSG,  # another checksum than the batch's own (with check.crcs)
        KafkaError._NOT_IMPLEMENTED,  # a format or a codec that this librdkafka does not know
    }
)


def is_unreadable_batch(message: Message) -> bool:
    """Return whether a message reports a batch that cannot be read; its offset is the batch's."""
    error, offset = message.error(), message.offset()
    return error is not None and error.code() in _CODES and offset is not None and offset >= 0


def is_left_over(message: Message, offset: int) -> bool:
    """Return whether a message says that the log lacks an offset that is not sought any more.

    `offset`: the one that is sought. After a wrong checksum librdkafka reads on within the batch.
    It may take other bytes for an offset, and fetch from there. It reports that the log lacks that
    offset even after another one was assigned, because this report has no version
    (`rd_kafka_offset_reset`, librdkafka 2.16).
    """
    error, lacked = message.error(), message.offset()
    return (
        error is not None
        and error.code() == KafkaError._AUTO_OFFSET_RESET
        and lacked is not None
        and lacked >= 0
        and lacked != offset
    )


def describe_unreadable_batch(message: Message) -> str:
    """Return which batch `message` reports, what is wrong with it, and what may be the cause."""
    error = message.error()
    return (
        f"the batch that begins at offset {message.offset()} of {message.topic()} cannot be read: "
        f"{error.str() if error is not None else 'unknown'}. It is damaged, or unpacks to more than librdkafka takes "
        "(with zstd 100 MB, in some cases only 33 MB)"
    )


# An operator's options for a batch that a client sent.
HELP: Final = (
    "If the batch is damaged, restore a replica that has it intact; otherwise skip it: sessionary partition skip "
    "with this offset. The sink of the history leaves the batch out too, once the audit trail in ClickHouse has the "
    "decision. Find the client that sent it"
)
