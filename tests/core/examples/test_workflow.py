"""The workflow, killed at every crash point and started again: each effect happens once.

Between sending, asking and calling there is a crash point before and after each. The second process
has nothing of the first one but what the processor and the services keep.
"""

import uuid
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from threading import Thread
from typing import Any

import pytest

from examples.workflow import workflow
from examples.workflow.services import Services
from examples.workflow.workflow import Tools, open_session, triage
from sessionary.producers import SessionClient, ToolCallUnresolved
from sessionary.producers.testing import InMemoryTransport, memory_ports
from sessionary.schemas.events import RunCompleted, StepSkipped, StepSucceeded
from tests.support.crash_points import Killed, Life


class Walk:
    """One memory and one pair of services, and the processes that work with them in turn."""

    def __init__(self, services: Services, monkeypatch: pytest.MonkeyPatch, *, asks: bool = True) -> None:
        self.memory = InMemoryTransport()
        self.session_id = str(uuid.uuid4())
        self._services, self._patch, self._asks = services, monkeypatch, asks
        self._ask = workflow.ask_service

    def live(self, dies_at: int | None = None) -> tuple[Life, dict[str, Any] | None]:
        """Let a process work from where the one before it came to; None if it was killed."""
        life = Life(dies_at)
        ports = memory_ports(self.memory, "acme", "support")
        self._patch.setattr(workflow, "ask_service", life.guard("HTTP request", self._ask))
        client = SessionClient(
            tenant_id="acme", service_id="support", agent_id="triage", ports=ports._replace(**life.guard_ports(ports))
        )
        try:
            session = open_session(client, self.session_id)
            return life, triage(session, Tools(self._services.url, asks=self._asks), "BILL-7")
        except Killed:
            return life, None
        finally:
            with suppress(Killed):
                client.close()

    def payloads(self, *kinds: type[Any]) -> list[Any]:
        """Return what was applied of these kinds, in order."""
        judged = (verdict for verdict in self.memory.verdicts(self.session_id) if verdict.reason is None)
        return [verdict.event.payload for verdict in judged if isinstance(verdict.event.payload, kinds)]


@pytest.fixture
def services(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Services]:
    with Services(tmp_path, ignores_keys=getattr(request, "param", False)) as running:
        thread = Thread(target=running.serve_forever, args=(0.01,))
        thread.start()
        yield running
        running.shutdown()
        thread.join()


def test_a_kill_at_any_crash_point_repeats_no_effect(services: Services, monkeypatch: pytest.MonkeyPatch) -> None:
    """Walk all crash points, each with a session of its own."""
    points = len(Walk(services, monkeypatch).live()[0].crossed)
    assert points > 40
    for dies_at in range(points):
        sent_before, asked_before = len(services.sent.all()), len(services.requests)
        walk = Walk(services, monkeypatch)
        life, _ = walk.live(dies_at)
        where = life.crossed[-3:]
        _, sent = walk.live()
        assert sent is not None
        assert len(services.sent.all()) - sent_before == 1, where
        assert len(services.requests) - asked_before == 1, where
        assert [step.name for step in walk.payloads(StepSucceeded)] == workflow.PLAN, where
        assert len(walk.payloads(RunCompleted)) == 1, where


@pytest.mark.parametrize("services", [True], indirect=True, ids=["keys are ignored"])
def test_a_service_that_ignores_keys_is_never_asked_twice(services: Services, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a call that may have taken effect only a person knows the outcome."""
    points = len(Walk(services, monkeypatch, asks=False).live()[0].crossed)
    unresolved = 0
    for dies_at in range(points):
        asked_before = len(services.requests)
        walk = Walk(services, monkeypatch, asks=False)
        life, _ = walk.live(dies_at)
        try:
            _, sent = walk.live()
        except ToolCallUnresolved:
            unresolved += 1
            assert len(services.requests) - asked_before <= 1, life.crossed[-3:]
        else:
            assert sent is not None
            assert len(services.requests) - asked_before == 1, life.crossed[-3:]
    assert 1 < unresolved < points


def test_what_was_done_is_skipped_and_why_is_recorded(services: Services, monkeypatch: pytest.MonkeyPatch) -> None:
    walk = Walk(services, monkeypatch)
    points = len(walk.live()[0].crossed)
    again = Walk(services, monkeypatch)
    again.live(points - 4)
    assert again.live()[1] is not None
    assert [step.name for step in again.payloads(StepSkipped)][:2] == workflow.PLAN[:2]
    assert all("succeeded in attempt 1" in step.reason for step in again.payloads(StepSkipped))


def test_a_third_start_changes_nothing(services: Services, monkeypatch: pytest.MonkeyPatch) -> None:
    walk = Walk(services, monkeypatch)
    _, first = walk.live()
    before = len(walk.memory.events())
    _, second = walk.live()
    assert second == first
    assert len(services.requests) == 1
    events = [event.envelope.event_type for event in walk.memory.events()[before:]]
    assert not [name for name in events if name.startswith(("run_", "step_", "tool_"))]
