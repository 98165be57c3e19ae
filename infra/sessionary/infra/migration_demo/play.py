"""Three services own one session in turn: the first offers it, the second is killed."""

import os
import sys
import time
import uuid
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from sessionary.infra.clickhouse_client import ClickHouseClient, Row
from sessionary.infra.control_api_client import ControlApiClient
from sessionary.infra.demo.wait import PipelineStatus, wait_until_done
from sessionary.infra.environment import tenant_tokens
from sessionary.infra.local.errors import StartFailed
from sessionary.infra.local.examples import example_folder
from sessionary.infra.local.printed_lines import lines_of, wait_for_line
from sessionary.infra.local.process import Child, tail
from sessionary.infra.migration_demo.queries import LANDED
from sessionary.infra.migration_demo.report import MigrationReport, make_report
from sessionary.infra.settings import OperatorSettings
from sessionary.schemas.errors import SettingsError, Unavailable
from sessionary.schemas.ids import new_session_id
from sessionary.schemas.settings import ENV_PREFIX, ClickHouseSettings

TENANT: Final = "acme"
# Of a kept stack: the group of payments waits for its killed member until Kafka gives that up.
_PATIENCE_S: Final = 180.0
_PAUSE_S: Final = 0.2
_STALL_S: Final = 60.0
_QUESTIONS_MAX: Final = 1_000
_APPROVAL: Final = "cheaper than last year"
Tell = Callable[[str], None]
EXAMPLE: Final = example_folder(Path(__file__), "moving_session")


class Services:
    """The example's processes, with their logs and spools in `folder`."""

    def __init__(self, folder: Path, environ: Mapping[str, str]) -> None:
        """`environ`: the variables of their clients."""
        self._folder = folder
        self._environ = {**os.environ, **environ, "PYTHONUNBUFFERED": "1"}

    @contextmanager
    def running(self, service: str, *arguments: str) -> Iterator[Child]:
        """Run a service inside the context; what is left of it at the end is killed.

        Raises `StartFailed` if the example is not there.
        """
        program = EXAMPLE / "services.py"
        if not program.is_file():
            raise StartFailed(f"the example of a moving session is not there: {program}")
        argv = [sys.executable, str(program), service, *arguments]
        own = {ENV_PREFIX + "SPOOL_DIR": str(self._folder / f"spool-{service}")}
        child = Child(argv, self._folder / f"{service}.log", {**self._environ, **own})
        try:
            yield child
        finally:
            child.kill()


def play_migration(environ: Mapping[str, str], folder: Path, progress: Tell) -> MigrationReport:
    """Let a session move from one service to the next two, and report. Blocks.

    `environ`: the stack's variables. `folder`: for logs and spools.

    Raises `SettingsError` if the stack has no token for the example's tenant, `StartFailed`,
    `Unavailable` if a process or the rows do not come in time, and what `ControlApiClient` and
    `ClickHouseClient` raise.
    """
    token = tenant_tokens(environ).get(TENANT)
    if token is None:
        raise SettingsError(f"SESSIONARY_API_TOKENS has no token for {TENANT}")
    own_folder = folder / new_session_id()  # the stack's folder may have been kept
    services = Services(own_folder, {**environ, ENV_PREFIX + "API_TOKEN": token})
    operator = ControlApiClient(OperatorSettings.from_env(environ))
    session_id = _play(services, operator, progress)
    clickhouse = ClickHouseClient(ClickHouseSettings.from_env(environ))
    if not wait_until_done(lambda: _check_landed(clickhouse, session_id), _STALL_S, progress):
        raise Unavailable(f"ClickHouse lacks rows: {_check_landed(clickhouse, session_id).text}", 1.0)
    progress("reading the trail from ClickHouse")
    return make_report(clickhouse, TENANT, session_id)


def _play(services: Services, operator: ControlApiClient, progress: Tell) -> str:
    """Let the three services do their part; return the session's id."""
    with services.running("payments") as payments:
        _await_line(payments, "accepts sessions")
        with services.running("research") as research:
            session_id = _await_line(research, "session ").removeprefix("session ")
            progress(f"began: research works on session {session_id}")
            question = _await_question(operator, research, session_id)
            progress(f"asked: research waits for a person: {question['question']}")
            answer = {"reason": _APPROVAL, "question_id": question["question_id"]}
            operator.act_on_session(session_id, TENANT, "approve", answer, str(uuid.uuid4()))
            progress("approved: by an operator, as sessionary question approve does")
            progress(f"planned: research {_await_line(research, 'moved to ')}")
            _await_line(payments, "waits for the bank")
            _await_end(research)
        payments.kill()
        progress("killed: payments, the owner, by SIGKILL, while it waited for its bank")
    with services.running("shipping", session_id) as shipping:
        progress("silent: shipping claims the session, until its owner counts as dead")
        progress(f"claimed: shipping {_await_line(shipping, 'claimed ')}")
        _await_end(shipping)
        progress("completed: by shipping")
    return session_id


def _await_line(service: Child, start: str) -> str:
    """Return the first line of a service that begins so."""
    purpose = f"a line of the service: {start!r}"
    return wait_for_line(service, lambda line: line.startswith(start), purpose, _PATIENCE_S)


def _await_end(service: Child) -> None:
    """Wait until a service has ended by itself. Raises `Unavailable` if it does not end well."""
    if not service.wait(_PATIENCE_S) or service.exit_code != 0:
        raise Unavailable(f"a service did not end well: {lines_of(service)[-3:]}", 1.0)


def _await_question(operator: ControlApiClient, asking: Child, session_id: str) -> Row:
    """Return the open question of the session."""
    deadline = time.monotonic() + _PATIENCE_S
    while asking.exit_code is None and time.monotonic() < deadline:
        waiting, _ = operator.list_waiting(TENANT, _QUESTIONS_MAX)
        for row in waiting:
            if row["session_id"] == session_id:
                return row
        time.sleep(_PAUSE_S)
    raise Unavailable(f"the question to a person did not come; the log ends with: {tail(asking.log, 3)}", 1.0)


def _check_landed(clickhouse: ClickHouseClient, session_id: str) -> PipelineStatus:
    """Check that each table has what it will have of the session."""
    row = clickhouse.fetch_one(LANDED, tenant=TENANT, session=session_id)
    missing = [name for name, is_there in row.items() if not is_there]
    return PipelineStatus(not missing, tuple(missing), f"waiting for rows: {', '.join(missing)}")
