"""Policies block and drop without a broker."""

import time
from pathlib import Path

import pytest
from confluent_kafka import KafkaError

from sessionary.producers import (
    AuthenticationFailed,
    QueueFull,
    Session,
)
from tests.core.producers.kafka_clients import new_client, new_settings


def fill(s: Session) -> None:
    """Send until the queue is full."""
    for _ in range(1_000):
        try:
            s.activity("x", "y" * 1_000)
        except QueueFull:
            return
    raise AssertionError("the queue never was full")


def test_flush_raises_the_authentication_failure_at_once(closed_address: str, tmp_path: Path) -> None:
    errors: list[Exception] = []
    of = new_settings(closed_address, tmp_path)
    with new_client(of, errors) as made:
        made.session(user_id="u")
        made._ports.transport._kafka.report_error(KafkaError(KafkaError._AUTHENTICATION))  # type: ignore[attr-defined]
        begun = time.monotonic()
        with pytest.raises(AuthenticationFailed):
            made.flush(60)
        assert time.monotonic() - begun < 30
    assert any(isinstance(error, AuthenticationFailed) for error in errors)


def test_block_waits_bounded_then_raises_and_takes_no_number(closed_address: str, tmp_path: Path) -> None:
    of = new_settings(closed_address, tmp_path, delivery_policy="block", block_timeout_s=0.2, queue_bytes_max=1 << 16)
    with new_client(of, []) as made:
        s = made.session(user_id="u")
        fill(s)
        before = made.counters.sent
        with pytest.raises(QueueFull):
            s.activity("x", "y" * 1_000)
        assert made.counters.sent == before == s._emitter.last_seq
        assert made.counters.dropped == 0


def test_drop_counts_and_takes_the_number(closed_address: str, tmp_path: Path) -> None:
    of = new_settings(closed_address, tmp_path, delivery_policy="drop", queue_bytes_max=1 << 16)
    with new_client(of, []) as made:
        s = made.session(user_id="u")
        for _ in range(300):
            s.activity("x", "y" * 1_000)
        counters = made.counters
        assert counters.sent == s._emitter.last_seq == 304
        assert 0 < counters.dropped < 304
