"""The workflow example in two processes: the first one is killed, the second one goes on."""

import uuid
from collections.abc import Callable, Mapping
from pathlib import Path

from sessionary.infra.clickhouse_client import ClickHouseClient
from sessionary.infra.demo.wait import PipelineStatus, wait_until_done
from sessionary.infra.environment import tenant_tokens
from sessionary.infra.local.printed_lines import lines_of, wait_for_line
from sessionary.infra.workflow_demo.programs import HELD_ANSWERS, Programs
from sessionary.infra.workflow_demo.report import RUN, WorkflowReport, make_report
from sessionary.schemas.errors import SettingsError, Unavailable
from sessionary.schemas.ids import new_session_id
from sessionary.schemas.settings import ENV_PREFIX, ClickHouseSettings

_ISSUE = "BILL-7"
_TENANT = "acme"
_STALL_S = 30.0
_END_S = 60.0


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


__all__ = ["play_workflow"]
