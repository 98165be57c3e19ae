"""People who step in, as a session's object sees it: held, resumed, asked, answered."""

import asyncio
import re
from collections.abc import Callable
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from sessionary.producers import (
    Answer,
    AsyncSessionClient,
    EventRejected,
    Invalid,
    Limits,
    NotAllowed,
    Rejected,
    SessionEnded,
    SessionFenced,
    SessionGoesOn,
    SessionHeld,
)
from sessionary.producers.run_ports import HeldBy
from sessionary.producers.testing import InMemoryTransport, memory_client
from sessionary.schemas.codec import Event, encode_event
from sessionary.schemas.events import AgentRegistered, Payload, SessionPaused, SessionResumed, SessionTakenOver
from sessionary.schemas.signatures import SigningKeys


class Gone(Exception):
    """The process ends while it waits for a person."""


def leave(question: str) -> None:
    raise Gone


class Reported:
    """What a client's callbacks were notified, in order."""

    def __init__(self, memory: InMemoryTransport | None = None, **options: Any) -> None:
        self.found: list[Any] = []
        keep = self.found.append
        self.client, self.memory = memory_client(
            memory=memory,
            on_error=keep,
            on_rejected=keep,
            on_timed_out=keep,
            on_fenced=keep,
            on_paused=keep,
            on_resumed=keep,
            **options,
        )

    @property
    def kinds(self) -> list[type]:
        return [type(each) for each in self.found]


def test_the_holder_learns_that_it_is_held_and_goes_on_after_the_resume() -> None:
    reported = Reported()
    with reported.client.session(user_id="u1", state={"step": 0}) as session:
        session.update_state({"step": 1})
        reported.memory.operator.pause(session, "look at it")
        reported.memory.advance(1)
        assert reported.kinds == [SessionHeld]
        assert session.local_state == "Paused"
        with pytest.raises(NotAllowed, match="others hold the session"):
            session.activity("llm")
        reported.memory.operator.resume(session)
        reported.memory.advance(1)
        assert reported.found[1:] == [SessionGoesOn(session.session_id, 2, "resumed")]
        assert (session.local_state, session.epoch) == ("Active", 2)
        session.activity("llm")
        assert session.update_state({"step": 2}) == 3
        reported.memory.advance(120)  # it beats again
        session.complete()
    assert reported.memory.rejections() == []
    assert reported.memory.view_session(session).reason_code == "completed"
    paused = next(record for record in reported.memory.audit() if record.transition == "T04")
    last: Any = reported.memory.events()[-1].payload
    assert (paused.actor, paused.snapshot_id) == ("operator", last.snapshot.parent_snapshot_id)


def test_what_was_sent_meanwhile_is_rejected_and_the_content_is_the_committed_one() -> None:
    reported = Reported()
    with reported.client.session(user_id="u1", state={"step": 0}) as session:
        reported.memory.operator.pause(session)
        session.update_state({"step": 1})  # it does not know yet
        reported.memory.operator.resume(session)
        reported.memory.advance(1)
        assert (session.state, session.version, session.epoch) == ({"step": 0}, 1, 2)
        assert EventRejected in reported.kinds
        assert SessionFenced not in reported.kinds
        assert session.update_state({"step": 1}) == 2


@pytest.mark.parametrize("knows", [False, True])
def test_a_session_that_an_operator_holds_is_not_resumed_by_its_own_process(knows: bool) -> None:
    reported = Reported()
    with reported.client.session(user_id="u1", state={"step": 0}) as session:
        session.update_state({"step": 1})
        reported.memory.operator.pause(session, "look at it", hold_s=1_800)
        until = datetime.fromtimestamp(reported.memory.now_ms / 1_000 + 1_800, UTC).isoformat(timespec="seconds")
        if knows:
            reported.memory.advance(1)
        refused = f"session_resumed was rejected: operator_only: operator holds the session until {until}"
        with pytest.raises(Rejected, match=re.escape(refused)) as raised:
            session.resume()
        assert raised.value.reason == "operator_only"
        assert (session.local_state, session.epoch) == ("Paused", 1)
        with pytest.raises(NotAllowed, match="others hold the session: it continues once they resume it"):
            session.activity("llm")
        reported.memory.operator.resume(session)
        reported.memory.advance(1)
        assert (session.local_state, session.epoch) == ("Active", 2)
        session.activity("llm")


def test_a_hold_that_ends_beyond_the_calendar_is_told_too() -> None:
    reported = Reported()
    with reported.client.session(user_id="u1", limits=Limits(hold_ms=10**13, override=True)) as session:
        reported.memory.operator.pause(session)
        with pytest.raises(Rejected, match="operator holds the session until"):
            session.resume()
    assert f"{HeldBy('alice', 10**15)}".startswith("alice holds the session until 1000000000000000 ms;")


def test_a_new_process_does_not_resume_what_an_operator_holds() -> None:
    reported = Reported()
    session = reported.client.session(user_id="u1").__enter__()
    reported.memory.operator.pause(session)
    again = Reported(reported.memory)
    found = again.client.attach(session.session_id, take_over=True)
    with pytest.raises(Rejected, match="operator holds the session until"):
        found.resume()
    reported.memory.operator.resume(session)
    assert reported.memory.view_session(session).state == "Active"


def test_asyncio_names_the_operator_too() -> None:
    reported = Reported()

    async def story() -> None:
        async with AsyncSessionClient.wrap(reported.client).session(user_id="u1") as session:
            reported.memory.operator.pause(session.session_id)
            with pytest.raises(Rejected, match="operator holds the session until"):
                await session.resume()

    asyncio.run(story())


def test_the_hold_of_an_operator_ends_the_session() -> None:
    reported = Reported()
    with reported.client.session(user_id="u1") as session:
        reported.memory.operator.pause(session, hold_s=60)
        reported.memory.advance(59)
        assert reported.memory.view_session(session).state == "Paused"
        reported.memory.advance(2)
        view = reported.memory.view_session(session)
        assert (view.state, view.reason_code, view.hold) == ("Terminated", "timeout_cleanup", None)


def test_a_session_that_is_held_may_be_left_by_its_own_process() -> None:
    reported = Reported()
    with reported.client.session(user_id="u1", state={"step": 0}) as session:
        session.update_state({"step": 1})
        reported.memory.operator.pause(session)
        reported.memory.advance(1)
    assert reported.memory.view_session(session).state == "Terminated"
    assert "left out" not in reported.memory.audit()[-1].reason


def test_an_operator_calls_a_session_off() -> None:
    reported = Reported()
    session = reported.client.session(user_id="u1").__enter__()
    reported.memory.operator.cancel(session, "wrong customer")
    reported.memory.advance(1)
    assert reported.kinds == [SessionEnded]
    assert session.lost


def test_a_process_that_does_not_hold_the_session_is_still_fenced() -> None:
    reported = Reported()
    session = reported.client.session(user_id="u1").__enter__()
    sharing = Reported(reported.memory)
    shared = sharing.client.attach(session.session_id)
    reported.memory.operator.pause(session)
    reported.memory.operator.resume(session)
    reported.memory.advance(1)
    assert (session.epoch, shared.epoch) == (2, 1)
    shared.activity("llm")
    assert reported.memory.verdicts()[-1].reason == "stale_epoch"


def test_a_former_holder_is_fenced_although_an_operator_resumed_later() -> None:
    reported = Reported()
    session = reported.client.session(user_id="u1").__enter__()
    reported.memory.silence_control(silent=True)  # it hears of nothing
    other = Reported(reported.memory)
    reported.memory.silence_control(silent=False)
    taken = other.client.attach(session.session_id, take_over=True)
    reported.memory.operator.pause(taken)
    reported.memory.operator.resume(taken)
    reported.memory.advance(1)
    assert SessionFenced in reported.kinds
    assert SessionGoesOn not in reported.kinds
    assert (taken.epoch, taken.local_state) == (3, "Active")


def test_the_holder_is_fenced_by_another_process_that_resumed() -> None:
    """An agent that was declared dead does not go on, whatever operators did since."""
    reported = Reported()
    session = reported.client.session(user_id="u1").__enter__()
    other = Reported(reported.memory)
    shared = other.client.attach(session.session_id)
    reported.memory.silence(session)
    shared.lifecycle.detach()
    reported.memory.advance(0)
    reported.memory.silence_control(silent=True)
    reported.memory.advance(61)
    reported.memory.silence_control(silent=False)
    assert reported.memory.view_session(session).state == "Timeout"
    shared.sync()
    shared.resume()
    reported.memory.operator.pause(session)
    reported.memory.operator.resume(session)
    reported.memory.advance(1)
    assert reported.memory.view_session(session).epoch == 3
    assert session.epoch == 1


ANSWERS: list[tuple[Callable[[str], bool | None], bool, str, str]] = [
    (lambda question: question == "Deploy?", True, "approved", "operator"),
    (lambda question: False, False, "denied", "operator"),
    (lambda question: None, False, "expired", ""),
]


@pytest.mark.parametrize(("decide", "approved", "code", "by"), ANSWERS)
def test_a_question_ends_with_its_answer(
    decide: Callable[[str], bool | None], approved: bool, code: str, by: str
) -> None:
    reported = Reported()
    reported.memory.operator.answer_with(decide)
    with reported.client.session(user_id="u1", state={"step": 0}) as session:
        begun_ms = reported.memory.now_ms
        answer = session.ask("Deploy?", deadline=timedelta(minutes=5))
        assert (answer.approved, answer.reason_code, answer.by) == (approved, code, by)
        assert (reported.memory.now_ms - begun_ms >= 300_000) == (code == "expired")
        assert (session.local_state, session.epoch) == ("Active", 2)
        session.activity("llm")
        session.complete()
    assert reported.memory.rejections() == []
    assert [record.reason_code for record in reported.memory.audit() if record.transition == "T05"] == [code]


def test_asyncio_asks_too() -> None:
    reported = Reported()
    reported.memory.operator.answer_with(lambda question: True)

    async def story() -> Answer:
        client = AsyncSessionClient.wrap(reported.client)
        async with client.session(user_id="u1") as session:
            return await session.ask("Deploy?", 60)

    answer = asyncio.run(story())
    assert (answer.approved, answer.reason_code, answer.by) == (True, "approved", "operator")


def test_the_deadline_takes_the_place_of_the_hold_limit() -> None:
    reported = Reported()
    with reported.client.session(user_id="u1", limits=Limits(hold_ms=10_000)) as session:
        begun_ms = reported.memory.now_ms
        assert session.ask("Deploy?", 60).reason_code == "expired"
        assert reported.memory.now_ms - begun_ms >= 60_000
        begun_ms = reported.memory.now_ms
        assert session.ask("And now?").reason_code == "expired"
        assert 10_000 <= reported.memory.now_ms - begun_ms < 20_000


def test_another_process_finds_the_open_question_and_takes_the_session_over() -> None:
    reported = Reported()
    with suppress(Gone), reported.client.session(user_id="u1") as session:
        reported.memory.operator.answer_with(leave)
        session.ask("Deploy?")
    again = Reported(reported.memory)
    found = again.client.attach(session.session_id)
    reported.memory.operator.answer_with(lambda question: True)
    assert found.ask("Deploy?").approved
    assert (found.epoch, found.local_state) == (3, "Active")
    asked = [event for event in reported.memory.events() if event.envelope.event_type == "session_paused"]
    assert len(asked) == 1


def test_a_session_that_is_held_cannot_ask() -> None:
    reported = Reported()
    with reported.client.session(user_id="u1") as session:
        reported.memory.operator.pause(session)
        with pytest.raises(Rejected, match="illegal_transition"):
            session.ask("Deploy?", 60)
        assert session.local_state == "Paused"


def test_a_session_that_is_called_off_while_it_asks_has_ended() -> None:
    reported = Reported()
    with reported.client.session(user_id="u1") as session:

        def call_off(question: str) -> None:
            reported.memory.operator.cancel(session)

        reported.memory.operator.answer_with(call_off)
        with pytest.raises(SessionEnded, match="before its question was answered"):
            session.ask("Deploy?", 60)


@pytest.mark.parametrize("deadline", [0, -1, timedelta(0), float("nan"), float("inf")])
def test_a_deadline_is_above_0(deadline: Any) -> None:
    reported = Reported()
    with reported.client.session(user_id="u1") as session, pytest.raises(Invalid, match="deadline"):
        session.ask("Deploy?", deadline)


@pytest.mark.parametrize(
    "payload",
    [
        SessionResumed(approved=True, as_operator=True),
        SessionPaused("manual", as_operator=True),
        SessionTakenOver(as_operator=True),
        AgentRegistered("writer", as_operator=True),
    ],
)
def test_a_client_sends_no_event_as_an_operator(payload: Payload) -> None:
    reported = Reported()
    with reported.client.session(user_id="u1", state={}) as session:
        before = reported.memory.events(session.session_id)
        with pytest.raises(Invalid, match="operator_only: as_operator is for operators, who act by the control API"):
            session.emit(payload)
        assert reported.memory.events(session.session_id) == before
        session.activity("llm")  # no number is missing
    assert not [line for line in reported.memory.audit() if line.kind == "gap"]

    async def story() -> None:
        client = AsyncSessionClient.wrap(reported.client)
        async with client.session(user_id="u1", state={}) as session:
            with pytest.raises(Invalid, match="operator_only"):
                await session.emit(payload)

    asyncio.run(story())


def test_a_memory_refuses_what_another_program_forges() -> None:
    reported = Reported()
    memory, key = reported.memory, SigningKeys({"memory": "a secret that a client has invented"})
    with reported.client.session(user_id="u1", state={}) as session:
        memory.operator.pause(session, "look at it")
        memory.advance(5)  # the operator's next event is signed at the fake time
        judged = memory.events(session.session_id)[-1]
        record = next(each for each in memory.records() if each.event_id == judged.envelope.event_id)
        assert isinstance(judged.payload, SessionPaused)
        envelope = judged.envelope._replace(event_id="forged", event_type="session_resumed", producer_id="mallory")
        value = encode_event(Event(envelope, SessionResumed(as_operator=True)))
        for headers in ([], [key.sign(record.key, value)]):
            memory.send(record._replace(value=value, given_headers=headers, event_id="forged"))
            rejected = memory.rejections(session.session_id)[-1]
            assert (rejected.reason, memory.audit(session.session_id)[-1].security) == ("bad_signature", True)
            assert memory.view_session(session).state == "Paused"
        memory.operator.resume(session)
        assert memory.view_session(session).state == "Active"
