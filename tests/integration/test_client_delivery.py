"""The client against a broker that goes away and a process that is killed."""

import json
import os
import signal
import statistics
import sys
import time
from collections import defaultdict
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, KafkaError, KafkaException, Producer, TopicPartition

from sessionary.infra.local.kafka.cluster import LocalBroker
from sessionary.infra.local.ports import free_port
from sessionary.producers import ProducerSettings, Session, SessionClient
from sessionary.producers.delivery import kafka_producer
from sessionary.producers.delivery.direct_transport import DirectTransport
from sessionary.producers.delivery.spool.transport import SpoolTransport
from sessionary.producers.testing import memory_client
from sessionary.schemas.codec import Event, encode_record
from sessionary.schemas.events import Heartbeat, SessionTerminated
from sessionary.schemas.ids import partition_of
from sessionary.schemas.records import CleanupRequest
from sessionary.schemas.settings import KafkaSettings
from tests.support.mock_cluster import mock_cluster
from tests.support.pipelines import environment, new_pipeline
from tests.support.processes import Processes
from tests.support.reading import read_events, read_topic
from tests.support.waiting import wait_until

# Emits into a few sessions for ever; a file has the number of rounds so far.
AGENT = """
import os, sys, time
from sessionary.producers import SessionClient
client = SessionClient(tenant_id="acme", service_id="s", agent_id="a")
with client:
    sessions = [client.session(user_id="u") for _ in range(3)]
    rounds = 0
    while True:
        rounds += 1
        for session in sessions:
            session.activity("work", "x" * 500)
        os.pwrite(int(sys.argv[1]), b"%12d" % rounds, 0)
        time.sleep(0.0005)
"""
# Holds one session in a `with` and waits to be ended.
WAITER = """
import sys, time
from sessionary.producers import SessionClient
client = SessionClient(tenant_id="acme", service_id="s", agent_id="a")
with client.session(user_id="u") as s:
    for n in range(200):
        s.activity("work", str(n))
    open(sys.argv[1], "w").close()
    if sys.argv[2] == "wait":
        while True:
            time.sleep(1)
"""


def new_settings(kafka: KafkaSettings, spool_dir: Path, **more: Any) -> ProducerSettings:
    own = {"spool_dir": spool_dir, "handle_sigterm": False, "close_timeout_s": 120, **more}
    return ProducerSettings(**{**kafka.model_dump(), **own})


def new_client(of: ProducerSettings, errors: list[Exception] | None = None) -> SessionClient:
    reported = errors if errors is not None else []
    return SessionClient(tenant_id="acme", service_id="s", agent_id="a", settings=of, on_error=reported.append)


def sent_numbers(kafka: KafkaSettings) -> dict[tuple[str, str], list[int]]:
    """The sequence numbers of each session and producer in log order, without heartbeats."""
    found: dict[tuple[str, str], list[int]] = defaultdict(list)
    for event in read_events(kafka):
        assert isinstance(event, Event)
        if not isinstance(event.payload, Heartbeat):
            found[event.envelope.session_id, event.envelope.producer_id].append(event.envelope.producer_seq)
    return found


def first_seen(numbers: Sequence[int]) -> list[int]:
    """Drop duplicates, as the processor does."""
    return list(dict.fromkeys(numbers))


def test_a_spool_survives_kill_9_and_is_replayed_in_order_before_new_events(
    broker: LocalBroker, processes: Processes, tmp_path: Path
) -> None:
    kafka = new_pipeline(broker.bootstrap_servers)
    of = new_settings(kafka, tmp_path / "spool", queue_bytes_max=1 << 16)
    progress = tmp_path / "progress"
    progress.write_bytes(b"0")

    def rounds() -> int:
        return int(progress.read_bytes())

    shell = f'exec 9<>"{progress}"; exec "{sys.executable}" -c "$AGENT" 9'
    agent = processes.run(["bash", "-c", shell], env={**environment(of), "AGENT": AGENT}, name="agent")
    wait_until(lambda: rounds() > 200, 60, "events while the broker is there")
    broker.kill()
    before = rounds()
    wait_until(lambda: rounds() > before + 300, 60, "events while the broker is away")
    agent.kill()
    emitted = rounds()
    broker.start()
    broker.wait_ready()
    with new_client(of) as client:
        assert client.counters.replayed >= 3 * 300
        mine = client.session(user_id="u")
        assert client.flush(180) == 0
        assert client.counters.failed == 0
        mine_key = (mine.session_id, client.producer_id)
    assert list(of.spool_folder.iterdir()) == []
    found = sent_numbers(kafka)
    assert found.pop(mine_key) == [1, 2, 3, 4]
    assert len(found) == 3
    for numbers in found.values():
        assert first_seen(numbers) == list(range(1, max(numbers) + 1))
        assert max(numbers) >= 4 + emitted


def test_emit_never_waits_for_a_broker_that_is_away_and_nothing_is_lost(broker: LocalBroker, tmp_path: Path) -> None:
    kafka = new_pipeline(broker.bootstrap_servers)
    of = new_settings(kafka, tmp_path / "spool", queue_bytes_max=1 << 17)
    errors: list[Exception] = []

    def costs(count: int) -> tuple[list[float], list[float]]:
        """Return the sorted seconds of so many verbs, and of as many beside them without Kafka."""
        taken: dict[Session, list[float]] = {session: [], beside: []}
        for n in range(count):
            for one, seconds in taken.items():
                begun = time.perf_counter()
                one.activity("work", f"{n}" * 100)
                seconds.append(time.perf_counter() - begun)
        return sorted(taken[session]), sorted(taken[beside])

    with memory_client()[0] as other, new_client(of, errors) as client:
        session, beside = client.session(user_id="u"), other.session(user_id="u")
        costs(500)
        calm = statistics.median(costs(1_000)[0])
        assert client.flush(180) == 0
        broker.kill()
        away, reference = costs(3_000)
        assert client.counters.spooled > 0
        # Waiting for a broker would take milliseconds each, of many verbs or of each hundredth one.
        # A busy machine pauses for longer, but then the verbs beside them wait too. The slowest
        # hundredth has no limit: a process can be stopped for any time.
        assert statistics.median(away) < 10 * max(calm, statistics.median(reference))
        hundredth = int(len(away) * 0.99)
        assert away[hundredth] < 0.05 + 10 * reference[hundredth]
        wait_until(lambda: any("Kafka at" in str(error) for error in errors), 30, "a report")
        broker.start()
        broker.wait_ready()
        costs(500)
        assert client.flush(180) == 0
        session.complete()
        assert client.flush(180) == 0
        counters = client.counters
        assert (counters.dropped, counters.failed, counters.sent) == (0, 0, counters.delivered)
        numbers = sent_numbers(kafka)[session.session_id, client.producer_id]
    assert first_seen(numbers) == list(range(1, counters.sent + 1))


def test_after_a_fatal_error_everything_open_is_sent_again_in_order(kafka: KafkaSettings, tmp_path: Path) -> None:
    errors: list[Exception] = []
    with new_client(new_settings(kafka, tmp_path / "spool"), errors) as client:
        session = client.session(user_id="u")
        transport = client.core.ports.transport
        assert isinstance(transport, SpoolTransport)
        for _ in range(3):
            for _ in range(300):
                session.activity("work", "x" * 200)
            transport._give_producer_up(transport._generation, KafkaError(KafkaError._FATAL))
        session.complete()
        assert client.flush(180) == 0
        assert client.counters.delivered == client.counters.sent == 905
    assert first_seen(sent_numbers(kafka)[session.session_id, client.producer_id]) == list(range(1, 906))
    assert errors


def notice_stalls_soon(monkeypatch: pytest.MonkeyPatch, *first: dict[str, str]) -> Iterator[dict[str, str]]:
    """Let clients notice soon that a producer is stuck; return what of `first` none has had.

    `first`: further settings of the first producers.
    """
    monkeypatch.setattr(kafka_producer, "_STALL_S", 2.0)
    config, left = kafka_producer.producer_config, iter(first)
    monkeypatch.setattr(
        kafka_producer,
        "producer_config",
        lambda of: {**config(of), "statistics.interval.ms": 500, **next(left, {})},
    )
    return left


@pytest.mark.parametrize("policy", ["spool", "block", "drop"])
def test_a_producer_that_finds_no_broker_is_replaced_and_everything_open_is_sent_again_in_order(
    policy: str, kafka: KafkaSettings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lost = notice_stalls_soon(monkeypatch, {"bootstrap.servers": f"127.0.0.1:{free_port()}"})
    errors: list[Exception] = []
    with new_client(new_settings(kafka, tmp_path / "spool", delivery_policy=policy), errors) as client:
        session = client.session(user_id="u")
        for _ in range(300):
            session.activity("work", "x" * 200)
        session.complete()
        assert client.flush(180) == 0
        assert client.counters.delivered == client.counters.sent
    numbers = sent_numbers(kafka)[session.session_id, client.producer_id]
    assert first_seen(numbers) == list(range(1, client.counters.sent + 1))
    assert next(lost, None) is None
    assert errors


@pytest.mark.parametrize("policy", ["spool", "block", "drop"])
def test_a_producer_whose_partition_is_stuck_is_replaced_though_only_heartbeats_are_open(
    policy: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    notice_stalls_soon(monkeypatch)
    with mock_cluster() as cluster:
        kafka = KafkaSettings(bootstrap_servers=cluster.bootstrap_servers, topic_prefix="stuck")
        cluster.create_topic(kafka.topics.events, [1, 2])
        of = new_settings(
            kafka, tmp_path / "spool", delivery_policy=policy, heartbeat_interval_s=0.2, close_timeout_s=0.1
        )
        with new_client(of) as client:
            sessions = [client.session(user_id="u") for _ in range(8)]
            partitions = [partition_of(session.core.emitter.key.encoded(), 2) for session in sessions]
            while len(set(partitions)) < 2:  # of eight random keys all are on one in 128 runs
                sessions.append(client.session(user_id="u"))
                partitions.append(partition_of(sessions[-1].core.emitter.key.encoded(), 2))
            assert client.flush(180) == 0
            cluster.silence_broker(2)
            alive = sessions[partitions.index(0)]
            for session, partition in zip(sessions, partitions, strict=True):
                if partition == 0 and session is not alive:
                    session.lifecycle.detach()
            transport = client.core.ports.transport
            assert isinstance(transport, DirectTransport)

            def is_replaced() -> bool:
                alive.activity("work")  # the other partition goes on
                return transport._generation > 0

            wait_until(is_replaced, 60, "a new producer")
            assert client.counters.delivered > 8 * 4


def test_drop_leaves_a_visible_gap(broker: LocalBroker, tmp_path: Path) -> None:
    kafka = new_pipeline(broker.bootstrap_servers)
    of = new_settings(
        kafka, tmp_path, delivery_policy="drop", queue_bytes_max=1 << 17, journal_path=tmp_path / "journal"
    )
    with new_client(of) as client:
        session = client.session(user_id="u")
        assert client.flush(180) == 0
        broker.kill()
        for _ in range(400):
            session.activity("work", "x" * 1_000)
        broker.start()
        broker.wait_ready()
        assert client.flush(180) == 0
        session.complete()
        assert client.flush(180) == 0
        counters = client.counters
    numbers = sent_numbers(kafka)[session.session_id, client.producer_id]
    assert counters.dropped > 0
    assert numbers == sorted(set(numbers))
    assert len(numbers) == counters.delivered == counters.sent - counters.dropped
    assert max(numbers) == counters.sent
    lines = [json.loads(line) for line in (tmp_path / "journal").read_text().splitlines()]
    assert len(lines) == counters.sent
    assert sorted(line["producer_seq"] for line in lines if line["error"] is None) == numbers
    assert all("dropped" in line["error"] for line in lines if line["partition"] is None)


@pytest.mark.parametrize("how", ["SIGTERM", "SIGINT", "exit"])
def test_the_end_of_a_process_ends_its_session_and_drains(
    how: str, kafka: KafkaSettings, processes: Processes, tmp_path: Path
) -> None:
    of = new_settings(kafka, tmp_path / "spool", handle_sigterm=True)
    ready = tmp_path / "ready"
    mode = "return" if how == "exit" else "wait"
    argv = [sys.executable, "-c", WAITER, str(ready), mode]
    child = processes.run(argv, env=environment(of), name="agent")
    wait_until(lambda: ready.exists() or child.exit_code is not None, 60, "the agent at work")
    if how != "exit":
        pid = child.pid
        assert pid is not None
        os.kill(pid, signal.Signals[how])
    assert child.wait(180)
    assert list(of.spool_folder.iterdir()) == []
    reported = [event for event in read_events(kafka) if isinstance(event, Event)]
    events = [event for event in reported if not isinstance(event.payload, Heartbeat)]  # a slow start has some
    assert [event.envelope.producer_seq for event in events] == list(range(1, 206))
    last = events[-1].payload
    assert isinstance(last, SessionTerminated)
    assert last.reason == {"exit": "closed", "SIGINT": "cancelled", "SIGTERM": "abnormal_termination"}[how]


def test_clean_up_requests_of_others_are_left_and_answered_ones_do_not_return(
    kafka: KafkaSettings, tmp_path: Path
) -> None:
    producer = Producer(kafka.client_config())
    session_id = "0b0e7f0a-0000-4000-8000-000000000000"

    def ask(cleanup_id: str, service_id: str, tenant_id: str = "acme") -> None:
        request = CleanupRequest(
            cleanup_id, tenant_id, session_id, service_id, 1, "closed", "", ["close_connection"], 1
        )
        producer.produce(kafka.topics.cleanup, encode_record(request), f"{tenant_id}:{session_id}")
        assert producer.flush(120) == 0

    calls: list[str] = []
    for cleanup_id in ("first", "second"):
        ask("of another service", "other")
        ask("of another tenant", "s", tenant_id="globex")
        ask(cleanup_id, "s")
        with new_client(new_settings(kafka, tmp_path)) as client:
            client.on_cleanup(lambda request: calls.append(request.cleanup_id))
            wait_until(lambda: client.counters.delivered == 2, 60, "an answer and the cleared phase")
            wait_until(lambda: _committed(kafka) == _end(kafka), 60, "the commit")
    assert calls == ["first", "second"]


def _end(kafka: KafkaSettings) -> int:
    return len(read_topic(kafka, kafka.topics.cleanup))


def _committed(kafka: KafkaSettings) -> int:
    group = f"{kafka.topic_prefix}.cleanup.acme:s"
    consumer = Consumer({**kafka.client_config(), "group.id": group})
    try:
        asked = [TopicPartition(kafka.topics.cleanup, partition) for partition in range(kafka.partitions)]
        return sum(max(place.offset, 0) for place in consumer.committed(asked, timeout=60))
    except KafkaException:  # the first group of a new broker has to wait for its topic
        return -1
    finally:
        consumer.close()
