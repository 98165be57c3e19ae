"""What mypy and pyright, both strict, say of code that uses the client."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.style.project import ROOT

pytest.importorskip("mypy", reason="the checkers of types are not installed: they look at the same code")
# Each line with `# wrong` must be an error, and no other.
SNIPPETS = {
    "plain": """
from sessionary.producers import Session, SessionClient, current_session, tool, traced

@tool(effect="write")
def send(text: str, *, times: int = 1) -> int:
    return times

@tool(effect="maybe")  # wrong
def guess() -> None: ...

@tool(effect="write", once=True)
async def pay(order: str, tool_call_id: str | None = None) -> int:
    return 1

@tool(once="yes")  # wrong
def hint() -> None: ...

@traced("tool")
def look_up(key: str, *, times: int = 1) -> list[str]:
    return [key] * times

@traced(5)  # wrong
def other() -> None: ...

@traced("tool", capture=True, omit="key")
def hidden(key: str) -> int:
    return 1

@traced("tool", capture=True, omit=5)  # wrong
def unknown(key: str) -> int:
    return hidden("x") + 1

def work(client: SessionClient) -> None:
    with client.session(user_id="u", parent=current_session()) as session:
        session.usage(tokens_in=1, run_id="r")
        session.usage(tokens="many")  # wrong
        session.usage(tokens_in="many")  # wrong
        session.activity("x", run_id="r", run_seq=1, actor=None, traceparent=None)
        session.activity("x", run_seq="first")  # wrong
        session.activity("x", wrong=3)  # wrong
        session.pause(kind="nap")  # wrong
        look_up("x", times=2).append("y")
        look_up(3)  # wrong
        look_up("x").add("y")  # wrong
        with session.llm("m", step_id="s") as call:
            call.tokens_in = 3
            call.tokens_in = "many"  # wrong
            call.cache_read_input_tokens, call.time_to_first_token_ms = None, 12.5
            call.response_id = 7  # wrong
            call.tokens = 3  # wrong
        with session.metadata(run_id="r"):
            session.info("x")
        with session.metadata(run_seq=3):  # wrong
            pass
        with session.run("report", mode="detached", input={"n": 1}) as run:
            facts: list[str] = run.step("collect", look_up, "x", times=2)
            run.step("collect", look_up, 3)  # wrong
            limited: list[str] = run.step("slow", look_up, "x", limit_ms="model")
            run.step("slow", look_up, "x", limit_ms="long")  # wrong
            run.step("collect", look_up, "x", key="x").append("y")
            run.step("collect", look_up, "x", key=3)  # wrong
            run.step("slow", look_up, "x", key="x", limit_ms="model").append("y")
            run.report_progress("half")  # wrong
            run.step_once("collect", look_up)  # wrong
            run.result = facts + limited
        session.run("report", mode="loose")  # wrong
        session.resume_run("r", actor="ada").resume_plan().done.count("collect")
        session.resume_run(3)  # wrong
        sent: int = send("x", times=2)
        send(3)  # wrong
        task_id: str = session.start_task("train", {"epochs": 1}, actor="ada")
        session.start_task(3)  # wrong
        said: str = session.message("user", "hello", name="ada", step_id="s")
        session.message("user", 3)  # wrong
        turns: list[str] = [turn.role for turn in session.conversation.read(3)]
        print(sent, task_id, said, turns)
        found: list[str] = session.bind(look_up)("x")
        session.bind(look_up)(3)  # wrong
        print(found)
    SessionClient(tenant_id="a", service_id="b", agent_id="c", wrong=3)  # wrong
    client.for_tenant("globex", api_token=3)  # wrong
    client.session(user_id="u", parent=3)  # wrong
    other()

def end(session: Session) -> None:
    session.complete("done", causation_id="e")
""",
    "asynchronous": """
from sessionary.producers import AsyncSessionClient, current_session, traced

@traced("tool")
async def search(text: str) -> list[str]:
    return [text]

async def work() -> None:
    client = AsyncSessionClient(tenant_id="a", service_id="b", agent_id="c")
    AsyncSessionClient(tenant_id="a", service_id="b", agent_id="c", wrong=3)  # wrong
    async with client, client.session(user_id="u", parent=current_session()) as session:
        await session.usage(tokens_in=1, run_id="r")
        await session.usage(tokens="many")  # wrong
        await session.usage(tokens_in="many")  # wrong
        await session.activity("x", wrong=3)  # wrong
        await session.update_state(3)  # wrong
        version: int = await session.update_state({"n": 1}, actor="boss")
        event_id: str = await session.snapshot(run_seq=version)
        number: int = await session.snapshot()  # wrong
        found = (await search("x"))[0].upper()
        await search(3)  # wrong
        async with session.llm("m") as call:
            call.tokens_in = 3
            call.tokens = 3  # wrong
        async with session.run("report") as run:
            facts: list[str] = await run.step("collect", search, "x")
            await run.step("collect", search, 3)  # wrong
            size: int = run.step("count", len, facts)
            async for page in run.items(facts):
                page.upper()
                page.add("y")  # wrong
        task_id: str = await session.start_task("train", timeout_s=5.0)
        await session.start_task("train", timeout_s="long")  # wrong
        said: str = await session.message("user", "hello")
        await session.message("user", "hello", wrong=3)  # wrong
        print(size, task_id, said)
        async with client.for_tenant("globex") as other:
            await other.attach(session.session_id, take_over="yes")  # wrong
        print(event_id, number, found)
""",
}


def write_snippets(folder: Path) -> dict[str, set[int]]:
    """Write each snippet as a file; return the numbers of its wrong lines by the file's name."""
    for name, text in SNIPPETS.items():
        (folder / f"{name}.py").write_text(text)
    return {
        f"{name}.py": {number for number, line in enumerate(text.splitlines(), 1) if line.endswith("# wrong")}
        for name, text in SNIPPETS.items()
    }


def run_checker(*argv: str) -> str:
    environment = {**os.environ, "PYRIGHT_PYTHON_IGNORE_WARNINGS": "1"}  # without a look for a newer version
    return subprocess.run(
        [sys.executable, "-m", *argv], capture_output=True, text=True, cwd=ROOT, env=environment, timeout=800
    ).stdout


def error_lines(found: list[tuple[str, int]]) -> dict[str, set[int]]:
    return {f"{name}.py": {line for file, line in found if Path(file).stem == name} for name in SNIPPETS}


def test_mypy_finds_each_wrong_use_and_nothing_else(tmp_path: Path) -> None:
    wrong = write_snippets(tmp_path)
    output = run_checker("mypy", *(str(tmp_path / name) for name in wrong))
    found = re.findall(r"^(.+?):(\d+): error:", output, re.M)
    assert error_lines([(name, int(line)) for name, line in found]) == wrong, output


def test_pyright_finds_each_wrong_use_and_nothing_else(tmp_path: Path) -> None:
    wrong = write_snippets(tmp_path)
    settings = {
        "include": [str(tmp_path)],
        "typeCheckingMode": "strict",
        "extraPaths": [str(ROOT / name) for name in ("schemas", "producers", "stream_processors")],
        "venvPath": str(ROOT),
        "venv": ".venv",
    }
    (tmp_path / "pyrightconfig.json").write_text(json.dumps(settings))
    report = json.loads(run_checker("pyright", "--outputjson", "--project", str(tmp_path)))
    found = report["generalDiagnostics"]
    lines = [(one["file"], one["range"]["start"]["line"] + 1) for one in found if one["severity"] == "error"]
    assert error_lines(lines) == wrong, found


@pytest.mark.parametrize("name", SNIPPETS)
def test_snippets_have_right_and_wrong_lines(name: str) -> None:
    lines = SNIPPETS[name].splitlines()
    assert 5 < sum(line.endswith("# wrong") for line in lines) < len(lines) / 2
