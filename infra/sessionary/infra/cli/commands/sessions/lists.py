"""`sessionary session list` and `show`: sessions as ClickHouse has them."""

from datetime import UTC, datetime
from enum import StrEnum
from typing import Annotated, Final

import typer

from sessionary.infra.cli.commands.sessions.lookup import (
    RECENT,
    FollowOption,
    RowTail,
    SessionArgument,
    SinceOption,
    fetch_horizon,
    fetch_line,
    fetch_live_state,
    find_session,
    follow_list,
    is_whole_id,
    parse_since,
)
from sessionary.infra.cli.commands.sessions.runs import control_of
from sessionary.infra.cli.options import DataOption, JsonOption, LimitOption, TenantOption, clickhouse_client
from sessionary.infra.cli.output import print_message, wants_json
from sessionary.infra.cli.tables import show_object, show_rows
from sessionary.infra.clickhouse_client import Row
from sessionary.infra.environment import stack_environment
from sessionary.schemas.limits import CONVERSATION_TURNS_MAX

# The columns that fit 80 come first: a list without the reasons says little.
SESSION_COLUMNS = (
    "session_id",
    "state",
    "last_at",
    "reason",
    "tenant_id",
    "service_id",
    "events",
    "rejections",
    "duration_s",
    "version",
    "transitions",
    "external_id",
)
_SESSIONS = (
    "SELECT * FROM v_sessions "
    "WHERE ({state:String} = '' OR state = {state:String}) "
    "AND ({tenant:String} = '' OR tenant_id = {tenant:String}) "
    "AND ({service:String} = '' OR service_id = {service:String}) "
    "AND ({user:String} = '' OR user_id = {user:String}) AND ({agent:String} = '' OR has(agents, {agent:String})) "
    "AND last_at >= {since:DateTime64(6, 'UTC')}"
)
_CHANGES = (
    f"AND (tenant_id, session_id) IN (SELECT tenant_id, session_id FROM audit WHERE kind = 'transition' AND {RECENT}) "
    "ORDER BY time"
)
_TRANSITION_COLUMNS = (
    "transition",
    "from_state",
    "to_state",
    "time",
    "reason",
    "reason_code",
    "due_at",
    "fired_at",
)


class StateName(StrEnum):
    """A session's state."""

    IDLE = "Idle"
    ACTIVE = "Active"
    PAUSED = "Paused"
    TIMEOUT = "Timeout"
    ERROR = "Error"
    TERMINATED = "Terminated"
    ARCHIVED = "Archived"


def list_sessions(
    state: Annotated[
        StateName | None,
        typer.Option("--state", help="Only sessions in this state.", case_sensitive=False, show_default=False),
    ] = None,
    tenant: TenantOption = None,
    service: Annotated[
        str | None, typer.Option("--service", help="Only sessions that this service owns.", show_default=False)
    ] = None,
    user: Annotated[
        str | None, typer.Option("--user", help="Only sessions that serve this user.", show_default=False)
    ] = None,
    agent: Annotated[
        str | None, typer.Option("--agent", help="Only sessions in which this agent worked.", show_default=False)
    ] = None,
    since: SinceOption = None,
    follow: FollowOption = False,
    limit: LimitOption = 50,
    data: DataOption = None,
    as_json: JsonOption = False,
) -> None:
    """List sessions, the most recently active first. With --since: those that were active later.

    With --follow, each change of a session's state is another row.
    """
    source = clickhouse_client(data)
    filters: dict[str, str | int] = {
        "state": state or "",
        "tenant": tenant or "",
        "service": service or "",
        "user": user or "",
        "agent": agent or "",
        "since": parse_since(since, datetime.now(UTC)),
    }

    def fetch_list() -> list[Row]:
        newest = "ORDER BY last_at DESC, tenant_id, session_id LIMIT {limit:UInt32}"  # one tick may end several
        return source.fetch_rows(f"{_SESSIONS} {newest}", limit=limit, **filters)

    def fetch_landed(landed: str) -> list[Row]:
        return source.fetch_rows(f"{_SESSIONS} {_CHANGES}", landed=landed, **filters)

    if follow:
        tail = RowTail(fetch_landed, lambda: fetch_horizon(source), _change_key)
        follow_list(tail, fetch_list, SESSION_COLUMNS, as_json=as_json)
        return
    show_rows(fetch_list(), as_json=as_json, columns=SESSION_COLUMNS)


def _change_key(row: Row) -> tuple[str, str, int]:
    return row["tenant_id"], row["session_id"], row["transitions"]


def show_session(
    session: SessionArgument, tenant: TenantOption = None, data: DataOption = None, as_json: JsonOption = False
) -> None:
    """Show one session: state, transitions, clean-ups, and the processor's live view of it.

    If it has a parent, its line of descent too: from the first session to this one, each with the
    snapshot that it started from.
    """
    source = clickhouse_client(data)
    found = find_session(source, session, tenant)
    names = {"tenant": found["tenant_id"], "session": found["session_id"]}
    of_session = "WHERE tenant_id = {tenant:String} AND session_id = {session:String}"
    found["transition_list"] = source.fetch_rows(
        "SELECT transition, from_state, to_state, reason_code, reason, time, appended_at, due_at, fired_at "
        f"FROM v_transitions {of_session} ORDER BY audit_seq",
        **names,
    )
    found["cleanups"] = source.fetch_rows(
        "SELECT cleanup_id, transition, requested_at, released_at, confirmed, actions_requested, actions_done, "
        f"actions_failed FROM v_cleanups {of_session} ORDER BY requested_at",
        **names,
    )
    found["lineage"] = fetch_line(source, names["tenant"], names["session"])
    found["live"] = fetch_live_state(stack_environment(data), found["tenant_id"], found["session_id"])
    if wants_json(as_json):
        show_object(found, as_json=True)
        return
    parts = ("transition_list", "cleanups", "lineage", "live")
    transitions, cleanups, lineage, live = (found.pop(name) for name in parts)
    if live is not None:
        shown = ("state", "phase", "epoch", "version", "deadline_ms", "last_tool", "last_result")
        found["live"] = {name: live.get(name) for name in shown}
    show_object(found, as_json=False)
    print_message("")
    show_rows(transitions, as_json=False, columns=_TRANSITION_COLUMNS)
    if cleanups:
        print_message("")
        show_rows(cleanups, as_json=False, columns=("transition", "requested_at", "released_at", "actions_done"))
    if len(lineage) > 1:
        print_message("")
        show_rows(lineage, as_json=False, columns=("depth", "session_id", "time", "snapshot_id"))


# `sessionary session conversation`: the last turns of a session, as the processors know them.


_TIMEOUT_S: Final = 10.0
_TURN_COLUMNS: Final = ("turn", "role", "name", "content", "service_id", "agent_id", "run_id")


def conversation_command(
    session: SessionArgument,
    last: Annotated[
        int, typer.Option("--last", min=1, max=CONVERSATION_TURNS_MAX, help="Number of turns, from the end.")
    ] = 20,
    tenant: TenantOption = None,
    data: DataOption = None,
    as_json: JsonOption = False,
) -> None:
    """Show the last turns of a session's conversation, in order, with their contents.

    A large turn is an artifact: its content is the reference.
    """
    if not is_whole_id(session):
        found = find_session(clickhouse_client(data), session, tenant)
        session, tenant = found["session_id"], found["tenant_id"]
    page, about = f"{session}/conversation", f"session {session}"
    reported = control_of(data, tenant).fetch_document(page, None, _TIMEOUT_S, about, {"last": f"{last}"})
    show_rows(reported["messages"], as_json=as_json, columns=_TURN_COLUMNS)
