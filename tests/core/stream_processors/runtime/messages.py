"""Messages as librdkafka delivers them."""

from confluent_kafka import KafkaError, Message

CREATE_TIME, LOG_APPEND_TIME = 1, 2


def message(
    partition: int,
    offset: int,
    value: bytes | None = b"v",
    error: KafkaError | None = None,
    timestamp_type: int = LOG_APPEND_TIME,
    timestamp_ms: int | None = None,
) -> Message:
    return Message(
        topic="events",
        partition=partition,
        offset=offset,
        key=b"k%d" % offset,
        value=value,
        headers=[("event", b"%d" % offset), ("trace", None)],
        error=error,
        timestamp=(timestamp_type, 1_000 + offset if timestamp_ms is None else timestamp_ms),
    )


def end_of(partition: int, offset: int) -> Message:
    """Return what tells that a partition was read to its end."""
    return message(partition, offset, error=KafkaError(KafkaError._PARTITION_EOF))
