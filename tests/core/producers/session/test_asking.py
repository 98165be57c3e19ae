"""Questions to people: left by errors, asked by several, and what else is tried meanwhile."""

import asyncio
import re
import threading
import uuid
from collections import Counter
from collections.abc import Callable
from contextlib import nullcontext, suppress
from typing import Any

import pytest

from sessionary.producers import (
    Answer,
    AsyncSessionClient,
    DeliveryFailed,
    Invalid,
    NotAllowed,
    Rejected,
    Run,
    Session,
    SessionClient,
    SessionEnded,
    SessionFenced,
    SessionLost,
    tool,
)
from sessionary.producers.durable.flow import Do, Flow, Wait
from sessionary.producers.session.conversation import Questions
from sessionary.producers.session.pending_verdict import PendingVerdict
from sessionary.producers.testing import InMemoryTransport, memory_client
from sessionary.schemas.events import RunCompleted, SessionPaused, StepFailed, StepSucceeded
from tests.support.waiting import wait_until

HOUR_S = 3_600


class Gone(BaseException):
    """The process ends while it waits for a person."""


class Story:
    """One memory and one session, in which processes work in turn."""

    def __init__(self) -> None:
        self.memory = InMemoryTransport()
        self.session_id = str(uuid.uuid4())
        self.told: list[Any] = []

    def client(self, service: str = "refunds") -> SessionClient:
        tell = self.told.append
        client, _ = memory_client("acme", service, memory=self.memory, on_error=tell, on_rejected=tell)
        return client

    def open(self, client: SessionClient | None = None) -> Session:
        client = client or self.client()
        try:
            return client.attach(self.session_id)
        except SessionLost:
            return client.session(user_id="ada", session_id=self.session_id)

    def leave_with(self, error: BaseException) -> None:
        """Let the process that asks next be left by an error while it waits."""

        def leave(question: str) -> None:
            raise error

        self.memory.operator.answer_with(leave)

    def approve_all(self) -> None:
        self.memory.operator.answer_with(lambda question: True)

    def state(self) -> str:
        return self.memory.view_session(self.session_id).state

    def applied(self, *kinds: type[Any]) -> list[Any]:
        judged = self.memory.verdicts(self.session_id)
        return [each.event.payload for each in judged if each.reason is None and isinstance(each.event.payload, kinds)]

    def questions(self) -> Counter[str]:
        return Counter(paused.question for paused in self.applied(SessionPaused) if paused.question)

    def check_quiet(self) -> None:
        """Check that nothing was rejected, and no error reported but to who was killed."""
        assert self.memory.rejections(self.session_id) == []
        assert [error for error in self.told if not isinstance(error, SessionFenced)] == []


ERRORS: list[BaseException] = [KeyboardInterrupt(), SystemExit(0), SystemExit(1), ValueError("x"), Gone()]


@pytest.mark.parametrize("error", ERRORS, ids=repr)
@pytest.mark.parametrize("is_async", [False, True])
@pytest.mark.parametrize("in_run", [False, True])
def test_leaving_the_block_by_an_error_leaves_the_question_open(
    error: BaseException, is_async: bool, in_run: bool
) -> None:
    story = Story()
    story.leave_with(error)

    def work() -> None:
        with story.open() as session:
            if in_run:
                with session.run("refund", run_id="r", resume=True) as run:
                    run.step("approve", session.ask, "Pay?", 4 * HOUR_S)
            else:
                session.ask("Pay?", 4 * HOUR_S)

    async def work_async() -> None:
        client = AsyncSessionClient.wrap(story.client())
        async with client.session(user_id="ada", session_id=story.session_id) as session:
            if in_run:
                async with session.run("refund", run_id="r", resume=True) as run:
                    await run.step("approve", session.ask, "Pay?", 4 * HOUR_S)
            else:
                await session.ask("Pay?", 4 * HOUR_S)

    with pytest.raises(type(error)):
        asyncio.run(work_async()) if is_async else work()
    assert story.state() == "Paused"
    story.memory.advance(4 * HOUR_S - 60)
    assert story.state() == "Paused"
    story.approve_all()
    with story.open() as session:
        if in_run:
            with session.run("refund", run_id="r", resume=True) as run:
                assert run.step("approve", lambda *_: session.ask("Pay?", 4 * HOUR_S).approved, "Pay?", 4 * HOUR_S)
        else:
            assert session.ask("Pay?", 4 * HOUR_S).approved
    assert story.questions() == {"Pay?": 1}
    story.check_quiet()


def test_an_agent_gives_up_by_cancelling() -> None:
    story = Story()
    story.leave_with(Gone())
    with suppress(Gone), story.open() as session:
        session.ask("Pay?")
    with story.open() as session:
        session.cancel("not needed any more")
    view = story.memory.view_session(story.session_id)
    assert (view.state, view.reason_code, view.question) == ("Terminated", "cancelled", None)
    story.check_quiet()


VERBS: dict[str, Callable[[Session], object]] = {
    "update_state": lambda session: session.update_state({"n": 1}),
    "activity": lambda session: session.activity("llm"),
    "message": lambda session: session.message("user", "hi"),
    "run": lambda session: session.run("x").__enter__(),
    "pause": lambda session: session.pause(),
}


@pytest.mark.parametrize("verb", VERBS)
@pytest.mark.parametrize("restarted", [False, True])
def test_verbs_that_cannot_go_say_what_the_session_waits_for(verb: str, restarted: bool) -> None:
    story = Story()
    story.leave_with(Gone())
    session = story.open().__enter__()
    with pytest.raises(Gone):
        session.ask("Pay?")
    if restarted:
        session = story.open()
    said = "is not possible while a person is asked 'Pay?': ask() the same question to wait for the answer, or cancel()"
    with pytest.raises(NotAllowed, match=re.escape(said)) as raised:
        VERBS[verb](session)
    assert "resume" not in raised.value.detail
    with pytest.raises(Rejected, match="question_open: a person is asked 'Pay\\?'"):
        session.resume()
    assert story.state() == "Paused"


def test_events_of_an_attached_run_wait_or_are_refused_here() -> None:
    """Nothing of a run reaches the processor in the wait; a step that ends meanwhile waits."""
    story, began, asked, ended = Story(), threading.Event(), threading.Event(), threading.Event()
    with story.open() as session, session.run("refund", run_id="r") as run:

        def work() -> str:
            began.set()
            asked.wait(60)
            with pytest.raises(NotAllowed, match="while a person is asked"):
                run.report_progress(0.5)
            ended.set()
            return "done"

        def decide(question: str) -> bool | None:
            if threading.current_thread() is not threading.main_thread():
                return None
            asked.set()
            return ended.wait(60)

        story.memory.operator.answer_with(decide)
        other = threading.Thread(target=run.step, args=("work", work))
        other.start()
        assert began.wait(60)
        assert run.step("approve", session.ask, "Pay?", HOUR_S).approved
        other.join()
    assert {done.name.partition(" ")[0] for done in story.applied(StepSucceeded)} >= {"work", "approve"}
    assert len(story.applied(RunCompleted)) == 1
    story.check_quiet()


def test_a_tool_that_is_tried_again_in_the_wait_waits_for_the_answer() -> None:
    story, began, asked = Story(), threading.Event(), threading.Event()
    tries, looks = list[int](), list[str]()

    @tool(effect="read")
    def read() -> str:
        tries.append(1)
        began.set()
        asked.wait(60)
        if len(tries) == 1:
            raise ConnectionError
        return "done"

    with story.open() as session, session.run("refund", run_id="r") as run:
        other = threading.Thread(target=lambda: looks.append(run.step("work", read)))

        def decide(question: str) -> bool | None:
            if threading.current_thread() is other:
                looks.append("waits")
                return None
            asked.set()
            return True if len(looks) > 1 or not other.is_alive() else None

        story.memory.operator.answer_with(decide)
        other.start()
        assert began.wait(60)
        assert run.step("approve", session.ask, "Pay?", HOUR_S).approved
        other.join()
    assert looks[-1] == "done"
    assert len(tries) == 2
    story.check_quiet()


def test_a_run_in_asyncio_waits_with_its_steps_and_its_end() -> None:
    story = Story()
    story.approve_all()

    @tool(effect="read")
    async def read() -> str:
        return "done"

    async def slow() -> str:
        await asyncio.sleep(0)
        return await read()

    async def work() -> None:
        client = AsyncSessionClient.wrap(story.client())
        async with (
            client.session(user_id="ada", session_id=story.session_id) as session,
            session.run("refund", run_id="r") as run,
        ):

            async def approve(question: str) -> bool:
                return (await session.ask(question, HOUR_S)).approved

            questions = [run.step("approve", approve, f"Pay {n}?", key=f"{n}") for n in range(3)]
            assert await asyncio.gather(*questions, run.step("work", slow)) == [True, True, True, "done"]

    asyncio.run(work())
    assert story.questions() == {"Pay 0?": 1, "Pay 1?": 1, "Pay 2?": 1}
    assert len(story.applied(RunCompleted)) == 1
    story.check_quiet()


def refunds(session: Session, run: Run) -> list[bool]:
    """Ask some times, with the same text and others, in steps and outside."""
    found = [session.ask("Go on?", HOUR_S).approved]
    found.append(session.ask("Go on?", HOUR_S).approved)
    found += [run.step("pay", lambda n: session.ask(f"Pay {n}?", HOUR_S).approved, n) for n in range(3)]
    found.append(run.step("pay", lambda: session.ask("Go on?", HOUR_S).approved and session.ask("Go on?").approved))
    return found


def test_a_loop_of_questions_asks_each_once_whenever_it_is_interrupted() -> None:
    whole = Story()
    whole.approve_all()
    with whole.open() as session, session.run("refunds", run_id="r") as run:
        assert refunds(session, run) == [True] * 6
    expected = {"Go on?": 4, "Pay 0?": 1, "Pay 1?": 1, "Pay 2?": 1}
    assert whole.questions() == expected
    for number in range(7):
        story, left = Story(), number

        def decide(question: str) -> bool:
            nonlocal left
            left -= 1
            if left < 0:
                raise Gone
            return True

        story.memory.operator.answer_with(decide)
        with suppress(Gone), story.open() as session, session.run("refunds", run_id="r", resume=True) as run:
            refunds(session, run)
        story.approve_all()
        with story.open() as session, session.run("refunds", run_id="r", resume=True) as run:
            run.result = refunds(session, run)
        assert run.result == [True] * 6
        assert story.questions() == expected
        story.check_quiet()
        with story.open() as session, session.run("refunds", run_id="r", resume=True) as run:
            assert refunds(session, run) == [True] * 6
        assert run.result == [True] * 6


@pytest.mark.parametrize("late_s", [1, 120, 20 * HOUR_S])
@pytest.mark.parametrize("answered", [True, False])
def test_an_answer_of_a_time_without_a_process_is_taken_at_the_next_start(late_s: float, answered: bool) -> None:
    story = Story()
    story.leave_with(Gone())
    with suppress(Gone), story.open() as session, session.run("refund", run_id="r", resume=True) as run:
        run.step("approve", lambda: session.ask("Pay?", HOUR_S)._asdict())
    story.memory.operator.answer_with(None)
    if answered:
        story.memory.advance(1_800)
        story.memory.operator.approve(story.session_id, "fine")
    else:
        story.memory.advance(HOUR_S)
    story.memory.advance(min(late_s, 7 * HOUR_S))
    with story.open() as session, session.run("refund", run_id="r", resume=True) as run:
        found = run.step("approve", lambda: session.ask("Pay?", HOUR_S)._asdict())
        run.result = found["reason_code"]
    assert (found["approved"], run.result) == ((True, "approved") if answered else (False, "expired"))
    assert story.questions() == {"Pay?": 1}
    assert story.applied(StepFailed) == []
    story.check_quiet()
    with story.open() as session, session.run("refund", run_id="r", resume=True) as run:
        assert run.is_complete
    assert run.result == ("approved" if answered else "expired")


def test_outside_of_runs_an_answer_counts_until_work_is_done() -> None:
    story = Story()
    story.approve_all()
    story.open().ask("Pay?")
    assert story.open().ask("Pay?").approved
    assert story.questions() == {"Pay?": 1}
    session = story.open()
    session.activity("pays")
    assert session.ask("Pay?").approved  # it came before
    assert story.open().ask("Pay?").approved
    assert story.questions() == {"Pay?": 2}
    story.check_quiet()


def run_until_wait(flow: Flow[Answer]) -> Answer | None:
    """Run a flow until it waits; return what it returns, or None if it waits."""
    try:
        step = flow.send(None)
        while not isinstance(step, Wait):
            assert isinstance(step, Do)
            step = flow.send(step.work())
    except StopIteration as done:
        answer: Answer = done.value
        return answer
    return None


@pytest.mark.parametrize("processes", [1, 2])
@pytest.mark.parametrize("first_to_look", [0, 1])
def test_two_agents_ask_one_after_the_other_and_each_gets_its_answer(processes: int, first_to_look: int) -> None:
    story = Story()
    first = story.open()
    second = story.open() if processes == 2 else first
    flows = [
        Questions(session.core).ask(f"{question}?", HOUR_S, {}) for session, question in ((first, "A"), (second, "B"))
    ]
    assert [run_until_wait(flow) for flow in flows] == [None, None]
    story.memory.operator.approve(story.session_id, "to A")
    looks = [run_until_wait(flows[first_to_look]), run_until_wait(flows[1 - first_to_look])]
    to_a = looks[first_to_look]
    assert to_a is not None
    assert (to_a.approved, to_a.text) == (True, "to A")
    assert looks[1 - first_to_look] is None
    question = story.memory.view_session(story.session_id).question
    assert question is not None
    assert question.text == "B?"
    story.memory.operator.deny(story.session_id, "to B")
    to_b = run_until_wait(flows[1])
    assert to_b is not None
    assert (to_b.approved, to_b.text) == (False, "to B")
    assert story.questions() == {"A?": 1, "B?": 1}


def test_the_second_answer_of_a_person_is_rejected_and_changes_nothing() -> None:
    story = Story()
    story.leave_with(Gone())
    with suppress(Gone), story.open() as session:
        session.ask("Pay?")
    story.memory.operator.answer_with(None)
    story.memory.operator.approve(story.session_id)
    with pytest.raises(Rejected):
        story.memory.operator.deny(story.session_id)
    assert story.open().ask("Pay?").approved


def test_a_claim_in_the_wait_fences_who_asked_and_the_other_service_takes_the_answer() -> None:
    story = Story()

    def claim(question: str) -> None:
        story.memory.operator.claim(story.session_id, "night-shift")

    story.memory.operator.answer_with(claim)
    with pytest.raises(SessionFenced), story.open() as session:
        session.ask("Pay?")
    assert story.state() == "Paused"
    story.approve_all()
    assert story.open(story.client("night-shift")).ask("Pay?").approved
    assert story.questions() == {"Pay?": 1}


def test_a_session_that_ends_in_the_wait_ends_the_run_that_waits() -> None:
    story = Story()
    story.leave_with(Gone())
    with suppress(Gone), story.open() as session, session.run("refund", run_id="r", resume=True) as run:
        run.step("approve", session.ask, "Pay?")
    story.memory.operator.answer_with(lambda question: story.memory.operator.cancel(story.session_id) and None)
    with story.open() as session, pytest.raises(SessionEnded, match="ended \\(cancelled\\)"):
        session.run("refund", run_id="r", resume=True).__enter__()


def test_a_detached_run_goes_on_while_a_person_is_asked() -> None:
    story = Story()
    story.leave_with(Gone())
    session = story.open()
    with suppress(Gone), session.run("refund", run_id="r", mode="detached", resume=True) as run:
        run.step("approve", lambda: session.ask("Pay?").approved)
    story.memory.operator.answer_with(None)
    session = story.open()
    with session.run("refund", run_id="r", mode="detached", resume=True) as run:
        assert run.step("other work", lambda: 7) == 7
        run.report_progress(0.5)
        assert story.state() == "Paused"
        story.approve_all()
        assert run.step("approve", lambda: session.ask("Pay?").approved)
    assert story.questions() == {"Pay?": 1}
    story.check_quiet()


@pytest.mark.parametrize("between", ["turns", "work", "processes"])
def test_a_denial_counts_although_an_equal_question_was_approved_before(between: str) -> None:
    story, answers = Story(), iter([True, False])
    story.memory.operator.answer_with(lambda question: next(answers))
    session, approved = story.open(), list[bool]()
    for _ in range(2):
        with session.turn() if between == "turns" else nullcontext():
            approved.append(session.ask("Pay?").approved)
            if between != "turns":
                session.message("tool", "paid")
                story.memory.advance(1)
        if between == "processes":
            session = story.client().attach(story.session_id, take_over=True)
    assert approved == [True, False]
    assert story.questions() == {"Pay?": 2}


@pytest.mark.parametrize("is_answered", [True, False])
def test_a_question_of_a_turn_is_asked_once_although_its_process_dies(is_answered: bool) -> None:
    story = Story()
    story.leave_with(Gone())
    session = story.open()
    with suppress(Gone), session.turn():
        session.ask("Pay?")
    story.memory.operator.answer_with(None)
    if is_answered:
        story.memory.operator.approve(story.session_id)
    else:
        story.approve_all()
    story.memory.advance(60)
    session = story.client().attach(story.session_id, take_over=True)
    if not is_answered:
        with pytest.raises(NotAllowed, match="wait for the answer"):
            session.turn().__enter__()
        assert session.ask("Pay?").approved  # the remedy
    with session.turn() as turn:
        assert turn.number == 1
        assert session.ask("Pay?").approved
    assert story.questions() == {"Pay?": 1}


def test_a_question_that_is_lost_is_not_open(monkeypatch: pytest.MonkeyPatch) -> None:
    story = Story()
    session = story.open()

    def lose(sent: PendingVerdict, timeout_s: float) -> None:
        raise DeliveryFailed(sent.event_id, "no broker")

    with monkeypatch.context() as patch:
        patch.setattr(PendingVerdict, "wait_position", lose)
        with pytest.raises(DeliveryFailed):
            session.ask("Pay?")
    assert session.local_state == "Active"
    session.message("assistant", "no person was asked")
    assert session.core.beats.interval_s() is not None


def test_an_agent_that_gives_up_just_after_the_answer_ends_its_session() -> None:
    story = Story()
    session = story.open()

    def answer_and_give_up(question: str) -> None:
        story.memory.operator.answer_with(None)
        story.memory.operator.approve(story.session_id)
        session.cancel("not needed")

    story.memory.operator.answer_with(answer_and_give_up)
    with pytest.raises(SessionEnded):
        session.ask("Pay?")
    wait_until(lambda: story.state() == "Terminated", 10, "the second end")
    assert story.memory.view_session(story.session_id).reason_code == "cancelled"


@pytest.mark.parametrize("question", ["", None, 7])
def test_a_question_is_a_text(question: Any) -> None:
    story = Story()
    with story.open() as session, pytest.raises(Invalid, match="question is"):
        session.ask(question)
