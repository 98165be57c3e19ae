"""`sessionary session timeline`: the timeline of one session, as lines or as a page."""

import json
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Final

import typer

from sessionary.infra.cli.commands.sessions.lookup import (
    SessionArgument,
    SinceOption,
    fetch_live_state,
    find_session,
    parse_since,
)
from sessionary.infra.cli.errors import NotFound
from sessionary.infra.cli.options import DataOption, JsonOption, LimitOption, TenantOption, clickhouse_client
from sessionary.infra.cli.output import print_line, print_message, visible, wants_json
from sessionary.infra.cli.tables import Json, show_rows
from sessionary.infra.clickhouse_client import ClickHouseClient, Row
from sessionary.infra.environment import stack_environment
from sessionary.infra.story.event_text import clock_text, format_duration, format_usd
from sessionary.infra.story.story import Moment, add_totals, describe_moment, make_story, time_us
from sessionary.infra.story.story_rows import fetch_findings, fetch_heartbeats, fetch_partition_findings, fetch_story
from sessionary.infra.story.trace import TraceStep, make_trace
from sessionary.schemas.errors import Invalid, Unavailable
from sessionary.schemas.settings import ClickHouseSettings

_COLUMNS: Final = ("time", "agent", "event", "what", "took")
_TRACE_COLUMNS: Final = ("step", "time", "what", "name", "text")
_MOST_EVENTFUL: Final = """
SELECT * FROM v_sessions WHERE {session:String} IN ('', session_id)
ORDER BY timeouts > 0 AND rejections > 0 DESC, transitions DESC, events DESC LIMIT 1
"""
_BEATS_MAX: Final = 20_000
# Two sinks write an event and its outcome; a followed line waits for both.
_POLL_S: Final = 1.0


def timeline_command(
    session: SessionArgument,
    tenant: TenantOption = None,
    since: SinceOption = None,
    follow: Annotated[
        bool, typer.Option("--follow", "-f", help="Continue until the session is archived, or until Ctrl-C.")
    ] = False,
    html: Annotated[
        Path | None,
        typer.Option("--html", help="Write the timeline to this file as one HTML page.", dir_okay=False),
    ] = None,
    trace: Annotated[
        bool,
        typer.Option("--trace", help="Tell it as numbered steps: query, tool calls, results, errors, retries."),
    ] = False,
    limit: LimitOption = 1000,
    data: DataOption = None,
    as_json: JsonOption = False,
) -> None:
    """Show the history of a session: each event and its outcome, without heartbeats.

    A rejected event has its reason. An activity lasts until the same process's next event, a tool
    call or a step until its end. With --html the page has lanes for the agents, the heartbeats, the
    cost, the next deadline, and the result of the integrity check for the session.

    With --trace each step has a number: the user's query, each tool call with its arguments, its
    result with the number of its records, each error with its code, each retry with its reason.
    """
    if trace and (follow or html is not None):
        raise Invalid("invalid_value", "--trace tells the story once, as lines: leave --follow and --html out")
    if html is not None and follow:
        raise Invalid("invalid_value", "--html writes the story once: leave --follow out, or --html")
    first_time = parse_since(since, datetime.now(UTC))
    source = clickhouse_client(data)
    found = find_session(source, session, tenant)
    if html is not None:
        _write_page(source, found, html, limit, stack_environment(data), first_time if since else None)
        print_message(f"the story of session {found['session_id']} is in {html}")
        return
    of_session = found["tenant_id"], found["session_id"]
    rows = fetch_story(source, *of_session, limit, since=first_time)
    moments = make_story(rows.events, rows.outcomes)
    if not wants_json(as_json):
        _print_heading(found, moments)
    if trace:
        show_rows(map(_trace_line, make_trace(rows.events, rows.outcomes)), as_json=as_json, columns=_TRACE_COLUMNS)
    elif follow:
        _follow_story(source, of_session, moments, limit, first_time, as_json=as_json)
        return
    else:
        _show_moments(moments, as_json=as_json)
    if rows.is_cut:
        print_message(f"only the first {len(rows.events):,} events are shown: --limit shows more, --since later ones")


def _show_moments(moments: Sequence[Moment], *, as_json: bool) -> None:
    if wants_json(as_json):
        for moment in moments:
            print_line(json.dumps(_moment_document(moment), ensure_ascii=False))
        return
    show_rows(map(_moment_line, moments), as_json=False, columns=_COLUMNS)


def _moment_line(moment: Moment) -> dict[str, Json]:
    return {
        "time": clock_text(moment.at_us),
        "agent": moment.lane,
        "event": moment.name,
        "what": describe_moment(moment),
        "took": "" if moment.took_s is None else format_duration(moment.took_s),
    }


def _trace_line(step: TraceStep) -> dict[str, Json]:
    partition, offset = step.place
    return {
        "step": step.number,
        "time": clock_text(step.at_us),
        "what": step.what,
        "name": step.name,
        "text": step.text,
        "tries": step.tries,
        "records": step.records,
        "error_code": step.error_code,
        "source_partition": partition,
        "source_offset": offset,
    }


def _moment_document(moment: Moment) -> dict[str, Json]:
    usage = moment.usage
    return {
        "appended_at": datetime.fromtimestamp(moment.at_us / 1e6, UTC).isoformat(timespec="microseconds"),
        "source_partition": moment.place[0],
        "source_offset": moment.place[1],
        "event_type": moment.event_type,
        "name": moment.name,
        "text": moment.text,
        "agent": moment.lane,
        "producer_id": moment.producer_id or None,
        "took_s": moment.took_s,
        "from_state": moment.states[0] if moment.states else None,
        "to_state": moment.states[1] if moment.states else None,
        "rejection": moment.rejection or None,
        "notes": moment.notes,
        "phases": moment.phases,
        "model": usage.model if usage else None,
        "tokens_in": usage.tokens_in if usage else None,
        "tokens_out": usage.tokens_out if usage else None,
        "cost_usd_nanos": usage.cost_usd_nanos if usage else None,
        "payload": moment.payload,
    }


def _print_heading(found: Row, moments: Sequence[Moment]) -> None:
    totals = add_totals(moments)
    began = clock_text(time_us(found["opened_at"]), date=True)
    user = f" for user {visible(found['user_id'])}" if found["user_id"] else ""
    text = f" ({visible(found['external_id'])})" if found["external_id"] else ""
    print_message(f"{found['tenant_id']}: session {found['session_id']}{text}{user}")
    print_message(
        f"{found['state']}, began {began} UTC; {totals.tokens_in:,} tokens in, {totals.tokens_out:,} out, "
        f"{format_usd(totals.cost_usd_nanos)}; {totals.rejections} rejected"
    )


def _follow_story(
    source: ClickHouseClient, of_session: tuple[str, str], shown: list[Moment], limit: int, since: str, *, as_json: bool
) -> None:
    """Print moments as they come, each one poll after its first sight; end at the archival."""
    _show_moments(shown, as_json=as_json)
    first = 0
    seen: set[tuple[int, int]] = set()
    while not any(moment.states and moment.states[1] == "Archived" for moment in shown):
        first = max((first, *(moment.place[1] + 1 for moment in shown)))
        sys.stdout.flush()  # a program that reads the lines gets each at once
        time.sleep(_POLL_S)
        try:
            rows = fetch_story(source, *of_session, limit, since=since, first=first)
        except Unavailable as error:
            print_message(f"{error}; asked again")
            continue
        moments = make_story(rows.events, rows.outcomes)
        shown = [moment for moment in moments if moment.place in seen]
        seen = {moment.place for moment in moments}
        if wants_json(as_json):
            _show_moments(shown, as_json=as_json)
            continue
        for line in map(_moment_line, shown):  # far below the heading, which names the time zone
            texts = (f"{line['time']} UTC", *map(line.get, _COLUMNS[1:]))
            print_line("  ".join(visible(f"{text}") for text in texts if text))


def write_story(environ: Mapping[str, str], session_id: str = "") -> Path:
    """Write the page of a session, by default of the most informative one; return its path.

    `environ`: the stack's variables. Raises as `ClickHouseClient` does, and `NotFound` if there is
    no session.
    """
    source = ClickHouseClient(ClickHouseSettings.from_env(environ))
    found = next(iter(source.fetch_rows(_MOST_EVENTFUL, session=session_id)), None)
    if found is None:
        raise NotFound("there is no session to show")
    path = Path(tempfile.gettempdir()) / f"sessionary-{found['session_id']}.html"
    _write_page(source, found, path, 1000, environ)
    return path


def _write_page(
    source: ClickHouseClient,
    found: Row,
    path: Path,
    limit: int,
    environ: Mapping[str, str],
    since: str | None = None,
) -> None:
    """Write a session's page; `since`: only events from this UTC time on."""
    from sessionary.infra.story.page import Chart, Heading, render_page

    tenant, session = found["tenant_id"], found["session_id"]
    rows = fetch_story(source, tenant, session, limit, since=since or "1970-01-01")
    first_us = 0 if since is None else time_us(since)
    moments = make_story(rows.events, rows.outcomes)
    lanes = {moment.producer_id: moment.lane for moment in moments}
    beats: dict[str, list[int]] = {}
    for row in fetch_heartbeats(source, tenant, session, _BEATS_MAX):
        at_us, lane = time_us(row["appended_at"]), lanes.get(row["producer_id"])
        if lane is not None and at_us >= first_us:
            beats.setdefault(lane, []).append(at_us)
    live = fetch_live_state(environ, tenant, session)
    deadline_ms = live.get("deadline_ms") if live else None
    now_us = time.time_ns() // 1000 if deadline_ms else 0
    chart = Chart(moments, beats, now_us, deadline_ms * 1000 if deadline_ms else None)
    cut = "" if since is None else f"Only what happened since {clock_text(first_us, date=True)} UTC. "
    cut += f"Only the first {len(rows.events):,} events; --limit shows more." if rows.is_cut else ""
    facts = {"state": _state_text(found, live), "user": found["user_id"] or "", "service": found["service_id"]}
    if found["external_id"]:
        facts["given id"] = found["external_id"]
    heading = Heading(tenant, session, facts, _integrity_text(source, tenant, session), cut)
    path.write_text(render_page(heading, chart), "utf-8")


def _state_text(found: Row, live: Mapping[str, Json] | None) -> str:
    if live is None:
        return f"{found['state']} (by the audit trail)"
    return f"{live.get('state')}, epoch {live.get('epoch')}, version {live.get('version')}"


def _integrity_text(source: ClickHouseClient, tenant: str, session: str) -> str:
    asked = f"asked {clock_text(time.time_ns() // 1000, date=True)} UTC"
    reported = [f"{row['fault']}: {row['rows']}" for row in fetch_findings(source, tenant, session)]
    reported += [
        f"{row['fault']}: {row['rows']}, of this session or of others in partition {row['partition']}, "
        f"offsets {row['first_offset']} to {'the end' if row['last_offset'] is None else row['last_offset']}"
        for row in fetch_partition_findings(source, tenant, session)
    ]
    return f"{'; '.join(reported) or 'no row of this session is missing or doubled'} ({asked})"
