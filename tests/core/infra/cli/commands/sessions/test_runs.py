"""`sessionary run`, against the real API over clients in memory."""

import json
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from sessionary.infra.cli.app import run as run_command
from sessionary.producers import Session, tool
from sessionary.producers.control.http_control import HttpControl
from sessionary.producers.testing import InMemoryTransport, memory_client
from tests.core.producers.served_memory import new_memory, serve_memory

KEY = "order-7"


class Runs:
    """A session with an interrupted run `r1`, and runs that are over."""

    def __init__(self, memory: InMemoryTransport) -> None:
        self.client, self.memory = memory_client(memory=memory)
        self.session = self.client.create(user_id="ann").start()
        with self.session.run("export", run_id="r2"):
            pass
        self.memory.advance(1)
        self._interrupt(self.session)

    def _interrupt(self, session: Session) -> None:
        send = tool(name="send", effect="write", key=lambda text: KEY)(str.upper)
        run = session.run("report", input={"month": 1}, plan=["collect", "write", "publish"], run_id="r1")

        def work() -> None:
            list(run.items(["a", "b"], name="collect"))
            send("text")
            run.step("write", self._fail)

        with pytest.raises(TimeoutError), run:
            work()

    def _fail(self) -> None:
        raise TimeoutError("slow")


@pytest.fixture
def runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Runs]:
    found = Runs(new_memory())
    with serve_memory(found.memory, tmp_path) as url, found.client:
        monkeypatch.setenv("SESSIONARY_BOOTSTRAP_SERVERS", "none:1")  # no folder of a local stack is looked for
        monkeypatch.setenv("SESSIONARY_CONTROL_URL", url)
        monkeypatch.setenv("SESSIONARY_API_TOKENS", '{"token": "acme"}')
        yield found


@pytest.fixture
def terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    """stdout is a wide terminal."""
    for module in ("tables", "commands.sessions.runs"):
        monkeypatch.setattr(f"sessionary.infra.cli.{module}.wants_json", lambda asked: asked)
    monkeypatch.setenv("COLUMNS", "200")


def answers(capfd: pytest.CaptureFixture[str]) -> list[dict[str, Any]]:
    return [json.loads(line) for line in capfd.readouterr().out.splitlines()]


def test_runs_are_listed_by_state(runs: Runs, capfd: pytest.CaptureFixture[str]) -> None:
    assert run_command(["run", "list"]) == 0
    assert {(row["run_id"], row["state"]) for row in answers(capfd)} == {("r1", "failed"), ("r2", "completed")}
    assert run_command(["run", "list", "--state", "failed", "--user", "ann"]) == 0
    assert [row["session_id"] for row in answers(capfd)] == [runs.session.session_id]
    assert run_command(["run", "list", "--user", "bob"]) == 0
    assert answers(capfd) == []
    assert run_command(["run", "list", "--limit", "1"]) == 0
    assert len(answers(capfd)) == 1


def test_runs_are_listed_by_agent_and_by_their_last_event(runs: Runs, capfd: pytest.CaptureFixture[str]) -> None:
    other, _ = memory_client(memory=runs.memory, agent_id="other")
    with other.attach(runs.session.session_id).run("export", run_id="r3"):
        pass
    assert run_command(["run", "list", "--agent", "other", "--limit", "1"]) == 0
    assert [row["run_id"] for row in answers(capfd)] == ["r3"]
    assert run_command(["run", "list", "--agent", "third"]) == 0
    assert answers(capfd) == []
    runs.memory.advance(100)
    with runs.session.run("export", run_id="r4"):
        pass
    since = datetime.fromtimestamp(runs.memory.now_ms / 1_000 - 50, UTC)
    assert run_command(["run", "list", "--since", since.isoformat()]) == 0
    assert [row["run_id"] for row in answers(capfd)] == ["r4"]


def test_a_run_is_shown_with_its_steps_and_calls(runs: Runs, capfd: pytest.CaptureFixture[str]) -> None:
    assert run_command(["run", "show", runs.session.session_id, "r1"]) == 0
    (found,) = answers(capfd)
    assert (found["state"], found["checkpoint"]["operation"]) == ("failed", "send")
    assert [(step["name"], step["state"]) for step in found["steps"]] == [("collect", "succeeded"), ("write", "failed")]
    assert [(call["idem_key"], call["state"]) for call in found["tool_calls"]] == [(KEY, "succeeded")]


def test_the_plan_of_a_resumption_has_the_three_lists_of_the_record(
    runs: Runs, capfd: pytest.CaptureFixture[str]
) -> None:
    sent = len(runs.memory.events())
    assert run_command(["run", "resume", "--dry-run", runs.session.session_id, "r1"]) == 0
    (plan,) = answers(capfd)
    recorded = runs.session.resume_run("r1").resume_plan()
    assert (plan["done"], plan["calls_done"], plan["to_retry"]) == (["collect"], [KEY], ["write"])
    assert (plan["next"], plan["stop"], plan["request"]) == ("write", None, {"month": 1})
    assert plan["error"]["code"] == "TimeoutError"
    assert tuple(plan[name] for name in ("done", "calls_done", "to_retry")) == tuple(
        list(names) for names in (recorded.done, recorded.calls_done, recorded.to_retry)
    )
    assert len(runs.memory.events()) == sent


def follow_runs(monkeypatch: pytest.MonkeyPatch, *meanwhile: Callable[[], object], options: list[str]) -> list[str]:
    """Follow the list; return its questions and pauses in order.

    In each pause something happens, and the last one ends the command.
    """
    happened, left = list[str](), [*meanwhile]
    fetch_runs = HttpControl.fetch_runs

    def ask(control: HttpControl, *arguments: Any) -> dict[str, Any]:
        happened.append("asked")
        return fetch_runs(control, *arguments)

    def pause(seconds: float) -> None:
        happened.append(f"waited {seconds:g} s")
        if not left:
            raise KeyboardInterrupt
        left.pop(0)()

    monkeypatch.setattr(HttpControl, "fetch_runs", ask)
    for module in ("lookup", "runs"):
        monkeypatch.setattr(f"sessionary.infra.cli.commands.sessions.{module}.time", SimpleNamespace(sleep=pause))
    assert run_command(["run", "list", "--follow", *options]) == 130
    return happened


def test_runs_that_are_followed_are_reported_once_and_again_with_each_state(
    runs: Runs, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    run = runs.session.run("export", run_id="r3", mode="detached")

    def fail_again() -> None:
        """A run that is resumed and fails once more is in the same state as before."""
        runs.memory.advance(100)
        with pytest.raises(TimeoutError), runs.session.resume_run("r1"):
            raise TimeoutError

    happened = follow_runs(
        monkeypatch, run.__enter__, lambda: None, lambda: run.__exit__(None, None, None), fail_again, options=[]
    )
    assert happened == ["asked", "waited 2 s"] * 5
    rows = [(row["run_id"], row["state"]) for row in answers(capfd)]
    former, later = rows[:2], rows[2:]
    assert former == [("r2", "completed"), ("r1", "failed")], "the most recently active one last"
    assert later == [("r3", "running"), ("r3", "completed"), ("r1", "failed")]


def test_a_long_list_that_is_followed_is_asked_for_part_by_part_with_pauses(
    runs: Runs, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sessionary.infra.cli.commands.sessions.runs._PART", 1)
    nothing: list[Callable[[], object]] = [lambda: None] * 4
    happened = follow_runs(monkeypatch, *nothing, options=["--limit", "1"])
    assert happened == ["asked", "waited 2 s"] * 5
    assert [row["run_id"] for row in answers(capfd)] == ["r1"], "of the former rows only those of the list"


def test_runs_that_are_followed_are_those_of_the_filters(
    runs: Runs, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    other, _ = memory_client(memory=runs.memory, agent_id="other")

    def work() -> None:
        for session in (runs.session, other.attach(runs.session.session_id)):
            with session.run("export", run_id=f"by {'other' if session is not runs.session else 'first'}"):
                pass

    follow_runs(monkeypatch, work, options=["--state", "completed", "--agent", "other"])
    assert [row["run_id"] for row in answers(capfd)] == ["by other"]


@pytest.mark.usefixtures("runs")
def test_partitions_without_an_answer_are_named_once_while_runs_are_followed(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    fetch_runs, missing = HttpControl.fetch_runs, [[3], [3], [], [3]]

    def answer(control: HttpControl, *arguments: Any) -> dict[str, Any]:
        return {**fetch_runs(control, *arguments), "missing_partitions": missing.pop(0)}

    monkeypatch.setattr(HttpControl, "fetch_runs", answer)
    nothing: list[Callable[[], object]] = [lambda: None] * 3
    follow_runs(monkeypatch, *nothing, options=[])
    said = capfd.readouterr()
    assert missing == []
    assert len(said.out.splitlines()) == 2
    assert said.err.count("no worker answers for the partitions 3") == 2


@pytest.mark.usefixtures("terminal")
def test_a_person_reads_the_plan(runs: Runs, capfd: pytest.CaptureFixture[str]) -> None:
    assert run_command(["run", "resume", "--dry-run", runs.session.session_id[:8], "r1"]) == 0
    lines = [" ".join(line.split()) for line in capfd.readouterr().out.splitlines()]
    assert lines == [
        "run r1: failed",
        'open request {"month": 1}',
        f"checkpoint send, kind tool_calls_done, stage after call send: {KEY}",
        "done collect",
        f"calls done send {KEY}",
        "to retry write (TimeoutError)",
        "stop",
        "next write",
        "unresolved",
        "in progress",
    ]


@pytest.mark.usefixtures("terminal")
def test_a_person_reads_a_run_and_the_list(runs: Runs, capfd: pytest.CaptureFixture[str]) -> None:
    assert run_command(["run", "show", runs.session.session_id, "r1"]) == 0
    out = capfd.readouterr().out
    assert "TimeoutError" in out
    assert KEY in out
    assert run_command(["run", "list"]) == 0
    assert [line.split()[:3] for line in capfd.readouterr().out.splitlines()][1:] == [
        ["r1", "failed", "report"],
        ["r2", "completed", "export"],
    ]


@pytest.mark.parametrize(
    ("arguments", "code", "text"),
    [
        (["show", "00000000-0000-4000-8000-000000000001", "r1"], 4, "has no run r1"),
        (["show", "ffff0000", "r1"], 4, "sessionary run list lists"),
        (["resume", "00000000-0000-4000-8000-000000000001", "r1"], 5, "give --dry-run"),
        (["show", "--tenant", "zeta", "ffff", "r1"], 2, "no token is known for zeta"),
    ],
)
@pytest.mark.usefixtures("runs")
def test_what_is_wrong_is_said(
    arguments: list[str], code: int, text: str, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("SESSIONARY_API_TOKEN", raising=False)
    assert run_command(["run", *arguments]) == code
    assert text in capfd.readouterr().err


def test_a_text_names_the_session_of_a_run_if_its_tenant_is_known(
    runs: Runs, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    named = runs.client.create(session_id="thread-42", user_id="ann").start()
    with named.run("export", run_id="r3"):
        pass
    assert run_command(["run", "show", "thread-42", "r3"]) == 0
    assert [row["session_id"] for row in answers(capfd)] == [named.session_id]
    monkeypatch.delenv("SESSIONARY_API_TOKENS")
    monkeypatch.setenv("SESSIONARY_API_TOKEN", "token")  # of a tenant that only the server knows
    assert run_command(["run", "show", "thread-42", "r3"]) == 5
    assert "'thread-42' names a session of one tenant: give --tenant" in capfd.readouterr().err
    for words in (["thread-42", "r3", "--tenant", "acme"], [named.session_id[:8], "r3"]):
        assert run_command(["run", "show", *words]) == 0
        assert [row["session_id"] for row in answers(capfd)] == [named.session_id]
