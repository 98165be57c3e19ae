"""New events of policy spool, which the sender queues soon after they are in the file."""

import gc
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any, cast

import pytest

from sessionary.producers import Session, SessionClient
from sessionary.producers.delivery import direct_transport
from sessionary.producers.delivery.kafka_producer import DeliveryCallback
from sessionary.producers.delivery.spool import transport as spool_transport
from sessionary.producers.delivery.spool.spool import Spool
from sessionary.producers.ports import OutRecord
from tests.core.producers.delivery.test_direct_transport import FakeKafka
from tests.core.producers.kafka_clients import new_client, new_settings
from tests.support.module_time import set_module_time
from tests.support.waiting import wait_until


class WatchedKafka(FakeKafka):
    """Keeps the threads that queue records."""

    def __init__(self, *given: Any) -> None:
        super().__init__(*given)
        self.threads: list[str] = []

    def produce_record(self, record: OutRecord, on_delivery: DeliveryCallback | None) -> None:
        super().produce_record(record, on_delivery)
        self.threads.append(threading.current_thread().name)


class Scene:
    """A client on a folder, its session and its producer."""

    def __init__(self, client: SessionClient) -> None:
        self.client = client
        client.core.heartbeats.close(0.0)  # only those that a test sends
        self.transport = cast("spool_transport.SpoolTransport", client.core.ports.transport)
        self.kafka = cast("WatchedKafka", self.transport._kafka)
        self.session: Session = client.session(user_id="u")
        self.wait_queued(4)

    def wait_queued(self, count: int) -> None:
        wait_until(lambda: len(self.kafka.queued[-1]) >= count, 60, f"{count} records in the queue")


@pytest.fixture
def open_scene(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[], Scene]]:
    monkeypatch.setattr(direct_transport, "KafkaProducer", WatchedKafka)
    opened: list[SessionClient] = []

    def open_one() -> Scene:
        opened.append(new_client(new_settings("127.0.0.1:1", tmp_path), []))
        return Scene(opened[-1])

    yield open_one
    for client in opened:
        client.close()


@contextmanager
def sender_away(scene: Scene) -> Iterator[None]:
    """Let the sender look for nothing meanwhile."""
    go_on, away = threading.Event(), threading.Event()

    def wait_long(_seconds: float) -> None:
        away.set()
        assert go_on.wait(60)

    sender = pytest.MonkeyPatch()
    set_module_time(sender, "sessionary.producers.delivery.spool.transport", sleep=wait_long)
    scene.session.activity("wakes the sender")
    assert away.wait(60)
    with scene.transport._lock:
        scene.transport._queue_new_events()
    try:
        yield
    finally:
        sender.undo()
        go_on.set()


def test_who_emits_queues_nothing_in_librdkafka(open_scene: Callable[[], Scene]) -> None:
    scene = open_scene()
    for _ in range(100):
        scene.session.activity("llm")
    scene.wait_queued(104)
    assert set(scene.kafka.threads) == {"sessionary-spool"}
    assert scene.kafka.numbers() == list(range(1, 105))
    assert scene.client.counters.spooled == 0


def test_a_call_at_a_low_rate_runs_little_code(
    open_scene: Callable[[], Scene], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Code that was not used for milliseconds is cold: each function costs a call about 2 µs."""
    monkeypatch.delitem(sys.modules, "opentelemetry.trace", raising=False)  # other tests load it
    scene, calls = open_scene(), list[list[str]]()

    def note_call(frame: FrameType, what: str, _argument: object) -> None:
        if what == "call":
            calls[-1].append(frame.f_code.co_name)

    for _ in range(5):
        scene.session.activity("tool", "x" * 300)
    former = sys.getprofile()
    gc.disable()  # a collection would run the finalizers of what other tests left, in this thread
    try:
        for _ in range(5):  # now and then one wakes the sender, begins a file, or reads the ends of the next ids
            calls.append([])
            sys.setprofile(note_call)
            scene.session.activity("tool", "x" * 300)
            sys.setprofile(former)
    finally:
        sys.setprofile(former)
        gc.enable()
    usual = sorted(calls, key=len)[2]
    assert usual[0] == "activity"
    assert len(usual) <= 18, " ".join(usual)


def test_a_heartbeat_never_overtakes_an_event(open_scene: Callable[[], Scene]) -> None:
    scene = open_scene()
    with sender_away(scene):
        queued = len(scene.kafka.queued[-1])
        for _ in range(3):
            scene.session.activity("llm")
        assert len(scene.kafka.queued[-1]) == queued
        scene.session.core.beats.send_heartbeat()
        types = [record.event_type for record, _ in scene.kafka.queued[-1]][queued:]
    assert types == ["session_activity"] * 3 + ["heartbeat"]


def test_so_many_new_events_that_they_fill_memory_are_queued_at_once(
    open_scene: Callable[[], Scene], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(spool_transport, "_NEW_EVENTS_MAX", 10)
    scene = open_scene()
    with sender_away(scene):
        queued = len(scene.kafka.queued[-1])
        for _ in range(25):
            scene.session.activity("llm")
        assert len(scene.kafka.queued[-1]) == queued + 20
    scene.wait_queued(queued + 25)
    assert scene.kafka.numbers() == list(range(1, queued + 26))


def test_new_events_for_which_there_is_no_room_follow_in_order_from_the_file(open_scene: Callable[[], Scene]) -> None:
    scene = open_scene()
    scene.kafka.full = True
    for _ in range(10):
        scene.session.activity("llm")
    wait_until(lambda: scene.client.counters.spooled >= 10, 60, "events that are left to the file")
    assert scene.client.counters.spooled == 10
    scene.kafka.full = False
    scene.session.activity("llm")
    scene.wait_queued(15)
    assert scene.kafka.numbers() == list(range(1, 16))


def test_new_events_before_one_that_waits_for_a_dead_process_are_queued_and_none_is_left_out(
    open_scene: Callable[[], Scene],
) -> None:
    scene = open_scene()
    held = scene.client.session(user_id="held")
    scene.wait_queued(8)
    with sender_away(scene):
        before = len(scene.kafka.queued[-1])
        scene.session.activity("llm")
        scene.transport._spool._held_keys[held.core.emitter.key_bytes] += 1  # as if a dead process had left one
        held.activity("held")
        scene.session.activity("behind it")
        assert len(scene.kafka.queued[-1]) == before + 1
    scene.transport._spool._held_keys.clear()
    scene.wait_queued(before + 3)
    assert [record.session_id for record, _ in scene.kafka.queued[-1]][before:] == [
        scene.session.session_id,
        held.session_id,
        scene.session.session_id,
    ]


def test_what_the_sender_had_not_queued_is_in_the_file_of_a_killed_process(
    open_scene: Callable[[], Scene], tmp_path: Path
) -> None:
    scene = open_scene()
    with sender_away(scene):
        for _ in range(7):
            scene.session.activity("llm")
        sent = scene.client.counters.sent
        files = [path.read_bytes() for path in tmp_path.rglob("*.seg")]
    other = tmp_path / "copied"
    other.mkdir()
    (other / "dead.00000001.seg").write_bytes(max(files, key=lambda data: data.count(b"session_activity")))
    heir = Spool(other, "heir", 1 << 30)
    assert heir.taken_over == sent
    heir.close()
