"""`sessionary session ask-again`: has open requests sent again, of one session or of all."""

import uuid
from collections import Counter
from collections.abc import Sequence
from typing import Annotated, Final

import typer

from sessionary.infra.cli.commands.sessions.lookup import checked_session, find_session, is_whole_id
from sessionary.infra.cli.errors import CheckFailed, NotFound
from sessionary.infra.cli.options import DataOption, JsonOption, TenantOption, clickhouse_client, control_api_client
from sessionary.infra.cli.output import print_message, wants_json
from sessionary.infra.cli.tables import Json, show_rows
from sessionary.infra.control_api_client import ControlApiClient, NothingOpen, UnknownSession
from sessionary.schemas.errors import Invalid

_SESSIONS_MAX: Final = 100_000
_ASKED: Final = "asked again"
_COLUMNS: Final = ("session_id", "tenant_id", "state", "topic", "id", "service_id", "what", "outcome")

OneSessionArgument = Annotated[
    str | None,
    typer.Argument(
        help="Session id, or its beginning if unique; or the text given as its id.",
        metavar="[SESSION]",
        show_default=False,
        callback=lambda text: None if text is None else checked_session(text),
    ),
]
AllOption = Annotated[bool, typer.Option("--all", help="All sessions with open requests; with --tenant, its own.")]
DryRunOption = Annotated[bool, typer.Option("--dry-run", help="List the open requests; send none.")]
AskReasonOption = Annotated[
    str | None,
    typer.Option("--reason", help="Reason; the audit trail keeps it, with your principal.", show_default=False),
]


def ask_again_command(
    session: OneSessionArgument = None,
    every: AllOption = False,
    reason: AskReasonOption = None,
    dry_run: DryRunOption = False,
    tenant: TenantOption = None,
    data: DataOption = None,
    as_json: JsonOption = False,
) -> None:
    """Send the open requests of a session again, or those of all sessions.

    Open are clean-ups without confirmation, tasks without a worker, claims that wait, and the next
    step of a migration. Each is sent with the id that it had, so a receiver that has it does
    nothing twice.
    """
    if (session is None) != every:
        raise Invalid("invalid_value", "name a session, or say --all: one of the two")
    if reason is None and not dry_run:
        raise Invalid("invalid_value", "say why, by --reason; or list what is open, by --dry-run")
    if session is not None and (tenant is None or not is_whole_id(session)):
        found = find_session(clickhouse_client(data), session, tenant)
        tenant, session = found["tenant_id"], found["session_id"]
    api = control_api_client(data)
    missing: Sequence[int] = ()
    rows: list[dict[str, Json]]
    if dry_run or session is None:
        sessions, missing = api.list_open(tenant, session, _SESSIONS_MAX)
    else:
        sessions = [{"tenant_id": tenant, "session_id": session}]
    if dry_run:
        rows = [_row(each, request, "open") for each in sessions for request in each["requests"]]
    else:
        rows = [row for each in sessions for row in _ask(api, each, reason or "", is_one=not every)]
    show_rows(rows, as_json=as_json, columns=_COLUMNS)
    if not wants_json(as_json):
        counts = Counter(row["outcome"] for row in rows)
        print_message(", ".join(f"{number} {outcome}" for outcome, number in counts.items()) or "no request is open")
    if refused := sorted({row["outcome"] for row in rows} - {"open", _ASKED}):
        raise CheckFailed("; ".join(refused))
    if len(sessions) >= _SESSIONS_MAX:
        raise CheckFailed(f"only the first {_SESSIONS_MAX} sessions were read: name a tenant, or single sessions")
    if missing:
        numbers = ", ".join(map(str, missing))
        raise CheckFailed(f"partitions {numbers} did not answer, so their sessions are missing: run this again later")


def _ask(api: ControlApiClient, session: dict[str, Json], reason: str, *, is_one: bool) -> list[dict[str, Json]]:
    """Have one session's requests sent again; return a row for each.

    A session whose requests were done meanwhile has none, unless it is the only one: then the
    refusal is the command's. Another refusal is the outcome of all that was open.
    """
    key = str(uuid.uuid4())
    try:
        judged = api.act_on_session(session["session_id"], session["tenant_id"], "ask-again", {"reason": reason}, key)
    except UnknownSession as error:
        if is_one:
            raise NotFound(str(error)) from None
        return []
    except Invalid as error:
        if is_one:
            raise
        is_done = isinstance(error, NothingOpen)
        return [] if is_done else [_row(session, one, f"refused: {error.detail}") for one in session["requests"]]
    return [_row(judged, request, _ASKED) for request in judged["requests"]]


def _row(session: dict[str, Json], request: dict[str, Json], outcome: str) -> dict[str, Json]:
    names = ("session_id", "tenant_id", "state")
    return {**{name: session[name] for name in names}, **request, "outcome": outcome}
