"""Work in every partition, and how long each one waits for its next transaction."""

import contextlib
import threading
import time
from collections.abc import Iterable, Iterator

from confluent_kafka import OFFSET_END, Consumer, KafkaException, TopicPartition

from sessionary.producers import Session, SessionClient
from sessionary.schemas.ids import SessionKey, partition_of
from sessionary.schemas.settings import KafkaSettings

_ASK_S = 30.0


def start_in_each_partition(client: SessionClient, kafka: KafkaSettings, tenant_id: str) -> list[Session]:
    """Start sessions until each partition has one: others have no ticks, and no transactions."""
    sessions: list[Session] = []
    covered: set[int] = set()
    while len(covered) < kafka.partitions:
        session = client.create(user_id="u").start()
        sessions.append(session)
        covered.add(partition_of(SessionKey(tenant_id, session.session_id).encoded(), kafka.partitions))
    return sessions


@contextlib.contextmanager
def steady_work(sessions: Iterable[Session]) -> Iterator[None]:
    """Let each session work five times a second, in a thread, while the context lasts."""
    done, sessions = threading.Event(), list(sessions)

    def work() -> None:
        while not done.wait(0.2):
            for session in sessions:
                session.activity("llm")

    thread = threading.Thread(target=work)
    thread.start()
    try:
        yield
    finally:
        done.set()
        thread.join()


def first_batches(kafka: KafkaSettings, since_ms: int) -> dict[int, int]:
    """Return partition → broker's stamp of its first transaction after `since_ms`; some may lack.

    Each call uses a new client, because the one of before may stand still itself. Blocks.
    """
    topic = kafka.topics.batches
    reader = Consumer(
        {
            **kafka.reader_config_of("transaction-waits"),
            "log_level": 0,
        }
    )
    found: dict[int, int] = {}
    try:
        places = [TopicPartition(topic, partition, since_ms) for partition in range(kafka.partitions)]
        starts = [place for place in reader.offsets_for_times(places, timeout=_ASK_S) if place.offset >= 0]
        reader.assign([place for place in starts if place.offset != OFFSET_END])
        unread = {place.partition for place in starts}
        ends_s = time.monotonic() + _ASK_S
        while unread and time.monotonic() < ends_s:
            if (message := reader.poll(0.1)) is None:
                continue
            partition = message.partition()
            assert partition is not None
            if message.error() is None:
                found.setdefault(partition, message.timestamp()[1])
            unread.discard(partition)
    except KafkaException:
        return found
    finally:
        reader.close()
    return found


def measure_waits(kafka: KafkaSettings, since_ms: int, patience_s: float) -> dict[int, float]:
    """Return how long each partition waited for its first transaction after `since_ms`, in seconds.

    A partition that had none after `patience_s` waits for infinitely long. Blocks.
    """
    waits = dict.fromkeys(range(kafka.partitions), float("inf"))
    ends_s = time.monotonic() + patience_s
    while float("inf") in waits.values() and time.monotonic() < ends_s:
        time.sleep(0.5)
        waits |= {partition: (at_ms - since_ms) / 1_000 for partition, at_ms in first_batches(kafka, since_ms).items()}
    return waits
