"""The history of a workflow that was killed, from the rows in ClickHouse."""

import os
import sys
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Final, NamedTuple

from sessionary.infra.clickhouse_client import ClickHouseClient, Json, Row
from sessionary.infra.demo.wait import PipelineStatus, example_folder, lines_of, wait_for_line, wait_until_done
from sessionary.infra.environment import tenant_tokens
from sessionary.infra.local.errors import StartFailed
from sessionary.infra.local.process import Child
from sessionary.schemas.errors import SettingsError, Unavailable
from sessionary.schemas.ids import new_session_id
from sessionary.schemas.settings import ENV_PREFIX, ClickHouseSettings

RUN = "SELECT status FROM v_runs WHERE session_id = {session:String} AND run_id = {run:String}"

# Each event of the run and each decision of the processor. `process` counts the clients that sent
# events in the session, from 1; null for a decision.
TRAIL = """
SELECT
    c.time AS time, if(c.actor = 'processor', NULL, p.number_of) AS process,
    c.event_type AS event_type, c.name AS name, c.number AS number, c.state AS state, c.reason AS reason,
    c.source_offset AS place
FROM
(
    SELECT * FROM v_causes
    WHERE session_id = {session:String} AND run_id = {run:String} AND event_type != 'run_running'
) AS c
LEFT JOIN
(
    SELECT source_partition, source_offset, producer_id
    FROM history FINAL WHERE session_id = {session:String} AND event_type NOT IN ('tick', 'heartbeat')
) AS h ON h.source_partition = c.source_partition AND h.source_offset = c.source_offset
LEFT JOIN
(
    SELECT producer_id, row_number() OVER (ORDER BY min(source_offset)) AS number_of FROM history FINAL
    WHERE session_id = {session:String} AND event_type NOT IN ('tick', 'heartbeat') GROUP BY producer_id
) AS p ON p.producer_id = h.producer_id
ORDER BY place, process"""

CALLS = """
SELECT tool_name, side_effect, state, try, effects, resolved_by
FROM v_reserved_calls WHERE session_id = {session:String} AND run_id = {run:String} ORDER BY created_at"""

_STEP_EVENTS = {"step_started": "killed in it", "step_succeeded": "done", "step_failed": "failed"}
_STEP_EVENTS["step_skipped"] = "skipped"


class WorkflowReport(NamedTuple):
    """The history of a workflow in two processes.

    `steps`: the outcome of each step in each process. `trail`: the events and decisions of the run,
    in order. `calls`: its tool calls. `figures`: numbers that must be right, see `faults`.
    """

    steps: list[Row]
    trail: list[Row]
    calls: list[Row]
    figures: dict[str, Json]

    @property
    def faults(self) -> dict[str, Json]:
        """The figures that are not as they must be."""
        right: dict[str, Json] = {
            "run": "completed",
            "messages_sent": 1,
            "requests_to_send": 1,
            "steps_done_twice": 0,
            "steps_skipped_unasked": 0,
        }
        return {name: self.figures[name] for name, value in right.items() if self.figures[name] != value}


def make_report(
    clickhouse: ClickHouseClient, session_id: str, run_id: str, messages_sent: int, requests_to_send: int
) -> WorkflowReport:
    """Read the history of the run. Blocks. Raises as `ClickHouseClient` does."""
    of_run = {"session": session_id, "run": run_id}
    trail = clickhouse.fetch_rows(TRAIL, **of_run)
    steps = step_table(trail)
    figures: dict[str, Json] = {
        "session_id": session_id,
        "run_id": run_id,
        "run": clickhouse.fetch_one(RUN, **of_run)["status"],
        "messages_sent": messages_sent,
        "requests_to_send": requests_to_send,
        "steps_skipped": sum(step["second_process"] == "skipped" for step in steps),
        "steps_done_twice": sum(step["first_process"] == step["second_process"] == "done" for step in steps),
        "steps_skipped_unasked": sum(
            step["second_process"] == "skipped" and step["first_process"] != "done" for step in steps
        ),
    }
    return WorkflowReport(steps, trail, clickhouse.fetch_rows(CALLS, **of_run), figures)


def step_table(trail: Sequence[Row]) -> list[Row]:
    """Return a row for each step: its outcome in the first and the second process, and why."""
    found: dict[str, dict[int, str]] = {}
    reasons: dict[str, str] = {}
    for row in trail:
        name, made = row["name"], _STEP_EVENTS.get(row["event_type"])
        if made is None:
            continue
        found.setdefault(name, {})[1 if row["process"] == 1 else 2] = made
        if row["event_type"] == "step_skipped":
            reasons[name] = row["reason"]
    return [
        {
            "step": name,
            "first_process": made.get(1, "not begun"),
            "second_process": made.get(2, ""),
            "why": reasons.get(name) or _why_again(made, trail),
        }
        for name, made in found.items()
    ]


def _why_again(made: dict[int, str], trail: Sequence[Row]) -> str:
    """Return why a step was done by the second process."""
    if 1 not in made:
        return "the first process did not come to it"
    states = [row["state"] for row in trail if row["event_type"].startswith("tool_call_") and row["state"] == "unknown"]
    resolved = any(row["event_type"] == "tool_call_resolved" for row in trail)
    if states and resolved:
        return "its call was unknown; the messenger was asked by its key, and had sent it"
    return "it had not ended; its call only reads, and was made again"


# The workflow example in two processes: the first one is killed, the second one continues.


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
    `Unavailable` if a process or the rows do not come in time, and as `ClickHouseClient` does.
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
            progress("second process: continues the run")
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
