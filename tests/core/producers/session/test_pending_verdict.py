"""Waiting for the processor: epochs, refusals, no answer, no offset."""

import pytest

from sessionary.producers import (
    DeliveryFailed,
    ProducerSettings,
    Refused,
    Unavailable,
    VerdictPending,
)
from sessionary.producers.ports import OnReceipt, OutRecord, SessionView, Verdict
from sessionary.producers.testing import memory_client
from sessionary.schemas.events import (
    SessionErrored,
)
from tests.core.producers.sent_events import sent_types


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


def test_a_refusal_is_raised_and_leaves_the_session_where_it_was() -> None:
    client, memory = memory_client()
    with client, client.session(user_id="u") as s:
        s.pause()
        memory.refuse_next("max_duration_exceeded")
        with pytest.raises(Refused) as refused:
            s.resume()
        assert refused.value.reason == "max_duration_exceeded"
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


@pytest.mark.parametrize("refused", [False, True])
def test_a_resume_whose_place_the_broker_does_not_know_is_told_by_the_epoch(refused: bool) -> None:
    client, memory = memory_client(settings=ProducerSettings.from_env({}, verdict_timeout_s=0.3))
    send = memory.send

    def send_without_place(record: OutRecord, on_receipt: OnReceipt | None = None) -> None:
        told = on_receipt and (lambda receipt: on_receipt(receipt._replace(offset=None)))
        send(record, told)

    with client, client.session(user_id="u", state={"n": 1}) as s:
        s.pause()
        memory.send = send_without_place  # type: ignore[method-assign]
        if refused:
            memory.refuse_next("version_conflict")
            with pytest.raises(DeliveryFailed, match="place in the log is unknown"):
                s.resume()
            assert (s.local_state, s.epoch) == ("Paused", 1)
        else:
            assert s.resume() == {"n": 1}
            assert (s.local_state, s.epoch) == ("Active", 2)
    assert sent_types(memory).count("session_resumed") == 1


@pytest.mark.parametrize("refused", [False, True])
def test_a_verdict_that_is_no_longer_kept_is_told_by_the_sessions_state(
    refused: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    client, memory = memory_client()
    fetch_session = memory.fetch_session

    def fetch_from_a_new_owner(session_id: str, after: tuple[int, int] | None, timeout_s: float) -> SessionView:
        view = fetch_session(session_id, after, timeout_s)
        return view._replace(verdict=Verdict(applied=False, reason=None, kept=False))

    monkeypatch.setattr(memory, "fetch_session", fetch_from_a_new_owner)
    with client, client.session(user_id="u", state={"a": 1}) as session:
        session.pause()
        if not refused:
            assert session.resume() == {"a": 1}
            return
        memory.refuse_next("stale_epoch")
        with pytest.raises(Refused) as caught:
            session.resume()
        assert (caught.value.reason, session.local_state) == ("UNKNOWN", "Paused")
