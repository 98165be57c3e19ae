"""Clean-up: the answer of a handler, whatever it does, and once per request."""

from collections.abc import Iterator
from itertools import count
from typing import Any

import pytest

from sessionary.producers import HostLost, ProducerSettings, SessionClient, Unavailable
from sessionary.producers.control.cleanup_responder import CleanupResponder, run_handler
from sessionary.producers.delivery.emitter import Emitter, ProducerSequence, SenderIdentity, SendGate
from sessionary.producers.errors import ClientClosed
from sessionary.producers.ports import Receipt, SessionView
from sessionary.producers.testing import InMemoryTransport, memory_client, memory_ports
from sessionary.schemas.events import ResourcesReleased, SessionPhaseChanged
from sessionary.schemas.ids import SessionKey
from sessionary.schemas.records import CleanupRequest
from sessionary.schemas.types import CleanupAction
from tests.core.producers.slow_kafka import SlowKafka
from tests.support.module_time import set_module_time

ACTIONS = ["close_connection", "release_resources", "clear_context"]


def request(session_id: str = "0b0e7f0a-0000-4000-8000-000000000000", cleanup_id: str = "c1") -> CleanupRequest:
    return CleanupRequest(cleanup_id, "acme", session_id, "service", 3, "closed", "closed", ACTIONS, 1, 500)


def seen(actions: list[CleanupAction]) -> list[tuple[str, bool, str | None]]:
    return [(action.action, action.done, action.detail) for action in actions]


def test_a_handler_that_returns_nothing_has_done_everything_in_order() -> None:
    clock = count(10)
    actions, _ = run_handler(request(), lambda _: None, lambda: next(clock))
    assert actions == [CleanupAction(name, done=True, at=10 + n) for n, name in enumerate(ACTIONS)]


def test_reports_are_put_in_the_order_that_was_asked_for() -> None:
    reported = [CleanupAction(name, done=True, at=n) for n, name in enumerate([*reversed(ACTIONS), "more"])]
    assert [a.action for a in run_handler(request(), lambda _: reported).actions] == [*ACTIONS, "more"]


def test_what_a_handler_raises_fails_the_action_it_was_at() -> None:
    def handler(_: CleanupRequest) -> Iterator[CleanupAction]:
        yield CleanupAction(ACTIONS[0], done=True, at=1)
        raise OSError("stuck")

    assert seen(run_handler(request(), handler).actions) == [
        (ACTIONS[0], True, None),
        (ACTIONS[1], False, "OSError: stuck"),
        (ACTIONS[2], False, "not reached"),
    ]


def test_what_was_not_reported_is_not_done() -> None:
    assert seen(run_handler(request(), lambda _: []).actions) == [(name, False, "not reported") for name in ACTIONS]


@pytest.mark.parametrize("report", ["done", ("close_connection", True), CleanupAction("a", done=True, at="now")])  # type: ignore[arg-type]
def test_a_report_that_cannot_be_written_is_a_failure_not_a_crash(report: Any) -> None:
    actions, _ = run_handler(request(), lambda _: [report])
    assert [action.done for action in actions] == [False, False, False]
    assert "TypeError" in str(actions[0].detail)


def test_a_handler_that_never_ends_is_cut_off() -> None:
    def handler(_: CleanupRequest) -> Iterator[CleanupAction]:
        for n in count():
            yield CleanupAction(f"a{n}", done=True, at=n)

    assert len(run_handler(request(), handler).actions) < 50


def test_a_request_is_handled_once_and_answered_in_the_session_s_sequence() -> None:
    client, memory = memory_client()
    calls: list[str] = []

    def handler(asked: CleanupRequest) -> None:
        calls.append(asked.cleanup_id)

    with client:
        client.on_cleanup(handler)
        s = client.session(user_id="u")
        s.close()
        for _ in range(3):
            receipt = memory.request_cleanup(request(s.session_id))
            assert receipt is not None
            assert receipt.error is None
        events = memory.events(s.session_id)
    assert calls == ["c1"]
    released = [event for event in events if isinstance(event.payload, ResourcesReleased)]
    assert len(released) == 1
    assert [event.envelope.producer_seq for event in events] == list(range(1, len(events) + 1))
    assert released[0].envelope.epoch == 3
    assert isinstance(released[0].payload, ResourcesReleased)
    assert released[0].payload.cleanup_id == "c1"
    assert released[0].payload.bytes_released == 500
    assert [action.action for action in released[0].payload.actions] == ACTIONS


def test_a_handler_whose_host_is_gone_says_so_and_the_record_has_it() -> None:
    client, memory = memory_client()

    def handler(_: CleanupRequest) -> Iterator[CleanupAction]:
        yield CleanupAction(ACTIONS[0], done=True, at=1)
        raise HostLost("vm-17 is gone")

    with client:
        client.on_cleanup(handler)
        s = client.session(user_id="u")
        s.context_bytes = 500
        s.activity("work")
        s.close()
        memory.advance(0)
        (answer,) = [each.payload for each in memory.events() if isinstance(each.payload, ResourcesReleased)]
        (line,) = [each for each in memory.audit() if each.kind == "release"]
        assert memory.find_row(s.session_id).context_bytes == 0
    assert (answer.host_lost, answer.bytes_released) == (True, None)
    assert (line.reason_code, line.host_lost, line.actions_done) == ("host_lost", True, (ACTIONS[0],))
    assert seen(list(answer.actions))[1:] == [
        (ACTIONS[1], False, "HostLost: vm-17 is gone"),
        (ACTIONS[2], False, "not reached"),
    ]


@pytest.mark.parametrize(
    ("reason_code", "phases"), [("closed", ["clearing"]), ("timeout_cleanup", ["clearing"]), ("inactive", [])]
)
def test_an_ended_session_clears_its_context_after_the_release_and_a_timed_out_one_keeps_it(
    reason_code: str, phases: list[str]
) -> None:
    client, memory = memory_client()
    with client:
        client.on_cleanup(lambda _: None)
        s = client.create(user_id="u")
        memory.request_cleanup(request(s.session_id)._replace(reason_code=reason_code))
        payloads = [event.payload for event in memory.events(s.session_id)]
    assert isinstance(payloads[1], ResourcesReleased)
    assert [payload.phase for payload in payloads[2:] if isinstance(payload, SessionPhaseChanged)] == phases
    assert len(payloads) == 2 + len(phases)


@pytest.mark.parametrize(("detail", "left"), [(None, 0), ("the disk is full", None)])
def test_a_context_that_was_cleared_has_no_bytes_any_more(detail: str | None, left: int | None) -> None:
    client, memory = memory_client()

    def handle(asked: CleanupRequest) -> None:
        if detail is not None:
            raise OSError(detail)

    with client:
        client.on_cleanup(handle)
        s = client.session(user_id="u")
        s.context_bytes = 500
        s.activity("work")
        s.close()
        memory.advance(0)
        row = memory.fetch_session(s.session_id, None, 0.0)
        reported = {
            type(event.payload): (event.envelope.context_bytes, event.envelope.occurred_at)
            for event in memory.events(s.session_id)[-2:]
        }
    assert row.state == "Terminated"
    assert [size for size, _ in reported.values()] == [None, left]
    assert reported[ResourcesReleased][1] <= reported[SessionPhaseChanged][1]
    assert memory.rejections() == []


@pytest.mark.parametrize("fails_at", ["emitter", "emit"])
def test_a_request_whose_answer_could_not_be_sent_is_not_done(fails_at: str) -> None:
    memory, gate, calls, receipts = InMemoryTransport(), SendGate(), list[str](), list[Receipt]()
    fails = True

    def emitter_at(key: SessionKey, epoch: int) -> Emitter:
        if fails and fails_at == "emitter":
            raise ClientClosed("the client is closed")
        gate.open = not fails
        return Emitter(memory, gate, SenderIdentity("service", "a"), key, ProducerSequence("p"))

    def handle(asked: CleanupRequest) -> None:
        calls.append(asked.cleanup_id)

    answer = CleanupResponder(handle, emitter_at, lambda error: None)
    for _ in range(2):
        with pytest.raises(ClientClosed):
            answer(request(), receipts.append)
    assert receipts == []
    fails = False
    for _ in range(2):
        answer(request(), receipts.append)
    assert len(receipts) == 2
    assert calls == ["c1"]
    (sent,) = [event.payload for event in memory.events() if isinstance(event.payload, ResourcesReleased)]
    assert sent.cleanup_id == "c1"


def test_a_request_that_comes_again_before_its_answer_is_lost_is_answered_again() -> None:
    kafka, calls = SlowKafka(), list[str]()
    sequence, first, second = ProducerSequence("p"), list[Receipt](), list[Receipt]()

    def emitter_at(key: SessionKey, epoch: int) -> Emitter:
        return Emitter(kafka, SendGate(), SenderIdentity("service", "a"), key, sequence)

    answer = CleanupResponder(lambda asked: calls.append(asked.cleanup_id), emitter_at, lambda error: None)
    kafka.held = []
    answer(request(), first.append)
    answer(request(), second.append)  # another consumer of the group has read it since
    assert (first, second) == ([], [])
    kafka.held[0][0](Receipt(None, None, "lost"))
    assert [receipt.error for receipt in (*first, *second)] == ["lost", "lost"]
    kafka.held = None
    answer(request(), second.append)
    assert second[-1].error is None
    answers = [event for event in kafka.events() if isinstance(event.payload, ResourcesReleased)]
    assert (len(answers), calls) == (2, ["c1"])


class AskedMemory(InMemoryTransport):
    """Writes down which sessions were asked for."""

    def __init__(self) -> None:
        super().__init__()
        self.asked: list[str] = []

    def fetch_session(self, session_id: str, after: tuple[int, int] | None, timeout_s: float) -> SessionView:
        self.asked.append(session_id)
        return super().fetch_session(session_id, after, timeout_s)

    def answer_cleanup(self, session_id: str, cleanup_id: str) -> tuple[str, ...]:
        """Let a client's handler clean up; return the data classes of its answer."""
        self.request_cleanup(
            CleanupRequest(cleanup_id, "acme", session_id, "service", 1, "closed", "closed", ["close"], 1)
        )
        answer = next(event for event in reversed(self.events()) if isinstance(event.payload, ResourcesReleased))
        return tuple(answer.envelope.data_classes)


def client_of(memory: InMemoryTransport, errors: list[Exception]) -> SessionClient:
    return SessionClient(
        tenant_id="acme",
        service_id="service",
        agent_id="agent",
        settings=ProducerSettings.from_env({}),
        on_error=errors.append,
        ports=memory_ports(memory),
    )


def test_the_client_knows_the_classes_of_its_own_session() -> None:
    memory = AskedMemory()
    client = client_of(memory, [])
    client.on_cleanup(lambda _: None)
    session = client.session(user_id="u", data_classes=("personal",))
    session.close()
    assert memory.answer_cleanup(session.session_id, "c1") == ("personal",)
    assert {event.envelope.data_classes for event in memory.events()} == {("personal",)}
    assert memory.asked == []


def test_the_processor_is_asked_for_those_of_other_clients_sessions() -> None:
    memory, errors = AskedMemory(), list[Exception]()
    session = client_of(memory, errors).session(user_id="u", data_classes=("medical", "personal"))
    session.close()
    later = client_of(memory, errors)
    later.on_cleanup(lambda _: None)
    for cleanup_id in ("c1", "c2"):
        assert memory.answer_cleanup(session.session_id, cleanup_id) == ("medical", "personal")
    assert memory.events()[-1].envelope.data_classes == ("medical", "personal")
    assert memory.asked == [session.session_id]
    assert errors == []


def test_a_clean_up_does_not_wait_for_a_control_api_that_is_away(monkeypatch: pytest.MonkeyPatch) -> None:
    memory, errors = AskedMemory(), list[Exception]()
    sessions = [client_of(memory, errors).session(user_id="u", data_classes=("personal",)) for _ in range(3)]
    now_s = 100.0
    set_module_time(monkeypatch, "sessionary.producers.control.cleanup_responder", monotonic=lambda: now_s)
    later = client_of(memory, errors)
    later.on_cleanup(lambda _: None)
    memory.silence_control(silent=True)
    assert memory.answer_cleanup(sessions[0].session_id, "c1") == ()
    assert [type(error) for error in errors] == [Unavailable]
    memory.silence_control(silent=False)
    assert memory.answer_cleanup(sessions[1].session_id, "c2") == ()
    now_s = 110.0
    assert memory.answer_cleanup(sessions[2].session_id, "c3") == ("personal",)
    assert memory.asked == [sessions[0].session_id, sessions[2].session_id]
