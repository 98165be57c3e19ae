"""What is kept of callers who ask for ids that their tenant does not have."""

import asyncio
import logging
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from sessionary.schemas.ids import SessionKey, new_session_id, new_task_id
from sessionary.stream_processors.access import parse_tokens
from sessionary.stream_processors.api.problems import Problem
from sessionary.stream_processors.api.sessions import UnknownIds
from sessionary.stream_processors.api.tokens import TokenStore
from sessionary.stream_processors.core.trail import Access
from sessionary.stream_processors.metrics import Metrics
from sessionary.stream_processors.settings import ProcessorSettings
from tests.core.stream_processors.api.api_server import FakeAssignment, running_server
from tests.core.stream_processors.api.test_lists import PARTITIONS, FakeOwner

SETTINGS = ProcessorSettings(
    api_tokens=parse_tokens({"a": {"tenant": "acme", "principal": "ann"}, "b": {"tenant": "acme", "principal": "bob"}})
)
TOKENS = TokenStore(SETTINGS, Metrics())
UNKNOWN = Problem(404, "unknown_run", "Unknown run", "no such run")


def assignment_of() -> Any:
    """Return an assignment without a partition."""
    return FakeAssignment()


def lines_of(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]


def test_a_line_a_minute_is_logged_for_each_principal_with_the_number_of_requests(
    caplog: pytest.LogCaptureFixture,
) -> None:
    now_s = 100.0
    owner, assignment = SimpleNamespace(is_readable=True, accesses=[]), assignment_of()
    assignment.owners = {0: SimpleNamespace(is_readable=False), 1: owner}
    ids = UnknownIds(TOKENS, assignment, lambda: now_s)
    for _ in range(3):
        ids.note("Bearer a", UNKNOWN)
    ids.note("Bearer b", UNKNOWN)
    ids.note("Bearer other", UNKNOWN)
    ids.note(None, UNKNOWN)
    assert [line.partition(" asked")[0] for line in lines_of(caplog)] == ["principal ann", "principal bob"]
    now_s += 60
    ids.note("Bearer a", UNKNOWN)
    assert "since the last such line: 3; the last one: unknown_run: no such run" in lines_of(caplog)[-1]
    assert [access.principal for access in owner.accesses] == ["ann", "bob", "ann"]
    assert owner.accesses[-1] == Access(
        "acme", "ann", "unknown_run", "requests since the last such record: 3; the last one: no such run"
    )


@pytest.mark.parametrize(
    "problem",
    [
        Problem(410, "session_archived", "", ""),
        Problem(404, "not_found", "", ""),
        Problem(404, "unknown_partition", "", ""),
        Problem(503, "not_ready", "", ""),
        Problem(400, "invalid_value", "", ""),
    ],
)
def test_other_problems_are_not_logged(caplog: pytest.LogCaptureFixture, problem: Problem) -> None:
    UnknownIds(TOKENS, assignment_of()).note("Bearer a", problem)
    assert lines_of(caplog) == []


def test_unknown_sessions_runs_steps_calls_and_tasks_and_another_tenant_are_counted_together(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    noted: list[str] = []

    def note(_: UnknownIds, authorization: str | None, problem: Problem) -> None:
        noted.append(f"{authorization} {problem.reason}")

    monkeypatch.setattr(UnknownIds, "note", note)
    session = f"/v1/sessions/{new_session_id()}"

    async def story() -> None:
        assignment: Any = FakeAssignment()
        assignment.owners = {n: _ReadyOwner(n) for n in range(PARTITIONS)}
        async with running_server(tmp_path, assignment) as server:
            for path, status in (
                (session, 404),
                (f"{session}/runs", 404),
                (f"{session}/runs/r", 404),
                (f"{session}/runs/r/steps", 404),
                (f"{session}/runs/r/steps/s", 404),
                (f"{session}/runs/r/tool-calls/k", 404),
                (f"{session}/tool-calls", 404),
                (f"/v1/tasks/{new_task_id(SessionKey('acme', new_session_id()))}", 404),
                ("/v1/tasks/no-id", 404),
                ("/v1/runs?tenant=zeta", 403),
            ):
                answer = await server.ask(path.encode())
                assert (answer.status, answer.is_problem) == (status, True), (path, answer)

    asyncio.run(story())
    runs = ["Bearer token unknown_run"] * 4
    sessions = ["Bearer token unknown_session"] * 2
    tasks = ["Bearer token unknown_task"] * 2
    assert noted == [*sessions, *runs, "Bearer token unknown_session", *tasks, "Bearer token wrong_tenant"]


class _ReadyOwner(FakeOwner):
    """Has folded every record."""

    async def wait_until_committed(self, offset: int, timeout_s: float) -> bool:
        return True

    async def wait_until_merged(self, timeout_s: float) -> bool:
        return True  # no transaction is under way
