"""`sessionary session pause`, `resume`, `cancel`, `claim`; `question list`, `approve`, `deny`."""

import uuid
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Final

import typer

from sessionary.infra.cli.commands.sessions.lookup import SessionArgument, find_session, is_whole_id
from sessionary.infra.cli.errors import NotFound
from sessionary.infra.cli.options import (
    DataOption,
    JsonOption,
    LimitOption,
    TenantOption,
    clickhouse_client,
    control_api_client,
)
from sessionary.infra.cli.output import print_message, wants_json
from sessionary.infra.cli.tables import Json, show_object, show_rows
from sessionary.infra.control_api_client import UnknownSession
from sessionary.schemas.limits import OPERATOR_HOLD_MS_MAX, OPERATOR_HOLD_MS_MIN

ReasonOption = Annotated[str, typer.Option("--reason", help="Reason; the audit trail keeps it, with your principal.")]
OwnTenantOption = Annotated[
    str | None,
    typer.Option("--tenant", help="The session's tenant; by default looked up in ClickHouse.", show_default=False),
]
AnswerReasonOption = Annotated[
    str | None, typer.Option("--reason", help="Your message to the agent.", show_default=False)
]
QuestionOption = Annotated[
    str | None,
    typer.Option("--question", help="Id of the answered question, as in `question list`.", show_default=False),
]
HoldOption = Annotated[
    float | None,
    typer.Option(
        "--hold",
        help="Seconds after which the session ends, unless it is resumed; by default its limit hold_ms.",
        min=OPERATOR_HOLD_MS_MIN // 1_000,
        max=OPERATOR_HOLD_MS_MAX // 1_000,
        show_default=False,
    ),
]
ForOption = Annotated[str, typer.Option("--for", help="The new owner, a service.", metavar="SERVICE")]
_COLUMNS: Final = ("session_id", "question", "asked_at", "deadline", "owner_service", "tenant_id", "question_id")


def pause_command(
    session: SessionArgument,
    reason: ReasonOption,
    hold: HoldOption = None,
    tenant: OwnTenantOption = None,
    data: DataOption = None,
    as_json: JsonOption = False,
) -> None:
    """Hold a session, with a snapshot of its committed state; `session resume` releases it.

    The session must be Active, or paused by its agent. The agent is notified, and keeps the
    session, but cannot resume it. Needs a token with the role operator.
    """
    hold_ms = None if hold is None else round(hold * 1_000)
    _act("pause", session, tenant, {"reason": reason, "hold_ms": hold_ms}, data, as_json=as_json)


def resume_command(
    session: SessionArgument,
    reason: ReasonOption,
    tenant: OwnTenantOption = None,
    data: DataOption = None,
    as_json: JsonOption = False,
) -> None:
    """Release a held session: its agent continues in the next epoch.

    A session that waits for an answer resumes by `question approve` or `question deny` instead.
    """
    _act("resume", session, tenant, {"reason": reason}, data, as_json=as_json)


def cancel_command(
    session: SessionArgument,
    reason: ReasonOption,
    tenant: OwnTenantOption = None,
    data: DataOption = None,
    as_json: JsonOption = False,
) -> None:
    """Cancel a session. The session must be Active, Paused or in Error."""
    _act("cancel", session, tenant, {"reason": reason}, data, as_json=as_json)


def claim_command(
    session: SessionArgument,
    service: ForOption,
    reason: ReasonOption,
    tenant: OwnTenantOption = None,
    data: DataOption = None,
    as_json: JsonOption = False,
) -> None:
    """Make a service the owner of a session at once, even if the owner is alive; fence the holder.

    The session keeps its state. A client of the service must attach to the session or claim it, or
    the session times out.
    """
    body = {"for": service, "reason": reason}
    _act("claim", session, tenant, body, data, as_json=as_json, more=("owner_service",))


def approve_command(
    session: SessionArgument,
    reason: AnswerReasonOption = None,
    question: QuestionOption = None,
    tenant: OwnTenantOption = None,
    data: DataOption = None,
    as_json: JsonOption = False,
) -> None:
    """Answer a session's open question: yes. See `sessionary question list`."""
    _act("approve", session, tenant, {"reason": reason, "question_id": question}, data, as_json=as_json)


def deny_command(
    session: SessionArgument,
    reason: AnswerReasonOption = None,
    question: QuestionOption = None,
    tenant: OwnTenantOption = None,
    data: DataOption = None,
    as_json: JsonOption = False,
) -> None:
    """Answer a session's open question: no. See `sessionary question list`."""
    _act("deny", session, tenant, {"reason": reason, "question_id": question}, data, as_json=as_json)


def list_questions(
    tenant: TenantOption = None, limit: LimitOption = 50, data: DataOption = None, as_json: JsonOption = False
) -> None:
    """List the questions that wait for a person: text, beginning, deadline, author.

    A question without an answer at its deadline is denied.
    """
    waiting, missing = control_api_client(data).list_waiting(tenant, limit)
    rows = [{**row, "asked_at": _instant(row["asked_ms"]), "deadline": _instant(row["deadline_ms"])} for row in waiting]
    show_rows(waiting if wants_json(as_json) else rows, as_json=as_json, columns=_COLUMNS)
    if missing:
        print_message(f"partitions without an answer, whose questions are missing: {', '.join(map(str, missing))}")


def _act(
    action: str,
    session: str,
    tenant: str | None,
    body: Mapping[str, Json],
    data: Path | None,
    *,
    as_json: bool,
    more: Sequence[str] = (),
) -> None:
    """Send an operator's request about a session, and show the result.

    `more`: names in the answer that are shown besides those of all actions.
    """
    if tenant is None or not is_whole_id(session):
        found = find_session(clickhouse_client(data), session, tenant)
        tenant, session = found["tenant_id"], found["session_id"]
    assert tenant is not None
    wanted = {name: value for name, value in body.items() if value is not None}
    try:
        judged = control_api_client(data).act_on_session(session, tenant, action, wanted, str(uuid.uuid4()))
    except UnknownSession as error:
        raise NotFound(str(error)) from None
    names = ("session_id", "tenant_id", "state", "epoch", "version", "reason_code", "snapshot_id", *more)
    show_object(judged if wants_json(as_json) else {name: judged[name] for name in names}, as_json=as_json)


def _instant(at_ms: int) -> str:
    return datetime.fromtimestamp(at_ms / 1_000, UTC).strftime("%Y-%m-%d %H:%M:%S")
