"""Handling of librdkafka clients that several roles share."""

import contextlib
import logging
import threading
import time
from collections.abc import Mapping
from typing import Final, Protocol

from confluent_kafka import KafkaException, Producer

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

    Blocks for 0.1 s at most. What a thread of librdkafka has that waits for the address of a
    broker's name is dropped after that, and reported by a later poll.
    """
    with contextlib.suppress(KafkaException):
        # The driver (2.16) takes `blocking` the wrong way round: False waits for all threads of
        # librdkafka, and holds the interpreter's lock: the whole process stands still.
        producer.purge(in_queue=True, in_flight=True, blocking=True)
    _serve_callbacks(producer, _PURGE_S, _PURGE_POLL_S)


def await_reports(producer: Producer) -> None:
    """Call the callbacks of what was purged, until all are called; blocks for a minute at most.

    A callback that is never called keeps what it refers to for ever.
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

    As `Producer.flush`, but a fatal error is a `KafkaException`: flush goes on calling delivery
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
