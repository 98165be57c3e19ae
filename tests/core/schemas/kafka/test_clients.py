"""Librdkafka clients that are purged and replaced."""

import gc
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from pathlib import Path
from types import SimpleNamespace

import pytest
from confluent_kafka import KafkaError, KafkaException, Message, Producer, Uuid

from sessionary.schemas.kafka.clients import (
    AdminConnection,
    ask_topic_id,
    describe_unreadable_batch,
    discard_producer,
    flush_producer,
    is_unreadable_batch,
    purge_producer,
)
from sessionary.schemas.settings import KafkaSettings
from tests.support.mock_cluster import mock_cluster
from tests.support.waiting import wait_until

# No broker: whatever is produced stays in the queue.
_END_TXN = 26  # Kafka's API key
CONFIG = {"bootstrap.servers": "127.0.0.1:1", "log_level": 0}


def produce_two(producer: Producer) -> list[int]:
    """Queue two records; return the list that their error codes go to."""
    codes: list[int] = []

    def on_delivery(error: KafkaError | None, _: Message) -> None:
        codes.append(0 if error is None else error.code())

    for _ in range(2):
        producer.produce("t", b"x", partition=0, on_delivery=on_delivery)
    return codes


def test_a_purge_reports_each_record_and_leaves_the_producer_usable() -> None:
    producer = Producer(CONFIG)
    for _ in range(2):
        codes = produce_two(producer)
        purge_producer(producer)
        # Errors of the connection count as waiting too, and may come at any time.
        assert flush_producer(producer, 60.0) == 0
        assert codes == [KafkaError._PURGE_QUEUE] * 2


def test_a_discarded_producer_reports_its_records_and_is_freed_in_the_background(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    producer = Producer(CONFIG)
    codes = produce_two(producer)
    started: list[threading.Thread] = []
    start = threading.Thread.start

    def note_start(thread: threading.Thread) -> None:
        started.append(thread)
        start(thread)

    monkeypatch.setattr(threading.Thread, "start", note_start)
    discard_producer(producer)
    assert codes == [KafkaError._PURGE_QUEUE] * 2
    discarding = [thread for thread in started if thread.name == "sessionary-discard"]
    assert len(discarding) == 1
    assert discarding[0].daemon
    wait_until(lambda: not discarding[0].is_alive(), 60, "the end of the thread")


@pytest.mark.parametrize("end", [purge_producer, discard_producer])
def test_a_producer_with_a_fatal_error_can_be_purged_and_discarded(end: Callable[[Producer], None]) -> None:
    """The first poll after it raises the error once more, also if a call has raised it already."""
    with mock_cluster() as cluster:
        cluster.create_topic("t", [1])
        producer = Producer({**CONFIG, "bootstrap.servers": cluster.bootstrap_servers, "transactional.id": "t"})
        producer.init_transactions(30)
        producer.begin_transaction()
        producer.produce("t", b"x")
        cluster.refuse_request(_END_TXN, KafkaError.INVALID_TXN_STATE)
        with pytest.raises(KafkaException) as raised:
            producer.commit_transaction(30)
        assert raised.value.args[0].fatal()
        end(producer)
        with pytest.raises(KafkaException):
            producer.produce("t", b"y")


@pytest.fixture
def no_collection() -> Iterator[None]:
    """Let only that go to which no one refers, as in a process that allocates little."""
    gc.collect()
    gc.disable()
    yield
    gc.enable()


def count_threads() -> int:
    return len(list(Path("/proc/self/task").iterdir()))


@pytest.mark.usefixtures("no_collection")
def test_clients_that_got_no_answer_leave_no_thread_behind() -> None:
    before = count_threads()
    connection = AdminConnection(KafkaSettings(bootstrap_servers="127.0.0.1:1"))
    for _ in range(3):
        with pytest.raises(KafkaException):
            ask_topic_id(connection, "t", 0.2)
    wait_until(lambda: count_threads() <= before, 60, "the end of their threads")


@pytest.mark.parametrize(
    ("bits", "topic_id"), [((-1, -5), "____________________-w"), ((1, 2), "AAAAAAAAAAEAAAAAAAAAAg"), ((0, 0), None)]
)
def test_an_id_of_a_topic_is_written_as_by_kafkas_tools(
    bits: tuple[int, int], topic_id: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    answer: Future[object] = Future()
    answer.set_result(SimpleNamespace(topic_id=Uuid(*bits)))
    client = SimpleNamespace(describe_topics=lambda *_args, **_named: {"t": answer})
    monkeypatch.setattr(AdminConnection, "open_client", lambda _: client)
    assert ask_topic_id(AdminConnection(KafkaSettings()), "t", 1.0) == topic_id


def report(code: int | None, offset: int = 5) -> Message:
    error = None if code is None else KafkaError(code, "Decompression (codec 0x4) failed")
    return Message(topic="events", partition=2, offset=offset, error=error)


@pytest.mark.parametrize("code", [KafkaError._BAD_COMPRESSION, KafkaError._BAD_MSG, KafkaError._NOT_IMPLEMENTED])
def test_an_error_of_a_batch_names_its_offset(code: int) -> None:
    assert is_unreadable_batch(report(code))
    assert is_unreadable_batch(report(code, 0))
    assert not is_unreadable_batch(report(code, -1001)), "an error of the connection has no offset"


@pytest.mark.parametrize(
    "code", [None, KafkaError._PARTITION_EOF, KafkaError._TRANSPORT, KafkaError._AUTO_OFFSET_RESET]
)
def test_other_messages_report_none(code: int | None) -> None:
    assert not is_unreadable_batch(report(code))


def test_the_description_has_the_place_and_the_cause() -> None:
    text = describe_unreadable_batch(report(KafkaError._BAD_COMPRESSION))
    for part in ("offset 5 of events", "Decompression (codec 0x4) failed", "100 MB"):
        assert part in text
