"""One suite for both outsides of a client: in memory, and a real broker with a fake control API."""

import secrets
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

import pytest
from confluent_kafka import Producer

from sessionary.producers import ProducerSettings, Rejected, SessionClient, SessionLost
from sessionary.producers.ports import OutRecord, Receipt
from sessionary.producers.testing import InMemoryTransport, memory_client
from sessionary.schemas.codec import Decoder, Event, encode_event, encode_record
from sessionary.schemas.events import Heartbeat, ResourcesReleased, SessionActivity
from sessionary.schemas.ids import SessionKey, partition_of
from sessionary.schemas.records import CleanupRequest
from sessionary.schemas.types import RejectionReason
from tests.support.fake_control import ControlRequest, ControlResponse, control_server
from tests.support.reading import read_topic
from tests.support.waiting import wait_until

ACTIONS = ["close_connection", "release_resources", "clear_context"]


class Outside(NamedTuple):
    """A client and what a test may do to its outside."""

    client: SessionClient
    events: Callable[[], list[tuple[int, int, Event]]]  # (partition, offset, event) of all but heartbeats
    reject_next: Callable[[RejectionReason], None]
    request_cleanup: Callable[[CleanupRequest], None]


def memory_outside() -> Iterator[Outside]:
    client, memory = memory_client(service_id="billing")

    def events() -> list[tuple[int, int, Event]]:
        offsets: dict[int, int] = {}
        found = []
        for record, event in zip(memory.records(), memory.events(), strict=True):
            partition = partition_of(record.key, 4)
            offsets[partition] = offsets.get(partition, -1) + 1
            found.append((partition, offsets[partition], event))
        return found

    def request_cleanup(request: CleanupRequest) -> None:
        memory.request_cleanup(request)

    with client:
        yield Outside(client, events, memory.reject_next, request_cleanup)


class TopicControl:
    """Answers as a control API from the events topic: an in-memory transport, fed from Kafka."""

    def __init__(self, settings: ProducerSettings) -> None:
        self._settings = settings
        self.memory = InMemoryTransport(settings.partitions)
        self._fed: dict[int, int] = {}
        self._feeding = threading.Lock()

    def answer(self, asked: ControlRequest) -> ControlResponse:
        with self._feeding:
            for partition, offset, event in kafka_events(self._settings):
                if offset >= self._fed.get(partition, 0):
                    self._fed[partition] = offset + 1
                    self.memory.send(as_record(event))
        place = [int(number) for number in asked.query.get("after", "").split(":") if number.isdigit()]
        after = (place[0], place[1]) if place else None
        try:
            view = self.memory.fetch_session(asked.session_id, after, 0)
        except SessionLost as lost:
            return ControlResponse(404, {"detail": str(lost)})
        verdict = view.verdict and {
            "outcome": "applied" if view.verdict.applied else "rejected",
            "reason": view.verdict.reason,
        }
        snapshot = {"snapshot_id": view.snapshot_id, "state_json": view.snapshot_state_json}
        return ControlResponse(200, {**view._asdict(), "limits": {}, "snapshot": snapshot, "verdict": verdict})


def as_record(event: Event) -> OutRecord:
    envelope = event.envelope
    key = SessionKey(envelope.tenant_id, envelope.session_id)
    who = (envelope.event_id, envelope.event_type, *key, envelope.producer_id, envelope.producer_seq)
    return OutRecord(key.encoded(), encode_event(event), [], *who)


def kafka_events(settings: ProducerSettings) -> list[tuple[int, int, Event]]:
    decoder = Decoder()
    found = []
    for stored in read_topic(settings, settings.topics.events):
        event = decoder.decode_event(stored.value)
        assert isinstance(event, Event)
        found.append((stored.partition, stored.offset, event))
    return found


def kafka_outside(request: pytest.FixtureRequest, tmp_path: Path, policy: str) -> Iterator[Outside]:
    kafka = request.getfixturevalue("kafka")
    shared = {**kafka.model_dump(), "spool_dir": tmp_path, "delivery_policy": policy, "handle_sigterm": False}
    shared |= {"verdict_timeout_s": 120, "close_timeout_s": 120}
    shared["heartbeat_interval_s"] = 0.1  # so that beats are among the events, as on a slow machine
    shared["poll_interval_s"] = 0  # nothing is asked once the topics are gone
    control = TopicControl(ProducerSettings(**shared))

    def request_cleanup(asked: CleanupRequest) -> None:
        producer = Producer(kafka.client_config())
        producer.produce(kafka.topics.cleanup, encode_record(asked), f"{asked.tenant_id}:{asked.session_id}")
        assert producer.flush(120) == 0

    with control_server(control.answer) as url:
        settings = ProducerSettings(**shared, control_url=url)
        client = SessionClient(tenant_id="acme", service_id="billing", agent_id="a", settings=settings)
        with client:

            def events() -> list[tuple[int, int, Event]]:
                assert client.flush(120) == 0
                return [found for found in kafka_events(settings) if not isinstance(found[2].payload, Heartbeat)]

            yield Outside(client, events, control.memory.reject_next, request_cleanup)


@pytest.fixture(params=["memory", "spool", "block", "drop"])
def outside(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Outside]:
    if request.param == "memory":
        yield from memory_outside()
    else:
        yield from kafka_outside(request, tmp_path, request.param)


def events_of(outside: Outside, session_id: str) -> list[Event]:
    return [event for _, _, event in outside.events() if event.envelope.session_id == session_id]


def test_each_session_s_events_are_in_order_on_its_own_partition(outside: Outside) -> None:
    sessions = [outside.client.session(user_id="u", state={}) for _ in range(5)]
    for n in range(20):
        for session in sessions:
            session.activity("a", str(n))
    for session in sessions:
        session.complete()
    events = outside.events()
    for session in sessions:
        mine = [found for found in events if found[2].envelope.session_id == session.session_id]
        expected = partition_of(SessionKey("acme", session.session_id).encoded(), 4)
        assert {partition for partition, _, _ in mine} == {expected}
        assert [event.envelope.producer_seq for _, _, event in mine] == list(range(1, 26))


def test_counters_account_for_every_event(outside: Outside) -> None:
    with outside.client.session(user_id="u") as s:
        for _ in range(10):
            s.info("x")
    assert outside.client.flush(120) == 0
    counters = outside.client.counters
    assert (counters.sent, counters.delivered, counters.dropped, counters.failed) == (15, 15, 0, 0)


def test_a_value_of_almost_1_mib_is_delivered(outside: Outside) -> None:
    text = secrets.token_hex(520_000)  # hardly compresses
    with outside.client.session(user_id="u") as s:
        s.activity("big", text)
    sent = [event.payload for event in events_of(outside, s.session_id)]
    assert SessionActivity("big", text) in sent


def test_threads_share_a_session_without_a_gap(outside: Outside) -> None:
    with outside.client.session(user_id="u") as s, ThreadPoolExecutor(4) as threads:
        for done in [threads.submit(s.activity, "a", str(n)) for n in range(400)]:
            done.result()
    assert [event.envelope.producer_seq for event in events_of(outside, s.session_id)] == list(range(1, 406))


def test_a_receipt_names_the_position_in_the_log(outside: Outside) -> None:
    receipts: list[Receipt] = []
    s = outside.client.session(user_id="u")
    event_id = s.core.emitter.emit(SessionActivity("a"), on_receipt=receipts.append)
    wait_until(lambda: receipts, 30, "the receipt")
    place = receipts[0].log_position(event_id)
    found = {event.envelope.event_id: (partition, offset) for partition, offset, event in outside.events()}
    assert found[event_id] == place


def test_resume_and_recover_wait_for_the_verdict_and_hand_back_the_content(outside: Outside) -> None:
    with outside.client.session(user_id="u", state={"n": 1}) as s:
        s.update_state({"n": 2})
        s.pause("rest")
        assert s.resume() == {"n": 2}
        assert (s.epoch, s.version, s.local_state) == (2, 2, "Active")
        s.error(TimeoutError("slow"))
        assert s.recover() == {"n": 2}
        assert s.epoch == 3
    assert [event.envelope.epoch for event in events_of(outside, s.session_id)][-1] == 3


def test_a_rejection_is_raised(outside: Outside) -> None:
    s = outside.client.session(user_id="u")
    s.pause()
    outside.reject_next("max_duration_exceeded")
    with pytest.raises(Rejected, match="max_duration_exceeded"):
        s.resume()
    assert s.local_state == "Paused"


def test_attach_finds_what_is_there_only(outside: Outside) -> None:
    s = outside.client.session(user_id="u", state={"n": 1})
    s.pause()
    assert outside.client.flush(120) == 0
    assert outside.client.attach(s.session_id).state == {"n": 1}
    with pytest.raises(SessionLost):
        outside.client.attach("0b0e7f0a-0000-4000-8000-000000000000")


def test_a_clean_up_is_done_once_and_answered(outside: Outside) -> None:
    calls: list[str] = []

    def handler(request: CleanupRequest) -> None:
        calls.append(request.cleanup_id)

    outside.client.on_cleanup(handler)
    s = outside.client.session(user_id="u")
    s.close()

    for cleanup_id in ("c1", "c1", "c2"):
        now = time.time_ns() // 1000
        outside.request_cleanup(
            CleanupRequest(cleanup_id, "acme", s.session_id, "billing", 1, "closed", "closed", ACTIONS, now)
        )

    def released() -> list[ResourcesReleased]:
        return [e.payload for e in events_of(outside, s.session_id) if isinstance(e.payload, ResourcesReleased)]

    wait_until(lambda: len(released()) == 2, 60, "two answers")
    assert calls == ["c1", "c2"]
    assert [answer.cleanup_id for answer in released()] == ["c1", "c2"]
    assert [[a.action for a in answer.actions if a.done] for answer in released()] == [ACTIONS, ACTIONS]
    numbers = [event.envelope.producer_seq for event in events_of(outside, s.session_id)]
    assert numbers == list(range(1, len(numbers) + 1))
