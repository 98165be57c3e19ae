"""Finds one session, in ClickHouse and in the processor."""

import http.client
import json
import re
import urllib.request
from collections.abc import Mapping
from typing import Annotated, Final

import typer

from sessionary.infra.cli.errors import NotFound
from sessionary.infra.cli.tables import Json
from sessionary.infra.clickhouse_client import ClickHouseClient, Row
from sessionary.infra.environment import control_api_context, tenant_tokens
from sessionary.schemas.errors import Invalid

_LIVE_TIMEOUT_S: Final = 3.0
_ID_LENGTH: Final = 36
_PART_ENDS: Final = (8, 12, 16, 20)  # digits before each hyphen of an id
_DIGITS: Final = re.compile(r"[0-9a-f]{1,32}")


def checked_session_start(text: str) -> str:
    """Return a session id, or its beginning, in lower case and with hyphens. Asks no server.

    Raises `Invalid` if no session id begins so.
    """
    digits = text.lower().replace("-", "")
    parts = [digits[start:end] for start, end in zip((0, *_PART_ENDS), (*_PART_ENDS, None), strict=True)]
    written = "-".join(filter(None, parts))
    ends = ("", "-") if len(digits) in _PART_ENDS else ("",)
    if _DIGITS.fullmatch(digits) is None or text.lower() not in (digits, *(written + end for end in ends)):
        raise Invalid(
            "invalid_value",
            f"{text!r} is no session id, nor the beginning of one: an id is a UUID, such as "
            "183108ed-8784-4091-97dd-1ac993fda554; sessionary session list lists those that there are",
        )
    return written


def is_whole_id(session: str) -> bool:
    """Return whether a checked id is a whole one, for which no server must be asked."""
    return len(session) == _ID_LENGTH


SessionArgument = Annotated[
    str, typer.Argument(help="Session id, or its beginning if that is unique.", callback=checked_session_start)
]
SessionOption = Annotated[
    str | None,
    typer.Option(
        "--session",
        help="Only this session: its id, or the beginning of it.",
        show_default=False,
        callback=lambda text: None if text is None else checked_session_start(text),
    ),
]


def find_session(source: ClickHouseClient, session: str, tenant: str | None) -> Row:
    """Return the one session whose id begins with `session`, which was checked.

    Raises `NotFound` if there is none, `Invalid` if there are several.
    """
    rows = source.fetch_rows(
        "SELECT * FROM v_sessions WHERE startsWith(session_id, {session:String}) "
        "AND ({tenant:String} = '' OR tenant_id = {tenant:String}) ORDER BY session_id LIMIT 3",
        session=session,
        tenant=tenant or "",
    )
    if not rows:
        of_tenant = f" of tenant {tenant}" if tenant else ""
        raise NotFound(f"ClickHouse has no session {session!r}{of_tenant}; sessionary session list lists those it has")
    if len(rows) > 1:
        names = ", ".join(f"{row['tenant_id']}:{row['session_id']}" for row in rows)
        raise Invalid("invalid_value", f"more than one session begins with {session!r}: {names} …; give more of its id")
    return rows[0]


def fetch_live_state(environ: Mapping[str, str], tenant: str, session: str) -> Json:
    """Return the session as the API of a stack with these variables shows it.

    None if no API is configured, if it does not answer, or if it has no such session.
    """
    url, token = environ.get("SESSIONARY_CONTROL_URL"), tenant_tokens(environ).get(tenant)
    if url is None or token is None:
        return None
    page, headers = f"{url.rstrip('/')}/v1/sessions/{session}", {"Authorization": f"Bearer {token}"}
    context = control_api_context(environ)
    try:
        request = urllib.request.Request(page, headers=headers)
        with urllib.request.urlopen(request, timeout=_LIVE_TIMEOUT_S, context=context) as answer:
            return json.load(answer)
    except (OSError, ValueError, http.client.HTTPException):
        return None
