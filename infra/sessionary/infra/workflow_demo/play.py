"""The workflow example in two processes: the first one is killed, the second one goes on."""

import os
import sys
import uuid
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from sessionary.infra.clickhouse_client import ClickHouseClient
from sessionary.infra.demo.wait import PipelineStatus, wait_until_done
from sessionary.infra.environment import tenant_tokens
from sessionary.infra.local.errors import StartFailed
from sessionary.infra.local.examples import example_folder
from sessionary.infra.local.printed_lines import lines_of, wait_for_line
from sessionary.infra.local.process import Child
from sessionary.infra.workflow_demo.report import RUN, WorkflowReport, make_report
from sessionary.schemas.errors import SettingsError, Unavailable
from sessionary.schemas.ids import new_session_id
from sessionary.schemas.settings import ENV_PREFIX, ClickHouseSettings

_ISSUE = "BILL-7"
_TENANT = "acme"
_STALL_S = 30.0
_END_S = 60.0
# The step in which the agent is killed, and the kind of the answer that it waits for then.
HELD_ANSWERS: Final = {"fetch_issue": "issues", "search_kb": "articles", "notify_team": "messages"}
EXAMPLE: Final = example_folder(Path(__file__), "workflow")
_STOP_S = 5.0


class Programs:
    """The example's processes, with their logs in `folder`."""

    def __init__(self, folder: Path, environ: Mapping[str, str]) -> None:
        """`environ`: the variables of the agent's client."""
        self.messages = folder / "messages" / "messages.ndjson"
        self._folder = folder
        self._environ = {**os.environ, **environ, "PYTHONUNBUFFERED": "1"}

    @contextmanager
    def running_services(self, kill_at: str) -> Iterator[Child]:
        """Run both services inside the context; the first answer in step `kill_at` is held back."""
        hold = ("--hold", HELD_ANSWERS[kill_at])
        services = self._start("services", str(self.messages.parent), *hold)
        try:
            yield services
        finally:
            services.stop(_STOP_S)

    def start_agent(self, name: str, url: str, session_id: str, issue: str) -> Child:
        """Start the agent as a process that is called `name`."""
        return self._start("workflow", url, session_id, issue, log=name)

    def _start(self, module: str, *arguments: str, log: str | None = None) -> Child:
        program = EXAMPLE / f"{module}.py"
        if not program.is_file():
            raise StartFailed(f"the workflow example is not there: {program}")
        return Child([sys.executable, str(program), *arguments], self._folder / f"{log or module}.log", self._environ)


def play_workflow(
    environ: Mapping[str, str], folder: Path, kill_at: str, progress: Callable[[str], None]
) -> WorkflowReport:
    """Run the example, kill it in step `kill_at`, run it again, and report. Blocks.

    `environ`: the stack's variables. `folder`: for logs, spool and messages.

    Raises `SettingsError` if the stack has no token for the example's tenant, `StartFailed`,
    `Unavailable` if a process or the rows do not come in time, and what `ClickHouseClient` raises.
    """
    token = tenant_tokens(environ).get(_TENANT)
    if token is None:
        raise SettingsError(f"SESSIONARY_API_TOKENS has no token for {_TENANT}")
    session_id = new_session_id()
    own_folder = folder / session_id  # the stack's folder may have been kept
    own = {ENV_PREFIX + "API_TOKEN": token, ENV_PREFIX + "SPOOL_DIR": str(own_folder / "spool")}
    programs = Programs(own_folder, {**environ, **own})
    run_id = str(uuid.uuid5(uuid.UUID(session_id), _ISSUE))
    with programs.running_services(kill_at) as services:
        url = wait_for_line(services, lambda line: line.startswith("http"), "the services' address")
        progress(f"first process: works on {_ISSUE} until {kill_at}")
        first = programs.start_agent("first", url, session_id, _ISSUE)
        try:
            held = f"holding the answer of /{HELD_ANSWERS[kill_at]}"
            wait_for_line(services, lambda line: line.startswith(held), "the call to be killed in")
        finally:
            first.kill()
        progress("killed: SIGKILL while the first process waited for an answer")
        second = programs.start_agent("second", url, session_id, _ISSUE)
        try:
            progress("second process: goes on with the run")
            wait_for_line(second, lambda line: line.startswith("message "), "the end of the second process")
            if not second.wait(_END_S) or second.exit_code != 0:
                raise Unavailable(f"the second process did not end well: {lines_of(second)[-3:]}", 1.0)
        finally:
            second.kill()
        requests = sum(line.startswith("asked to send ") for line in lines_of(services))
    clickhouse = ClickHouseClient(ClickHouseSettings.from_env(environ))
    wait_until_done(lambda: _check_run(clickhouse, session_id, run_id), _STALL_S, progress)
    sent = len(programs.messages.read_text("utf-8").splitlines())
    return make_report(clickhouse, session_id, run_id, sent, requests)


def _check_run(clickhouse: ClickHouseClient, session_id: str, run_id: str) -> PipelineStatus:
    """Check that the run's end has its row."""
    rows = clickhouse.fetch_rows(RUN, session=session_id, run=run_id)
    status = rows[0]["status"] if rows else "not there yet"
    return PipelineStatus(status == "completed", status, f"waiting for rows: the run is {status}")
