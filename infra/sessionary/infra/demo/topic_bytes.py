"""Counts the bytes of topics that no sink reads: keys and values, uncompressed."""

import logging
import time
from collections.abc import Iterable

from confluent_kafka import OFFSET_END, Consumer, KafkaError, KafkaException, TopicPartition

from sessionary.infra.topics import count_brokers
from sessionary.schemas.errors import Unavailable
from sessionary.schemas.settings import KafkaSettings

_TIMEOUT_S = 15.0
_POLL_S = 0.2
_log = logging.getLogger(__name__)


def topic_bytes(settings: KafkaSettings, topics: Iterable[str], since_ms: int) -> dict[str, int]:
    """Return, by topic, the bytes of its committed records since `since_ms` (ms since the epoch).

    Blocks. Raises `Unavailable`, within 3 s if no broker answers, and what `count_brokers` raises.
    """
    count_brokers(settings)
    sums = dict.fromkeys(topics, 0)
    consumer = Consumer(
        settings.reader_config_of(f"{settings.topic_prefix}.byte-count"),
        logger=_log,
    )
    try:
        at = [TopicPartition(topic, n, since_ms) for topic in sums for n in range(settings.partitions)]
        # OFFSET_END: the partition has no record that is so young.
        starts = [place for place in consumer.offsets_for_times(at, timeout=_TIMEOUT_S) if place.offset != OFFSET_END]
        consumer.assign(starts)
        unread = {(place.topic, place.partition) for place in starts}
        last_message_at = time.monotonic()
        while unread:
            messages = consumer.consume(1_000, _POLL_S)
            if messages:
                last_message_at = time.monotonic()
            elif time.monotonic() - last_message_at > _TIMEOUT_S:
                raise Unavailable(f"Kafka at {settings.bootstrap_servers} does not answer", _TIMEOUT_S)
            for message in messages:
                error, topic = message.error(), message.topic()
                if error is not None and error.code() == KafkaError._PARTITION_EOF:
                    # Reported again if more records came in the meantime.
                    unread.discard((topic or "", message.partition() or 0))
                elif error is None and topic is not None:
                    sums[topic] += len(message.key() or b"") + len(message.value() or b"")
    except KafkaException as error:
        raise Unavailable(f"Kafka at {settings.bootstrap_servers}: {error}", _TIMEOUT_S) from None
    finally:
        consumer.close()
    return sums


__all__ = ["topic_bytes"]
