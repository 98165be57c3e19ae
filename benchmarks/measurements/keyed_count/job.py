"""The keyed-count job: the events of the source topic, and the names of one run."""

import random
import time
from array import array
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

from confluent_kafka import KafkaException, Producer
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

PARTITIONS = 4
KEYS = 50_000
VALUE_BYTES = 200
NUMBER_DIGITS = 8  # a value begins with its event's number, by which the check knows the event
_TIMEOUT_S = 60.0


class Job(NamedTuple):
    """One run of one engine, with a separate group, output and changelog."""

    bootstrap_servers: str
    source: str
    output: str
    changelog: str
    group: str
    events: int
    folder: Path


def key_bytes(number: int) -> bytes:
    """Return the key with this number, from 0 to `KEYS` - 1."""
    return b"key-%05d" % number


def drawn_keys(events: int) -> Sequence[int]:
    """Return the key number of every event: random, but the same each time."""
    rng = random.Random(1)
    return array("H", (rng.randrange(KEYS) for _ in range(events)))


def make_topics(bootstrap_servers: str, names: Sequence[str], config: dict[str, str] | None = None) -> None:
    """Create topics of `PARTITIONS` partitions."""
    admin = AdminClient({"bootstrap.servers": bootstrap_servers, "log_level": 0})
    wanted = [NewTopic(name, num_partitions=PARTITIONS, replication_factor=1, config=config or {}) for name in names]
    for made in admin.create_topics(wanted, operation_timeout=_TIMEOUT_S).values():
        made.result(_TIMEOUT_S)


def remove_topics(bootstrap_servers: str, names: Sequence[str]) -> None:
    """Delete topics; ignore those that do not exist."""
    admin = AdminClient({"bootstrap.servers": bootstrap_servers, "log_level": 0})
    for deleted in admin.delete_topics(list(names)).values():
        try:
            deleted.result(_TIMEOUT_S)
        except KafkaException:
            continue


def fill_topic(bootstrap_servers: str, topic: str, keys: Sequence[int], progress: Callable[[str], None]) -> None:
    """Write the events, uncompressed, in batches of up to 1 MB. Blocks.

    No transactions are used, so that offsets count events.
    """
    producer = Producer(
        {
            "bootstrap.servers": bootstrap_servers,
            "partitioner": "murmur2_random",
            "enable.idempotence": True,
            "linger.ms": 50,
            "batch.size": 1_000_000,
            "queue.buffering.max.messages": 500_000,
            "log_level": 0,
        }
    )
    began_s, rest = time.monotonic(), b"." * (VALUE_BYTES - NUMBER_DIGITS)
    encoded = [key_bytes(number) for number in range(KEYS)]
    for number, drawn in enumerate(keys):
        value = b"%0*d%b" % (NUMBER_DIGITS, number, rest)
        while True:
            try:
                producer.produce(topic, value, encoded[drawn])
                break
            except BufferError:
                producer.poll(0.05)
        if number % 1_000_000 == 999_999:
            progress(f"{number + 1:,} events written")
    if producer.flush(_TIMEOUT_S):
        raise RuntimeError(f"{topic}: not all events were acknowledged")
    progress(f"{len(keys):,} events written in {time.monotonic() - began_s:.0f} s")
