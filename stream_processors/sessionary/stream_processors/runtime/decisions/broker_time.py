"""What time it is for the leader of a partition: it stamps a tick that is sent to the partition."""

import time
from typing import Final, NamedTuple

from confluent_kafka import TIMESTAMP_LOG_APPEND_TIME, KafkaError, KafkaException, Message, Producer

from sessionary.schemas.codec import encode_record
from sessionary.schemas.kafka.clients import discard_producer
from sessionary.schemas.records import Tick
from sessionary.stream_processors.errors import Lost
from sessionary.stream_processors.settings import ProcessorSettings

# Between broker and worker, for a repair: less than what is taken for a hole.
CLOCKS_APART_S_MAX: Final = 5.0
_TIMEOUT_S = 8.0


class BrokerTime(NamedTuple):
    """A tick's place and stamp, and how far that is ahead of this process's clock.

    `ahead_s` is 0 if the stamp lies between sending and acknowledgement, and negative before.
    """

    offset: int
    stamp_ms: int
    ahead_s: float


def read_broker_time(settings: ProcessorSettings, partition: int) -> BrokerTime:
    """Send a tick to a partition of the events topic, and return what its stamp says.

    Blocks for up to 8 s. Raises `Lost` if it is not acknowledged, or not stamped by the broker.
    """
    told: list[tuple[KafkaError | None, Message]] = []
    producer = Producer(
        {**settings.client_config(), "linger.ms": 0, "message.timeout.ms": int(_TIMEOUT_S * 1_000), "retries": 0}
    )
    try:
        sent_ms = time.time() * 1_000
        producer.produce(
            settings.topics.events,
            encode_record(Tick(settings.worker_name)),
            partition=partition,
            on_delivery=lambda error, message: told.append((error, message)),
        )
        producer.flush(_TIMEOUT_S)
        heard_ms = time.time() * 1_000
    except (BufferError, KafkaException) as error:
        raise Lost(f"partition {partition}: a tick was not sent: {error}") from error
    finally:
        discard_producer(producer)
    if not told or told[0][0] is not None:
        raise Lost(f"partition {partition}: a tick was not acknowledged: {told[0][0] if told else 'no answer'}")
    message = told[0][1]
    kind, stamp_ms = message.timestamp()
    if kind != TIMESTAMP_LOG_APPEND_TIME:
        raise Lost(f"partition {partition}: the broker does not stamp events: run sessionary topics apply")
    ahead_ms = max(0.0, stamp_ms - heard_ms) + min(0.0, stamp_ms - int(sent_ms))
    return BrokerTime(message.offset() or 0, stamp_ms, ahead_ms / 1_000)
