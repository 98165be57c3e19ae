import threading
from collections.abc import Iterator

import pytest

from sessionary.infra.kpi.question_watch import QuestionWatch
from sessionary.schemas.errors import Unavailable
from tests.support.waiting import wait_until


class Server:
    """Answers with the number of the question, unless it is `away`, or its answer `broken`."""

    def __init__(self) -> None:
        self.asked = 0
        self.away, self.broken = threading.Event(), threading.Event()

    def answer_question(self) -> int:
        self.asked += 1
        if self.away.is_set():
            raise Unavailable("away", 1.0)
        if self.broken.is_set():
            raise KeyError("a column")
        return self.asked


@pytest.fixture
def server() -> Server:
    return Server()


@pytest.fixture
def faults() -> list[Exception]:
    return []


@pytest.fixture
def watch(request: pytest.FixtureRequest, server: Server, faults: list[Exception]) -> Iterator[QuestionWatch[int]]:
    watch: QuestionWatch[int] = QuestionWatch(request.node.name, server.answer_question, 0.01, faults.append)
    watch.start()
    yield watch
    watch.stop()


def test_there_is_no_answer_while_the_server_is_away(
    watch: QuestionWatch[int], server: Server, faults: list[Exception]
) -> None:
    watch.wait_answer(60)
    wait_until(lambda: (watch.answer or 0) > 1, 60, "a second answer")
    server.away.set()
    wait_until(lambda: watch.answer is None, 60, "no answer")
    asked = server.asked
    wait_until(lambda: server.asked > asked + 2, 60, "more questions")
    assert [str(fault) for fault in faults] == [watch.fault] == ["away; try again in 1 s"]  # reported once
    assert watch.health() == (True, "ok"), "that a server is away is no fault of the watch"
    server.away.clear()
    wait_until(lambda: watch.answer, 60, "an answer again")
    assert watch.fault is None


def test_an_error_that_nobody_expects_ends_no_watch(
    watch: QuestionWatch[int], server: Server, faults: list[Exception]
) -> None:
    wait_until(lambda: watch.answer, 60, "an answer")
    server.broken.set()
    wait_until(lambda: watch.answer is None, 60, "no answer")
    assert watch.fault == "KeyError"
    assert [type(fault) for fault in faults] == [KeyError]
    server.broken.clear()
    wait_until(lambda: watch.answer, 60, "an answer again")
    assert watch.fault is None


def test_an_answer_that_is_old_is_not_served_and_a_question_without_an_end_is_reported(
    request: pytest.FixtureRequest,
) -> None:
    clock_s, answers, released = [0.0], iter([7, 8]), threading.Event()
    blocked = threading.Event()

    def ask() -> int:
        answer = next(answers)
        if answer == 8:
            blocked.set()
            released.wait(60)
        return answer

    watch = QuestionWatch(request.node.name, ask, 0.01, lambda _error: None, lambda: clock_s[0])
    watch.start()
    try:
        assert blocked.wait(60)
        for now_s, answer, fault in ((10.0, 7, None), (10.5, None, "the last answer is too old")):
            clock_s[0] = now_s
            assert (watch.answer, watch.fault, watch.health()[0]) == (answer, fault, True)
        clock_s[0] = 301.0
        assert watch.health() == (False, f"{request.node.name}: a question has had no end for 301 s")
        released.set()
        wait_until(lambda: watch.health()[0] and watch.answer == 8, 60, "the answer at last")
    finally:
        watch.stop()


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_a_watch_whose_thread_has_ended_is_not_well(request: pytest.FixtureRequest) -> None:
    def end_thread() -> int:
        raise SystemExit  # ends a thread, and prints nothing

    watch = QuestionWatch(request.node.name, end_thread, 0.01, lambda _error: None)
    assert watch.health() == (True, "ok"), "it has not begun"
    watch.start()
    wait_until(lambda: not watch.health()[0], 60, "the thread to end")
    assert watch.health() == (False, f"{request.node.name}: its thread has ended")
    watch.stop()
    assert watch.health()[0]


def test_a_watch_that_is_stopped_asks_no_more(request: pytest.FixtureRequest, watch: QuestionWatch[int]) -> None:
    watch.wait_answer(60)
    (thread,) = [one for one in threading.enumerate() if one.name == request.node.name]
    watch.stop()
    thread.join(60)
    assert not thread.is_alive()
