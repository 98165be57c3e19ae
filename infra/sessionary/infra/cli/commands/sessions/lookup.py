"""Finds one session, in ClickHouse and in the processor."""

import json
import re
import sys
import time
from collections.abc import Callable, Hashable, Mapping, Sequence
from datetime import datetime
from typing import Annotated, Final

import typer

from sessionary.infra.cli.errors import NotFound
from sessionary.infra.cli.output import print_message
from sessionary.infra.cli.tables import Json, show_line, show_rows
from sessionary.infra.cli.times import TIMES, parse_time
from sessionary.infra.clickhouse_client import ClickHouseClient, Row
from sessionary.infra.environment import tenant_tokens
from sessionary.infra.settings import OperatorSettings
from sessionary.schemas.errors import Invalid, Unavailable
from sessionary.schemas.http.control_servers import ControlServers, Unanswered
from sessionary.schemas.http.kept_connections import Request
from sessionary.schemas.ids import given_session_id

# The option `--since`: a time, or how long ago.


SinceOption = Annotated[
    str | None,
    typer.Option(
        "--since",
        help=f"Only from this time on: {TIMES}.",
        show_default=False,
    ),
]


def parse_since(text: str | None, now: datetime) -> str:
    """Return the time as ClickHouse takes it; its first time if `text` is None.

    Raises `Invalid`.
    """
    return "1970-01-01 00:00:00" if text is None else f"{parse_time('--since', text, now):%Y-%m-%d %H:%M:%S.%f}"


def since_ms(text: str | None, now: datetime) -> int:
    """Return the time in ms since the epoch; 0 if `text` is None. Raises `Invalid`."""
    return 0 if text is None else int(parse_time("--since", text, now).timestamp() * 1_000)


# Follows a list: the rows that are new after the list was shown, each of them once.


FollowOption = Annotated[
    bool, typer.Option("--follow", "-f", help="Oldest first, then continue with new ones until Ctrl-C.")
]
# Sessions with a row that landed then may have changed. Kafka keeps no record for longer.
RECENT: Final = "landed_at >= {landed:DateTime64(3, 'UTC')} AND appended_at >= now() - INTERVAL 32 DAY"
_EVER: Final = "1970-01-01 00:00:00.000"
_POLL_S: Final = 1.0
# A block's rows have the time at which the server began to insert it; they are seen at its end.
_INSERT_S_MAX: Final = 60
_KEYS_MAX: Final = 100_000


class RowTail:
    """The rows of a source that were not seen yet. Not thread-safe."""

    def __init__(
        self,
        fetch_landed: Callable[[str], list[Row]],
        fetch_horizon: Callable[[], str],
        row_key: Callable[[Row], Hashable],
    ) -> None:
        """Ask nothing yet.

        `fetch_landed`: returns the rows that landed at a time or later, oldest first.
        `fetch_horizon`: returns the time before which every row that landed can be seen.
        """
        self._fetch_landed, self._fetch_horizon, self._row_key = fetch_landed, fetch_horizon, row_key
        self._horizon = _EVER
        self._seen: dict[Hashable, None] = {}

    def begin_after(self, fetch_list: Callable[[], list[Row]]) -> list[Row]:
        """Return the list's rows; these and all older ones count as seen. Raises as it does."""
        horizon = self._fetch_horizon()
        former = self._fetch_landed(horizon)  # before the list: rows that land in between are in one of the two
        found = fetch_list()
        self._see_rows([*former, *found])
        self._horizon = horizon
        return found

    def fetch_unseen(self) -> list[Row]:
        """Return the rows that landed since, oldest first; blocks for a query."""
        horizon = self._fetch_horizon()
        unseen = self._see_rows(self._fetch_landed(self._horizon))
        self._horizon = horizon
        return unseen

    def _see_rows(self, rows: Sequence[Row]) -> list[Row]:
        unseen = [row for row in rows if self._row_key(row) not in self._seen]
        self._seen.update((self._row_key(row), None) for row in rows)
        while len(self._seen) > max(_KEYS_MAX, len(rows)):
            self._seen.pop(next(iter(self._seen)))
        return unseen


def fetch_horizon(source: ClickHouseClient) -> str:
    """Return the time before which every row of the server's that landed can be seen."""
    return str(source.fetch_one(f"SELECT toString(now64(3, 'UTC') - INTERVAL {_INSERT_S_MAX} SECOND) AS at")["at"])


def follow_list(
    tail: RowTail,
    fetch_list: Callable[[], list[Row]],
    columns: Sequence[str],
    *,
    as_json: bool,
    poll_s: float = _POLL_S,
) -> None:
    """Print a list, oldest first, then its new rows as they land, until `KeyboardInterrupt`.

    Waits `poll_s` before it asks again.
    """
    show_rows(tail.begin_after(fetch_list)[::-1], as_json=as_json, columns=columns)
    while True:
        sys.stdout.flush()  # a program that reads the lines gets each at once
        time.sleep(poll_s)
        try:
            unseen = tail.fetch_unseen()
        except Unavailable as error:
            print_message(f"{error}; asked again")
            continue
        for row in unseen:
            show_line(row, as_json=as_json, columns=columns)


_LIVE_TIMEOUT_S: Final = 3.0
_LIVE_BYTES_MAX: Final = 32 << 20
_PART_ENDS: Final = (8, 12, 16, 20)  # digits before each hyphen of an id
_DIGITS: Final = re.compile(r"[0-9a-f]{1,32}")


def checked_session(text: str) -> str:
    """Return a session's id, the beginning of one, or the text that was given as its id.

    A UUID is returned in lower case with hyphens. Asks no server. Raises `Invalid`.
    """
    given = given_session_id("", text)
    return given.session_id if given.external_id is None else given.external_id


def session_start(session: str) -> str:
    """Return a session's id, or its beginning, in lower case and with hyphens.

    Empty if no session id begins so: then it is a text that was given as an id.
    """
    digits = session.lower().replace("-", "")
    parts = [digits[start:end] for start, end in zip((0, *_PART_ENDS), (*_PART_ENDS, None), strict=True)]
    written = "-".join(filter(None, parts))
    ends = ("", "-") if len(digits) in _PART_ENDS else ("",)
    is_start = _DIGITS.fullmatch(digits) and session.lower() in (digits, *(written + end for end in ends))
    return written if is_start else ""


# Of rows of any view: those of a session that a user names. `session`: as it was checked; `start`:
# its `session_start`.
OF_SESSION: Final = (
    "(({start:String} != '' AND startsWith(session_id, {start:String})) OR (tenant_id, session_id) IN "
    "(SELECT tenant_id, session_id FROM history WHERE external_id = {session:String}))"
)


def is_whole_id(session: str) -> bool:
    """Return whether a checked session is a whole UUID, for which no server must be asked."""
    return given_session_id("", session).external_id is None


SessionArgument = Annotated[
    str,
    typer.Argument(
        help="Session id, or its beginning if unique; or the text given as its id.", callback=checked_session
    ),
]
SessionOption = Annotated[
    str | None,
    typer.Option(
        "--session",
        help="Only this session: its id, its beginning, or the text given as its id.",
        show_default=False,
        callback=lambda text: None if text is None else checked_session(text),
    ),
]


def find_session(source: ClickHouseClient, session: str, tenant: str | None) -> Row:
    """Return the one session whose id begins with `session`, or was given as that text.

    Of several sessions of one text and tenant it is the newest. A UUID is no such text, whatever a
    session's first event says. Raises `NotFound` if there is none, `Invalid` if there are several.
    """
    text = "" if is_whole_id(session) else session
    rows = source.fetch_rows(
        "SELECT * FROM v_sessions WHERE (({start:String} != '' AND startsWith(session_id, {start:String})) "
        "OR session_id = {first:String} OR ({text:String} != '' AND external_id = {text:String})) "
        "AND ({tenant:String} = '' OR tenant_id = {tenant:String}) "
        "ORDER BY ifNull(external_id, '') = {text:String} DESC, opened_at DESC, session_id LIMIT 100",
        start=session_start(session),
        first="" if tenant is None else given_session_id(tenant, session).session_id,  # known by its text for ever
        text=text,
        tenant=tenant or "",
    )
    if not rows:
        of_tenant = f" of tenant {tenant}" if tenant else ""
        raise NotFound(f"ClickHouse has no session {session!r}{of_tenant}; sessionary session list lists those it has")
    if named := [row for row in rows if text and row["external_id"] == text]:
        rows = [*{row["tenant_id"]: row for row in reversed(named)}.values()]
    if len(rows) > 1:
        names = ", ".join(f"{row['tenant_id']}:{row['session_id']}" for row in rows[:3])
        what = "is the text of" if named else "begins"
        more = "give --tenant" if named else "give more of its id"
        raise Invalid("invalid_value", f"{session!r} {what} more than one session: {names} …; {more}")
    return rows[0]


_LINE_SESSIONS_MAX: Final = 100
# As `v_lineage` has it, of one session: of all rejections only those of its first events are read.
_CREATED: Final = """
WITH first_events AS
(
    SELECT appended_at, session_id, parent_session_id, restored_from_snapshot_id, source_partition, source_offset
    FROM history FINAL
    WHERE tenant_id = {tenant:String} AND session_id = {session:String}
        AND event_type = 'session_created' AND decode_error = ''
)
SELECT min(appended_at) AS time, session_id,
    nullIf(argMin(ifNull(parent_session_id, ''), source_offset), '') AS parent_session_id,
    nullIf(argMin(ifNull(restored_from_snapshot_id, ''), source_offset), '') AS snapshot_id
FROM first_events
WHERE (source_partition, source_offset, appended_at) NOT IN
    (
        SELECT source_partition, source_offset, toDateTime64(appended_at, 3, 'UTC')
        FROM rejected
        WHERE (source_partition, source_offset) IN (SELECT source_partition, source_offset FROM first_events)
    )
GROUP BY session_id
"""


def fetch_line(source: ClickHouseClient, tenant: str, session: str) -> list[Row]:
    """Return the line of descent of a session, from its first session to itself.

    Empty within a cycle of parents, and for a session without its first event. Of a longer line
    the last 100 sessions, without their depth: each one is looked up by itself, as `v_lineage`
    would read all lines of all tenants.
    """
    line: dict[str, Row] = {}  # the last session first
    at: str | None = session
    while at is not None and len(line) < _LINE_SESSIONS_MAX:
        if at in line:
            return []
        rows = source.fetch_rows(_CREATED, tenant=tenant, session=at)
        if not rows:
            break
        line[at] = rows[0]
        at = rows[0]["parent_session_id"]
    is_cut = at is not None and len(line) == _LINE_SESSIONS_MAX
    return [{**row, "depth": None if is_cut else depth} for depth, row in enumerate(reversed(line.values()))]


def fetch_live_state(environ: Mapping[str, str], tenant: str, session: str) -> Json:
    """Return the session as the API of a stack with these variables shows it.

    None if no API is configured, if it does not answer, or if it has no such session.
    """
    settings, token = OperatorSettings.from_env(environ), tenant_tokens(environ).get(tenant)
    if settings.control_url is None or token is None:
        return None
    servers = ControlServers(settings.control_url, settings.control_ca_location, _LIVE_BYTES_MAX)
    request = Request(f"/v1/sessions/{session}", {"Authorization": f"Bearer {token}"})
    try:
        answer = servers.send(request, _LIVE_TIMEOUT_S)
        return json.loads(answer.body) if answer.status == 200 else None
    except (Unanswered, ValueError):
        return None
    finally:
        servers.close_idle()
