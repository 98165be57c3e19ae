"""What the sinks' tests share: producing, a sink in a thread or in a process, reading back."""

import itertools
import logging
import os
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

from confluent_kafka import Consumer, Producer, TopicPartition

from sessionary.infra.local.process import Child
from sessionary.schemas.codec import encode_record
from sessionary.schemas.settings import ClickHouseSettings, KafkaSettings
from sessionary.sinks.app import SinkKind, run_sink
from sessionary.sinks.errors import Fenced
from sessionary.sinks.settings import SinkSettings
from tests.support.pipelines import environment, run_sql
from tests.support.processes import Processes
from tests.support.sink_records import audit_record, session_id

_names = itertools.count(1)
_SEND_S, _ASK_S, _END_S = 120.0, 60.0, 180.0
_PROGRAM = """
import signal, sys, threading
from sessionary.sinks.app import run_sink
from sessionary.sinks.settings import SinkSettings
stop = threading.Event()
signal.signal(signal.SIGTERM, lambda *_: stop.set())
run_sink(sys.argv[1], SinkSettings.from_env(), stop)
"""


def settings_for(kafka: KafkaSettings, clickhouse: ClickHouseSettings, **fields: object) -> SinkSettings:
    """Return the settings of a sink that restarts at once: an instance name of its own, short
    waits.
    """
    given: dict[str, object] = {
        "instance": f"i{os.getpid()}-{next(_names)}",
        "sink_flush_seconds": 0.2,
        "sink_idle_seconds": 0.5,
        "sink_session_timeout_ms": 6_000,
        **fields,
    }
    return SinkSettings.model_validate({**kafka.model_dump(), **clickhouse.model_dump(), **given})


def produce_records(
    kafka: KafkaSettings, topic: str, records: Sequence[tuple[int, bytes]], *, commit: bool = True
) -> None:
    """Write (partition, value) records in one transaction; abort it if `commit` is false."""
    producer = Producer(
        {
            **kafka.client_config(),
            "transactional.id": f"{kafka.topic_prefix}-{next(_names)}",
            "transaction.timeout.ms": 600_000,
            "partitioner": "murmur2_random",
            "queue.buffering.max.messages": 1_000_000,
        }
    )
    producer.init_transactions(_SEND_S)
    producer.begin_transaction()
    for partition, value in records:
        producer.produce(topic, value, b"acme:" + session_id(partition).encode(), partition=partition)
        producer.poll(0)
    if commit:
        producer.commit_transaction(_SEND_S)
    else:
        producer.flush(_SEND_S)
        producer.abort_transaction(_SEND_S)


def encoded_audits(first: int, sessions: int, each: int = 10) -> list[tuple[int, bytes]]:
    """Return `each` encoded audit records of each session, with their partitions."""
    numbers = range(first, first + sessions)
    return [(number % 4, encode_record(audit_record(number, seq))) for number in numbers for seq in range(1, each + 1)]


_log = logging.getLogger(__name__)


@contextmanager
def sink_in_thread(kind: SinkKind, settings: SinkSettings, *, restarts: int = 0) -> Iterator[None]:
    """Run a sink in a thread; an error that ends it is raised at the end.

    A sink that was fenced ends, and its supervisor starts it again: here up to `restarts` times.
    """
    stop, failures = threading.Event(), list[BaseException]()

    def run() -> None:
        for left in range(restarts, -1, -1):
            try:
                run_sink(kind, settings, stop)
                return
            except Fenced as error:
                _log.warning("sink %s was fenced: %s", kind, error)
                if not left:
                    failures.append(error)
            except BaseException as error:  # noqa: BLE001 - carried into the test's own thread
                _log.warning("sink %s ended", kind, exc_info=True)
                failures.append(error)
                return

    thread = threading.Thread(target=run, name=f"sink-{kind}")
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join(_END_S)
    assert not thread.is_alive()
    if failures:
        raise failures[0]


def start_sink_process(processes: Processes, kind: SinkKind, settings: SinkSettings) -> Child:
    """Run a sink as a process of its own."""
    return processes.run([sys.executable, "-c", _PROGRAM, kind], env=environment(settings), name=f"sink-{kind}")


def query_numbers(clickhouse: ClickHouseSettings, sql: str) -> list[float]:
    """Return the one row of a query; `{db}` is replaced by the database."""
    text = run_sql(clickhouse, sql.replace("{db}", clickhouse.clickhouse_database))
    return [float(cell) for cell in text.split()]


def rows_equal(clickhouse: ClickHouseSettings, sql: str, wanted: Sequence[float]) -> Callable[[], bool]:
    """Return a condition: the query's one row is `wanted`."""
    return lambda: query_numbers(clickhouse, sql) == list(wanted)


def group_lag(settings: SinkSettings, kind: str, topic: str) -> int:
    """Return what a lag exporter would show: the logs' ends minus the committed offsets."""
    consumer = Consumer({**settings.client_config(), "group.id": settings.group_id(kind)})
    try:
        partitions = [TopicPartition(topic, number) for number in range(settings.partitions)]
        total = 0
        for found in consumer.committed(partitions, timeout=_ASK_S):
            _low, high = consumer.get_watermark_offsets(found, timeout=_ASK_S)
            total += high - max(found.offset, 0)
        return total
    finally:
        consumer.close()
