"""`sessionary call`: tool calls whose outcome is unknown, and the findings of people."""

import json
import tempfile
from collections.abc import Mapping
from datetime import UTC, datetime
from enum import Enum
from pathlib import Path
from typing import Annotated

import typer

from sessionary.infra.cli.commands.sessions.lookup import (
    OF_SESSION,
    FollowOption,
    RowTail,
    SessionArgument,
    SinceOption,
    follow_list,
    parse_since,
    session_start,
)
from sessionary.infra.cli.errors import CheckFailed, NotFound
from sessionary.infra.cli.options import (
    DataOption,
    JsonOption,
    LimitOption,
    TenantOption,
    clickhouse_client,
    kafka_settings,
)
from sessionary.infra.cli.tables import show_object, show_rows
from sessionary.infra.clickhouse_client import ClickHouseClient, Row
from sessionary.infra.environment import stack_environment, tenant_tokens
from sessionary.schemas.errors import Invalid

_COLUMNS = ("session", "run", "tool", "key", "since", "args")
_PLACE = ("tenant_id", "session", "run", "key", "since")
_FOLLOWED_MAX = 10_000
_CALLS = (
    "SELECT session_id AS session, run_id AS run, tool_name AS tool, idem_key AS key, since, args, tenant_id, "
    "service_id, step_id, try, queryable FROM v_unresolved_calls "
    "WHERE ({tenant:String} = '' OR tenant_id = {tenant:String}) AND ({user:String} = '' OR user_id = {user:String}) "
    "AND ({agent:String} = '' OR (tenant_id, session_id, run_id, idem_key) IN (SELECT tenant_id, session_id, run_id, "
    "idem_key FROM run_events WHERE event_type = 'tool_call_started' AND agent_id = {agent:String})) "
    "AND time >= {since:DateTime64(6, 'UTC')} ORDER BY since, session, run, key LIMIT {limit:UInt32}"
)
# Calls without a side effect may be resolved too; they hold no run.
_CALL = (
    "SELECT tenant_id, session_id, run_id, step_id, service_id, tool_name, tool_call_id, idem_key "
    "FROM v_reserved_calls WHERE state = 'unknown' AND idem_key = {key:String} "
    f"AND {OF_SESSION} "
    "AND ({run:String} = '' OR run_id = {run:String}) ORDER BY session_id, run_id LIMIT 2"
)


class CallOutcome(Enum):
    """The outcome of a call."""

    SUCCEEDED = "succeeded"
    FAILED = "failed"


def list_unknown(
    tenant: TenantOption = None,
    user: Annotated[str | None, typer.Option("--user", help="Only calls for this user.", show_default=False)] = None,
    agent: Annotated[
        str | None, typer.Option("--agent", help="Only calls that this agent made.", show_default=False)
    ] = None,
    since: SinceOption = None,
    follow: FollowOption = False,
    limit: LimitOption = 50,
    data: DataOption = None,
    as_json: JsonOption = False,
) -> None:
    """List tool calls with a side effect whose outcome is unknown, the oldest first.

    With --since: those whose outcome became unknown later.
    """
    source, first_time = clickhouse_client(data), parse_since(since, datetime.now(UTC))
    filters = {"tenant": tenant or "", "user": user or "", "agent": agent or "", "since": first_time}

    def fetch_calls(rows_max: int) -> list[Row]:
        return source.fetch_rows(_CALLS, limit=rows_max, **filters)

    if follow:  # no call is in the list twice for the same reason
        tail = RowTail(lambda _: fetch_calls(_FOLLOWED_MAX), str, lambda row: tuple(row[name] for name in _PLACE))
        follow_list(tail, lambda: fetch_calls(limit)[::-1], _COLUMNS, as_json=as_json)
        return
    show_rows(fetch_calls(limit), as_json=as_json, columns=_COLUMNS)


def resolve_unknown(
    session: SessionArgument,
    key: Annotated[str, typer.Argument(help="Idempotency key of the call.")],
    outcome: Annotated[CallOutcome, typer.Option(help="The call's outcome: failed means that it had no effect.")],
    by: Annotated[str, typer.Option("--by", help="The person that determined the outcome, for the history.")],
    run: Annotated[str | None, typer.Option("--run", help="Run of the call.", show_default=False)] = None,
    result: Annotated[
        str | None, typer.Option("--result", help="Result of a call that succeeded, as JSON.", show_default=False)
    ] = None,
    data: DataOption = None,
    as_json: JsonOption = False,
) -> None:
    """Record the outcome of a tool call whose outcome is unknown; its run may then resume.

    The exit code is 1 if the event was rejected.
    """
    from sessionary.infra.topics import count_brokers

    _check_result(outcome, result)
    call = find_unknown_call(clickhouse_client(data), session, key, run)
    count_brokers(kafka_settings(data))  # otherwise the outcome would wait for it in vain
    rejection = _send_outcome(stack_environment(data), call, outcome, result, by)
    verdict = "applied" if rejection is None else f"rejected: {rejection}"
    place = {"session": call["session_id"], "run": call["run_id"] or None, "key": key}
    show_object({**place, "outcome": outcome.value, "verdict": verdict}, as_json=as_json)
    if rejection is not None:
        raise CheckFailed(f"the outcome of {call['tool_name']} was rejected: {rejection}")


def _check_result(outcome: CallOutcome, result: str | None) -> None:
    if result is None:
        return
    if outcome is CallOutcome.FAILED:
        raise Invalid(
            "invalid_value", "--result is for a call that succeeded: leave it out, or give --outcome succeeded"
        )
    try:
        json.loads(result)
    except ValueError as error:
        raise Invalid("invalid_value", f"--result is no JSON: {error}") from None


def find_unknown_call(source: ClickHouseClient, session: str, key: str, run: str | None) -> Row:
    """Return the one call of unknown outcome with this key, of the session that is named so.

    Raises `NotFound` if there is none, `Invalid` if there are several, and as the client does.
    """
    rows = source.fetch_rows(_CALL, session=session, start=session_start(session), key=key, run=run or "")
    if not rows:
        raise NotFound(f"ClickHouse has no call {key!r} of unknown outcome in session {session!r}")
    if len(rows) > 1:
        names = ", ".join(f"{row['session_id']} run {row['run_id'] or '-'}" for row in rows)
        raise Invalid(
            "invalid_value", f"more than one call has the key {key!r}: {names} …; give --run, or more of the id"
        )
    return rows[0]


def _send_outcome(
    environ: Mapping[str, str], call: Row, outcome: CallOutcome, result: str | None, by: str
) -> str | None:
    """Send the outcome for the service that made the call; return why it was rejected, or None."""
    from sessionary.producers import ProducerSettings, SessionClient
    from sessionary.schemas.events import ToolCallResolved

    with tempfile.TemporaryDirectory(prefix="sessionary-unknown-") as folder:
        settings = ProducerSettings.from_env(
            environ,
            api_token=tenant_tokens(environ).get(call["tenant_id"]),
            spool_dir=Path(folder),
            handle_sigterm=False,
            poll_interval_s=0.0,  # its one event's verdict is awaited
        )
        with SessionClient(
            tenant_id=call["tenant_id"], service_id=call["service_id"], agent_id="sessionary-unknown", settings=settings
        ) as client:
            shared = client.attach(call["session_id"])
            resolved = ToolCallResolved(
                call["tool_call_id"], call["tool_name"], call["idem_key"], outcome.value, result, by
            )
            shared.emit(resolved, run_id=call["run_id"] or None, step_id=call["step_id"], actor=by)
            verdict = shared.sync().verdict
    if verdict is None or not verdict.kept:
        return "its verdict is not known any more"
    return None if verdict.applied else verdict.reason or "unknown"
