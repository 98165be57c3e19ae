"""`sessionary session conversation`: the last turns of a session, as the processors know them."""

from typing import Annotated, Final

import typer

from sessionary.infra.cli.commands.sessions.lookup import SessionArgument, find_session, is_whole_id
from sessionary.infra.cli.commands.sessions.runs import control_of
from sessionary.infra.cli.options import DataOption, JsonOption, TenantOption, clickhouse_client
from sessionary.infra.cli.tables import show_rows
from sessionary.schemas.limits import CONVERSATION_TURNS_MAX

_TIMEOUT_S: Final = 10.0
_COLUMNS: Final = ("turn", "role", "name", "content", "service_id", "agent_id", "run_id")


def conversation_command(
    session: SessionArgument,
    last: Annotated[
        int, typer.Option("--last", min=1, max=CONVERSATION_TURNS_MAX, help="How many turns, from the end.")
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
    told = control_of(data, tenant).fetch_document(page, None, _TIMEOUT_S, about, {"last": f"{last}"})
    show_rows(told["messages"], as_json=as_json, columns=_COLUMNS)
