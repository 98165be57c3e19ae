"""Delivery without a broker: a full queue, a wrong password, an old spool."""

import os
import socket
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import KafkaError

from sessionary.producers import (
    AuthenticationFailed,
    ClientClosed,
    ProducerSettings,
    QueueFull,
    Session,
    SessionClient,
    Unavailable,
)
from sessionary.producers.delivery.kafka_producer import Wire, named_error, producer_config
from sessionary.producers.delivery.spool import AGE_LIMIT_MS, Frame, Spool
from sessionary.producers.testing import memory_client
from sessionary.schemas.codec import encode_event
from tests.support.waiting import wait_until


@pytest.fixture
def nobody() -> Iterator[str]:
    """An address where nobody listens and nobody else can begin to."""
    with socket.socket() as reserved:
        reserved.bind(("127.0.0.1", 0))
        yield f"127.0.0.1:{reserved.getsockname()[1]}"


def settings(bootstrap_servers: str, spool_dir: Path, **more: Any) -> ProducerSettings:
    given = {"close_timeout_s": 0.1, "handle_sigterm": False, "spool_dir": spool_dir, **more}
    return ProducerSettings.from_env({}, bootstrap_servers=bootstrap_servers, **given)


def client(of: ProducerSettings, errors: list[Exception]) -> SessionClient:
    return SessionClient(tenant_id="acme", service_id="s", agent_id="a", settings=of, on_error=errors.append)


def fill(s: Session) -> None:
    """Send until the queue is full."""
    for _ in range(1_000):
        try:
            s.activity("x", "y" * 1_000)
        except QueueFull:
            return
    raise AssertionError("the queue never was full")


def test_the_producer_is_configured_as_promised(tmp_path: Path) -> None:
    config = producer_config(settings("127.0.0.1:1", tmp_path))
    expected = {
        "enable.idempotence": True,
        "acks": "all",
        "partitioner": "murmur2_random",
        "linger.ms": 5,
        "compression.type": "lz4",
        "message.timeout.ms": 0,
    }
    assert {name: config[name] for name in expected} == expected
    dropping = producer_config(settings("127.0.0.1:1", tmp_path, delivery_policy="drop"))
    assert dropping["message.timeout.ms"] == 120_000


@pytest.mark.parametrize("code", [KafkaError._AUTHENTICATION, KafkaError.SASL_AUTHENTICATION_FAILED])
def test_an_authentication_failure_is_named_and_never_shows_the_password(code: int, tmp_path: Path) -> None:
    of = settings("broker:9092", tmp_path, sasl_username="agent", sasl_password="s3cret")
    named = named_error(KafkaError(code), of)
    assert isinstance(named, AuthenticationFailed)
    assert "'agent'" in str(named)
    assert "s3cret" not in str(named)


def test_other_trouble_is_named_too(tmp_path: Path) -> None:
    of = settings("broker:9092", tmp_path)
    assert isinstance(named_error(KafkaError(KafkaError.TOPIC_AUTHORIZATION_FAILED), of), AuthenticationFailed)
    assert isinstance(named_error(KafkaError(KafkaError._ALL_BROKERS_DOWN), of), Unavailable)


def test_trouble_is_reported_once_until_it_is_over(nobody: str, tmp_path: Path) -> None:
    reported: list[Exception] = []
    wire = Wire(settings(nobody, tmp_path), reported.append, lambda: None)
    try:
        for _ in range(3):
            wire.trouble(KafkaError(KafkaError._AUTHENTICATION))
        assert [type(error) for error in reported].count(AuthenticationFailed) == 1
        assert wire.authentication is not None
        wire.well()
        assert wire.authentication is None
        wire.trouble(KafkaError(KafkaError._AUTHENTICATION))
        assert [type(error) for error in reported].count(AuthenticationFailed) == 2
    finally:
        wire.close()


def test_flush_raises_the_authentication_failure_at_once(nobody: str, tmp_path: Path) -> None:
    errors: list[Exception] = []
    of = settings(nobody, tmp_path)
    with client(of, errors) as made:
        made.session(user_id="u")
        made._ports.transport._wire.trouble(KafkaError(KafkaError._AUTHENTICATION))  # type: ignore[attr-defined]
        begun = time.monotonic()
        with pytest.raises(AuthenticationFailed):
            made.flush(60)
        assert time.monotonic() - begun < 30
    assert any(isinstance(error, AuthenticationFailed) for error in errors)


def test_block_waits_bounded_then_raises_and_takes_no_number(nobody: str, tmp_path: Path) -> None:
    of = settings(nobody, tmp_path, delivery_policy="block", block_timeout_s=0.2, queue_bytes_max=1 << 16)
    with client(of, []) as made:
        s = made.session(user_id="u")
        fill(s)
        before = made.counters.sent
        with pytest.raises(QueueFull):
            s.activity("x", "y" * 1_000)
        assert made.counters.sent == before == s._emitter.last_seq
        assert made.counters.dropped == 0


def test_drop_counts_and_takes_the_number(nobody: str, tmp_path: Path) -> None:
    of = settings(nobody, tmp_path, delivery_policy="drop", queue_bytes_max=1 << 16)
    with client(of, []) as made:
        s = made.session(user_id="u")
        for _ in range(300):
            s.activity("x", "y" * 1_000)
        counters = made.counters
        assert counters.sent == s._emitter.last_seq == 304
        assert 0 < counters.dropped < 304


def test_the_spool_takes_what_the_queue_does_not_and_drops_when_it_is_full_itself(nobody: str, tmp_path: Path) -> None:
    errors: list[Exception] = []
    of = settings(nobody, tmp_path, queue_bytes_max=1 << 16, spool_bytes_max=1 << 18)
    with client(of, errors) as made:
        s = made.session(user_id="u")
        for _ in range(400):
            s.activity("x", "y" * 1_000)
        counters = made.counters
        assert counters.sent == s._emitter.last_seq == 404
        assert counters.spooled > 0
        assert counters.dropped > 0
        assert [str(error) for error in errors].count(next(str(e) for e in errors if "dropped" in str(e))) == 1
    left = Spool(of.spool_folder, "later", 1 << 20)
    assert left.taken_over == counters.sent - counters.dropped
    left.close()


def test_heartbeats_are_never_spooled(nobody: str, tmp_path: Path) -> None:
    of = settings(nobody, tmp_path, queue_bytes_max=1 << 16)
    with client(of, []) as made:
        s = made.session(user_id="u")
        for _ in range(100):
            s.activity("x", "y" * 1_000)
        for _ in range(300):
            s.beat()
        counters = made.counters
        assert counters.heartbeats_dropped > 0
        assert counters.heartbeats + counters.heartbeats_dropped == 300
    left = Spool(of.spool_folder, "later", 1 << 20)
    assert left.taken_over == counters.sent
    left.close()


def test_what_is_too_old_is_kept_aside_and_reported(nobody: str, tmp_path: Path) -> None:
    of = settings(nobody, tmp_path)
    old = Spool(of.spool_folder, "old", 1 << 20)
    now_ms = time.time_ns() // 1_000_000
    old.append(Frame(now_ms - AGE_LIMIT_MS - 1_000, b"k", None, b"old"), None)
    old.close()
    errors: list[Exception] = []
    with client(of, errors) as made:
        wait_until(lambda: made.counters.expired == 1, 10, "the old event")
        assert made.flush(0) == 0
    assert sum("too old" in str(error) for error in errors) == 1
    assert [path.suffix for path in of.spool_folder.iterdir()] == [".expired"]


def test_emitting_costs_no_more_than_a_few_encodings(nobody: str, tmp_path: Path) -> None:
    """Some 7 of them go into envelope, headers, the spool's file and librdkafka's queue."""

    def cost_us(step: Callable[[], object]) -> float:
        """CPU time of this thread; the box's other users do not count."""
        begun = time.thread_time_ns()
        for _ in range(200):
            step()
        return (time.thread_time_ns() - begun) / 200 / 1_000

    own, memory = memory_client()
    own.session(user_id="u").activity("llm", "x" * 100)
    event = memory.events()[-1]
    own.close()
    with client(settings(nobody, tmp_path), []) as made:
        s = made.session(user_id="u")
        # In turn, so that what slows one down slows the other too.
        rounds = [
            (cost_us(lambda: s.activity("llm", "x" * 100)), cost_us(lambda: encode_event(event))) for _ in range(10)
        ]
        s.complete()
        assert made.counters.dropped == 0
    emit, encode = (min(costs) for costs in zip(*rounds, strict=True))
    assert emit < 20 * encode


def test_a_forked_child_sends_nothing_and_leaves_the_parent_s_spool_alone(nobody: str, tmp_path: Path) -> None:
    with client(settings(nobody, tmp_path), []) as made:
        s = made.session(user_id="u")
        child = os.fork()
        if child == 0:
            code = 1
            try:
                s.activity("x")
            except ClientClosed:
                made.close()
                code = 0
            finally:
                os._exit(code)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        s.activity("x")
    left = Spool(settings(nobody, tmp_path).spool_folder, "later", 1 << 20)
    assert left.taken_over == 5
    left.close()


def test_two_clusters_never_share_a_spool(tmp_path: Path) -> None:
    folders = {settings(servers, tmp_path).spool_folder for servers in ("a:1,b:2", "b:2, a:1", "c:3")}
    assert len(folders) == 2
