"""The control API's pages of runs and conversations, over HTTP requests that no server reads."""

import asyncio
import json
import time
from collections.abc import Callable, Coroutine
from types import SimpleNamespace
from typing import Any

from aiohttp.test_utils import make_mocked_request
from aiohttp.web import Request, Response

from sessionary.schemas.ids import run_key
from sessionary.stream_processors.access import parse_tokens
from sessionary.stream_processors.api.problems import Problem
from sessionary.stream_processors.api.routing import OtherWorkers
from sessionary.stream_processors.api.runs import (
    ArtifactPages,
    CallPages,
    CheckpointPages,
    ExecutionPage,
    RunPages,
    StepPages,
    TaskPages,
)
from sessionary.stream_processors.api.session_pages import AgentPages, MessagePages
from sessionary.stream_processors.api.session_questions import SessionQuestions
from sessionary.stream_processors.api.tokens import TokenStore
from sessionary.stream_processors.core.model import RecentVerdicts
from sessionary.stream_processors.metrics import Metrics
from sessionary.stream_processors.settings import ProcessorSettings
from tests.core.oracle_rig import OracleRig
from tests.core.stream_processors.api.api_server import no_end
from tests.core.stream_processors.api.test_sessions import FakeGroup
from tests.support.event_factory import EventFactory

Page = Callable[[Request], Coroutine[Any, Any, Response]]
USERS = {f"of-{user}": {"tenant": "acme", "user": user} for user in ("u1", "u2")}
SETTINGS = ProcessorSettings(
    api_tokens=parse_tokens({"token": "acme", "other": "zeta", **USERS}), api_port=4242, partitions=1
)


class RunRig:
    """A folded log by rules 2, and the pages that show its runs."""

    def __init__(self) -> None:
        self.rig, self.agent = OracleRig(), EventFactory()
        self.rig.start(self.agent)
        owner: Any = SimpleNamespace(
            state=self.rig.fold,
            is_readable=True,
            committed_s=time.monotonic(),
            recent_verdicts=RecentVerdicts(),
            wait_until_committed=self._is_committed,
            wait_until_merged=self._is_merged,
        )
        assignment: Any = SimpleNamespace(owners={0: owner})
        others = OtherWorkers(SETTINGS, FakeGroup())
        questions = SessionQuestions(SETTINGS, TokenStore(SETTINGS, Metrics()), assignment, others, no_end)
        runs, steps, calls = RunPages(questions), StepPages(questions), CallPages(questions)
        artifacts, agents = ArtifactPages(questions), AgentPages(questions)
        self._tasks = TaskPages(questions)
        self._pages = {
            ("runs",): runs.open_runs,
            ("runs", "run_id"): runs.run,
            ("runs", "run_id", "steps"): steps.steps,
            ("runs", "run_id", "steps", "name"): steps.step,
            ("runs", "run_id", "tool-calls"): calls.calls,
            ("runs", "run_id", "tool-calls", "idem_key"): calls.call,
            ("runs", "run_id", "artifacts"): artifacts.artifacts,
            ("artifacts",): artifacts.artifacts,
            ("checkpoints",): CheckpointPages(questions).checkpoints,
            ("execution",): ExecutionPage(questions).execution,
            ("conversation",): MessagePages(questions).conversation,
            ("agents",): agents.agents,
            ("agents", "agent_id"): agents.agent,
            ("tool-calls",): calls.calls,
            ("tool-calls", "idem_key"): calls.call,
        }

    async def _is_committed(self, offset: int, timeout_s: float) -> bool:
        return offset < self.rig.fold.position.next_offset

    async def _is_merged(self, timeout_s: float) -> bool:
        return True  # no transaction is under way

    def send(self, event_type: str, run_id: str, **fields: Any) -> str:
        return self.rig.send(self.agent, event_type, {"run_id": run_id}, **fields)

    def tell(self, event_type: str, **fields: Any) -> None:
        """Send an event of no run, which must apply."""
        assert self.rig.send(self.agent, event_type, **fields) == "applied"

    def run_key(self, run_id: str) -> bytes:
        return run_key(*self.agent.key, run_id)

    def load_child(self, key: bytes, row: Any) -> None:
        """Put a row that belongs to a run or the session into the committed state."""
        self.rig.fold.load(key, row)
        self.rig.fold.child_index.add(key)

    def ask_run(self, run_id: str | None, token: str = "token", query: str = "") -> tuple[int, Any]:
        """Ask for one run, or for the open ones."""
        return self.ask("runs", *([] if run_id is None else [run_id]), token=token, query=query)

    def ask(self, *parts: str, token: str = "token", query: str = "") -> tuple[int, Any]:
        """Ask for a page below the session's, as `ask("runs", "r1", "steps")`."""
        session_id = self.agent.key.session_id
        path = "/".join(["/v1/sessions", session_id, *parts])
        pattern = next(each for each in self._pages if _fits(each, parts))
        values = {name: part for name, part in zip(pattern, parts, strict=True) if name != part}
        return _answer_of(self._pages[pattern], path + query, token, {"session_id": session_id, **values})

    def ask_task(self, task_id: str, token: str = "token", query: str = "") -> tuple[int, Any]:
        """Ask for a task by its id alone."""
        return _answer_of(self._tasks.task, f"/v1/tasks/{task_id}{query}", token, {"task_id": task_id})


def _answer_of(page: Page, path: str, token: str, match_info: dict[str, str]) -> tuple[int, Any]:
    request = make_mocked_request("GET", path, headers={"Authorization": f"Bearer {token}"}, match_info=match_info)
    try:
        response = asyncio.run(page(request))
    except Problem as problem:
        response = problem.to_response()
    assert isinstance(response, Response)
    assert isinstance(response.body, bytes)
    return response.status, json.loads(response.body)


def _fits(pattern: tuple[str, ...], parts: tuple[str, ...]) -> bool:
    """Whether a page has as many parts, and the same ones where it names none of a row."""
    names = ("run_id", "name", "idem_key", "agent_id")
    return len(pattern) == len(parts) and all(a in names or a == b for a, b in zip(pattern, parts, strict=True))
