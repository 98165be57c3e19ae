"""Policy spool without a broker: a full queue, an old spool, the cost of a call, a fork."""

import os
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import cast

import pytest

from sessionary.producers import ClientClosed
from sessionary.producers.delivery import direct_transport
from sessionary.producers.delivery.spool import segment
from sessionary.producers.delivery.spool import spool as spool_module
from sessionary.producers.delivery.spool import transport as spool_transport
from sessionary.producers.delivery.spool.orphans import summarize_folder
from sessionary.producers.delivery.spool.segment import Frame
from sessionary.producers.delivery.spool.spool import AGE_LIMIT_MS, Spool
from sessionary.producers.delivery.spool.transport import SpoolTransport
from sessionary.producers.errors import Invalid, SpoolDamaged, Unavailable
from sessionary.producers.ports import Receipt
from sessionary.producers.testing import memory_client
from sessionary.schemas.codec import encode_event
from sessionary.schemas.codec.compiled_helpers import find_in_modules, module_name
from sessionary.schemas.events import SessionActivity
from sessionary.schemas.ids import SessionKey, new_session_id
from tests.core.producers.delivery.test_direct_transport import FakeKafka
from tests.core.producers.kafka_clients import new_client, new_settings
from tests.support.event_factory import EventFactory
from tests.support.module_time import set_module_time
from tests.support.waiting import wait_until

_YEAR_10000_US = 253_402_300_800_000_000


def test_the_spool_takes_what_the_queue_does_not_and_drops_when_it_is_full_itself(
    closed_address: str, tmp_path: Path
) -> None:
    errors: list[Exception] = []
    of = new_settings(closed_address, tmp_path, queue_bytes_max=1 << 16, spool_bytes_max=1 << 18)
    with new_client(of, errors) as made:
        s = made.session(user_id="u")
        for _ in range(400):
            s.activity("x", "y" * 1_000)
        wait_until(lambda: made.counters.spooled > 0, 60, "the sender to find the queue full")
        counters = made.counters
        assert counters.sent == s.core.emitter.last_seq == 404
        assert counters.dropped > 0
        assert [str(error) for error in errors].count(next(str(e) for e in errors if "dropped" in str(e))) == 1
    left = Spool(of.spool_folder, "later", 1 << 20)
    assert left.taken_over == counters.sent - counters.dropped
    left.close()


def test_heartbeats_are_never_spooled(closed_address: str, tmp_path: Path) -> None:
    of = new_settings(closed_address, tmp_path, queue_bytes_max=1 << 16)
    with new_client(of, []) as made:
        made.core.heartbeats.close(0.0)  # only those that the test sends
        s = made.session(user_id="u")
        for _ in range(100):
            s.activity("x", "y" * 1_000)
        for _ in range(300):
            s.core.beats.send_heartbeat()
        counters = made.counters
        assert counters.heartbeats_dropped > 0
        assert counters.heartbeats + counters.heartbeats_dropped == 300
    left = Spool(of.spool_folder, "later", 1 << 20)
    assert left.taken_over == counters.sent
    left.close()


@pytest.fixture
def _no_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let events that seem too old be given up at once, as after a day."""
    monkeypatch.setattr(spool_module, "OLD_WAIT_S", 0.0)


@pytest.mark.usefixtures("_no_wait")
def test_what_is_too_old_is_kept_aside_and_reported(closed_address: str, tmp_path: Path) -> None:
    of = new_settings(closed_address, tmp_path)
    old = Spool(of.spool_folder, "old", 1 << 20)
    now_ms = time.time_ns() // 1_000_000
    old.append_frame(Frame(now_ms - AGE_LIMIT_MS - 1_000, b"k", None, b"old"), None)
    old.close()
    errors: list[Exception] = []
    with new_client(of, errors) as made:
        # It is reported a moment after it was counted.
        wait_until(lambda: any("too old" in str(error) for error in errors), 60, "the old event")
        assert (made.counters.expired, made.flush(0)) == (1, 0)
    assert sum("too old" in str(error) for error in errors) == 1
    assert [path.suffix for path in of.spool_folder.iterdir()] == [".expired"]


@pytest.mark.usefixtures("_no_wait")
def test_an_event_of_a_time_that_no_header_holds_is_kept_aside_and_holds_up_none(
    closed_address: str, tmp_path: Path
) -> None:
    own, memory = memory_client()
    own.session(user_id="u").activity("llm", "x")
    event = memory.events()[-1]
    own.close()
    far = encode_event(event._replace(envelope=event.envelope._replace(occurred_at=_YEAR_10000_US)))
    of = new_settings(closed_address, tmp_path)
    dead = Spool(of.spool_folder, "dead", 1 << 20)
    now_ms = time.time_ns() // 1_000_000
    dead.append_frame(Frame(now_ms, b"k", None, far), None)
    dead.append_frame(Frame(now_ms - AGE_LIMIT_MS - 1_000, b"k", None, b"old"), None)
    dead.close()
    errors: list[Exception] = []
    with new_client(of, errors) as made:
        wait_until(lambda: any("too old" in str(error) for error in errors), 60, "the event behind it")
        assert (made.counters.expired, made.counters.failed, made.counters.delivered) == (1, 1, 0)
        assert made.flush(0) == 0
    assert [type(error) for error in errors if "no header can hold" in str(error)] == [Invalid]
    (kept,) = of.spool_folder.iterdir()
    assert kept.suffix == ".expired"
    assert far in kept.read_bytes()


def test_an_event_that_is_given_up_has_a_receipt(
    closed_address: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(spool_module, "AGE_LIMIT_MS", -1)
    receipts: list[Receipt] = []
    with new_client(new_settings(closed_address, tmp_path, queue_bytes_max=1 << 16), []) as made:
        s = made.session(user_id="u")
        for _ in range(100):
            s.core.emitter.emit(SessionActivity("x", "y" * 1_000), on_receipt=receipts.append)
        wait_until(lambda: len(receipts) == made.counters.spooled > 0, 60, "the waiting events")
        assert len(receipts) == made.counters.expired
        assert all("too old" in str(receipt.error) for receipt in receipts)


def test_emitting_costs_no_more_than_a_few_encodings(closed_address: str, tmp_path: Path) -> None:
    """Some 7 of them go into envelope, headers, the spool's file and librdkafka's queue.

    They are encodings in Python, in a native build too.
    """

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
    header = encode_event(event)[:10]
    write = find_in_modules(module_name("SessionActivity", header[2:]), "write")
    assert write(header, event) == encode_event(event)
    with new_client(new_settings(closed_address, tmp_path), []) as made:
        s = made.session(user_id="u")
        # In turn, so that what slows one down slows the other too.
        rounds = [
            (cost_us(lambda: s.activity("llm", "x" * 100)), cost_us(lambda: write(header, event))) for _ in range(10)
        ]
        s.complete()
        assert made.counters.dropped == 0
    emit, encode = (min(costs) for costs in zip(*rounds, strict=True))
    assert emit < 20 * encode


def test_a_forked_child_sends_nothing_and_leaves_the_parent_s_spool_alone(closed_address: str, tmp_path: Path) -> None:
    with new_client(new_settings(closed_address, tmp_path), []) as made:
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
    left = Spool(new_settings(closed_address, tmp_path).spool_folder, "later", 1 << 20)
    assert left.taken_over == 5
    left.close()


def test_dead_processes_spools_cost_a_new_client_no_event(closed_address: str, tmp_path: Path) -> None:
    of = new_settings(closed_address, tmp_path, spool_bytes_max=1 << 18)
    dead = [Spool(of.spool_folder, name, of.spool_bytes_max) for name in ("a", "b", "c")]
    for one in dead:
        for _ in range(180):
            one.append_frame(Frame(time.time_ns() // 1_000_000, b"k", None, b"x" * 1_200), None)
    for one in dead:
        one.abandon()
    errors: list[Exception] = []
    with new_client(of, errors) as made:
        s = made.session(user_id="u")
        for _ in range(100):
            s.activity("x", "y" * 1_000)
        assert made.counters.dropped == 0
        assert made.counters.replayed >= 180


def test_who_goes_on_waits_for_what_a_dead_process_left_of_the_session(closed_address: str, tmp_path: Path) -> None:
    of = new_settings(closed_address, tmp_path, verdict_timeout_s=0.1, control_url=f"http://{closed_address}")
    key = SessionKey("acme", new_session_id())
    dead = Spool(of.spool_folder, "dead", 1 << 20)
    value = EventFactory("s").event_bytes("session_started")
    dead.append_frame(Frame(time.time_ns() // 1_000_000, key.encoded(), None, value), None)
    dead.abandon()
    with new_client(of, []) as made:
        with pytest.raises(Unavailable, match="that a dead process left are not delivered yet"):
            made.attach(key.session_id)
        with pytest.raises(Unavailable, match="control API"):
            made.attach(new_session_id())


def test_what_is_damaged_is_counted_and_reported(closed_address: str, tmp_path: Path) -> None:
    of = new_settings(closed_address, tmp_path)
    dead = Spool(of.spool_folder, "dead", 1 << 20)
    now_ms = time.time_ns() // 1_000_000
    places = [dead.append_frame(Frame(now_ms, b"k", None, b"x" * 100), None) for _ in range(3)]
    places[1].segment.map[places[1].offset + 50] ^= 1
    dead.abandon()
    errors: list[Exception] = []
    with new_client(of, errors) as made:
        assert (made.counters.replayed, made.counters.damaged) == (2, 1)
        assert made.counters.errors["damaged_segment"] == 1
    (damaged,) = [error for error in errors if isinstance(error, SpoolDamaged)]
    assert damaged.lost == 1
    assert damaged.path.name == "dead.00000001.seg"


def test_an_event_that_is_damaged_before_it_was_sent_has_a_receipt(
    closed_address: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    receipts: list[Receipt] = []
    errors: list[Exception] = []
    is_damaged = threading.Event()
    of = new_settings(closed_address, tmp_path, queue_bytes_max=1 << 16)
    with new_client(of, errors) as made:
        transport = made.core.ports.transport
        assert isinstance(transport, spool_transport.SpoolTransport)
        kafka = transport._kafka
        replace_producer = kafka.replace_producer

        def replace_late() -> None:
            assert is_damaged.wait(60)
            replace_producer()

        monkeypatch.setattr(kafka, "replace_producer", replace_late)
        s = made.session(user_id="u")
        with transport._lock:
            transport._broken = True  # nothing is sent until a new producer is there
        s.core.emitter.emit(SessionActivity("x", "y" * 1_000), on_receipt=receipts.append)
        with transport._lock:
            tail = transport._spool._tail
            tail.map[tail.size - 100] ^= 1
            transport._spool.rewind_cursor()
            transport._work.notify()
        is_damaged.set()
        wait_until(lambda: len(receipts) == 1, 60, "the receipt")
        assert "damaged" in str(receipts[0].error)
        assert (made.counters.failed, made.counters.damaged) == (1, 1)


@pytest.mark.usefixtures("_no_wait")
def test_the_next_dead_processes_follow_when_the_first_are_done(
    closed_address: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Their events are too old, so that they are done without a broker."""
    monkeypatch.setattr(spool_module, "AGE_LIMIT_MS", -1)
    of = new_settings(closed_address, tmp_path, spool_bytes_max=1 << 16)
    dead = [Spool(of.spool_folder, name, of.spool_bytes_max) for name in ("a", "b", "c")]
    for one in dead:
        for _ in range(50):
            one.append_frame(Frame(1, b"k", None, b"x" * 1_000), None)
    for one in dead:
        one.abandon()
    with new_client(of, []) as made:
        wait_until(lambda: made.counters.expired == 150, 60, "all of them")
        assert made.counters.replayed == 150
    assert {path.suffix for path in of.spool_folder.iterdir()} <= {".expired"}


def test_while_the_disk_is_full_events_are_kept_in_memory_then_dropped(
    closed_address: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    receipts: list[Receipt] = []
    errors: list[Exception] = []
    of = new_settings(closed_address, tmp_path, queue_bytes_max=1 << 17, spool_bytes_max=1 << 18)
    with new_client(of, errors) as made:
        s = made.session(user_id="u")
        before = made.counters.sent

        def find_disk_full(fd: int, length: int) -> None:
            raise OSError(28, "No space left on device")

        monkeypatch.setattr(segment, "allocate_blocks", find_disk_full)
        for _ in range(220):
            s.core.emitter.emit(SessionActivity("x", "y" * 1_000), on_receipt=receipts.append)
        counters = made.counters
        assert counters.dropped > 0
        assert counters.errors["not_on_disk"] > 80
        assert counters.sent == before + 220
        reported = [str(error) for error in errors]
        assert sum("kept in memory" in text for text in reported) == 1
        assert sum("events are dropped" in text for text in reported) == 1
    counters = made.counters
    assert counters.failed == counters.errors["not_on_disk"]
    assert len(receipts) == counters.dropped + counters.failed
    assert sum("in memory only" in str(receipt.error) for receipt in receipts) == counters.failed
    (told,) = [str(error) for error in errors if isinstance(error, ClientClosed)]
    kept = counters.sent - counters.dropped - counters.failed
    assert told == (
        f"{kept + counters.failed} events were not acknowledged before the client closed: {kept} are in the spool, and "
        f"the next client of the folder sends them, {counters.failed} are lost. 0 were acknowledged, "
        f"{counters.dropped} were dropped or given up before"
    )
    assert sum(one.events for one in summarize_folder(of.spool_folder)) == kept
    left = Spool(of.spool_folder, "later", 1 << 20)
    assert left.taken_over == kept
    left.close()


def test_an_event_that_is_known_to_be_acknowledged_is_not_in_the_spool(
    closed_address: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A process that is killed right after `flush` leaves nothing."""
    monkeypatch.setattr(direct_transport, "KafkaProducer", FakeKafka)
    of = new_settings(closed_address, tmp_path)
    with new_client(of, []) as made:
        kafka = cast(FakeKafka, cast(SpoolTransport, made.core.ports.transport)._kafka)
        seen: list[int] = []
        session = made.session(user_id="u")
        emit = session.core.emitter.emit
        emit(
            SessionActivity("x", "y"),
            on_receipt=lambda _: seen.extend(one.events for one in summarize_folder(of.spool_folder)),
        )
        sent = made.counters.sent
        wait_until(lambda: len(kafka.queued[-1]) == sent, 60, "all events to be queued")
        kafka.deliver()
        assert (seen, made.flush(0)) == ([0], 0)


def test_what_is_acknowledged_while_the_client_closes_is_not_said_to_be_in_the_spool(
    closed_address: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    errors: list[Exception] = []
    monkeypatch.setattr(direct_transport, "KafkaProducer", FakeKafka)
    of = new_settings(closed_address, tmp_path)
    with new_client(of, errors) as made:
        transport = cast(SpoolTransport, made.core.ports.transport)
        kafka = cast(FakeKafka, transport._kafka)
        made.session(user_id="u").activity("x")
        sent = made.counters.sent
        wait_until(lambda: len(kafka.queued[-1]) == sent, 60, "all events to be queued")
        stop = transport._stop_threads

        def deliver_then_stop(deadline: float) -> None:
            kafka.deliver()
            stop(deadline)

        monkeypatch.setattr(transport, "_stop_threads", deliver_then_stop)
    assert made.counters.delivered == sent
    assert [error for error in errors if isinstance(error, ClientClosed)] == []
    assert sum(one.events for one in summarize_folder(of.spool_folder)) == 0


def test_events_go_to_disk_again_when_it_has_room(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    own = Spool(tmp_path / "spool", "own", 1 << 16, memory_bytes_max=1 << 16)
    now_s = 100.0
    set_module_time(monkeypatch, "sessionary.producers.delivery.spool.spool", monotonic=lambda: now_s)
    first = own.append_frame(Frame(1, b"k", None, b"x" * 8_000), None)

    def find_disk_full(fd: int, length: int) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as full:
        full.setattr(segment, "allocate_blocks", find_disk_full)
        second = own.append_frame(Frame(2, b"k", None, b"y" * 8_000), None)
    assert own.disk_error is not None
    read = own.read_frames(9)
    assert [one.value[:1] for _, one in read if one is not None] == [b"x"]
    own.mark_sent(first)
    assert [one.value[:1] for _, one in own.read_frames(9) if one is not None] == [b"y"]
    own.mark_sent(second)
    own.mark_done(first)
    own.mark_done(second)
    now_s += 60
    third = own.append_frame(Frame(3, b"k", None, b"z"), None)
    assert own.disk_error is None
    assert third.segment.path.exists()
    assert own.outstanding == 1
    assert own.close() == []


def test_an_acknowledgement_wakes_the_sender_only_if_events_wait(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(direct_transport, "KafkaProducer", FakeKafka)
    with new_client(new_settings("127.0.0.1:1", tmp_path), []) as made:
        made.session(user_id="u")
        transport = made.core.ports.transport
        assert isinstance(transport, spool_transport.SpoolTransport)
        woken: list[int] = []
        notify = transport._work.notify

        def note_and_wake() -> None:
            woken.append(1)
            notify()

        monkeypatch.setattr(transport._work, "notify", note_and_wake)
        kafka = cast("FakeKafka", transport._kafka)
        wait_until(lambda: len(kafka.queued[-1]) == 4, 60, "four events in the queue")
        woken.clear()
        kafka.deliver()
        assert (made.counters.delivered, made.counters.sent) == (4, 4)
        assert woken == []
