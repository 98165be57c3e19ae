import threading
from collections.abc import Iterator

import pytest

from sessionary.infra.kpi.question_watch import QuestionWatch
from sessionary.schemas.errors import Unavailable
from tests.support.waiting import wait_until


class Server:
    """Answers with the number of the question; is away while `away` is set."""

    def __init__(self) -> None:
        self.asked = 0
        self.away = threading.Event()

    def answer_question(self) -> int:
        self.asked += 1
        if self.away.is_set():
            raise Unavailable("away", 1.0)
        return self.asked


@pytest.fixture
def server() -> Server:
    return Server()


@pytest.fixture
def faults() -> list[str]:
    return []


@pytest.fixture
def watch(request: pytest.FixtureRequest, server: Server, faults: list[str]) -> Iterator[QuestionWatch[int]]:
    watch: QuestionWatch[int] = QuestionWatch(request.node.name, server.answer_question, 0.01, faults.append)
    watch.start()
    yield watch
    watch.stop()


def test_there_is_no_answer_while_the_server_is_away(
    watch: QuestionWatch[int], server: Server, faults: list[str]
) -> None:
    watch.wait_answer(10)
    wait_until(lambda: (watch.answer or 0) > 1, 10, "a second answer")
    server.away.set()
    wait_until(lambda: watch.answer is None, 10, "no answer")
    asked = server.asked
    wait_until(lambda: server.asked > asked + 2, 10, "more questions")
    assert faults == [watch.fault] == ["away; try again in 1 s"]  # reported once
    server.away.clear()
    wait_until(lambda: watch.answer, 10, "an answer again")
    assert watch.fault is None


def test_a_watch_that_is_stopped_asks_no_more(request: pytest.FixtureRequest, watch: QuestionWatch[int]) -> None:
    watch.wait_answer(10)
    (thread,) = [one for one in threading.enumerate() if one.name == request.node.name]
    watch.stop()
    thread.join(10)
    assert not thread.is_alive()
