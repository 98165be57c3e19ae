"""Sequence numbers."""

import contextlib
import gc
import io
import os
import sys
import uuid
from collections.abc import Callable
from pathlib import Path

import pytest
from fastavro import schemaless_writer
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from sessionary.producers import ProducerSettings, SessionClient
from sessionary.producers.delivery import emitter as emitter_module
from sessionary.producers.delivery.emitter import Emitter, ProducerSequence, SenderIdentity, SendGate, SequenceRegistry
from sessionary.producers.delivery.record_ids import EventIds, EventTemplate, encoded_time
from sessionary.producers.errors import Invalid
from sessionary.producers.ports import OnReceipt, OutRecord, Receipt
from sessionary.producers.testing import InMemoryTransport, memory_client, memory_ports
from sessionary.schemas.codec import Decoder, Event, encode_event
from sessionary.schemas.events import EVENT_TYPES, Heartbeat, Payload, SessionActivity, UsageRecorded
from sessionary.schemas.headers import event_headers
from sessionary.schemas.ids import SessionKey
from sessionary.schemas.records import CleanupRequest
from sessionary.schemas.types import Envelope
from sessionary.stream_processors.core.sequencing import IDS_KEPT
from tests.support.values import values

NOW_US = 1_700_000_000_000_000


def test_every_event_of_a_session_takes_the_next_number_and_heartbeats_none() -> None:
    client, memory = memory_client()
    with client:
        first, second = (client.session(user_id="u") for _ in range(2))
        for _ in range(5):
            first.activity("a")
            second.info("b")
        for session in (first, second):
            session.core.beats.send_heartbeat()
            session.close()
        for session in (first, second):
            events = memory.events(session.session_id)
            assert [event.envelope.producer_seq for event in events] == list(range(1, len(events) + 1))
        assert {event.envelope.producer_id for event in memory.events()} == {client.producer_id}
        assert [event.envelope.producer_seq for event in memory.heartbeats()] == [0, 0]


def test_a_heartbeat_from_a_template_says_what_the_session_says_now() -> None:
    client, memory = memory_client()
    with client:
        session = client.session(user_id="u", data_classes=("personal",))

        def check_beats() -> None:
            first, *others = [beat_now() for _ in range(3)]
            for envelope, payload, headers in others:
                assert envelope.event_id != first[0].event_id
                assert envelope.occurred_at >= first[0].occurred_at
                assert envelope == first[0]._replace(event_id=envelope.event_id, occurred_at=envelope.occurred_at)
                assert payload == first[1]
                assert headers == event_headers(envelope)

        def beat_now() -> tuple[Envelope, Payload, list[tuple[str, bytes]]]:
            sent: list[OutRecord] = []
            session.core.emitter._transport = Recorder(sent.append)  # type: ignore[assignment]
            session.core.emitter.emit_heartbeat()
            session.core.emitter._transport = memory
            (record,) = sent
            event = Decoder().decode_event(record.value)
            assert isinstance(event, Event)
            assert (record.event_id, record.producer_seq) == (event.envelope.event_id, 0)
            assert event.payload == Heartbeat(session.core.emitter.last_seq)
            assert event.envelope.epoch == session.epoch
            assert event.envelope.context_bytes == session.context_bytes
            assert event.envelope.producer_id == session.core.emitter.producer_id
            return event.envelope, event.payload, record.headers

        check_beats()
        session.activity("x")
        check_beats()
        session.context_bytes = 77
        check_beats()
        session.pause()
        session.resume()
        check_beats()
        session.core.emitter.renew_producer()
        check_beats()


@pytest.mark.parametrize("cls", list(EVENT_TYPES), ids=lambda cls: cls.__name__)
@settings(max_examples=3, deadline=None, suppress_health_check=list(HealthCheck))
@given(data=st.data())
def test_an_event_from_a_template_has_the_bytes_and_headers_of_any_other(
    cls: type[Payload], data: st.DataObject
) -> None:
    memory = InMemoryTransport()
    sent: list[OutRecord] = []
    memory.send = lambda record, on_receipt=None: sent.append(record)  # type: ignore[method-assign]
    sequence = ProducerSequence(str(uuid.uuid4()))
    key, identity = SessionKey("acme", str(uuid.uuid4())), SenderIdentity("s", "a", "role")
    emitter = Emitter(memory, SendGate(), identity, key, sequence, user_id="u", data_classes=("personal",))
    emitter.context_bytes = data.draw(st.none() | st.integers(0, 1 << 40))
    sequence.last = data.draw(st.integers(0, 1 << 50))
    for payload in data.draw(st.lists(values(cls), min_size=5, max_size=6)):
        with contextlib.suppress(Invalid):
            emitter.emit(payload)
            record = sent[-1]
            event = Decoder().decode_event(record.value)
            assert isinstance(event, Event)
            assert event.payload == payload
            assert (event.envelope.producer_seq, event.envelope.event_id) == (sequence.last, record.event_id)
            assert (record.producer_seq, record.event_type) == (sequence.last, event.envelope.event_type)
            assert (record.key, record.tenant_id, record.session_id) == (key.encoded(), *key)
            assert (record.producer_id, record.traceparent) == (sequence.producer_id, None)
            assert record.value == encode_event(event)
            assert record.headers == event_headers(event.envelope)


def test_no_template_is_made_for_events_that_each_say_something_else(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[str] = []

    class Template(EventTemplate):
        __slots__ = ()

        def __init__(self, key: bytes, envelope: Envelope, payload: Payload) -> None:
            made.append(envelope.event_type)
            super().__init__(key, envelope, payload)

    monkeypatch.setattr(emitter_module, "EventTemplate", Template)
    client, _ = memory_client()
    with client:
        session = client.session(user_id="u")
        for number in range(20):
            session.context_bytes = number
            session.activity("llm")
        assert made == []
        for _ in range(20):
            session.activity("llm")
        assert made == ["session_activity"]


def test_times_are_encoded_as_avro_does() -> None:
    edges = [number for bits in (0, 6, 13, 20, 27, 50, 62) for number in range((1 << bits) - 1, (1 << bits) + 2)]
    now = 1_790_000_000_000_000
    for number in [*edges, now, 5, now + 1, now + (1 << 20), now, *reversed(edges)]:
        out = io.BytesIO()
        schemaless_writer(out, {"type": "long"}, number)
        assert encoded_time(number) == out.getvalue()


class Recorder:
    """A transport that keeps heartbeats."""

    def __init__(self, keep: Callable[[OutRecord], None]) -> None:
        self.send_heartbeat = keep


def test_event_ids_are_random_uuids_also_in_a_forked_child(tmp_path: Path) -> None:
    ids = EventIds()
    own = [ids.new_id(NOW_US) for _ in range(1_000)]
    assert all(str(uuid.UUID(one)) == one and uuid.UUID(one).version == 4 for one in own)
    assert {uuid.UUID(one).variant for one in own} == {uuid.RFC_4122}
    reported = tmp_path / "reported"
    child = os.fork()
    if child == 0:
        reported.write_text("\n".join(ids.new_id(NOW_US) for _ in range(1_000)))
        os._exit(0)
    os.waitpid(child, 0)
    everything = [*own, *reported.read_text().split(), *(ids.new_id(NOW_US) for _ in range(1_000))]
    assert len(set(everything)) == 3_000


def test_two_copies_of_a_process_have_different_ids_at_different_moments() -> None:
    ids, copied = EventIds(), EventIds()
    ids.new_id(NOW_US)
    copied._unused = list(ids._unused)  # as in a virtual machine that is copied while it runs
    pairs = [(ids.new_id(NOW_US), copied.new_id(NOW_US + 1)) for _ in range(len(ids._unused))]
    assert len(pairs) > IDS_KEPT
    assert [own for own, other in pairs if own == other] == []
    assert all(
        uuid.UUID(one).version == 4 and uuid.UUID(one).variant == uuid.RFC_4122 for pair in pairs for one in pair
    )


def test_a_forgotten_sequence_goes_on_as_a_new_producer() -> None:
    sequences = SequenceRegistry("first", limit=2)
    keys = [SessionKey("t", str(n)) for n in range(3)]
    known = [sequences.sequence_for(key, new=True) for key in keys]
    assert {sequence.producer_id for sequence in known} == {"first"}
    assert sequences.sequence_for(keys[2]) is known[2]
    again = sequences.sequence_for(keys[0])
    assert again.producer_id != "first"
    assert again.last == 0


@pytest.mark.parametrize("has_handler", [False, True])
def test_ten_thousand_ended_sessions_leave_nothing_once_their_events_are_acknowledged(has_handler: bool) -> None:
    transport = LateTransport()
    client = SessionClient(
        tenant_id="acme",
        service_id="s",
        agent_id="a",
        settings=ProducerSettings.from_env({}),
        ports=memory_ports(InMemoryTransport())._replace(transport=transport, polls=None, poll_timer=None),
    )

    def run_sessions(count: int) -> int:
        for _ in range(count):
            client.create(user_id="u").close()
        assert len(client.core.sequences._sequences) == count
        transport.acknowledge_all()
        gc.collect()
        return sys.getallocatedblocks()

    if has_handler:
        client.on_cleanup(lambda _: None)
    before = run_sessions(9_000)  # fills the caches of encoded times
    after = run_sessions(10_000)
    assert client.core.sequences._sequences == {}
    assert len(client.core.sequences._ended) == (1_000 if has_handler else 0)  # for answers to clean-up requests
    assert (after - before) / 10_000 < 0.1
    client.close()


class LateTransport(InMemoryTransport):
    """Keeps nothing but receipts, and acknowledges only when asked to."""

    def __init__(self) -> None:
        super().__init__()
        self._receipts: list[OnReceipt] = []

    def send(self, record: OutRecord, on_receipt: OnReceipt | None = None) -> None:
        assert on_receipt is not None
        self._receipts.append(on_receipt)

    def acknowledge_all(self) -> None:
        receipts, self._receipts = self._receipts, []
        for number, on_receipt in enumerate(receipts):
            on_receipt(Receipt(0, number))


def test_an_ended_session_that_is_attached_again_goes_on_as_a_new_producer() -> None:
    client, memory = memory_client()
    with client:
        ended = client.session(user_id="u")
        ended.close()
        again = client.attach(ended.session_id)
        again.core.emitter.emit(SessionActivity("late"))
        live = client.session(user_id="u")
        kept = client.attach(live.session_id)
        kept.activity("x")
        late, (*_, last) = memory.events(ended.session_id)[-1], memory.events(live.session_id)
    assert late.envelope.producer_id != client.producer_id
    assert late.envelope.producer_seq == 1
    assert (last.envelope.producer_id, last.envelope.producer_seq) == (client.producer_id, 5)


def test_a_clean_up_is_answered_without_a_gap_or_a_duplicate_also_after_the_session_was_forgotten() -> None:
    client, memory = memory_client()
    with client:
        client.on_cleanup(lambda _: None)
        client.core.sequences.keep_ended(2)
        sessions = [client.session(user_id="u") for _ in range(4)]
        for session in sessions:
            session.close()
        for session in reversed(sessions):
            request = CleanupRequest(
                "c" + session.session_id, "acme", session.session_id, "service", 1, "closed", "", [], 1
            )
            memory.request_cleanup(request)
        for number, session in enumerate(sessions):
            sent = [
                (event.envelope.producer_id, event.envelope.producer_seq) for event in memory.events(session.session_id)
            ]
            assert len(set(sent)) == len(sent) == 7
            assert [seq for producer, seq in sent if producer == client.producer_id] == list(
                range(1, 6 if number < 2 else 8)
            )
            assert [seq for producer, seq in sent if producer != client.producer_id] == ([1, 2] if number < 2 else [])


def test_an_event_out_of_bounds_is_refused_at_the_call_and_takes_no_number() -> None:
    client, memory = memory_client()
    with client:
        session = client.session(user_id="u")
        sent = len(memory.events())
        usage = UsageRecorded(None, -5, 0, 0, 0, is_timeout_retry=False)
        calls: list[tuple[Callable[[], object], str]] = [
            (lambda: session.emit(usage), "usage_recorded: tokens_in is -5; it must be from 0 to"),
            (lambda: session.activity("k" * 257), "session_activity: kind has 257 characters, more than 256"),
            (lambda: session.pause("r" * 16_385), "session_paused: reason has 16385 characters, more than 16384"),
            (lambda: session.emit(SessionActivity("a"), run_id="r" * 257), "session_activity: run_id has 257"),
        ]
        for send, detail in calls:
            with pytest.raises(Invalid, match=detail):
                send()
        with pytest.raises(Invalid, match="user_id has 300 characters"):
            client.session(user_id="u" * 300)
        assert session.local_state == "Active"
        assert len(memory.events()) == sent
        session.activity("llm", text="t" * 500_000)
        assert [event.envelope.producer_seq for event in memory.events(session.session_id)][-1] == sent + 1
