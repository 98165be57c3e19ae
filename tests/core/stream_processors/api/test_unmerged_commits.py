"""Questions of those who read a transaction's outputs before its owner has merged it.

A commit is visible to consumers while the owner still waits for the broker's answer. A service that
is asked to load a session, or to carry out a task, asks the owner about it at once.
"""

import asyncio
import threading
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from aiohttp.test_utils import make_mocked_request
from aiohttp.web import Request

from sessionary.schemas.ids import new_session_id, new_task_id, run_key
from sessionary.stream_processors.api import session_questions
from sessionary.stream_processors.api.problems import Problem
from sessionary.stream_processors.api.routing import OtherWorkers
from sessionary.stream_processors.api.session_questions import AskedOwner, SessionQuestions, require_session
from sessionary.stream_processors.api.tokens import TokenStore
from sessionary.stream_processors.core.model import LogRecord
from sessionary.stream_processors.errors import Lost
from sessionary.stream_processors.runtime import partition_owner
from sessionary.stream_processors.runtime.log_probe import LogProbe
from tests.core.oracle_rig import START_MS
from tests.core.stream_processors.api.api_server import no_end
from tests.core.stream_processors.api.run_rig import SETTINGS
from tests.core.stream_processors.api.test_sessions import FakeGroup
from tests.core.stream_processors.runtime.owner_doubles import FakeRecovery, GatedWriter, OwnerBench
from tests.support.event_factory import TICK, EventFactory

Asked = Callable[[SessionQuestions, EventFactory, str], Awaitable[Any]]


def request_for(path: str, **names: str) -> Request:
    return make_mocked_request("GET", path, headers={"Authorization": "Bearer token"}, match_info=names)


async def ask_session(questions: SessionQuestions, agent: EventFactory, task_id: str) -> Any:
    session_id = agent.key.session_id
    asked = await questions.ask_owner(request_for(f"/v1/sessions/{session_id}", session_id=session_id))
    assert isinstance(asked, AskedOwner)
    return require_session(asked)


async def ask_to_follow(questions: SessionQuestions, agent: EventFactory, task_id: str) -> Any:
    async def pass_on(*_: object) -> Any:
        raise AssertionError("the partition is this worker's")

    session_id = agent.key.session_id
    asked = await questions.ask_to_follow(request_for("/v1/follow", session_id=session_id), pass_on)
    assert isinstance(asked, AskedOwner)
    return require_session(asked)


async def ask_task(questions: SessionQuestions, agent: EventFactory, task_id: str) -> Any:
    asked = await questions.ask_task(request_for(f"/v1/tasks/{task_id}"), task_id)
    assert isinstance(asked, AskedOwner)
    return require_session(asked)


async def ask_run(questions: SessionQuestions, agent: EventFactory, task_id: str) -> Any:
    names = {"session_id": agent.key.session_id, "run_id": task_id}
    asked = await questions.ask_owner(request_for("/v1/run", **names))
    assert isinstance(asked, AskedOwner)
    return asked.owner.state.rows[run_key(*agent.key, task_id)]


class UnmergedCommit:
    """A session with a queued task, whose transaction is under way."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, writer: type[GatedWriter]) -> None:
        recovery = FakeRecovery()
        recovery.gate.release()
        monkeypatch.setattr(partition_owner, "TransactionWriter", writer)
        monkeypatch.setattr(GatedWriter, "gate", threading.Semaphore(0))
        monkeypatch.setattr(GatedWriter, "under_way", 0)
        monkeypatch.setattr(partition_owner, "recover", recovery.recover)
        monkeypatch.setattr(partition_owner, "probe_log", lambda *_: LogProbe(0, 0))

    async def begin(self) -> None:
        self.bench = OwnerBench(partitions=1, commit_interval_ms=0)
        self.bench.assignment.take_assignment([0])
        owner = self.bench.assignment.owners[0]
        await self.bench.seen(lambda: owner.is_open)
        await self._offer(owner, 0, [(None, TICK)])
        GatedWriter.gate.release()  # the owner's first commit: it is readable from then on
        await self.bench.seen(lambda: owner.is_readable)
        self.agent = EventFactory(new_session_id())
        self.task_id = new_task_id(self.agent.key)
        queued = {"mode": "detached", "task_type": "model_training", "input_json": None}
        values = [
            self.agent.event_bytes("session_created"),
            self.agent.event_bytes("session_phase_changed", phase="validating"),
            self.agent.event_bytes("session_phase_changed", phase="connecting"),
            self.agent.event_bytes("session_started"),
            self.agent.event_bytes("run_queued", {"run_id": self.task_id}, **queued),
        ]
        await self._offer(owner, 1, [(self.agent.key.encoded(), value) for value in values])
        others = OtherWorkers(SETTINGS, FakeGroup())
        tokens = TokenStore(SETTINGS, self.bench.metrics)
        self.questions = SessionQuestions(SETTINGS, tokens, self.bench.assignment, others, no_end)

    async def _offer(self, owner: Any, offset: int, records: list[tuple[bytes | None, bytes]]) -> None:
        under_way = GatedWriter.under_way
        found = [LogRecord(offset + place, START_MS, *record) for place, record in enumerate(records)]
        owner.offer_records(offset, found)
        await self.bench.seen(lambda: GatedWriter.under_way > under_way)


@pytest.mark.parametrize("ask", [ask_session, ask_to_follow, ask_run, ask_task])
def test_what_a_transaction_under_way_creates_is_known_once_it_is_merged(
    ask: Asked, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def story() -> None:
        rig = UnmergedCommit(monkeypatch, GatedWriter)
        await rig.begin()
        asking = asyncio.ensure_future(ask(rig.questions, rig.agent, rig.task_id))
        done, _ = await asyncio.wait([asking], timeout=0.05)
        assert not done, asking
        GatedWriter.gate.release()
        assert (await asking).session_id == rig.agent.key.session_id
        await rig.bench.assignment.close()

    asyncio.run(story())


@pytest.mark.parametrize("ask", [ask_session, ask_to_follow, ask_run, ask_task])
def test_a_question_that_waits_for_less_than_the_transaction_is_not_answered(
    ask: Asked, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An unknown session would be taken for gone, and a request for its task dropped."""

    async def story() -> None:
        rig = UnmergedCommit(monkeypatch, GatedWriter)
        await rig.begin()
        with pytest.raises(Problem) as raised:
            await ask(rig.questions, rig.agent, rig.task_id)
        assert (raised.value.status, raised.value.reason) == (503, "not_ready")
        GatedWriter.gate.release()
        await rig.bench.assignment.close()

    monkeypatch.setattr(session_questions, "WAIT_MS_DEFAULT", 0)
    asyncio.run(story())


class LostWriter(GatedWriter):
    """A transaction writer whose second transaction is lost."""

    def write_result(self, *given: Any) -> Any:
        receipt = super().write_result(*given)
        if GatedWriter.under_way > 1:
            raise Lost("reported so")
        return receipt


@pytest.mark.parametrize("ask", [ask_session, ask_to_follow, ask_run, ask_task])
def test_an_owner_that_loses_the_transaction_says_that_it_is_not_ready(
    ask: Asked, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def story() -> None:
        rig = UnmergedCommit(monkeypatch, LostWriter)
        await rig.begin()
        asking = asyncio.ensure_future(ask(rig.questions, rig.agent, rig.task_id))
        await asyncio.sleep(0)
        GatedWriter.gate.release()
        with pytest.raises(Problem) as raised:
            await asking
        assert (raised.value.status, raised.value.reason) == (503, "not_ready")
        await rig.bench.assignment.close()

    asyncio.run(story())
