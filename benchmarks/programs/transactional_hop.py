"""The baseline of a latency: reads records, passes them on, commits in one transaction.

    python -m benchmarks.programs.transactional_hop IN OUT --ready FILE

It uses librdkafka on both sides with the processor's settings, and one transaction per batch of a
poll. It keeps no state and decodes nothing. It passes on the records of `sender plain` that stand
for an audit record, and only reads the others.
"""

import argparse
import signal
import sys
import threading
from pathlib import Path

from confluent_kafka import Consumer, Message, Producer, TopicPartition

from sessionary.schemas.settings import KafkaSettings

_BATCH = 5_000
_CALL_S = 30.0


def _read_batch(consumer: Consumer) -> list[Message]:
    first = consumer.poll(0.1)
    if first is None:
        return []
    return [message for message in (first, *consumer.consume(_BATCH - 1, 0)) if message.error() is None]


def _pass_on(consumer: Consumer, producer: Producer, messages: list[Message], out: str) -> None:
    places: dict[int, TopicPartition] = {}
    producer.begin_transaction()
    for message in messages:
        partition, value = message.partition() or 0, message.value() or b""
        if value[:1] == b"1":
            producer.produce(out, value, message.key(), partition=partition)
        places[partition] = TopicPartition(message.topic() or "", partition, (message.offset() or 0) + 1)
    producer.send_offsets_to_transaction(list(places.values()), consumer.consumer_group_metadata(), _CALL_S)
    producer.commit_transaction(_CALL_S)


def main() -> int:
    """Run until SIGTERM."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.programs.transactional_hop")
    parser.add_argument("source")
    parser.add_argument("out")
    parser.add_argument("--ready", type=Path, required=True)
    given = parser.parse_args()
    stop = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: stop.set())
    base = KafkaSettings.from_env().client_config()
    consumer = Consumer(
        {
            **base,
            "group.id": f"{given.source}.hop",
            "enable.auto.commit": False,
            "auto.offset.reset": "earliest",
        }
    )
    producer = Producer({**base, "transactional.id": f"{given.source}.hop", "linger.ms": 2, "retry.backoff.ms": 2})
    producer.init_transactions(_CALL_S)
    consumer.subscribe([given.source], on_assign=lambda *_: given.ready.touch())
    while not stop.is_set():
        if messages := _read_batch(consumer):
            _pass_on(consumer, producer, messages, given.out)
    consumer.close()
    return 0


if __name__ == "__main__":
    sys.exit(main())
