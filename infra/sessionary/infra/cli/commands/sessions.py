"""`sessionary sessions`, `show` and `timeline`: what ClickHouse knows of sessions."""

import json
import urllib.request
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from sessionary.infra.cli.errors import NotFound
from sessionary.infra.cli.options import DataOption, JsonOption, LimitOption, TenantOption, clickhouse_client
from sessionary.infra.cli.output import print_message, wants_json
from sessionary.infra.cli.tables import Json, show_object, show_rows
from sessionary.infra.clickhouse_client import ClickHouseClient, Row
from sessionary.infra.environment import stack_environment, tenant_tokens
from sessionary.schemas.errors import Invalid

SessionArgument = Annotated[str, typer.Argument(help="Session id, or its beginning if that is unique.")]
_SESSION_COLUMNS = (
    "session_id",
    "tenant_id",
    "state",
    "service_id",
    "last_at",
    "events",
    "refusals",
    "reason",
    "transitions",
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
_LIVE_TIMEOUT_S = 3.0


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
        typer.Option("--state", help="Only sessions that are in this state.", case_sensitive=False, show_default=False),
    ] = None,
    tenant: TenantOption = None,
    service: Annotated[
        str | None, typer.Option("--service", help="Only sessions that this service owns.", show_default=False)
    ] = None,
    limit: LimitOption = 50,
    data: DataOption = None,
    as_json: JsonOption = False,
) -> None:
    """List sessions, the most recently active first."""
    rows = clickhouse_client(data).fetch_rows(
        "SELECT * FROM v_sessions "
        "WHERE ({state:String} = '' OR state = {state:String}) "
        "AND ({tenant:String} = '' OR tenant_id = {tenant:String}) "
        "AND ({service:String} = '' OR service_id = {service:String}) ORDER BY last_at DESC LIMIT {limit:UInt32}",
        state=state or "",
        tenant=tenant or "",
        service=service or "",
        limit=limit,
    )
    show_rows(rows, as_json=as_json, columns=_SESSION_COLUMNS)


def _find_session(source: ClickHouseClient, session: str, tenant: str | None) -> Row:
    """Return the one session whose id begins with `session`.

    Raises `NotFound` if there is none, `Invalid` if there are several.
    """
    rows = source.fetch_rows(
        "SELECT * FROM v_sessions WHERE startsWith(session_id, {session:String}) "
        "AND ({tenant:String} = '' OR tenant_id = {tenant:String}) ORDER BY session_id LIMIT 3",
        session=session.lower(),
        tenant=tenant or "",
    )
    if not rows:
        of_tenant = f" of tenant {tenant}" if tenant else ""
        raise NotFound(f"ClickHouse has no session {session!r}{of_tenant}; sessionary sessions lists those it has")
    if len(rows) > 1:
        names = ", ".join(f"{row['tenant_id']}:{row['session_id']}" for row in rows)
        raise Invalid("invalid_value", f"more than one session begins with {session!r}: {names} …; give more of its id")
    return rows[0]


def _fetch_live_state(data: Path | None, tenant: str, session: str) -> Json:
    """Return the session as the processor's API shows it.

    None if no API is configured, if it does not answer, or if it has no such session.
    """
    environ = stack_environment(data)
    url, token = environ.get("SESSIONARY_CONTROL_URL"), tenant_tokens(environ).get(tenant)
    if url is None or token is None:
        return None
    request = urllib.request.Request(f"{url}/v1/sessions/{session}", headers={"Authorization": f"Bearer {token}"})
    try:
        with urllib.request.urlopen(request, timeout=_LIVE_TIMEOUT_S) as answer:
            return json.load(answer)
    except (OSError, ValueError):
        return None


def show_session(
    session: SessionArgument, tenant: TenantOption = None, data: DataOption = None, as_json: JsonOption = False
) -> None:
    """Show one session: state, transitions, clean-ups, and the processor's live view of it."""
    source = clickhouse_client(data)
    found = _find_session(source, session, tenant)
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
    found["live"] = _fetch_live_state(data, found["tenant_id"], found["session_id"])
    if wants_json(as_json):
        show_object(found, as_json=True)
        return
    transitions, cleanups, live = (found.pop(name) for name in ("transition_list", "cleanups", "live"))
    if live is not None:
        found["live"] = {name: live.get(name) for name in ("state", "phase", "epoch", "version", "deadline_ms")}
    show_object(found, as_json=False)
    print_message("")
    show_rows(transitions, as_json=False, columns=_TRANSITION_COLUMNS)
    if cleanups:
        print_message("")
        show_rows(cleanups, as_json=False, columns=("transition", "requested_at", "released_at", "actions_done"))


def show_timeline(
    session: SessionArgument,
    tenant: TenantOption = None,
    limit: LimitOption = 1000,
    data: DataOption = None,
    as_json: JsonOption = False,
) -> None:
    """List a session's events and their outcomes in the order of the log, without heartbeats."""
    source = clickhouse_client(data)
    found = _find_session(source, session, tenant)
    rows = source.fetch_rows(
        """
        SELECT appended_at, source_partition, source_offset, what, event_type, outcome, reason, service_id, producer_seq
        FROM
        (
            SELECT toDateTime64(appended_at, 6, 'UTC') AS appended_at, source_partition, source_offset, 0 AS n,
                'event' AS what, toString(event_type) AS event_type, '' AS outcome, '' AS reason,
                toString(service_id) AS service_id, toNullable(producer_seq) AS producer_seq
            FROM history FINAL
            WHERE tenant_id = {tenant:String} AND session_id = {session:String} AND event_type != 'heartbeat'
            UNION ALL
            SELECT appended_at, source_partition, source_offset, source_n + 1, toString(kind), toString(event_type),
                if(kind = 'transition', concat(toString(assumeNotNull(transition)), ' ', toString(from_state), ' → ',
                    toString(to_state)), toString(reason_code)),
                reason, ifNull(toString(service_id), ''), producer_seq
            FROM audit FINAL
            WHERE tenant_id = {tenant:String} AND session_id = {session:String}
        )
        ORDER BY source_offset, n LIMIT {limit:UInt32}""",
        tenant=found["tenant_id"],
        session=found["session_id"],
        limit=limit,
    )
    columns = ("source_offset", "appended_at", "event_type", "outcome", "what", "reason", "service_id")
    show_rows(rows, as_json=as_json, columns=columns)


__all__ = ["list_sessions", "show_session", "show_timeline"]
