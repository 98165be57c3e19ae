"""`sessionary run list`, `show` and `resume`: runs, as the processors report them."""

import json
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from enum import StrEnum
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final
from urllib.parse import quote

import typer

from sessionary.infra.cli.commands.sessions.lookup import (
    FollowOption,
    RowTail,
    SinceOption,
    checked_session,
    follow_list,
    is_whole_id,
    session_start,
    since_ms,
)
from sessionary.infra.cli.errors import NotFound
from sessionary.infra.cli.options import DataOption, JsonOption, LimitOption, TenantOption
from sessionary.infra.cli.output import print_message, wants_json
from sessionary.infra.cli.tables import Json, show_object, show_rows
from sessionary.infra.environment import stack_environment, tenant_tokens
from sessionary.schemas.errors import Invalid, SettingsError
from sessionary.schemas.ids import given_session_id, successor_id

if TYPE_CHECKING:
    from sessionary.producers.control.http_control import HttpControl

_TIMEOUT_S: Final = 10.0
_PART: Final = 1_000  # rows of one answer
_FOLLOWING_MAX: Final = 1_000  # sessions of one text
_ASK_AGAIN_S: Final = 2.0  # for each answer a worker looks through its rows
_COLUMNS: Final = ("run_id", "state", "task_type", "session_id", "user_id", "mode", "progress", "unresolved_calls")
_STEP_COLUMNS: Final = ("name", "state", "attempt", "error")
_CALL_COLUMNS: Final = ("tool_name", "idem_key", "state", "try_number", "side_effect", "error")
SessionArgument = Annotated[
    str,
    typer.Argument(
        help="Session id, or its beginning if unique for the run; or the text given as its id.",
        callback=checked_session,
    ),
]
RunArgument = Annotated[str, typer.Argument(help="Run id.")]


class RunStateChoice(StrEnum):
    """A run's state."""

    QUEUED = "queued"
    STARTED = "started"
    RUNNING = "running"
    PAUSED = "paused"
    COMPLETED = "completed"
    FAILED = "failed"
    CANCELLED = "cancelled"


def list_runs(
    state: Annotated[
        RunStateChoice | None,
        typer.Option("--state", help="Only runs in this state.", show_default=False),
    ] = None,
    user: Annotated[str | None, typer.Option("--user", help="Only runs of this user.", show_default=False)] = None,
    agent: Annotated[str | None, typer.Option("--agent", help="Only runs of this agent.", show_default=False)] = None,
    tenant: TenantOption = None,
    since: SinceOption = None,
    follow: FollowOption = False,
    limit: LimitOption = 50,
    data: DataOption = None,
    as_json: JsonOption = False,
) -> None:
    """List a tenant's open and finished runs, as the processors report them, by session and run.

    With --since: those with a later applied event. With --follow: the most recently active
    ones; then each change of a run's state is another row.
    """
    first_ms = since_ms(since, datetime.now(UTC))
    given = {"state": state.value if state else None, "user_id": user}
    filters = {name: value for name, value in given.items() if value is not None}
    control = control_of(data, tenant)

    def is_wanted(row: Mapping[str, Json]) -> bool:
        return bool(row["last_event_ms"] >= first_ms) and agent in (None, row["agent_id"])

    if follow:
        runs = FollowedRuns(control, filters, is_wanted)
        tail = RowTail(lambda _: runs.fetch_rows(), str, _change_key)
        follow_list(tail, lambda: runs.newest_rows(limit), _COLUMNS, as_json=as_json, poll_s=_ASK_AGAIN_S)
        return
    rows = filter(is_wanted, _fetch_list(control, filters, limit))
    show_rows(list(islice(rows, limit)), as_json=as_json, columns=_COLUMNS)


class FollowedRuns:
    """A tenant's runs, polled from the processors. Not thread-safe.

    Runs of a partition whose worker does not answer appear as soon as one does.
    """

    def __init__(
        self, control: "HttpControl", filters: Mapping[str, str], is_wanted: Callable[[Mapping[str, Json]], bool]
    ) -> None:
        """Ask nothing yet."""
        self._control, self._filters, self._is_wanted = control, filters, is_wanted
        self._rows: list[dict[str, Json]] = []
        self._missing: list[int] = []

    def fetch_rows(self) -> list[dict[str, Json]]:
        """Return all runs, the most recently active last.

        Blocks for two seconds before each further part of a long list. Says which partitions do not
        answer, whenever these are others than before. Raises `Unavailable`.
        """
        rows: list[dict[str, Json]] = []
        missing: set[int] = set()
        for part in _fetch_parts(self._control, self._filters, _PART):
            rows += filter(self._is_wanted, part["runs"])
            missing.update(part["missing_partitions"])
            if part["next_cursor"] is not None:
                time.sleep(_ASK_AGAIN_S)
        if sorted(missing) != self._missing:
            self._missing = sorted(missing)
            _report_missing(self._missing)
        self._rows = sorted(rows, key=lambda row: (row["last_event_ms"], row["session_id"], row["run_id"]))
        return self._rows

    def newest_rows(self, count: int) -> list[dict[str, Json]]:
        """Return the most recently active runs of the former answer, the last one first."""
        return self._rows[::-1][:count]


def _change_key(row: Mapping[str, Json]) -> tuple[str, str, str, int]:
    return row["session_id"], row["run_id"], row["state"], row["entered_ms"]


def show_run(
    session: SessionArgument,
    run: RunArgument,
    tenant: TenantOption = None,
    data: DataOption = None,
    as_json: JsonOption = False,
) -> None:
    """Show one run: its state, its last checkpoint, its steps and its tool calls."""
    found, steps, calls = _fetch_run(control_of(data, tenant), session, run)
    if wants_json(as_json):
        show_object({**found, "steps": steps, "tool_calls": calls}, as_json=True)
        return
    show_object(found, as_json=False)
    for rows, columns in ((steps, _STEP_COLUMNS), (calls, _CALL_COLUMNS)):
        if rows:
            print_message("")
            show_rows(rows, as_json=False, columns=columns)


def resume_command(
    session: SessionArgument,
    run: RunArgument,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only show the effect of resuming the run.")] = False,
    tenant: TenantOption = None,
    data: DataOption = None,
    as_json: JsonOption = False,
) -> None:
    """Show the effect of resuming a run: steps done, steps to retry, and the next step.

    Sends nothing. Only the run's own program resumes it: session.resume_run(...).
    """
    if not dry_run:
        raise Invalid("invalid_value", "a run is resumed by its own program, session.resume_run(...); give --dry-run")
    from sessionary.producers.control.http_runs import parse_calls, parse_run, parse_steps
    from sessionary.producers.durable.resume_plan import make_plan

    found, steps, calls = _fetch_run(control_of(data, tenant), session, run)
    plan = make_plan(parse_run(found), parse_steps({"steps": steps}), parse_calls({"tool_calls": calls}))
    if wants_json(as_json):
        error = None if plan.error is None else plan.error._asdict()
        show_object({**plan._asdict(), "error": error, "checkpoint": found["checkpoint"]}, as_json=True)
        return
    show_object(_plan_lines(plan, found["checkpoint"], steps, calls), as_json=False)


def _plan_lines(plan: Any, checkpoint: Json, steps: Sequence[Json], calls: Sequence[Json]) -> dict[str, str]:
    """Return a plan as a person reads it."""
    errors = {step["name"]: f" ({step['error']['code']})" for step in steps if step["error"]}
    tools = {call["idem_key"]: f"{call['tool_name']} {call['idem_key']}" for call in calls}
    error = "" if plan.error is None else f" ({plan.error.error_class} {plan.error.code}: {plan.error.message})"
    return {
        "run": f"{plan.run_id}: {plan.state}",
        "open request": "" if plan.request is None else json.dumps(plan.request, ensure_ascii=False),
        "checkpoint": "" if checkpoint is None else _checkpoint_text(checkpoint),
        "done": ", ".join(plan.done),
        "calls done": ", ".join(tools[key] for key in plan.calls_done),
        "to retry": ", ".join(f"{name}{errors.get(name, '')}" for name in plan.to_retry),
        "stop": f"{plan.stop or ''}{error if plan.stop or not plan.to_retry else ''}",
        "next": plan.next or "",
        "unresolved": ", ".join(tools[key] for key in plan.unresolved),
        "in progress": ", ".join(tools[key] for key in plan.in_progress),
    }


def _checkpoint_text(checkpoint: Mapping[str, Json]) -> str:
    names = ("kind", "stage", "processed_count", "last_item_id", "bytes_written")
    parts = (f"{name} {checkpoint[name]}" for name in names if checkpoint[name] is not None)
    return ", ".join([checkpoint["operation"], *parts])


def control_of(data: Path | None, tenant: str | None) -> "HttpControl":
    """Return a client of the stack's control API, with a token of the tenant.

    Raises `SettingsError` if no tenant is named and there are several, or if it has no token.
    """
    from sessionary.producers import ProducerSettings
    from sessionary.producers.control.http_control import HttpControl

    environ = stack_environment(data)
    tokens = tenant_tokens(environ)
    if tenant is None and len(tokens) == 1:
        tenant = next(iter(tokens))
    token = environ.get("SESSIONARY_API_TOKEN") if tenant not in tokens else tokens[tenant]
    if token is None:
        if not tokens:
            raise SettingsError("no token is known for the control API: set SESSIONARY_API_TOKEN to one of your tenant")
        what = "the stack has several tenants" if tenant is None else f"no token is known for {tenant}"
        raise SettingsError(f"{what}: give --tenant, one of {', '.join(tokens)}")
    return HttpControl(ProducerSettings.from_env(environ, api_token=token), tenant)


def _fetch_list(control: "HttpControl", filters: Mapping[str, str], limit: int) -> Iterator[dict[str, Json]]:
    """Yield the tenant's runs; says which partitions do not answer."""
    for part in _fetch_parts(control, filters, limit):
        _report_missing(part["missing_partitions"])
        yield from part["runs"]


def _fetch_parts(control: "HttpControl", filters: Mapping[str, str], limit: int) -> Iterator[dict[str, Json]]:
    """Yield the parts of the list of the tenant's runs; asks for each when it is taken."""
    cursor: dict[str, str] = {}
    while True:
        part = control.fetch_runs({**filters, **cursor, "limit": f"{min(limit, _PART)}"}, _TIMEOUT_S)
        yield part
        if part["next_cursor"] is None:
            return
        cursor = {"cursor": part["next_cursor"]}


def _report_missing(partitions: Sequence[int]) -> None:
    if partitions:
        print_message(f"no worker answers for the partitions {', '.join(map(str, partitions))}")


def _fetch_run(
    control: "HttpControl", session: str, run: str
) -> tuple[dict[str, Json], list[dict[str, Json]], list[dict[str, Json]]]:
    """Return a run, its steps and its tool calls. Raises `NotFound`."""
    page = f"{_session_of(control, session, run)}/runs/{quote(run, safe='')}"
    found = control.fetch_document(page, None, _TIMEOUT_S, f"run {run}")
    steps = control.fetch_document(f"{page}/steps", None, _TIMEOUT_S, f"the steps of run {run}")["steps"]
    calls = control.fetch_document(f"{page}/tool-calls", None, _TIMEOUT_S, f"the tool calls of run {run}")
    return found, steps, calls["tool_calls"]


def _ids_of_text(control: "HttpControl", text: str) -> set[str]:
    """Return the ids of the sessions that a text may name: the first, and those that follow it.

    Raises `SettingsError` if the tenant is unknown, and the text cannot be the beginning of an id.
    """
    tenant = control.tenant_query().get("tenant")
    if tenant is None:  # the token knows it, but does not say it
        if session_start(text):
            return set()
        raise SettingsError(f"a text such as {text!r} names a session of one tenant: give --tenant")
    ids = [given_session_id(tenant, text).session_id]
    while len(ids) < _FOLLOWING_MAX:
        ids.append(successor_id(tenant, ids[-1]))
    return set(ids)


def _session_of(control: "HttpControl", session: str, run: str) -> str:
    """Return the whole id of the session that has the run. Raises `NotFound`, `Invalid`."""
    if is_whole_id(session):
        return session
    rows = _fetch_list(control, {}, _PART)
    start, named = session_start(session), _ids_of_text(control, session)
    found = {
        row["session_id"]
        for row in rows
        if row["run_id"] == run and (row["session_id"] in named or (start and row["session_id"].startswith(start)))
    }
    if not found:
        raise NotFound(f"no session {session!r} has a run {run!r}; sessionary run list lists those that there are")
    if len(found) > 1:
        raise Invalid("invalid_value", f"more than one session has it: {', '.join(sorted(found))}; give more of its id")
    return f"{found.pop()}"
