"""The local broker: a real Kafka node that keeps its folder."""

from __future__ import annotations

import socket
import sys
import time
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka import Consumer, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from sessionary.infra.local.errors import PortTaken, StartFailed
from sessionary.infra.local.kafka.cluster import LocalBroker, broker_answers
from sessionary.infra.local.kafka.node import JAR_COORDINATES, KAFKA_VERSION, kafka_jars
from sessionary.infra.local.ports import LOOPBACK, free_port, free_ports
from sessionary.infra.local.process import Child, tail
from tests.support.jar_list import resolve_jars
from tests.support.processes import Processes
from tests.support.tcp_proxy import TcpProxy
from tests.support.waiting import wait_until


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalBroker]:
    folder = tmp_path_factory.mktemp("broker")
    node = LocalBroker(folder / "data", None, folder / "broker.log")
    node.start()
    try:
        node.wait_ready()
        yield node
    finally:
        node.stop()


def _admin(broker: LocalBroker) -> AdminClient:
    return AdminClient({"bootstrap.servers": broker.bootstrap_servers, "log_level": 0})


def _new_topic(broker: LocalBroker, **config: str) -> str:
    name, admin = f"t-{uuid.uuid4().hex[:8]}", _admin(broker)
    admin.create_topics([NewTopic(name, 1, 1, config=config)])[name].result(120)
    return name


def _produce(broker: LocalBroker, topic: str, values: list[bytes]) -> None:
    producer = Producer(
        {
            "bootstrap.servers": broker.bootstrap_servers,
            "partitioner": "murmur2_random",
            "enable.idempotence": True,
            "message.max.bytes": 5_000_000,
            "log_level": 0,
        }
    )
    failures: list[object] = []
    for value in values:
        producer.produce(topic, value, on_delivery=lambda error, _: failures.append(error) if error else None)
    assert producer.flush(120) == 0
    assert failures == []


def _read(broker: LocalBroker, topic: str, count: int) -> list[bytes]:
    consumer = Consumer({"bootstrap.servers": broker.bootstrap_servers, "group.id": uuid.uuid4().hex, "log_level": 0})
    try:
        consumer.assign([TopicPartition(topic, 0, 0)])
        values: list[bytes] = []
        while len(values) < count:
            batch = consumer.consume(count - len(values), 120.0)
            assert batch, f"{len(values)} of {count} records came"
            values.extend(message.value() or b"" for message in batch)
        low, high = consumer.get_watermark_offsets(TopicPartition(topic, 0))
        assert (low, high) == (0, count)
        return values
    finally:
        consumer.close()


def test_the_broker_gets_its_own_version_of_the_client_library_and_a_log_binding() -> None:
    names = [jar.name for jar in kafka_jars(lambda _: None)]
    assert [name for name in names if name.startswith("kafka-clients-")] == [f"kafka-clients-{KAFKA_VERSION}.jar"]
    assert len([name for name in names if name.startswith("slf4j-api-")]) == 1
    assert any(name.startswith("log4j-slf4j-impl-") for name in names)


def test_the_list_of_jars_is_what_kafkas_poms_ask_for() -> None:
    assert list(JAR_COORDINATES) == resolve_jars(KAFKA_VERSION), "python -m tests.support.jar_list redraws it"


def test_records_address_and_cluster_survive_a_restart_and_a_kill(broker: LocalBroker, tmp_path: Path) -> None:
    topic, address, cluster = _new_topic(broker), broker.bootstrap_servers, broker.cluster_id
    assert _admin(broker).list_topics(timeout=60).cluster_id == cluster
    values = [f"value {number}".encode() for number in range(1000)]
    _produce(broker, topic, values)

    broker.stop()
    assert broker.pid is None
    assert not broker_answers(address)
    broker.start()
    broker.wait_ready()
    assert _read(broker, topic, 1000) == values

    _produce(broker, topic, values)
    broker.kill()
    assert broker.pid is None
    broker.start()
    broker.wait_ready()
    assert _read(broker, topic, 2000) == values * 2
    assert (broker.bootstrap_servers, broker.cluster_id) == (address, cluster)
    assert _admin(broker).list_topics(timeout=60).cluster_id == cluster


def test_a_changelog_record_of_4_mib_is_taken(broker: LocalBroker) -> None:
    topic = _new_topic(broker, **{"cleanup.policy": "compact", "max.message.bytes": "5000000"})
    producer = Producer(
        {
            "bootstrap.servers": broker.bootstrap_servers,
            "partitioner": "murmur2_random",
            "message.max.bytes": 5_000_000,
            "log_level": 0,
        }
    )
    failures: list[object] = []
    value = b"x" * 4 * 1024 * 1024
    producer.produce(topic, value, key=b"k", on_delivery=lambda error, _: failures.append(error))
    assert producer.flush(120) == 0
    assert failures == [None]
    assert _read(broker, topic, 1) == [value]


def test_transactions_commit(broker: LocalBroker) -> None:
    topic = _new_topic(broker)
    producer = Producer(
        {
            "bootstrap.servers": broker.bootstrap_servers,
            "partitioner": "murmur2_random",
            "transactional.id": uuid.uuid4().hex,
            "log_level": 0,
        }
    )
    producer.init_transactions(120)
    producer.begin_transaction()
    producer.produce(topic, b"kept")
    producer.commit_transaction(120)
    consumer = Consumer({"bootstrap.servers": broker.bootstrap_servers, "group.id": uuid.uuid4().hex, "log_level": 0})
    try:
        consumer.assign([TopicPartition(topic, 0, 0)])
        message = consumer.poll(120.0)
        assert message is not None
        assert message.value() == b"kept"
    finally:
        consumer.close()


def test_topics_are_not_made_by_asking_for_them(broker: LocalBroker) -> None:
    missing = f"t-{uuid.uuid4().hex}"
    assert missing not in _admin(broker).list_topics(timeout=60).topics
    consumer = Consumer({"bootstrap.servers": broker.bootstrap_servers, "group.id": uuid.uuid4().hex, "log_level": 0})
    try:
        with pytest.raises(KafkaException):
            consumer.get_watermark_offsets(TopicPartition(missing, 0), timeout=5)
    finally:
        consumer.close()
    assert missing not in _admin(broker).list_topics(timeout=60).topics


_ROLE = """
import sys
from pathlib import Path
from sessionary.infra.local.kafka.cluster import run_broker
run_broker(Path(sys.argv[1]), int(sys.argv[2]), lambda line: print(line, flush=True))
"""


def test_the_foreground_role_becomes_the_broker(tmp_path: Path) -> None:
    """The process stays the same, so that a supervisor's signals reach the broker itself."""
    port, log, data = free_port(), tmp_path / "log", tmp_path / "übung 日本 back\\slash %20#=" / "data"
    role = Child([sys.executable, "-c", _ROLE, str(data), str(port)], log)
    try:
        deadline = time.monotonic() + 180
        while not broker_answers(f"{LOOPBACK}:{port}"):
            assert not role.wait(0.1), tail(log)
            assert time.monotonic() < deadline, tail(log)
        assert "java" in Path(f"/proc/{role.pid}/cmdline").read_text().split("\0")[0]
        assert log.read_text().startswith("resolving the broker's jars")
    finally:
        role.stop(180)
    assert role.exit_code == 143
    assert (data / "log" / "meta.properties").exists()
    assert {one.name for one in tmp_path.iterdir()} == {"log", data.parent.name}, "nothing lies beside the folder"


def test_a_second_start_is_refused(broker: LocalBroker) -> None:
    with pytest.raises(RuntimeError, match="runs already"):
        broker.start()


def test_a_taken_port_is_named(tmp_path: Path) -> None:
    with socket.socket() as other:
        other.bind((LOOPBACK, 0))
        other.listen()
        port = other.getsockname()[1]
        node = LocalBroker(tmp_path / "data", port, tmp_path / "log")
        with pytest.raises(PortTaken, match=str(port)):
            node.start()
    assert not broker_answers(f"{LOOPBACK}:{free_port()}")


def test_a_broker_that_cannot_serve_says_why(tmp_path: Path) -> None:
    node = LocalBroker(tmp_path / "data", None, tmp_path / "broker.log")
    node.start()
    node.kill()
    (tmp_path / "data" / "log" / "meta.properties").write_text("version=1\ncluster.id=another\nnode.id=7\n")
    node.start()
    try:
        with pytest.raises(StartFailed, match=r"(?s)ended with code 1.*node"):
            node.wait_ready()
    finally:
        node.kill()


def test_clients_behind_a_proxy_are_sent_back_to_it(processes: Processes, tmp_path: Path) -> None:
    direct, proxied, through = free_ports(3)
    with TcpProxy(through, proxied):
        argv = ["--data", str(tmp_path), "--port", str(direct), str(proxied), str(through)]
        processes.start("tests.support.proxied_broker", *argv)
        for port in (direct, through):
            servers = f"{LOOPBACK}:{port}"
            wait_until(lambda servers=servers: broker_answers(servers), 60, "the broker to answer")  # type: ignore[misc]
            brokers = AdminClient({"bootstrap.servers": servers}).list_topics(timeout=60).brokers.values()
            assert [broker.port for broker in brokers] == [port]
