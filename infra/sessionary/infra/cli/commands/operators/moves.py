"""`sessionary session move`, `moves` and `drain`: sessions move between services."""

import time
import uuid
from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Annotated, Final

import typer

from sessionary.infra.cli.commands.sessions.lookup import SessionArgument, find_session
from sessionary.infra.cli.errors import CheckFailed, NotFound
from sessionary.infra.cli.options import (
    DataOption,
    JsonOption,
    LimitOption,
    TenantOption,
    clickhouse_client,
    control_api_client,
)
from sessionary.infra.cli.output import Progress, wants_json
from sessionary.infra.cli.tables import show_object, show_rows
from sessionary.infra.clickhouse_client import ClickHouseClient, Row
from sessionary.infra.control_api_client import ControlApiClient, UnknownSession
from sessionary.schemas.errors import Invalid, SessionaryError
from sessionary.schemas.limits import MIGRATION_TTL_MS_DEFAULT, MIGRATION_TTL_MS_MAX, MIGRATION_TTL_MS_MIN

ToOption = Annotated[str, typer.Option("--to", help="The new owner, a service.")]
ReasonOption = Annotated[str, typer.Option("--reason", help="Reason; the audit trail keeps it, with your principal.")]
TtlOption = Annotated[
    float,
    typer.Option(
        "--ttl",
        help="Seconds after which the move is called off.",
        min=MIGRATION_TTL_MS_MIN // 1_000,
        max=MIGRATION_TTL_MS_MAX // 1_000,
    ),
]
_COLUMNS: Final = (
    "session_id",
    "from_service",
    "to_service",
    "step",
    "reason_code",
    "offered_at",
    "silence_ms",
    "held_ms",
    "tenant_id",
    "actor",
    "migration_id",
)
_MIGRATIONS: Final = (
    "SELECT * FROM v_migrations WHERE ({tenant:String} = '' OR tenant_id = {tenant:String}) "
    "AND ({service:String} = '' OR from_service = {service:String} OR to_service = {service:String}) "
    "ORDER BY time DESC, migration_id LIMIT {limit:UInt32}"
)
_OF_SERVICE: Final = (
    "SELECT tenant_id, session_id FROM v_sessions WHERE service_id = {service:String} "
    "AND state IN ('Active', 'Paused', 'Timeout') AND ({tenant:String} = '' OR tenant_id = {tenant:String}) "
    "ORDER BY last_at, session_id"
)
# By target and time: the ids of a thousand migrations are too long for a request. The view would
# compute the silence of each one; of the table, a row that is stored twice does no harm here.
_ENDS: Final = (
    "SELECT assumeNotNull(migration_id) AS migration_id, migration_step AS step, reason_code FROM audit "
    "WHERE kind = 'migration' AND migration_step IN ('completed', 'aborted') AND to_service = {to:String} "
    "AND appended_at >= now() - {age_s:UInt32}"
)
_MIGRATION: Final = (
    "SELECT * FROM v_migrations WHERE session_id = {session:String} AND migration_id = {migration:String}"
)
Report = Callable[[int], None]
_LOOK_S: Final = 0.5
_LANDING_S: Final = 30.0  # beyond the time of a migration, until ClickHouse has its end
_CLOCKS_S: Final = 300.0  # by which the clocks of ClickHouse and the brokers may differ
_AT_ONCE: Final = 16


def move_command(
    session: SessionArgument,
    to: ToOption,
    reason: ReasonOption,
    ttl: TtlOption = MIGRATION_TTL_MS_DEFAULT / 1_000,
    tenant: TenantOption = None,
    data: DataOption = None,
    as_json: JsonOption = False,
) -> None:
    """Move a session to another service, and wait for the end of the move.

    The agent works until the target has loaded the session. If the target does not accept in time,
    the session stays with its service, and the exit code is 1. Needs a token with the role
    operator.
    """
    source, api, progress = clickhouse_client(data), control_api_client(data), Progress()
    found = find_session(source, session, tenant)
    begun_s = time.monotonic()
    try:
        offered = _offer(api, found, to, ttl, reason)
    except UnknownSession as error:
        raise NotFound(str(error)) from None
    progress(f"offered to {to}")
    (ended,) = _await_ends(source, to, [offered], begun_s, ttl, lambda _: progress(f"waiting for {to}"))
    progress.clear()
    rows = source.fetch_rows(_MIGRATION, session=found["session_id"], migration=offered)
    ended = rows[0] if rows else ended
    shown = {name: ended.get(name) for name in _COLUMNS}
    show_object(ended if wants_json(as_json) else shown, as_json=as_json)
    if ended["step"] != "completed":
        raise CheckFailed(f"session {found['session_id']} stays where it is: {ended['reason_code']}")


def moves_command(
    service: Annotated[
        str | None, typer.Option("--service", help="Only from or to this service.", show_default=False)
    ] = None,
    tenant: TenantOption = None,
    limit: LimitOption = 50,
    data: DataOption = None,
    as_json: JsonOption = False,
) -> None:
    """List moves of sessions, the latest first: source, target, step and duration."""
    rows = clickhouse_client(data).fetch_rows(_MIGRATIONS, tenant=tenant or "", service=service or "", limit=limit)
    show_rows(rows, as_json=as_json, columns=_COLUMNS)


def drain_command(
    service: Annotated[str, typer.Argument(help="The service whose sessions move.", metavar="SERVICE")],
    to: ToOption,
    reason: ReasonOption = "drained",
    rate: Annotated[float, typer.Option("--rate", help="Sessions offered per second.", min=0.1, max=1_000)] = 50.0,
    ttl: TtlOption = MIGRATION_TTL_MS_DEFAULT / 1_000,
    tenant: TenantOption = None,
    data: DataOption = None,
    as_json: JsonOption = False,
) -> None:
    """Move all open sessions of a service to another one, at a bounded rate, and report.

    Sessions that are Idle, in Error or ended stay. The exit code is 1 if a session did not move;
    the same command tries again.
    """
    if service == to:
        raise Invalid("invalid_value", f"--to {to}: name another service than the one that is drained")
    source, api, progress = clickhouse_client(data), control_api_client(data), Progress()
    sessions = source.fetch_rows(_OF_SERVICE, service=service, tenant=tenant or "")
    outcomes: Counter[str] = Counter()
    offered: list[str] = []
    first_s = time.monotonic()
    with ThreadPoolExecutor(_AT_ONCE) as pool:
        asked = []
        for number, session in enumerate(sessions, 1):
            begun_s = time.monotonic()
            asked.append(pool.submit(_offer, api, session, to, ttl, reason))
            progress(f"offered {number} of {len(sessions)} sessions")
            time.sleep(max(0.0, 1 / rate - (time.monotonic() - begun_s)))
        for each in asked:
            try:
                offered.append(each.result())
            except (Invalid, UnknownSession) as error:
                outcomes[_reason_of(error)] += 1
    count = len(offered)
    ends = _await_ends(source, to, offered, first_s, ttl, lambda ended: progress(f"ended {ended} of {count} moves"))
    progress.clear()
    outcomes.update(f"{end['step']}" if end["step"] == "completed" else f"{end['reason_code']}" for end in ends)
    moved = outcomes.pop("completed", 0)
    report = {"service": service, "to": to, "sessions": len(sessions), "moved": moved, "stayed": dict(outcomes)}
    show_object(report, as_json=as_json)
    if moved < len(sessions):
        raise CheckFailed(f"{len(sessions) - moved} of {len(sessions)} sessions did not move to {to}")


def _offer(api: ControlApiClient, session: Row, to: str, ttl_s: float, reason: str) -> str:
    """Offer a session; return the migration's id."""
    body = {"to": to, "ttl_ms": round(ttl_s * 1_000), "reason": reason}
    key = str(uuid.uuid4())
    judged = api.act_on_session(session["session_id"], session["tenant_id"], "migrate", body, key)
    return f"{judged['migration_id']}"


def _await_ends(
    source: ClickHouseClient, to: str, ids: Sequence[str], offered_s: float, ttl_s: float, report: Report
) -> list[Row]:
    """Return id, step and reason of migrations once all have ended, or after their time.

    `offered_s`: time of the first offer, by the monotonic clock. `report` gets the number of
    migrations that have ended. An end that ClickHouse lacks has the step `unknown`.
    """
    deadline_s = time.monotonic() + ttl_s + _LANDING_S
    while ids:
        now_s = time.monotonic()
        rows = source.fetch_rows(_ENDS, to=to, age_s=round(now_s - offered_s + _CLOCKS_S))
        found = {row["migration_id"]: row for row in rows}
        ended = sum(each in found for each in ids)
        if ended == len(ids) or now_s >= deadline_s:
            unknown = {"step": "unknown", "reason_code": "no end is in ClickHouse yet"}
            return [found.get(each, {"migration_id": each, **unknown}) for each in ids]
        report(ended)
        time.sleep(_LOOK_S)
    return []


def _reason_of(error: SessionaryError) -> str:
    return f"rejected: {error.detail}" if isinstance(error, Invalid) else "unknown session"
