"""Which records of agents are fetched and delivered when, and how offsets go, without a broker."""

import asyncio
import logging
from types import SimpleNamespace
from typing import Any

import pytest
from faust.exceptions import Skip
from faust.transport.drivers import aiokafka as driver
from faust.types.tuples import TP

from sessionary.stream_processors.streams import stream_transport
from sessionary.stream_processors.streams.stream_transport import LocalStream, StreamConsumer, StreamTransactions

TOPIC = "invoices"


class FakeTransport:
    """A worker that has `open_partitions` open; takes assignments."""

    events_topic = "events"

    def __init__(self, *open_partitions: int) -> None:
        self.owners = self.delivery = self.transport = self
        self.open_partitions = set(open_partitions)
        self.heartbeat_s = 0.0
        self.taken: list[int] = []

    def is_open(self, partition: int) -> bool:
        return partition in self.open_partitions

    def take_assignment(self, partitions: list[int]) -> None:
        self.taken = sorted(partitions)

    def restart_delivery(self) -> None:
        """There is none."""


async def fetch(transport: FakeTransport, active: set[TP], monkeypatch: pytest.MonkeyPatch) -> list[set[TP]]:
    """Return what aiokafka was asked for."""
    asked: list[set[TP]] = []

    async def getmany(self: object, partitions: set[TP], timeout: float) -> dict[TP, list[Any]]:
        asked.append(partitions)
        return {}

    async def sleep(seconds: float) -> None:
        assert seconds > 0

    consumer: Any = object.__new__(StreamConsumer)
    consumer.transport, consumer.sleep = transport, sleep
    monkeypatch.setattr(driver.Consumer, "_getmany", getmany)
    assert await StreamConsumer._getmany(consumer, active, 1.0) == {}
    return asked


def test_records_are_asked_for_where_the_sessions_are_open(monkeypatch: pytest.MonkeyPatch) -> None:
    active = {TP("events", 1), TP("events", 2), TP(TOPIC, 1), TP(TOPIC, 2)}
    assert asyncio.run(fetch(FakeTransport(2, 3), active, monkeypatch)) == [{TP(TOPIC, 2)}]
    assert asyncio.run(fetch(FakeTransport(), active, monkeypatch)) == []


class FakeThread:
    """The thread of a consumer that has committed some offsets; notes what is sought."""

    def __init__(self, committed: dict[TP, int | None]) -> None:
        self._committed = committed
        self.sought: list[tuple[str, int]] = []

    async def seek_to_committed(self) -> dict[TP, int | None]:
        return self._committed

    def _ensure_consumer(self) -> "FakeThread":
        return self

    async def seek_to_beginning(self, *places: tuple[str, int]) -> None:
        self.sought.extend(places)

    async def call_thread(self, call: Any, *args: Any) -> None:
        await call(*args)


def test_a_topic_of_agents_without_a_commit_is_read_from_its_beginning_and_the_events_never() -> None:
    committed = {TP(TOPIC, 0): None, TP(TOPIC, 1): 7, TP(TOPIC, 2): 0, TP("events", 0): None}
    consumer: Any = object.__new__(StreamConsumer)
    consumer.transport, consumer._thread = FakeTransport(), FakeThread(committed)
    assert asyncio.run(StreamConsumer.seek_to_committed(consumer)) == committed
    assert consumer._thread.sought == [(TOPIC, 0), (TOPIC, 2)]


class FakeStream:
    """A stream whose current event is of partition 1."""

    def __init__(self, transport: FakeTransport, assigned: set[TP]) -> None:
        message = SimpleNamespace(tp=TP(TOPIC, 1), acked=False)
        self.current_event = SimpleNamespace(message=message)
        self.app = SimpleNamespace(transport=transport, consumer=SimpleNamespace(assignment=lambda: assigned))


async def until_open(stream: Any, transport: FakeTransport, change: Any) -> Any:
    waiting = asyncio.create_task(LocalStream._wait_until_open(stream, "value"))
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert not waiting.done()
    change()
    return await asyncio.wait_for(waiting, 30)


def test_a_record_that_was_fetched_waits_until_its_partition_is_open_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stream_transport, "_LOOK_S", 0.001)
    transport = FakeTransport()
    stream: Any = FakeStream(transport, {TP(TOPIC, 1)})
    assert asyncio.run(until_open(stream, transport, lambda: transport.open_partitions.add(1))) == "value"
    assert not stream.current_event.message.acked


def test_a_record_whose_partition_left_is_skipped_and_not_taken_for_handled(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stream_transport, "_LOOK_S", 0.001)
    transport, assigned = FakeTransport(), {TP(TOPIC, 1)}
    stream: Any = FakeStream(transport, assigned)
    with pytest.raises(Skip):
        asyncio.run(until_open(stream, transport, assigned.clear))
    assert stream.current_event.message.acked


def test_what_is_no_record_does_not_wait() -> None:
    stream: Any = SimpleNamespace(current_event=None)
    assert asyncio.run(LocalStream._wait_until_open(stream, "value")) == "value"


class FakeProducer:
    """Notes what is sent and flushed, in order with the commits."""

    def __init__(self) -> None:
        self.calls: list[object] = []

    async def send(self, *record: object) -> str:
        self.calls.append(record)
        return "acknowledgement"

    async def flush(self) -> None:
        self.calls.append("flush")

    async def commit_places(self, offsets: object) -> bool:
        self.calls.append(offsets)
        return False


def test_offsets_are_committed_after_what_was_sent_has_arrived() -> None:
    producer, app = FakeProducer(), SimpleNamespace(should_stop=False)
    transactions: Any = SimpleNamespace(producer=producer, consumer=producer, app=app)
    sent = StreamTransactions.send(transactions, "out", b"key", b"value", None, None, {}, transactional_id="any")
    assert asyncio.run(sent) == "acknowledgement"  # type: ignore[comparison-overlap]  # the double's
    assert asyncio.run(StreamTransactions.commit(transactions, {TP(TOPIC, 1): 7})) is False
    assert producer.calls == [("out", b"key", b"value", None, None, {}), "flush", {TP(TOPIC, 1): 7}]


def test_nothing_is_committed_once_faust_stops() -> None:
    """It takes the record that an agent is interrupted at for a handled one."""
    producer, app = FakeProducer(), SimpleNamespace(should_stop=True)
    transactions: Any = SimpleNamespace(producer=producer, consumer=producer, app=app)
    assert asyncio.run(StreamTransactions.commit(transactions, {TP(TOPIC, 1): 7})) is False
    assert producer.calls == []


def test_streams_away_from_their_sessions_are_named(caplog: pytest.LogCaptureFixture) -> None:
    transactions: Any = object.__new__(StreamTransactions)
    transport = transactions.transport = FakeTransport()
    together = {TP("events", 1), TP(TOPIC, 1)}
    asyncio.run(StreamTransactions.on_rebalance(transactions, together, set(), together))
    assert caplog.records == []
    asyncio.run(StreamTransactions.on_rebalance(transactions, {*together, TP(TOPIC, 2)}, set(), set()))
    [line] = [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]
    assert line.startswith("records of invoices[2] wait: the sessions of these partitions are on other workers")
    assert transport.taken == [1]
