"""The examples that are interrupted: a step fails, or a process is killed, and another goes on."""

import uuid
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, get_args

import pytest

from examples.research import agent as research
from examples.support import agent as support
from examples.trading import agent as trading
from examples.workflow.workflow import open_session
from sessionary.producers import Session, SessionClient, ToolCallUnresolved
from sessionary.producers.artifacts import ArtifactLibrary
from sessionary.producers.testing import InMemoryTransport, memory_client, memory_ports
from sessionary.schemas.events import (
    CheckpointSaved,
    RunCompleted,
    StepFailed,
    StepSkipped,
    StepStarted,
    StepSucceeded,
    ToolCallResolved,
)
from sessionary.schemas.types import CheckpointKind
from tests.support.crash_points import Killed, Life

SYMBOLS = ["OAK", "BIRCH", "SEQUOIA"]


class Interrupted:
    """One memory and one session, and the processes that work in it in turn."""

    def __init__(self) -> None:
        self.memory = InMemoryTransport()
        self.session_id = str(uuid.uuid4())

    @contextmanager
    def process(self, life: Life | None = None) -> Iterator[SessionClient]:
        """Return the client of a process; it ends without ending its session."""
        ports = memory_ports(self.memory, "acme", "team")
        guarded = ports if life is None else ports._replace(**life.guard_ports(ports))
        client = SessionClient(tenant_id="acme", service_id="team", agent_id="worker", ports=guarded)
        try:
            yield client
        finally:
            with suppress(Killed):
                client.close()

    def payloads(self, *kinds: type[Any]) -> list[Any]:
        """Return what was applied of these kinds, in order."""
        judged = (verdict for verdict in self.memory.verdicts(self.session_id) if verdict.reason is None)
        return [verdict.event.payload for verdict in judged if isinstance(verdict.event.payload, kinds)]

    def attempts(self) -> Counter[str]:
        """Return how often each step began."""
        return Counter(step.name for step in self.payloads(StepStarted))

    def open_trading(self, client: SessionClient) -> Session:
        return open_session(client, self.session_id, data_classes=("financial",), limits=trading.LIMITS)

    def work(self, name: str) -> None:
        """Let a step of the trading example take its time, on the memory's clock."""
        self.memory.advance(60 * trading.MINUTES[name])


def test_a_trade_goes_on_at_its_fourth_step_and_doubles_no_order(tmp_path: Path) -> None:
    orders, interrupted = tmp_path / "orders.ndjson", Interrupted()
    exchange = trading.Exchange(orders, silent_from=2)
    with interrupted.process() as client, pytest.raises(ToolCallUnresolved) as silence:
        trading.trade(interrupted.open_trading(client), exchange, SYMBOLS, interrupted.work)
    assert isinstance(silence.value.__cause__, TimeoutError)
    began_ms = interrupted.memory.now_ms

    exchange = trading.Exchange(orders)
    with interrupted.process() as client:
        session = interrupted.open_trading(client)
        placed = trading.trade(session, exchange, SYMBOLS, interrupted.work)
        session.complete("traded")
    assert placed == exchange.orders()
    assert [order["buy"] for order in placed] == ["BIRCH", "OAK"]
    assert interrupted.attempts() == {**dict.fromkeys(trading.PLAN[:3], 1), "execute_trades": 2}
    assert [step.name for step in interrupted.payloads(StepSkipped)] == trading.PLAN[:3]
    assert interrupted.memory.now_ms - began_ms < 60_000 * (trading.MINUTES["execute_trades"] + 1)


def test_the_trail_of_an_interrupted_trade_is_complete(tmp_path: Path) -> None:
    orders, interrupted = tmp_path / "orders.ndjson", Interrupted()
    with interrupted.process() as client, suppress(ToolCallUnresolved):
        exchange = trading.Exchange(orders, silent_from=2)
        trading.trade(interrupted.open_trading(client), exchange, SYMBOLS, interrupted.work)
    with interrupted.process() as client:
        session = interrupted.open_trading(client)
        trading.trade(session, trading.Exchange(orders), SYMBOLS, interrupted.work)
        session.complete("traded")
    trail = interrupted.memory.audit(interrupted.session_id)
    assert [record.audit_seq for record in trail] == list(range(1, len(trail) + 1))
    assert {record.retention_class for record in trail} == {"sox_audit"}
    assert [record.transition for record in trail if record.transition][-1] == "T13"
    assert any(record.kind == "tool_call" for record in trail)
    (failed,) = interrupted.payloads(StepFailed)
    assert (failed.name, failed.error.error_class) == ("execute_trades", "retryable")
    (resolved,) = interrupted.payloads(ToolCallResolved)
    assert resolved.outcome == "succeeded"


def test_a_trader_that_is_killed_anywhere_doubles_no_order(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    place, find = trading.Exchange.place, trading.Exchange.find

    def live(interrupted: Interrupted, exchange: trading.Exchange, dies_at: int | None = None) -> Life:
        life = Life(dies_at)
        monkeypatch.setattr(trading.Exchange, "place", life.guard("order", place))
        monkeypatch.setattr(trading.Exchange, "find", life.guard("question", find))
        with suppress(Killed), interrupted.process(life) as client:
            trading.trade(interrupted.open_trading(client), exchange, SYMBOLS, interrupted.work)
        return life

    points = len(live(Interrupted(), trading.Exchange(tmp_path / "whole")).crossed)
    assert points > 40
    for dies_at in range(points):
        interrupted, exchange = Interrupted(), trading.Exchange(tmp_path / str(dies_at))
        where = live(interrupted, exchange, dies_at).crossed[-3:]
        live(interrupted, exchange)
        assert [order["buy"] for order in exchange.orders()] == ["BIRCH", "OAK"], where
        assert len(interrupted.payloads(RunCompleted)) == 1, where


def test_an_answer_is_tried_again_and_another_agent_sees_why() -> None:
    interrupted = Interrupted()
    with interrupted.process() as client, pytest.raises(TimeoutError):
        support.answer_ticket(open_session(client, interrupted.session_id), support.Model(down=True), "no network")
    watcher, _ = memory_client("acme", "team", "supervisor", memory=interrupted.memory)
    before = len(interrupted.memory.events())
    seen = support.look_at(watcher, interrupted.session_id)
    assert len(interrupted.memory.events()) == before
    assert (seen.request, seen.done, seen.to_retry) == ("no network", ("classify", "gather_context"), ("write_answer",))
    assert seen.error is not None
    assert (seen.error.error_class, seen.error.message) == ("retryable", "the model does not answer")

    with interrupted.process() as client:
        answer = support.answer_ticket(open_session(client, interrupted.session_id), support.Model(), "no network")
    assert answer == "no network: about network: restart the router"
    assert interrupted.attempts() == {"classify": 1, "gather_context": 1, "write_answer": 2}
    assert support.look_at(watcher, interrupted.session_id).state == "completed"


def test_the_steps_of_a_ticket_name_the_agent_that_did_them() -> None:
    interrupted = Interrupted()
    with interrupted.process() as client:
        support.answer_ticket(open_session(client, interrupted.session_id), support.Model(), "no network")
    events = interrupted.memory.events(interrupted.session_id)
    done = {event.payload.name: event.envelope.actor for event in events if isinstance(event.payload, StepSucceeded)}
    assert done == {
        "classify": "classifier",
        "gather_context": "context gatherer",
        "write_answer": "response generator",
    }


def test_a_research_downloads_and_extracts_nothing_twice(tmp_path: Path) -> None:
    library, web, interrupted = ArtifactLibrary(tmp_path / "papers"), research.Web(tmp_path / "web"), Interrupted()

    def live(model: research.Model) -> str:
        with interrupted.process() as client:
            return research.research(open_session(client, interrupted.session_id), library, web, model, "heat pumps")

    with pytest.raises(TimeoutError):
        live(research.Model(down=True))
    requests = web.requests()
    assert len(requests) == len(set(requests)) == 3
    assert live(research.Model()) == "FINDING 1. AND FINDING 2."
    assert web.requests() == requests
    assert interrupted.attempts() == {**dict.fromkeys(research.PLAN, 1), "analyze": 2}
    assert [step.name for step in interrupted.payloads(StepSkipped)] == research.PLAN[:3]
    assert all("succeeded in attempt 1" in step.reason for step in interrupted.payloads(StepSkipped))
    # Of the usual points of a report each is reached once, in order, by whichever process.
    kinds = [saved.kind for saved in interrupted.payloads(CheckpointSaved)]
    assert kinds == ["plan_made", "sources_fetched", "tool_calls_done", "draft_made", "published"]
    assert set(kinds) == set(get_args(CheckpointKind)) - {"UNKNOWN"}
