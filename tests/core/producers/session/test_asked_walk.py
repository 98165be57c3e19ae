"""An agent that asks a person, killed at every point and started again: one question."""

import uuid
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import pytest

from sessionary.producers import Session, SessionClient, SessionLost
from sessionary.producers.testing import InMemoryTransport, memory_ports
from sessionary.schemas.events import SessionPaused
from tests.support.crash_points import Killed, Life

HOUR_S = 3_600


class Walk:
    """One memory, one session, and the processes that work in it in turn."""

    def __init__(self, ask: Callable[[Session, Any], bool]) -> None:
        self.memory = InMemoryTransport()
        self.session_id = str(uuid.uuid4())
        self._ask = ask

    def live(self, dies_at: int | None = None) -> tuple[Life, Any]:
        """Let a process work until it is killed, or to its end; return its result."""
        life = Life(dies_at)
        ports = memory_ports(self.memory, "acme", "refunds")
        guarded = ports._replace(**life.guard_ports(ports))
        client = SessionClient(tenant_id="acme", service_id="refunds", agent_id="a", ports=guarded)
        try:
            session = self._open_session(client)
            with session.run("refund", run_id="r", input={"order": "A-7"}, resume=True) as run:
                amount = run.step("lookup", lambda: 1200)
                approved = self._ask(session, run)
                session.update_state({"approved": approved})
                run.result = run.step("refund", lambda: f"refunded {amount}" if approved else "rejected")
            return life, run.result
        except Killed:
            return life, None
        finally:
            with suppress(Killed):
                client.close()

    def _open_session(self, client: SessionClient) -> Session:
        """Return the session as it is, without taking it over."""
        try:
            session = client.attach(self.session_id)
        except SessionLost:
            session = client.create(session_id=self.session_id, user_id="ada")
        return session.start() if session.local_state == "Idle" else session

    def questions(self) -> Counter[str]:
        """Return how often each question was asked."""
        judged = (each.event.payload for each in self.memory.verdicts(self.session_id) if each.reason is None)
        return Counter(each.question for each in judged if isinstance(each, SessionPaused) and each.question)

    def rejected(self) -> list[Any]:
        """Return what was rejected after the session's start, which another test walks."""
        judged = self.memory.rejections(self.session_id)
        return [each for each in judged if each.event.envelope.event_type != "session_phase_changed"]

    def is_asking(self) -> bool:
        with suppress(SessionLost):  # it was killed before
            return self.memory.view_session(self.session_id).question is not None
        return False


def in_a_step(session: Session, run: Any) -> bool:
    return bool(run.step("approve", lambda: session.ask("Refund 1200?", 4 * HOUR_S).approved))


def outside_a_step(session: Session, run: Any) -> bool:
    return session.ask("Refund 1200?", 4 * HOUR_S).approved


@pytest.mark.timeout(300)
@pytest.mark.parametrize("ask", [in_a_step, outside_a_step])
@pytest.mark.parametrize("answered", ["while it waits", "while no process ran"])
def test_a_person_is_asked_once_wherever_the_agent_is_killed(
    ask: Callable[[Session, Any], bool], answered: str
) -> None:
    whole = Walk(ask)
    whole.memory.operator.answer_with(lambda question: True)
    life, result = whole.live()
    assert result == "refunded 1200"
    assert len(life.crossed) > 30
    asking = 0
    for dies_at in range(len(life.crossed)):
        walk = Walk(ask)
        if answered == "while it waits":
            walk.memory.operator.answer_with(lambda question: True)
        first, _ = walk.live(dies_at)
        where = first.crossed[-3:]
        if answered == "while no process ran" and walk.is_asking():
            asking += 1
            walk.memory.operator.approve(walk.session_id)
        walk.memory.operator.answer_with(lambda question: True)
        assert walk.live()[1] == "refunded 1200", where
        assert walk.questions() == {"Refund 1200?": 1}, where
        assert walk.live()[1] == "refunded 1200", where
        assert walk.rejected() == [], where
    assert answered == "while it waits" or asking > 0
