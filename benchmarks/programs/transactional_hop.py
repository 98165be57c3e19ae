"""The baseline of a latency: reads records, passes them on, commits in one transaction.

    python -m benchmarks.programs.transactional_hop IN OUT --ready FILE [--commit-interval-ms 30]

It uses librdkafka on both sides with the processor's settings, and one transaction per batch of a
poll. With an interval, transactions begin at least that far apart, as the processor's do; without
one, back to back. It keeps no state and decodes nothing. It passes on the records of `sender plain`
that stand for an audit record, and only reads the others.
"""

import argparse
import signal
import sys
import threading
import time
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


class Pace:
    """Keeps the beginnings of transactions apart.

    The first one, and one after a silence, waits for nothing.
    """

    def __init__(self, interval_ms: float) -> None:
        self._interval_s = interval_ms / 1_000
        self._began_s = float("-inf")

    def begin(self, now_s: float) -> float:
        """Return how long to wait, in seconds, and count from then on.

        `now_s` is of a monotonic clock.
        """
        wait_s = max(0.0, self._began_s + self._interval_s - now_s)
        self._began_s = now_s + wait_s
        return wait_s


def main() -> int:
    """Run until SIGTERM."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.programs.transactional_hop")
    parser.add_argument("source")
    parser.add_argument("out")
    parser.add_argument("--ready", type=Path, required=True)
    parser.add_argument("--commit-interval-ms", type=float, default=0.0)
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
    pace = Pace(given.commit_interval_ms)
    while not stop.is_set():
        if messages := _read_batch(consumer):
            if wait_s := pace.begin(time.monotonic()):
                time.sleep(wait_s)
                messages += consumer.consume(_BATCH - len(messages), 0) if len(messages) < _BATCH else []
            _pass_on(consumer, producer, messages, given.out)
    consumer.close()
    return 0


if __name__ == "__main__":
    sys.exit(main())
