"""Turns of a session: exchanges with its user, and the wait between them; judged in memory."""

import asyncio
import re
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from sessionary.producers import (
    AsyncSessionClient,
    Limits,
    NotAllowed,
    ProducerSettings,
    Rejected,
    Session,
    SessionClient,
    SessionEnded,
    SessionFenced,
    SessionLost,
    Unavailable,
    tool,
)
from sessionary.producers.testing import InMemoryTransport, memory_client
from sessionary.schemas.events import SessionPhaseChanged
from tests.core.producers.gated_memory import cancel_while_it_waits, new_rig, open_soon
from tests.support.waiting import wait_until

DAY_S = 86_400.0


def phase_of(memory: InMemoryTransport, session: Session | str) -> tuple[str, str | None]:
    view = memory.view_session(session)
    return view.state, view.phase


def refused(memory: InMemoryTransport) -> list[tuple[str, str | None]]:
    return [(judged.event_type, judged.reason) for judged in memory.rejections()]


def beats_within(memory: InMemoryTransport, seconds: float) -> int:
    before = len(memory.heartbeats())
    memory.advance(seconds)
    return len(memory.heartbeats()) - before


def test_between_turns_no_process_beats_and_the_session_waits() -> None:
    client, memory = memory_client()
    session = client.session(user_id="u1")
    with session.turn() as turn:
        assert (turn.number, phase_of(memory, session)) == (1, ("Active", "processing"))
        assert beats_within(memory, 120) == 12
        session.message("user", "hi")
    assert phase_of(memory, session) == ("Active", "waiting")
    assert beats_within(memory, DAY_S - 1) == 0
    with session.turn() as turn:
        assert (turn.number, session.local_state) == (2, "Active")
        assert beats_within(memory, 600) == 60
    assert (phase_of(memory, session), memory.view_session(session).exchanges) == (("Active", "waiting"), 2)
    phases = [each.payload.phase for each in memory.events() if isinstance(each.payload, SessionPhaseChanged)]
    assert phases[2:] == ["processing", "waiting", "processing", "waiting"], "those of the start come first"
    assert refused(memory) == []


def test_a_user_who_does_not_come_back_ends_the_session_and_no_time_out_is_reported() -> None:
    errors, timed_out = list[Exception](), list[Any]()
    client, memory = memory_client(on_error=errors.append, on_timed_out=timed_out.append)
    session = client.session(user_id="u1", limits=Limits(user_idle_ms=3_600_000))
    with session.turn():
        session.message("user", "hi")
    memory.advance(3_599.9)
    assert phase_of(memory, session) == ("Active", "waiting")
    memory.advance(0.1)
    view = memory.view_session(session)
    assert (view.state, view.reason_code, session.lost) == ("Terminated", "user_idle", True)
    assert [line.to_state for line in memory.audit() if line.due_at] == ["Terminated"]
    assert [request.reason_code for request in memory.cleanups()] == ["user_idle"]
    assert timed_out == []
    assert [type(error) for error in errors] == [SessionEnded]
    assert "user_idle" in str(errors[0])
    with pytest.raises(SessionEnded, match=r"has ended \(user_idle\): open a new one"), session.turn():
        pass
    memory.advance(600)
    with pytest.raises(SessionLost):
        client.attach(session.session_id)


def test_a_process_that_knows_nothing_of_the_end_learns_of_it_before_its_turn() -> None:
    client, memory = memory_client()
    session = client.session(user_id="u1", limits=Limits(user_idle_ms=60_000))
    with session.turn():
        pass
    memory.silence_control(silent=True)
    memory.advance(60)
    memory.silence_control(silent=False)
    assert session.local_state == "Active"
    with pytest.raises(SessionEnded, match="user_idle"), session.turn():
        pass
    assert session.local_state == "Terminated"


def test_a_new_process_attaches_between_turns_and_goes_on() -> None:
    client, memory = memory_client()
    first = client.session(user_id="u1")
    with first.turn():
        first.message("user", "hi")
    client.close()
    second, _ = memory_client(memory=memory)
    memory.advance(7_200)
    session = second.attach(first.session_id)
    assert beats_within(memory, 600) == 0
    with session.turn() as turn:
        assert turn.number == 2
        assert beats_within(memory, 600) == 60
    assert beats_within(memory, 600) == 0


def test_a_process_that_dies_within_a_turn_times_out_as_ever() -> None:
    client, memory = memory_client()
    session = client.session(user_id="u1")
    turn = session.turn()
    turn.__enter__()
    memory.silence(session)
    memory.advance(60)
    assert phase_of(memory, session) == ("Timeout", "cleaning")
    memory.silence(session, silent=False)
    second, _ = memory_client(memory=memory)
    again = second.attach(session.session_id)
    with (
        pytest.raises(NotAllowed, match=r"a turn is not possible in Timeout: resume\(\) the session first"),
        again.turn(),
    ):
        pass
    again.resume()
    with again.turn() as turn:
        assert turn.number == 1  # it was not ended
    assert phase_of(memory, session) == ("Active", "waiting")


@pytest.mark.parametrize("where", ["object", "other object", "thread"])
def test_a_turn_inside_a_turn_is_refused_before_anything_is_sent(where: str) -> None:
    client, memory = memory_client()
    session = client.session(user_id="u1")
    inner = client.attach(session.session_id) if where == "other object" else session
    raised = list[BaseException]()

    def try_turn() -> None:
        try:
            with inner.turn():
                pass
        except NotAllowed as error:
            raised.append(error)

    with session.turn():
        sent = len(memory.events())
        if where == "thread":
            thread = threading.Thread(target=try_turn)
            thread.start()
            thread.join()
        else:
            try_turn()
        assert len(memory.events()) == sent
    (error,) = raised
    assert isinstance(error, NotAllowed)
    assert error.reason == "phase_order"
    assert f"a turn of session {session.session_id} is open in this process" in str(error)
    with inner.turn() as turn:
        assert turn.number == 2
    assert refused(memory) == []


def test_two_processes_take_turns() -> None:
    first, memory = memory_client()
    second, _ = memory_client(memory=memory)
    session = first.session(user_id="u1")
    other = second.attach(session.session_id)
    with session.turn():
        with pytest.raises(Rejected, match="another process is in a turn: wait for its end") as raised, other.turn():
            pass
        assert raised.value.reason == "phase_order"
        assert beats_within(memory, 60) == 6, "those of the process that is in the turn"
        session.message("user", "hi")
        assert phase_of(memory, session) == ("Active", "processing")
    with other.turn() as turn:
        assert turn.number == 2
        with pytest.raises(Rejected, match="phase_order"), session.turn():
            pass
    with session.turn():
        pass
    assert refused(memory) == [("session_phase_changed", "phase_order")] * 2


def test_a_take_over_ends_the_turn_of_the_process_before() -> None:
    first, memory = memory_client(on_error=lambda _: None)
    second, _ = memory_client(memory=memory)
    session = first.session(user_id="u1")
    turn = session.turn()
    turn.__enter__()
    taken = second.attach(session.session_id, take_over=True)
    memory.advance(10)  # a poll tells it
    with pytest.raises(SessionFenced):
        turn.__exit__(None, None, None)
    with taken.turn() as turn:
        assert turn.number == 1
    assert phase_of(memory, taken) == ("Active", "waiting")


LEAVE: dict[str, tuple[Callable[[Session], object], str]] = {
    "Paused": (lambda session: session.pause(), "resume"),
    "Timeout": (lambda session: None, "resume"),
    "Error": (lambda session: session.error(TimeoutError("slow")), "recover"),
}


@pytest.mark.parametrize("state", LEAVE)
def test_a_turn_needs_an_active_session_and_says_what_to_do(state: str) -> None:
    client, memory = memory_client(on_error=lambda _: None)
    session = client.session(user_id="u1")
    leave, remedy = LEAVE[state]
    if state == "Timeout":
        memory.silence(session)
        memory.advance(60)
        memory.silence(session, silent=False)
    leave(session)
    with pytest.raises(NotAllowed, match=re.escape(f"a turn is not possible in {state}: {remedy}()")), session.turn():
        pass
    getattr(session, remedy)()
    with session.turn():
        pass
    assert refused(memory) == []


def test_a_session_that_has_not_started_and_one_that_has_ended_have_no_turn() -> None:
    client, memory = memory_client()
    created = client.create(user_id="u1")
    with (
        pytest.raises(NotAllowed, match=r"a turn is not possible in Idle: start\(\) the session first"),
        created.turn(),
    ):
        pass
    session = client.session(user_id="u1")
    session.close()
    with pytest.raises(SessionEnded, match="has ended; create a new one"), session.turn():
        pass
    assert refused(memory) == []


def test_a_turn_of_a_session_that_others_hold_is_refused_by_the_judge() -> None:
    client, memory = memory_client(on_error=lambda _: None)
    session = client.session(user_id="u1")
    memory.operator.pause(session, "look")
    with (
        pytest.raises(Rejected, match=r"illegal_transition: a turn is not possible in Paused: resume\(\)"),
        session.turn(),
    ):
        pass
    assert session.local_state == "Paused"
    memory.operator.resume(session)
    memory.advance(1)
    with session.turn():
        pass


@pytest.mark.parametrize("by_operator", [True, False])
def test_a_session_paused_between_turns_waits_for_its_user_afterwards(by_operator: bool) -> None:
    client, memory = memory_client(on_error=lambda _: None)
    session = client.session(user_id="u1")
    with session.turn():
        pass
    if by_operator:
        memory.operator.pause(session, "look")
        memory.advance(1)
        memory.operator.resume(session)
        memory.advance(1)
    else:
        session.pause()
        session.resume()
    assert phase_of(memory, session) == ("Active", "waiting")
    assert beats_within(memory, 3_600) == 0
    with session.turn():
        assert beats_within(memory, 60) == 6


def test_a_turn_that_is_left_by_an_error_ends_and_the_session_waits() -> None:
    client, memory = memory_client()
    session = client.session(user_id="u1")
    with pytest.raises(ZeroDivisionError), session.turn():
        _ = 1 // 0
    assert phase_of(memory, session) == ("Active", "waiting")
    with session.turn() as turn:
        assert turn.number == 2


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (ZeroDivisionError(), "unrecoverable"),
        (KeyboardInterrupt(), "cancelled"),
        (SystemExit(3), "abnormal_termination"),
    ],
)
def test_an_error_that_leaves_the_block_of_the_session_ends_it_as_ever(error: BaseException, reason: str) -> None:
    client, memory = memory_client()
    with pytest.raises(type(error)), client.session(user_id="u1") as session, session.turn():
        raise error
    assert memory.view_session(session).reason_code == reason
    assert refused(memory) == []


ENDS: dict[str, tuple[Callable[[Session], object], str]] = {
    "close": (lambda session: session.close(), "closed"),
    "complete": (lambda session: session.complete(), "completed"),
    "cancel": (lambda session: session.cancel(), "cancelled"),
    "force_close": (lambda session: session.lifecycle.force_close(), "abnormal_termination"),
}


@pytest.mark.parametrize("inside", [True, False])
@pytest.mark.parametrize("verb", ENDS)
def test_a_session_may_be_ended_in_a_turn_and_between_turns(verb: str, inside: bool) -> None:
    client, memory = memory_client()
    session = client.session(user_id="u1")
    end, reason = ENDS[verb]
    with session.turn():
        if inside:
            end(session)
    if not inside:
        end(session)
    assert memory.view_session(session).reason_code == reason
    assert refused(memory) == []


@pytest.mark.parametrize("state", ["Paused", "Error", "detached"])
def test_a_turn_that_is_left_in_another_state_goes_on_afterwards(state: str) -> None:
    client, memory = memory_client()
    session = client.session(user_id="u1")
    with session.turn():
        if state == "detached":
            session.lifecycle.detach()
        else:
            LEAVE[state][0](session)
    if state != "detached":
        getattr(session, LEAVE[state][1])()
        assert phase_of(memory, session) == ("Active", "processing")
        with session.turn() as turn:
            assert turn.number == 1
    assert phase_of(memory, session) == ("Active", "waiting")
    assert refused(memory) == []


@pytest.mark.parametrize("is_noticed", [True, False])
def test_a_turn_that_ends_while_a_person_holds_the_session_is_over(is_noticed: bool) -> None:
    client, memory = memory_client(on_error=lambda error: None)
    session = client.session(user_id="u1")
    with session.turn():
        memory.operator.pause(session)
        if is_noticed:
            memory.advance(10)
            assert session.local_state == "Paused"
    assert phase_of(memory, session) == ("Paused", "waiting")
    memory.operator.resume(session)
    memory.advance(10)
    assert phase_of(memory, session) == ("Active", "waiting")
    assert beats_within(memory, DAY_S - 20) == 0
    with session.turn() as turn:
        assert turn.number == 2
    assert refused(memory) == []


def test_verbs_between_turns_go_and_start_no_heartbeats() -> None:
    client, memory = memory_client()
    session = client.session(user_id="u1")
    with session.turn():
        pass
    assert session.update_state({"n": 1}) == 2
    session.message("system", "a reminder")
    session.activity("job")
    with session.llm("large") as call:
        call.tokens_in = 1
    with session.run("report") as run:
        run.result = 1
    session.snapshot()
    session.sync()
    assert phase_of(memory, session) == ("Active", "waiting")
    assert beats_within(memory, DAY_S - 1) == 0
    assert refused(memory) == []


def test_a_run_over_several_turns_lives_with_its_process() -> None:
    client, memory = memory_client()
    with client.session(user_id="u1") as session, session.run("chat") as run:
        for _ in range(2):
            with session.turn():
                session.message("user", "hi")
            memory.advance(300)
        assert phase_of(memory, session) == ("Active", "waiting")
        run.result = 1
    assert refused(memory) == []


def test_a_session_beats_again_once_its_phase_says_that_it_works() -> None:
    client, memory = memory_client()
    session = client.session(user_id="u1")
    session.lifecycle.enter_phase("waiting")
    assert beats_within(memory, 600) == 0
    session.lifecycle.enter_phase("processing")
    assert beats_within(memory, 600) == 60
    assert phase_of(memory, session) == ("Active", "processing")


def test_a_question_in_a_turn_leaves_the_turn_open() -> None:
    client, memory = memory_client()
    session = client.session(user_id="u1")
    memory.operator.answer_with(lambda question: question == "Send it?")
    with session.turn():
        assert session.ask("Send it?").approved
        assert beats_within(memory, 60) == 6
    assert phase_of(memory, session) == ("Active", "waiting")
    assert session.ask("Send it?").approved  # between turns, too
    assert phase_of(memory, session) == ("Active", "waiting")
    with session.turn() as turn:
        assert turn.number == 2
    assert refused(memory) == []


def test_a_session_moves_to_another_service_between_turns() -> None:
    billing, memory = memory_client(service_id="billing")
    shipping, _ = memory_client(service_id="shipping", memory=memory)
    moved = list[Session]()
    shipping.accept_migrations(moved.append)
    session = billing.session(user_id="u1")
    with session.turn():
        pass
    session.migration.move(to="shipping")
    (taken,) = moved
    assert phase_of(memory, taken) == ("Active", "waiting")
    assert beats_within(memory, 600) == 0
    with taken.turn() as turn:
        assert turn.number == 2
    with pytest.raises(SessionFenced), session.turn():
        pass


def test_only_the_service_that_owns_the_session_has_turns() -> None:
    client, memory = memory_client()
    guest, _ = memory_client(service_id="guest", memory=memory)
    session = client.session(user_id="u1")
    visitor = guest.attach(session.session_id)
    with pytest.raises(NotAllowed, match="owning service") as raised, visitor.turn():
        pass
    assert raised.value.reason == "not_owner"


def test_without_a_verdict_no_turn_begins_and_the_session_waits() -> None:
    client, memory = memory_client(on_error=lambda _: None)
    session = client.session(user_id="u1")
    memory.silence_control(silent=True)
    for _ in range(2):
        with pytest.raises(Unavailable), session.turn():
            pass
        assert phase_of(memory, session) == ("Active", "waiting")
    assert beats_within(memory, 600) == 0
    memory.silence_control(silent=False)
    with session.turn():
        pass
    assert refused(memory) == []


def test_without_a_verdict_the_turn_of_another_process_goes_on() -> None:
    client, memory = memory_client(on_error=lambda _: None)
    second, _ = memory_client(memory=memory, on_error=lambda _: None)
    session = client.session(user_id="u1")
    other = second.attach(session.session_id)
    with session.turn():
        memory.silence_control(silent=True)
        with pytest.raises(Unavailable), other.turn():
            pass
        assert phase_of(memory, session) == ("Active", "processing")
        memory.silence_control(silent=False)
    assert phase_of(memory, session) == ("Active", "waiting")


def test_a_turn_of_a_client_that_is_turned_off_does_nothing() -> None:
    settings = ProducerSettings.from_env({"SESSIONARY_DISABLED": "1"})
    client = SessionClient(tenant_id="acme", service_id="s", agent_id="a", settings=settings)
    with client, client.session(user_id="u") as session:
        for _ in range(2):
            with session.turn():
                session.message("user", "hi")


# With asyncio.


async def have_turns() -> None:
    client, memory = memory_client()
    wrapped = AsyncSessionClient.wrap(client)
    async with wrapped.session(user_id="u1") as session:
        async with session.turn() as turn:
            await session.message("user", "hi")
            assert turn.number == 1
            with pytest.raises(NotAllowed, match="is open in this process"):
                async with session.turn():
                    pass
        assert phase_of(memory, session.session_id) == ("Active", "waiting")
        with pytest.raises(ZeroDivisionError):
            async with session.turn():
                _ = 1 // 0
        assert phase_of(memory, session.session_id) == ("Active", "waiting")
        with pytest.raises(asyncio.CancelledError):
            async with session.turn():
                raise asyncio.CancelledError
        assert memory.view_session(session.session_id).exchanges == 3
    assert memory.view_session(session.session_id).reason_code == "closed"


def test_turns_with_asyncio() -> None:
    asyncio.run(have_turns())


async def give_up_a_turn(tmp_path: Path, may_block: bool) -> None:
    rig = new_rig(tmp_path, may_block=may_block)
    async with rig.client.session(user_id="u1") as session:
        assert await cancel_while_it_waits(rig, lambda: session.turn().__aenter__())
        open_soon(rig)
        await asyncio.to_thread(rig.memory.open_gate)

        def has_ended() -> bool:
            is_waiting = phase_of(rig.memory, session.session_id) == ("Active", "waiting")
            return is_waiting and rig.memory.view_session(session.session_id).exchanges == 1

        await asyncio.to_thread(wait_until, has_ended, 60, "the turn to end")
        async with session.turn() as turn:
            assert turn.number == 2


@pytest.mark.parametrize("may_block", [False, True])
def test_a_turn_whose_caller_gives_up_ends(tmp_path: Path, may_block: bool) -> None:
    asyncio.run(give_up_a_turn(tmp_path, may_block))


# Tool calls count anew in each turn.


class Shop:
    """Tools whose calls are counted."""

    def __init__(self) -> None:
        self.calls = list[str]()

        @tool(effect="write")
        def send(text: str) -> int:
            self.calls.append(f"send {text}")
            return len(self.calls)

        @tool(effect="write", once=True)
        def pay(order: int) -> int:
            self.calls.append(f"pay {order}")
            return len(self.calls)

        self.send, self.pay = send, pay


def test_each_turn_counts_its_calls_anew_and_serves_none_from_the_turn_before() -> None:
    client, memory = memory_client()
    shop = Shop()
    with client.session(user_id="u1") as session:
        assert shop.send("a") == 1  # outside of turns, as before
        for _ in range(2):
            with session.turn():
                shop.send("a")
                shop.send("a")
        assert shop.send("a") == 6
    assert shop.calls == ["send a"] * 6
    assert refused(memory) == []


def test_a_write_that_must_happen_once_happens_once_in_all_turns() -> None:
    client, _ = memory_client()
    shop = Shop()
    with client.session(user_id="u1") as session:
        for _ in range(2):
            with session.turn():
                assert shop.pay(5) == 1
    assert shop.calls == ["pay 5"]


def test_a_turn_that_a_dead_process_left_is_answered_from_the_record() -> None:
    client, memory = memory_client()
    shop = Shop()
    session = client.session(user_id="u1")

    def first_turn() -> None:
        with session.turn():
            assert [session.bind(shop.send)("a"), session.bind(shop.send)("a")] == [1, 2]

    first_turn()
    session.turn().__enter__()  # and no end: the process dies
    assert [session.bind(shop.send)("a"), session.bind(shop.send)("a")] == [3, 4]
    second, _ = memory_client(memory=memory)
    again = second.attach(session.session_id, take_over=True)
    with again.turn() as turn:
        assert turn.number == 2
        assert [again.bind(shop.send)("a") for _ in range(3)] == [3, 4, 5]
    assert len(shop.calls) == 5
    assert refused(memory) == []
