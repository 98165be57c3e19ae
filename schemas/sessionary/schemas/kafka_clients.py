"""Handling of librdkafka clients that several roles share."""

import contextlib
import threading
import time

from confluent_kafka import KafkaException, Producer

# Longer than the longest `poll` in which another thread may still hold the producer.
_LAST_POLL_S = 0.2


def purge_producer(producer: Producer) -> None:
    """Drop what `producer` has queued or in flight; delivery callbacks report it. Never blocks."""
    with contextlib.suppress(KafkaException):
        producer.purge(in_queue=True, in_flight=True, blocking=False)
    producer.poll(0)


def discard_producer(producer: Producer) -> None:
    """Purge a producer that a new one has replaced, and free it in the background. Never blocks.

    librdkafka was seen to find no broker for minutes after one had been killed, and never recovers
    from a fatal error; only a new producer helps. Freeing the old one waits for librdkafka's
    threads, so a daemon thread holds the last reference. The caller drops its own at once.
    """
    purge_producer(producer)
    threading.Thread(target=_hold_briefly, args=(producer,), name="sessionary-discard", daemon=True).start()


def _hold_briefly(producer: Producer) -> None:
    time.sleep(_LAST_POLL_S)
    producer.poll(0)


__all__ = ["discard_producer", "purge_producer"]
