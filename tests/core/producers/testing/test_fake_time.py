"""The fake clock of the memory: what is due fires in order, without real time."""

import gc
import time

import pytest

from sessionary.producers import (
    CleanupAction,
    CleanupRequest,
    Invalid,
    Limits,
    ProducerError,
    ProducerSettings,
    Session,
    SessionClient,
    SessionLost,
)
from sessionary.producers.testing import InMemoryTransport, memory_client
from sessionary.stream_processors.core.session.values import REDELIVERY_MS_MAX
from tests.core.producers.control.test_cleanup_responder import request

IDLE = Limits(idle_ms=120_000)


def timeouts(memory: InMemoryTransport) -> list[tuple[str, str]]:
    return [(f"{line.to_state}", line.reason_code) for line in memory.audit() if line.fired_at]


def test_time_stands_still_unless_the_test_moves_it() -> None:
    client, memory = memory_client()
    with client:
        client.session(user_id="u")
        began = memory.now_ms
        time.sleep(0.002)
        assert memory.now_ms == began
        memory.advance(1.5)
        assert memory.now_ms == began + 1_500
        with pytest.raises(Invalid, match="a clock never goes back"):
            memory.advance(-1)


def test_a_session_without_work_times_out_though_it_beats() -> None:
    client, memory = memory_client()
    with client:
        session = client.session(user_id="u", limits=IDLE)
        memory.advance(100)
        session.activity("work")
        memory.advance(119.999)
        assert memory.view_session(session).state == "Active"
        memory.advance(0.001)
        assert memory.view_session(session).state == "Timeout"
        assert timeouts(memory) == [("Timeout", "idle")]
        (line,) = (line for line in memory.audit() if line.fired_at)
        assert line.fired_at == line.due_at == memory.now_ms * 1_000
        assert len(memory.heartbeats()) == 22  # one each 10 s


def test_a_silenced_session_times_out_of_inactivity() -> None:
    client, memory = memory_client()
    with client:
        session = client.session(user_id="u")
        memory.advance(600)
        assert memory.view_session(session).state == "Active"
        memory.silence(session)
        memory.advance(60)
        assert timeouts(memory) == [("Timeout", "inactive")]
        assert session.local_state == "Timeout"
        session.resume()
        beats = len(memory.heartbeats())
        memory.silence(session, silent=False)
        memory.advance(10)
        assert len(memory.heartbeats()) == beats + 1


@pytest.mark.parametrize("end", ["detach", "forget", "close client"])
def test_what_beats_no_more_times_out(end: str) -> None:
    client, memory = memory_client()
    session: Session | None = client.session(user_id="u")
    assert session is not None
    session_id = session.session_id
    if end == "detach":
        session.lifecycle.detach()
    elif end == "forget":
        session = None
        gc.collect()
    else:
        client.close()
    memory.advance(60)
    assert memory.view_session(session_id).state == "Timeout"
    assert memory.heartbeats() == []
    client.close()


def test_every_clock_fires_in_its_order() -> None:
    client, memory = memory_client()
    with client:
        session = client.session(user_id="u", limits=IDLE)
        memory.advance(1_000)
        assert [(line.to_state, line.reason_code) for line in memory.audit() if line.fired_at is not None] == [
            ("Timeout", "idle"),
            ("Terminated", "timeout_cleanup"),
            ("Archived", "archived"),
        ]
        with pytest.raises(SessionLost, match="was archived"):
            session.sync()


def test_a_resume_within_the_grace_period_makes_a_session_active_again() -> None:
    client, memory = memory_client()
    with client:
        session = client.session(user_id="u", limits=IDLE, state={"n": 1})
        memory.advance(120)
        assert session.sync().state == "Timeout"
        assert session.resume() == {"n": 1}
        assert session.epoch == 2
        session.activity("work")
        assert memory.verdicts()[-1].outcome == "applied"


def test_events_have_the_fake_time() -> None:
    client, memory = memory_client()
    with client:
        session = client.session(user_id="u")
        session.activity("before")
        memory.advance(500)
        session.activity("after")
        before, after = (event.envelope.occurred_at for event in memory.events()[-2:])
        assert 500_000_000 <= after - before < 600_000_000
        assert memory.verdicts()[-1].at_ms == memory.now_ms


def test_a_tombstone_vanishes_too() -> None:
    client, memory = memory_client()
    with client:
        session = client.session(user_id="u")
        session.close()
        memory.advance(REDELIVERY_MS_MAX / 1_000 + 2 * 86_400)
        client.session(user_id="u")
        with pytest.raises(SessionLost, match=r"was archived|is not known"):
            memory.view_session(session)


# Clean-up


def cleaning_client(service_id: str = "service") -> tuple[SessionClient, InMemoryTransport, list[str]]:
    client, memory = memory_client(service_id=service_id)
    calls: list[str] = []

    def handler(asked: CleanupRequest) -> list[CleanupAction]:
        calls.append(asked.reason_code)
        return [CleanupAction(name, done=True, at=asked.requested_at) for name in asked.actions]

    client.on_cleanup(handler)
    return client, memory, calls


def test_a_request_reaches_the_handler_when_time_advances() -> None:
    client, memory, calls = cleaning_client()
    with client:
        session = client.session(user_id="u")
        session.close()
        assert [asked.reason_code for asked in memory.cleanups()] == ["closed"]
        assert calls == []
        memory.advance(0)
        assert calls == ["closed"]
        released = memory.verdicts(session.session_id)[-2:]
        assert [(judged.event_type, judged.outcome) for judged in released] == [
            ("resources_released", "applied"),
            ("session_phase_changed", "applied"),
        ]
        assert [line.kind for line in memory.audit()][-1] == "release"
        memory.advance(60)  # the delay from a clean-up to Archived
        assert memory.audit()[-1].to_state == "Archived"
        memory.advance(0)
        assert calls == ["closed"]


def test_a_timeout_asks_for_clean_up_at_its_time() -> None:
    client, memory, calls = cleaning_client()
    with client:
        session = client.session(user_id="u", limits=IDLE)
        memory.advance(121)
        assert calls == ["idle"]
        assert memory.view_session(session).phase == "released"
        (asked,) = memory.cleanups(session.session_id)
        assert asked.requested_at == (memory.now_ms - 1_000) * 1_000


def test_a_request_waits_for_a_handler_of_its_service() -> None:
    client, memory = memory_client("acme", "billing")
    other, _ = memory_client("acme", "shop", memory=memory)
    calls: list[str] = []
    other.on_cleanup(lambda asked: calls.append("shop"))
    client.session(user_id="u").close()
    memory.advance(1)
    assert calls == []
    client.on_cleanup(lambda asked: calls.append("billing"))
    memory.advance(1)
    assert calls == ["billing"]


def test_a_request_that_an_operator_repeats_is_handled_once() -> None:
    client, memory = memory_client("acme", "billing")
    calls: list[str] = []
    session = client.session(user_id="u")
    session.close()
    for _ in range(2):
        memory.operator.ask_again(session, "the broker lost it")
    first, *again = memory.cleanups(session.session_id)
    assert [asked._replace(reason=first.reason) for asked in again] == [first, first]
    client.on_cleanup(lambda asked: calls.append(asked.cleanup_id))
    memory.advance(1)
    assert calls == [first.cleanup_id]
    memory.operator.ask_again(session)  # it is confirmed, so nothing is open
    memory.advance(1)
    assert (len(memory.cleanups(session.session_id)), calls) == (3, [first.cleanup_id])


def test_time_is_not_advanced_by_a_handler() -> None:
    client, memory = memory_client()
    errors: list[RuntimeError] = []

    def handler(asked: CleanupRequest) -> None:
        try:
            memory.advance(1)
        except RuntimeError as error:
            errors.append(error)

    client.on_cleanup(handler)
    with client:
        client.session(user_id="u").close()
        memory.advance(1)
    assert [str(error) for error in errors] == [
        "advance is running already: call it neither in a handler or callback nor in two threads"
    ]


def test_without_a_handler_a_request_is_an_error() -> None:
    client, memory = memory_client()
    with client, pytest.raises(ProducerError):
        memory.request_cleanup(request())


@pytest.mark.parametrize("disabled", [False, True])
def test_a_client_has_one_handler(disabled: bool) -> None:
    client, _ = memory_client()
    if disabled:
        settings = ProducerSettings.from_env({}, disabled=True)
        client = SessionClient(tenant_id="acme", service_id="s", agent_id="a", settings=settings)
    with client:
        client.on_cleanup(lambda asked: None)
        with pytest.raises(ProducerError, match="call on_cleanup once"):
            client.on_cleanup(lambda asked: None)
        if not disabled:
            client.for_tenant("globex").on_cleanup(lambda asked: None)
