"""The set-up of the production page, by its own commands, on servers of a test."""

import re
import secrets
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

from sessionary.infra.local.ports import LOOPBACK, free_port
from sessionary.schemas.settings import ClickHouseSettings
from tests.docs.test_tutorial import read_blocks
from tests.style.project import ROOT
from tests.support.pipelines import run_sql
from tests.support.processes import Processes
from tests.support.waiting import wait_until

_PAGE = (ROOT / "docs" / "operate" / "production.md").read_text("utf-8")
_CLIENT = (ROOT / "docs" / "guides" / "client.md").read_text("utf-8")
_QUOTAS = "quotas"
_COMMAND_S = 300.0
# After the program of the client's page: its other sections, and a reserved call in a step.
_FURTHER = """
from sessionary.producers import current_session, tool, traced

@tool(effect="write", deadline=30)
def pay(amount):
    return f"paid {amount}"

@traced("tool")
def look_up(number):
    return current_session() is not None

with SessionClient(tenant_id="acme", service_id="billing", agent_id="agent-1") as client:
    with client.session(user_id="u1", state={"step": 0}) as session, session.run("invoice") as run:
        session.message("user", "pay it")
        with session.llm("large") as call:
            call.tokens_in = 1
        assert look_up(1)
        assert run.step("pay", pay, 5) == "paid 5"
    assert client.for_tenant("globex") is not client
"""
# The verbs that need others: a worker of tasks, a person, a service that takes the session over.
_TASKS = """
from sessionary.producers.tasks import task

@task("count")
def count(ctx, input):
    ctx.report_progress(1, 1)
    return {"counted": len(input)}
"""
_WITH_OTHERS = """
import subprocess, threading
from sessionary.producers import SessionClient

ANSWER = "\\n".join((
    "set -a; . ./operator.env; set +a",
    "until sessionary question list --tenant acme --json | grep -q {0}; do :; done",
    "sessionary question approve {0} --tenant acme",
))
taken = threading.Event()

def take(session):
    session.complete()
    taken.set()

with (
    SessionClient(tenant_id="acme", service_id="billing", agent_id="agent-1") as client,
    SessionClient(tenant_id="acme", service_id="archive", agent_id="agent-2") as archive,
):
    archive.accept_migrations(take)
    with client.session(user_id="u1") as session:
        task_id = session.start_task("count", {"a": 1}, timeout_s=60)
        *_, last = client.watch_task(task_id)
        assert client.get_task_results(task_id)["result"] == {"counted": 1}, last
        person = subprocess.Popen(["bash", "-c", ANSWER.format(session.session_id)])
        answer = session.ask("pay it?")
        assert person.wait() == 0 and answer.approved and answer.by == "on-call", answer
        session.migration.move(to="archive")
    assert taken.wait(60)
"""


class RoleRow(NamedTuple):
    """A row of the table of roles."""

    files: tuple[str, ...]
    variables: tuple[str, ...]
    command: str

    @property
    def name(self) -> str:
        """The role, for a log."""
        return self.command.removeprefix("sessionary serve ").replace(" ", "-")


def read_roles(page: str) -> list[RoleRow]:
    """Return the rows of the table of roles."""
    rows = re.findall(r"^\| [^|]+ \| (`\w+\.env`[^|]*) \| ([^|]*) ?\| `(sessionary [^`]+)` \|$", page, re.M)
    quoted = re.compile(r"`([^`]+)`")
    return [RoleRow(tuple(quoted.findall(files)), tuple(quoted.findall(own)), command) for files, own, command in rows]


class Operator:
    """Does in a folder what the page says; addresses are those of the test's servers."""

    def __init__(self, folder: Path, bootstrap: str, clickhouse: ClickHouseSettings, processes: Processes) -> None:
        self._folder, self._processes = folder, processes
        self._texts = {"kafka-1:9092,kafka-2:9092,kafka-3:9092": bootstrap}
        self._texts |= {"http://clickhouse:8123": clickhouse.clickhouse_url}
        self._texts |= {port: str(free_port()) for port in re.findall(r"_PORT=(\d+)", _PAGE)}
        self._texts |= {"processor-1:8600": f"{LOOPBACK}:{self._texts['8600']}"}
        self._former = re.compile("|".join(map(re.escape, sorted(self._texts, key=len, reverse=True))))
        self._own = {
            "PATH": f"{Path(sys.executable).parent}:/usr/bin:/bin",
            "HOME": str(folder),
            "CLICKHOUSE_PASSWORD": "sesame",
            # The servers are shared with other tests.
            "SESSIONARY_TOPIC_PREFIX": f"t{secrets.token_hex(5)}",
            "SESSIONARY_CLICKHOUSE_DATABASE": clickhouse.clickhouse_database,
        }

    def run_block(self, text: str) -> str:
        """Run a block of the page."""
        return self._run("set -e\n" + self._fill(text), self._own)

    def repeat_block(self, text: str, timeout_s: float, what: str) -> None:
        """Run a block until it succeeds, as its last command's text says."""
        script = "set -e\n" + self._fill(text)
        wait_until(lambda: self._done(script, self._own).returncode == 0, timeout_s, what, pause_s=1)

    def run_role(self, row: RoleRow) -> None:
        """Run a command of the table to its end, with its files and variables only."""
        self._run(f"exec {row.command}", self._environment(row))

    def start_role(self, row: RoleRow) -> str:
        """Start a role; return the address of its pages."""
        env = self._environment(row)
        self._start(row.command, env, row.name)
        port = env.get("SESSIONARY_API_PORT") or env["SESSIONARY_METRICS_PORT"]
        return f"http://{LOOPBACK}:{port}/readyz"

    def start_tasks(self) -> None:
        """Start a worker that carries out the service's tasks, with the files that agents get."""
        (self._folder / "counting.py").write_text(_TASKS, "utf-8")
        command = "sessionary serve task-worker --module counting --tenant acme --service billing"
        env = self._environment(RoleRow(("kafka.env", "agent.env"), (), command)) | {"PYTHONPATH": str(self._folder)}
        self._start(command, env, "task-worker")

    def run_agent(self, program: str, **more: str) -> str:
        """Run a program with the files that agents get."""
        env = self._environment(RoleRow(("kafka.env", "agent.env"), (), "")) | more
        return self._run("python - <<'END'\n" + program + "\nEND", env)

    def _start(self, command: str, env: Mapping[str, str], name: str) -> None:
        words = ["env", "-i", *(f"{key}={value}" for key, value in env.items())]
        self._processes.run([*words, "bash", "-c", f"cd {self._folder}; exec {command}"], name=name)

    def _environment(self, row: RoleRow) -> dict[str, str]:
        lines = [line for name in row.files for line in (self._folder / name).read_text().splitlines()]
        found = dict(self._fill(line).split("=", 1) for line in (*lines, *row.variables))
        return {**{name: value for name, value in self._own.items() if name != "CLICKHOUSE_PASSWORD"}, **found}

    def _fill(self, text: str) -> str:
        # All at once: a free port may have the digits of one of the page's.
        return self._former.sub(lambda found: self._texts[found[0]], text)

    def _run(self, script: str, env: Mapping[str, str]) -> str:
        done = self._done(script, env)
        assert done.returncode == 0, f"{script}\n{done.stdout}{done.stderr}"
        return done.stdout

    def _done(self, script: str, env: Mapping[str, str]) -> subprocess.CompletedProcess[str]:
        argv, folder = ["bash", "-c", script], self._folder
        return subprocess.run(
            argv, cwd=folder, env=dict(env), capture_output=True, text=True, timeout=_COMMAND_S, check=False
        )


def _is_ready(page: str) -> bool:
    return subprocess.run(["curl", "-sf", "-o", "/dev/null", page], timeout=60, check=False).returncode == 0


def test_the_page_sets_up_a_pipeline_on_which_every_verb_of_a_client_works(
    bootstrap_servers: str, clickhouse: ClickHouseSettings, processes: Processes, tmp_path: Path
) -> None:
    files, tokens, look, limits, rules = (block.text for block in read_blocks(_PAGE) if block.language == "sh")
    program = next(block.text for block in read_blocks(_CLIENT) if block.language == "python")
    setup, roles = (
        [row for row in read_roles(_PAGE) if row.command.startswith("sessionary serve ") == serves]
        for serves in (False, True)
    )
    assert (len(setup), len(roles)) == (2, 7)
    operator = Operator(tmp_path, bootstrap_servers, clickhouse, processes)
    for block in (files, tokens):
        operator.run_block(block)
    for row in setup:
        operator.run_role(row)
    pages = [operator.start_role(row) for row in roles if row.name != _QUOTAS]
    wait_until(lambda: all(map(_is_ready, pages)), 180, "the roles to be ready", pause_s=0.3)
    operator.run_block(look)
    operator.start_tasks()
    operator.run_agent(program + _FURTHER + _WITH_OTHERS)
    operator.run_block(limits)
    (quotas,) = (row for row in roles if row.name == _QUOTAS)
    page = operator.start_role(quotas)
    wait_until(lambda: _is_ready(page), 120, "the role quotas to be ready", pause_s=0.3)
    operator.repeat_block(rules, 120, "quotas in force in each partition")
    operator.run_agent(program + _FURTHER + _WITH_OTHERS, SESSIONARY_QUOTAS="true")
    database = clickhouse.clickhouse_database
    ended = f"SELECT countIf(reason_code = 'closed'), countIf(reason_code = 'completed') FROM {database}.v_transitions"
    wait_until(lambda: run_sql(clickhouse, ended).split() == ["4", "2"], 60, "the ends of six sessions")
    assert run_sql(clickhouse, f"SELECT count() FROM {database}.v_rejected").strip() == "0"


def test_files_with_secrets_are_never_readable_by_others(tmp_path: Path) -> None:
    blocks = [block.text for block in read_blocks(_PAGE) if block.language == "sh" and "<<END" in block.text]
    writing = [block for block in blocks if "TOKEN" in block or "PASSWORD" in block]
    assert len(writing) == 2
    for block in writing:
        assert block.startswith("umask 077\n"), "before the first file is written"
        subprocess.run(["bash", "-c", f"umask 022\nset -e\n{block}"], cwd=tmp_path, timeout=60, check=True)
    modes = {one.name: one.stat().st_mode & 0o777 for one in tmp_path.iterdir()}
    assert set(modes.values()) == {0o600}
    assert len(modes) == 6
    assert "chmod" not in _PAGE
