"""What the tests of the sinks share: records, producing, a sink in a thread or a process, reading back."""

import itertools
import os
import sys
import threading
import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from confluent_kafka import Producer

from sessionary.infra.local.process import Child
from sessionary.schemas.codec import encode_record
from sessionary.schemas.records import AuditRecord, BatchRecord
from sessionary.schemas.settings import ClickHouseSettings, KafkaSettings
from sessionary.sinks.app import SinkKind, run_sink
from sessionary.sinks.settings import SinkSettings
from tests.support.pipelines import environment, run_sql
from tests.support.processes import Processes

DAY_US = 86_400_000_000
# A whole second of the year 2026, late enough that nothing made from it has expired.
NOW_US = 1_795_219_200_000_000
_names = itertools.count(1)
_PROGRAM = """
import signal, sys, threading
from sessionary.sinks.app import run_sink
from sessionary.sinks.settings import SinkSettings
stop = threading.Event()
signal.signal(signal.SIGTERM, lambda *_: stop.set())
run_sink(sys.argv[1], SinkSettings.from_env(), stop)
"""


def session_id(number: int) -> str:
    """Return the id of the n-th session."""
    return f"00000000-0000-4000-8000-{number:012d}"


def audit(number: int, seq: int, **fields: Any) -> AuditRecord:
    """Return an audit record of the n-th session: a transition unless `fields` say otherwise."""
    at: int = fields.pop("at", NOW_US + seq * 1_000_000)
    plain = AuditRecord(
        audit_id=str(uuid.uuid5(uuid.NAMESPACE_URL, f"{number}:{seq}")),
        tenant_id="acme",
        session_id=session_id(number),
        audit_seq=seq,
        kind="transition",
        transition="T02",
        event_id=None,
        event_type="session_started",
        from_state="Idle",
        to_state="Active",
        reason_code="started",
        reason="",
        security=False,
        cleanup_id=None,
        cleanup_actions=(),
        actions_done=(),
        actions_failed=(),
        bytes_released=None,
        host_lost=False,
        compliance_tags=(),
        user_id="u1",
        agent_id="agent-1",
        agent_role=None,
        service_id="billing",
        owner_service="billing",
        actor=None,
        epoch=1,
        version=1,
        producer_id=None,
        producer_seq=None,
        gap_first=None,
        gap_last=None,
        context_bytes=None,
        occurred_at=at,
        appended_at=at,
        due_at=None,
        fired_at=None,
        source_partition=number % 4,
        source_offset=number * 100 + seq,
        source_n=0,
        batch_number=1,
        retention_class="default",
        retain_until=at + 365 * DAY_US,
        personal_until=None,
    )
    return plain._replace(**fields)


def batch(partition: int, number: int, **fields: Any) -> BatchRecord:
    """Return the record of one transaction; its predecessor was acknowledged 40 ms before it started."""
    started = NOW_US + number * 1_000_000
    plain = BatchRecord(
        partition=partition,
        number=number,
        first_offset=number * 10,
        last_offset=number * 10 + 9,
        applied=10,
        duplicate=0,
        refused=0,
        audited=1,
        timers=0,
        ticks=0,
        started_at=started,
        previous_acknowledged_at=started - 40_000 if number > 1 else None,
        instance="p1",
    )
    return plain._replace(**fields)


def settings_for(kafka: KafkaSettings, clickhouse: ClickHouseSettings, **fields: object) -> SinkSettings:
    """Return the settings of a sink that restarts at once: an instance name of its own, a short flush."""
    given: dict[str, object] = {
        "instance": f"i{os.getpid()}-{next(_names)}",
        "sink_flush_seconds": 0.2,
        "sink_session_timeout_ms": 6_000,
        **fields,
    }
    return SinkSettings.model_validate({**kafka.model_dump(), **clickhouse.model_dump(), **given})


def produce(kafka: KafkaSettings, topic: str, records: Sequence[tuple[int, bytes]], *, commit: bool = True) -> None:
    """Write (partition, value) records in one transaction, which is aborted where `commit` is false."""
    producer = Producer(
        {
            **kafka.client_config(),
            "transactional.id": f"{kafka.topic_prefix}-{next(_names)}",
            "partitioner": "murmur2_random",
            "queue.buffering.max.messages": 1_000_000,
        }
    )
    producer.init_transactions(30)
    producer.begin_transaction()
    for partition, value in records:
        producer.produce(topic, value, b"acme:" + session_id(partition).encode(), partition=partition)
        producer.poll(0)
    if commit:
        producer.commit_transaction(30)
    else:
        producer.flush(30)
        producer.abort_transaction(30)


def audits(first: int, sessions: int, each: int = 10) -> list[tuple[int, bytes]]:
    """Return `each` encoded audit records for so many sessions, with their partitions."""
    numbers = range(first, first + sessions)
    return [(number % 4, encode_record(audit(number, seq))) for number in numbers for seq in range(1, each + 1)]


@contextmanager
def running(kind: SinkKind, settings: SinkSettings) -> Iterator[None]:
    """Run a sink in a thread; an error that ends it is raised at the end."""
    stop, failures = threading.Event(), list[BaseException]()

    def run() -> None:
        try:
            run_sink(kind, settings, stop)
        except BaseException as error:  # noqa: BLE001 - carried into the test's own thread
            failures.append(error)

    thread = threading.Thread(target=run, name=f"sink-{kind}")
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join(60)
    assert not thread.is_alive()
    if failures:
        raise failures[0]


def started(processes: Processes, kind: SinkKind, settings: SinkSettings) -> Child:
    """Run a sink as a process of its own."""
    return processes.run([sys.executable, "-c", _PROGRAM, kind], env=environment(settings), name=f"sink-{kind}")


def numbers(clickhouse: ClickHouseSettings, sql: str) -> list[float]:
    """Return the one row of a query; `{db}` stands for the database."""
    text = run_sql(clickhouse, sql.replace("{db}", clickhouse.clickhouse_database))
    return [float(cell) for cell in text.split()]


def counter(clickhouse: ClickHouseSettings, sql: str, wanted: Sequence[float]) -> Callable[[], bool]:
    """Return a condition: the query's one row is `wanted`."""
    return lambda: numbers(clickhouse, sql) == list(wanted)
