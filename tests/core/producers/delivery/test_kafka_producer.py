"""The Kafka producer: its configuration, and the meaning of its errors."""

import gc
import json
import threading
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import KafkaError, KafkaException

from sessionary.producers import (
    AuthenticationFailed,
    Unavailable,
)
from sessionary.producers.delivery import kafka_producer
from sessionary.producers.delivery.kafka_producer import KafkaProducer, StallWatch, named_error, producer_config
from sessionary.producers.ports import OutRecord
from tests.core.producers.kafka_clients import new_settings
from tests.support.waiting import wait_until


def test_the_producer_is_configured_as_promised(tmp_path: Path) -> None:
    config = producer_config(new_settings("127.0.0.1:1", tmp_path))
    expected = {
        "enable.idempotence": True,
        "acks": "all",
        "partitioner": "murmur2_random",
        "linger.ms": 2,  # the sender of the spool lingers too
        "compression.type": "lz4",
        "message.timeout.ms": 0,
    }
    assert {name: config[name] for name in expected} == expected
    dropping = producer_config(new_settings("127.0.0.1:1", tmp_path, delivery_policy="drop"))
    assert (dropping["message.timeout.ms"], dropping["linger.ms"]) == (120_000, 5)


@pytest.mark.parametrize("code", [KafkaError._AUTHENTICATION, KafkaError.SASL_AUTHENTICATION_FAILED])
def test_an_authentication_failure_is_named_and_never_shows_the_password(code: int, tmp_path: Path) -> None:
    of = new_settings("broker:9092", tmp_path, sasl_username="agent", sasl_password="s3cret")
    named = named_error(KafkaError(code), of)
    assert isinstance(named, AuthenticationFailed)
    assert "'agent'" in str(named)
    assert "s3cret" not in str(named)


def test_other_trouble_is_named_too(tmp_path: Path) -> None:
    of = new_settings("broker:9092", tmp_path)
    assert isinstance(named_error(KafkaError(KafkaError.TOPIC_AUTHORIZATION_FAILED), of), AuthenticationFailed)
    assert isinstance(named_error(KafkaError(KafkaError._ALL_BROKERS_DOWN), of), Unavailable)


def test_trouble_is_reported_once_until_it_is_over(closed_address: str, tmp_path: Path) -> None:
    reported: list[Exception] = []
    counted: list[str] = []
    settings = new_settings(closed_address, tmp_path)
    producer = KafkaProducer(settings, reported.append, lambda: None, counted.append, lambda statistics: None)
    try:
        for _ in range(3):
            producer.report_error(KafkaError(KafkaError._AUTHENTICATION))
        assert [type(error) for error in reported].count(AuthenticationFailed) == 1
        assert counted.count("authentication") == 3
        assert producer.authentication_error is not None
        producer.clear_errors()
        assert producer.authentication_error is None
        producer.report_error(KafkaError(KafkaError._AUTHENTICATION))
        assert [type(error) for error in reported].count(AuthenticationFailed) == 2
    finally:
        producer.close(5.0)


class FakeProducer:
    """A producer of librdkafka that notes the thread in which it is freed."""

    freed_in: "list[str]"

    def __init__(self, freed_in: "list[str]") -> None:
        self.freed_in = freed_in

    def poll(self, timeout_s: float) -> int:
        threading.Event().wait(timeout_s / 10)
        return 0

    def __len__(self) -> int:
        return 0

    def purge(self, *_: object, **__: object) -> None:
        return None

    def __del__(self) -> None:
        self.freed_in.append(threading.current_thread().name)


def test_a_closed_producer_is_freed_by_its_own_thread_and_takes_no_record(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """To free one waits for librdkafka's threads, which may wait for the address of a name."""
    freed_in: list[str] = []
    monkeypatch.setattr(kafka_producer, "open_producer", lambda _: FakeProducer(freed_in))
    settings = new_settings("127.0.0.1:1", tmp_path)
    producer = KafkaProducer(settings, lambda _: None, lambda: None, lambda _: None, lambda _: None)
    producer.close(60.0)
    assert freed_in == ["sessionary-delivery"]
    producer.replace_producer()
    record: Any = OutRecord
    with pytest.raises(KafkaException, match="the client is closed"):
        producer.produce_record(record, None)
    del producer
    gc.collect()
    assert freed_in == ["sessionary-delivery"]


class RefusedProducer(FakeProducer):
    """A producer that the brokers let write nothing."""

    def poll(self, timeout_s: float) -> int:
        super().poll(timeout_s)
        raise KafkaException(KafkaError(KafkaError.CLUSTER_AUTHORIZATION_FAILED, fatal=True))


def test_a_refusal_that_a_poll_raises_is_told_once_as_a_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The principal of a client that only replays may have no right to write."""
    monkeypatch.setattr(kafka_producer, "open_producer", lambda _: RefusedProducer([]))
    reported: list[Exception] = []
    counted: list[str] = []
    settings = new_settings("127.0.0.1:1", tmp_path)
    producer = KafkaProducer(settings, reported.append, lambda: None, counted.append, lambda _: None)
    try:
        wait_until(lambda: len(counted) >= 2, 10, "two polls that raise")
    finally:
        producer.close(60.0)
    assert [type(error) for error in reported] == [AuthenticationFailed]
    assert "may not write to sessionary.events" in f"{reported[0]}"


def statistics(**partitions: tuple[int, int]) -> str:
    """Statistics of topic `events`, by partition: acknowledged so far, waiting."""
    found = {
        name.lstrip("p"): {"acked_msgid": acknowledged, "msgq_cnt": 0, "xmit_msgq_cnt": waiting, "msgs_inflight": 0}
        for name, (acknowledged, waiting) in partitions.items()
    }
    return json.dumps({"topics": {"events": {"partitions": found}, "other": {"partitions": {}}}})


def test_a_partition_that_acknowledges_nothing_is_found_although_others_go_on() -> None:
    watch = StallWatch("events")
    for second in range(0, 15, 3):
        assert watch.find_stall(statistics(p0=(second, 1), p1=(7, 2)), second) == 0
    assert watch.find_stall(statistics(p0=(15, 1), p1=(7, 2)), 15) == 15


def test_progress_and_silence_are_no_stall() -> None:
    watch = StallWatch("events")
    for second in range(0, 300, 3):
        assert watch.find_stall(statistics(p0=(second // 9, 5), p1=(7, 0)), second) == 0
    assert watch.find_stall("{}", 300) == 0


def test_records_whose_partition_is_not_known_yet_count() -> None:
    watch = StallWatch("events")
    found = {"-1": {"acked_msgid": 0, "msgq_cnt": 3, "xmit_msgq_cnt": 0, "msgs_inflight": 0}}
    text = json.dumps({"topics": {"events": {"partitions": found}}})
    assert [watch.find_stall(text, second) for second in (0, 14, 15)] == [0, 0, 15]


def test_the_next_stall_takes_twice_as_long_until_all_is_well_again() -> None:
    watch, now_s, stalls = StallWatch("events"), 0, list[float]()
    while len(stalls) < 7:
        now_s += 1
        if stalled_s := watch.find_stall(statistics(p0=(now_s, 1), p1=(7, 2)), now_s):
            stalls.append(stalled_s)
    assert stalls == [15, 30, 60, 120, 240, 240, 240]
    for acknowledged in (7, 8, 9):
        watch.find_stall(statistics(p0=(now_s, 1), p1=(acknowledged, 2)), now_s)
    assert watch.find_stall(statistics(p1=(9, 2)), now_s + 14) == 0
    assert watch.find_stall(statistics(p1=(9, 2)), now_s + 15) == 15
