"""`sessionary session follow`: each committed change of a session, as the processors report it."""

import sys
from typing import Annotated, Final

import typer

from sessionary.infra.cli.commands.sessions.lookup import SessionArgument, find_session, is_whole_id
from sessionary.infra.cli.commands.sessions.runs import control_of
from sessionary.infra.cli.options import DataOption, JsonOption, TenantOption, clickhouse_client
from sessionary.infra.cli.tables import Json, show_line
from sessionary.producers.run_ports import SessionView

_FIRST_S: Final = 10.0
_COLUMNS: Final = ("position", "state", "phase", "reason_code", "epoch", "version", "agent_id", "state_json")


def follow_command(
    session: SessionArgument,
    timeout: Annotated[
        float | None,
        typer.Option("--timeout", min=0, help="End after so many seconds without a change.", show_default=False),
    ] = None,
    tenant: TenantOption = None,
    data: DataOption = None,
    as_json: JsonOption = False,
) -> None:
    """Print a session's present state, then a line per committed change, until it is archived.

    Changes in close succession are one line, the newest.
    """
    from sessionary.producers.control.http_follows import HttpFollows  # takes long to load
    from sessionary.producers.follower import SessionFollower

    if not is_whole_id(session):
        found = find_session(clickhouse_client(data), session, tenant)
        session, tenant = found["session_id"], found["tenant_id"]
    follows = HttpFollows(control_of(data, tenant))
    with SessionFollower(follows, session, lambda: None, _FIRST_S, timeout) as follower:
        for view in follower:
            show_line(_line_of(view, follower.position), as_json=as_json, columns=_COLUMNS)
            sys.stdout.flush()  # a program that reads the lines gets each at once


def _line_of(view: SessionView, position: tuple[int, int] | None) -> dict[str, Json]:
    return {
        "session_id": view.session_id,
        "position": None if position is None else f"{position[0]}:{position[1]}",
        "state": view.state,
        "phase": view.phase,
        "reason_code": view.reason_code,
        "epoch": view.epoch,
        "version": view.version,
        "owner_service": view.owner_service,
        "agent_id": view.agent_id,
        "holder": view.holder,
        "state_json": view.state_json,
    }
