"""Policies block and drop without a broker."""

import time
from collections.abc import Callable, Iterator
from pathlib import Path
from threading import Event, Thread
from typing import Any

import pytest
from confluent_kafka import KafkaError, KafkaException

from sessionary.producers import (
    AuthenticationFailed,
    QueueFull,
    Session,
    SessionClient,
)
from sessionary.producers.delivery import direct_transport
from sessionary.producers.delivery.direct_transport import DirectTransport
from sessionary.producers.delivery.kafka_producer import DeliveryCallback
from sessionary.producers.ports import OutRecord, Receipt
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
        made.core.ports.transport._kafka.report_error(KafkaError(KafkaError._AUTHENTICATION))  # type: ignore[attr-defined]
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
        assert made.counters.sent == before == s.core.emitter.last_seq
        assert made.counters.dropped == 0


def test_drop_counts_and_takes_the_number(closed_address: str, tmp_path: Path) -> None:
    of = new_settings(closed_address, tmp_path, delivery_policy="drop", queue_bytes_max=1 << 16)
    with new_client(of, []) as made:
        s = made.session(user_id="u")
        for _ in range(300):
            s.activity("x", "y" * 1_000)
        counters = made.counters
        assert counters.sent == s.core.emitter.last_seq == 304
        assert 0 < counters.dropped < 304


class FakeKafka:
    """Stands for `KafkaProducer`: keeps what each producer was given, and delivers when asked
    to.
    """

    def __init__(self, settings: object, on_error: object, on_poll: Callable[[], None], *more: object) -> None:
        self.on_poll = on_poll
        self.queued: list[list[tuple[OutRecord, DeliveryCallback | None]]] = [[]]
        self.fatal = self.full = False
        self.reported: list[KafkaError] = []
        self.authentication_error = None
        self.cluster_id: str | None = None

    def produce_record(self, record: OutRecord, on_delivery: DeliveryCallback | None) -> None:
        if self.fatal:
            raise KafkaException(KafkaError(KafkaError._FATAL, "the producer is lost", fatal=True))
        if self.full:
            raise BufferError
        self.queued[-1].append((record, on_delivery))

    def place_of(self, _key: bytes) -> int | None:
        return None

    def replace_producer(self) -> None:
        self.queued.append([])
        self.fatal = False

    def report_error(self, error: KafkaError) -> None:
        self.reported.append(error)

    def clear_errors(self) -> None:
        pass

    def close(self, timeout_s: float) -> None:
        pass

    def deliver(self, error: KafkaError | None = None, producer: int = -1) -> None:
        """Settle all that a producer has queued."""
        queued, self.queued[producer] = self.queued[producer], []
        for number, (_, on_delivery) in enumerate(queued):
            if on_delivery is not None:
                on_delivery(error, FakeMessage(number))  # type: ignore[arg-type]
        self.on_poll()

    def numbers(self) -> list[int]:
        return [record.producer_seq for record, _ in self.queued[-1]]


class FakeMessage:
    """Where a record was written."""

    def __init__(self, offset: int) -> None:
        self._offset = offset

    def partition(self) -> int:
        return 0

    def offset(self) -> int:
        return self._offset


@pytest.fixture(params=["block", "drop"])
def faked(
    request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> Iterator[tuple[SessionClient, FakeKafka]]:
    """A client over a fake producer."""
    monkeypatch.setattr(direct_transport, "KafkaProducer", FakeKafka)
    monkeypatch.setattr(direct_transport, "_REPLACE_PAUSE_S", 0.0)
    of = new_settings(
        "127.0.0.1:1", tmp_path, delivery_policy=request.param, block_timeout_s=0.1, queue_bytes_max=1 << 16
    )
    client = new_client(of, [])
    client.core.heartbeats.close(0.0)  # only those that a test sends
    yield client, client.core.ports.transport._kafka  # type: ignore[attr-defined]
    client.close()


def test_after_a_fatal_error_a_new_producer_sends_everything_open_again_in_order(
    faked: tuple[SessionClient, FakeKafka],
) -> None:
    client, kafka = faked
    s = client.session(user_id="u")
    kafka.deliver()
    for _ in range(3):
        s.activity("before")
    kafka.fatal = True
    for _ in range(3):
        s.activity("after")
    assert kafka.numbers() == [5, 6, 7]
    kafka.on_poll()
    assert kafka.numbers() == [5, 6, 7, 8, 9, 10]
    s.activity("later")
    kafka.deliver(producer=0)  # reports of the producer that is lost change nothing
    assert client.counters.delivered == 4
    kafka.deliver()
    counters = client.counters
    assert (counters.sent, counters.delivered, counters.failed, counters.dropped) == (11, 11, 0, 0)
    assert [error.code() for error in kafka.reported] == [KafkaError._FATAL]


def test_events_that_a_lost_producer_gave_up_are_sent_again_and_too_old_ones_fail(
    faked: tuple[SessionClient, FakeKafka],
) -> None:
    client, kafka = faked
    s = client.session(user_id="u")
    kafka.deliver(KafkaError(KafkaError.OUT_OF_ORDER_SEQUENCE_NUMBER))
    assert kafka.numbers() == [1, 2, 3, 4]
    kafka.deliver(KafkaError(KafkaError._MSG_TIMED_OUT))
    assert client.counters.failed == 4
    s.activity("x")
    transport = client.core.ports.transport
    assert isinstance(transport, DirectTransport)
    transport._settings = transport._settings.model_copy(update={"delivery_timeout_s": -1.0})
    kafka.deliver(KafkaError(KafkaError._FATAL))
    assert (client.counters.failed, client.counters.sent) == (5, 5)
    assert kafka.numbers() == []


def test_while_no_producer_is_usable_events_wait_up_to_the_size_of_the_queue(
    faked: tuple[SessionClient, FakeKafka],
) -> None:
    client, kafka = faked
    s = client.session(user_id="u")
    kafka.fatal = True
    refused = 0
    for _ in range(80):
        try:
            s.activity("x", "y" * 1_000)
        except QueueFull:
            refused += 1
            break
    counters = client.counters
    assert counters.dropped > 10 if not client.may_block else refused == 1
    kafka.full = True
    kafka.on_poll()
    assert kafka.numbers() == []
    kafka.full = False
    kafka.on_poll()
    assert kafka.numbers() == list(range(1, counters.sent - counters.dropped + 1))
    assert client.counters.failed == 0


def test_a_heartbeat_finds_out_that_the_producer_is_lost(faked: tuple[SessionClient, FakeKafka]) -> None:
    client, kafka = faked
    s = client.session(user_id="u")
    kafka.deliver()
    kafka.fatal = True
    s.core.beats.send_heartbeat()
    assert client.counters.heartbeats_dropped == 1
    kafka.on_poll()
    s.core.beats.send_heartbeat()
    assert (len(kafka.queued), client.counters.heartbeats) == (2, 1)


def test_events_that_wait_for_a_producer_when_the_client_closes_are_counted_as_failed(
    faked: tuple[SessionClient, FakeKafka],
) -> None:
    client, kafka = faked
    client.session(user_id="u")
    kafka.fatal = True
    client.session(user_id="u")
    client.close()
    assert client.counters.failed == client.counters.sent == 8


def test_events_that_are_acknowledged_while_the_producer_is_given_up_are_counted_once(
    faked: tuple[SessionClient, FakeKafka], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A sender finds the producer lost after the check of a report's producer."""
    client, kafka = faked
    client.session(user_id="u")
    transport = client.core.ports.transport
    assert isinstance(transport, DirectTransport)
    settle_events = transport._settle_events

    def settle_late(settled: list[tuple[direct_transport._OpenEvent, Receipt]]) -> None:
        transport._give_producer_up(transport._generation, KafkaError(KafkaError._FATAL))
        settle_events(settled)

    monkeypatch.setattr(transport, "_settle_events", settle_late)
    kafka.deliver()
    monkeypatch.undo()
    kafka.on_poll()
    kafka.deliver()
    assert (client.counters.delivered, client.counters.sent) == (4, 4)
    assert client.flush(0) == 0


def test_open_events_may_be_settled_while_the_producer_is_given_up(
    faked: tuple[SessionClient, FakeKafka], monkeypatch: pytest.MonkeyPatch
) -> None:
    client, kafka = faked
    client.session(user_id="u")
    transport = client.core.ports.transport
    assert isinstance(transport, DirectTransport)
    let_wait, report_receipt = transport._let_wait, transport._report_receipt
    failures: list[BaseException] = []
    goes_on = Event()

    def give_up() -> None:
        try:
            transport._give_producer_up(transport._generation, KafkaError(KafkaError._FATAL))
        except RuntimeError as error:
            failures.append(error)

    giving_up = Thread(target=give_up)

    def let_wait_slowly(event: direct_transport._OpenEvent) -> None:
        if not goes_on.is_set():
            goes_on.set()
            poll.join(0.2)  # it settles the others now, or waits for us
        let_wait(event)

    def report_first(*receipt: Any) -> None:
        if not giving_up.ident:
            giving_up.start()
            goes_on.wait(0.2)
        report_receipt(*receipt)

    monkeypatch.setattr(transport, "_let_wait", let_wait_slowly)
    monkeypatch.setattr(transport, "_report_receipt", report_first)
    poll = Thread(target=kafka.deliver)
    poll.start()
    poll.join()
    giving_up.join()
    monkeypatch.undo()
    assert failures == []
    kafka.on_poll()
    kafka.deliver()
    assert (client.counters.delivered, client.counters.sent) == (4, 4)


def test_a_new_producer_that_is_lost_at_once_is_replaced_and_reported(
    faked: tuple[SessionClient, FakeKafka], monkeypatch: pytest.MonkeyPatch
) -> None:
    client, kafka = faked
    client.session(user_id="u")
    kafka.deliver(KafkaError(KafkaError._FATAL))
    given = kafka.queued[-1][:2]  # it has taken two of the four
    transport = client.core.ports.transport
    assert isinstance(transport, DirectTransport)
    transport._give_producer_up(transport._generation, KafkaError(KafkaError._FATAL))
    produced: list[OutRecord] = []

    def take_two(record: OutRecord, on_delivery: DeliveryCallback | None) -> None:
        if len(produced) == 2:
            raise KafkaException(KafkaError(KafkaError._FATAL, "the producer is lost", fatal=True))
        produced.append(record)
        FakeKafka.produce_record(kafka, record, on_delivery)

    monkeypatch.setattr(kafka, "produce_record", take_two)
    kafka.on_poll()
    monkeypatch.undo()
    assert len(given) == len(kafka.queued[-1]) == 2
    kafka.on_poll()
    assert kafka.numbers() == [1, 2, 3, 4]
    assert len(kafka.reported) == 3
    kafka.deliver()
    assert client.counters.delivered == 4


def test_a_client_that_was_closed_queues_nothing(faked: tuple[SessionClient, FakeKafka]) -> None:
    client, kafka = faked
    kafka.fatal = True
    client.session(user_id="u")
    kafka.fatal = False
    queued = len(kafka.queued)
    client.close()
    assert (len(kafka.queued), kafka.numbers()) == (queued, [])


def test_heartbeats_do_not_put_off_a_new_producer(
    faked: tuple[SessionClient, FakeKafka], monkeypatch: pytest.MonkeyPatch
) -> None:
    client, kafka = faked
    s = client.session(user_id="u")
    transport = client.core.ports.transport
    assert isinstance(transport, DirectTransport)
    kafka.fatal = True
    s.core.beats.send_heartbeat()
    replace_at_s = transport._replace_at_s
    assert replace_at_s is not None
    monkeypatch.setattr(direct_transport, "_REPLACE_PAUSE_S", 60.0)
    s.core.beats.send_heartbeat()
    assert transport._replace_at_s == replace_at_s
    assert len(kafka.reported) == 1


def test_an_event_that_a_new_producer_refuses_fails_alone(
    faked: tuple[SessionClient, FakeKafka], monkeypatch: pytest.MonkeyPatch
) -> None:
    client, kafka = faked
    kafka.fatal = True
    client.session(user_id="u")

    def refuse_second(record: OutRecord, on_delivery: DeliveryCallback | None) -> None:
        if record.producer_seq == 2:
            raise KafkaException(KafkaError(KafkaError.MSG_SIZE_TOO_LARGE))
        FakeKafka.produce_record(kafka, record, on_delivery)

    monkeypatch.setattr(kafka, "produce_record", refuse_second)
    kafka.on_poll()
    assert kafka.numbers() == [1, 3, 4]
    assert client.counters.failed == 1
