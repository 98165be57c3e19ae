"""Waiting for the processor: epochs, rejections, no answer, no offset."""

import gc
from collections.abc import Callable

import pytest

from sessionary.producers import (
    DeliveryFailed,
    ProducerSettings,
    Rejected,
    Session,
    SessionLost,
    Unavailable,
    VerdictPending,
)
from sessionary.producers.ports import OnReceipt, OutRecord, SessionView, Verdict
from sessionary.producers.session.verdicts import Verdicts
from sessionary.producers.testing import memory_client
from sessionary.schemas.events import (
    SessionErrored,
)
from tests.core.producers.sent_events import sent_types
from tests.support.waiting import wait_until


def test_the_epoch_is_adopted_from_the_verdict_and_used_from_then_on() -> None:
    client, memory = memory_client()
    with client, client.session(user_id="u") as s:
        s.pause()
        s.resume()
        s.error(TimeoutError("slow"))
        s.recover()
        assert s.epoch == 3
    by_type = {(event.envelope.event_type, event.envelope.epoch) for event in memory.events()}
    assert {
        ("session_resumed", 1),
        ("session_errored", 2),
        ("session_recovered", 2),
        ("session_terminated", 3),
    } <= by_type
    errored = next(event.payload for event in memory.events() if isinstance(event.payload, SessionErrored))
    assert errored.error.error_class == "retryable"


def test_a_rejection_is_raised_and_leaves_the_session_where_it_was() -> None:
    client, memory = memory_client()
    with client, client.session(user_id="u") as s:
        s.pause()
        memory.reject_next("max_duration_exceeded")
        with pytest.raises(Rejected) as rejected:
            s.resume()
        assert rejected.value.reason == "max_duration_exceeded"
        assert (s.local_state, s.epoch) == ("Paused", 1)
        s.resume()
        assert (s.local_state, s.epoch) == ("Active", 2)


def test_without_a_verdict_nothing_else_is_sent_and_nothing_twice() -> None:
    client, memory = memory_client(settings=ProducerSettings.from_env({}, verdict_timeout_s=0.05))
    with client, client.session(user_id="u") as s:
        s.pause()
        memory.silence_control(silent=True)
        for _ in range(2):
            with pytest.raises(Unavailable):
                s.resume()
        with pytest.raises(VerdictPending, match="resume"):
            s.activity("x")
        memory.silence_control(silent=False)
        s.resume()
        s.activity("x")
    assert sent_types(memory).count("session_resumed") == 1


@pytest.mark.parametrize("rejected", [False, True])
def test_a_resume_whose_position_the_broker_does_not_know_is_known_by_the_epoch(rejected: bool) -> None:
    client, memory = memory_client(settings=ProducerSettings.from_env({}, verdict_timeout_s=0.3))
    send = memory.send

    def send_without_place(record: OutRecord, on_receipt: OnReceipt | None = None) -> None:
        reported = on_receipt and (lambda receipt: on_receipt(receipt._replace(offset=None)))
        send(record, reported)

    with client, client.session(user_id="u", state={"n": 1}) as s:
        s.pause()
        memory.send = send_without_place  # type: ignore[method-assign]
        if rejected:
            memory.reject_next("version_conflict")
            with pytest.raises(DeliveryFailed, match="position in the log is unknown"):
                s.resume()
            assert (s.local_state, s.epoch) == ("Paused", 1)
        else:
            assert s.resume() == {"n": 1}
            assert (s.local_state, s.epoch) == ("Active", 2)
    assert sent_types(memory).count("session_resumed") == 1


@pytest.mark.parametrize("rejected", [False, True])
def test_a_verdict_that_is_no_longer_kept_is_known_by_the_sessions_state(
    rejected: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    client, memory = memory_client()
    fetch_session = memory.fetch_session

    def fetch_from_a_new_owner(session_id: str, after: tuple[int, int] | None, timeout_s: float) -> SessionView:
        view = fetch_session(session_id, after, timeout_s)
        return view._replace(verdict=Verdict(applied=False, reason=None, kept=False))

    monkeypatch.setattr(memory, "fetch_session", fetch_from_a_new_owner)
    with client, client.session(user_id="u", state={"a": 1}) as session:
        session.pause()
        if not rejected:
            assert session.resume() == {"a": 1}
            return
        memory.reject_next("stale_epoch")
        with pytest.raises(Rejected) as caught:
            session.resume()
        assert (caught.value.reason, session.local_state) == ("UNKNOWN", "Paused")


BUDGET_S = 60  # of inactivity, by default
Verb = Callable[[Session], object]


def wait_in_vain(session: Session, verb: Verb) -> None:
    with pytest.raises(Unavailable):
        verb(session)


def fail_retryably(session: Session) -> None:
    session.error(TimeoutError("slow"))


LEAD_TO_ACTIVE = pytest.mark.parametrize(
    ("leave", "verb"), [(Session.pause, Session.resume), (fail_retryably, Session.recover)], ids=["resume", "recover"]
)


@LEAD_TO_ACTIVE
def test_a_session_beats_while_its_agent_waits_for_a_verdict_that_was_granted(leave: Verb, verb: Verb) -> None:
    client, memory = memory_client()
    with client, client.session(user_id="u") as s:
        leave(s)
        memory.silence_control(silent=True)
        wait_in_vain(s, verb)
        memory.advance(3 * BUDGET_S)
        assert memory.view_session(s).state == "Active"
        memory.silence_control(silent=False)
        verb(s)
        s.activity("x")
        assert memory.verdicts()[-1].outcome == "applied"
    assert [line.transition for line in memory.audit() if line.fired_at] == []
    assert {beat.envelope.epoch for beat in memory.heartbeats()} == {2}
    assert memory.rejected_records() == []


@LEAD_TO_ACTIVE
def test_a_session_whose_event_is_not_delivered_sends_no_beat_ahead_of_it(leave: Verb, verb: Verb) -> None:
    client, memory = memory_client(settings=ProducerSettings.from_env({}, verdict_timeout_s=0.05))
    send, held = memory.send, list[tuple[OutRecord, OnReceipt | None]]()

    def hold(record: OutRecord, on_receipt: OnReceipt | None = None) -> None:
        held.append((record, on_receipt))

    with client, client.session(user_id="u") as s:
        leave(s)
        memory.send = hold  # type: ignore[method-assign]
        wait_in_vain(s, verb)
        memory.advance(BUDGET_S / 2)
        assert memory.heartbeats() == []
        memory.send = send  # type: ignore[method-assign]
        for record, on_receipt in held:
            send(record, on_receipt)
        memory.advance(3 * BUDGET_S)
        assert len(memory.heartbeats()) == 3 * BUDGET_S / 10
        assert memory.view_session(s).state == "Active"
        verb(s)
    assert memory.rejected_records() == []


@pytest.mark.parametrize("end", ["reported", "lost", "detach", "close", "forget"])
def test_what_waits_for_no_verdict_any_more_beats_no_more(end: str) -> None:
    client, memory = memory_client(settings=ProducerSettings.from_env({}, verdict_timeout_s=0.05))
    s: Session | None = client.session(user_id="u")
    assert s is not None
    s.pause()
    memory.reject_next("max_duration_exceeded")
    memory.silence_control(silent=True)
    wait_in_vain(s, Session.resume)
    memory.advance(BUDGET_S)
    beats = memory.heartbeats()
    assert {beat.envelope.epoch for beat in beats} == {2}
    assert [rejected.reason for rejected in memory.rejected_records()] == ["future_epoch"] * len(beats)
    memory.silence_control(silent=False)
    if end == "reported":
        with pytest.raises(Rejected):
            s.resume()
        assert s.local_state == "Paused"
    elif end == "lost":
        memory.fetch_session = lose_session  # type: ignore[method-assign]
        with pytest.raises(SessionLost):
            s.resume()
    elif end == "forget":
        s = None
        gc.collect()
    else:
        left = s
        (left.close if end == "close" else left.lifecycle.detach)()
        wait_until(lambda: left.core.view.followed is None, 60, "the verdict, which the closed session waits for")
    memory.advance(2 * BUDGET_S)
    assert len(memory.heartbeats()) == len(beats)
    client.close()


def lose_session(session_id: str, after: tuple[int, int] | None, timeout_s: float) -> SessionView:
    raise SessionLost(f"session {session_id} is not known")


def test_a_taker_over_that_waits_for_its_verdict_beats_in_the_epoch_that_it_asked_for() -> None:
    client, memory = memory_client()
    first = client.session(user_id="u")
    first.lifecycle.detach()
    with client, client.attach(first.session_id, take_over=True) as taken:
        assert taken.epoch == 2
        memory.silence_control(silent=True)
        pending = Verdicts(taken.core).ask_take_over({})
        memory.advance(3 * BUDGET_S)
        memory.silence_control(silent=False)
        Verdicts(taken.core).wait_take_over(pending)
        assert (taken.epoch, taken.local_state) == (3, "Active")
    assert memory.rejected_records() == []
    assert [line.transition for line in memory.audit() if line.fired_at] == []
