"""`sessionary run compare`: two runs, or two sessions, side by side."""

from collections.abc import Mapping
from typing import Annotated, Final, NamedTuple

import typer

from sessionary.infra.cli.commands.sessions.lookup import fetch_line, find_session
from sessionary.infra.cli.errors import NotFound
from sessionary.infra.cli.options import DataOption, JsonOption, TenantOption, clickhouse_client
from sessionary.infra.cli.output import print_message, wants_json
from sessionary.infra.cli.tables import Json, show_object, show_rows
from sessionary.infra.clickhouse_client import ClickHouseClient
from sessionary.infra.story.comparison import (
    Comparison,
    Origin,
    Piece,
    Trace,
    common_origin,
    compare_traces,
    make_trace,
)
from sessionary.infra.story.event_text import format_duration, format_usd
from sessionary.infra.story.trace import UNJUDGED
from sessionary.schemas.errors import Invalid

_EVENTS_MAX: Final = 100_000
# Of an event that was delivered twice the first judged delivery counts, unless it was rejected.
_EVENTS: Final = """
SELECT event_type, ifNull(run_id, '') AS run, payload_json, tokens_in, tokens_out,
    model_cost_usd_nanos + tool_cost_usd_nanos AS cost_usd_nanos
FROM
(
    SELECT
        *,
        (source_partition, source_offset, appended_at) NOT IN
            (SELECT source_partition, source_offset, toDateTime64(appended_at, 3, 'UTC') FROM rejected) AS is_kept,
        countIf(is_kept OR (source_partition, source_offset, appended_at) IN
        (
            SELECT source_partition, source_offset, toDateTime64(appended_at, 3, 'UTC') FROM rejected
            WHERE tenant_id = {tenant:String} AND session_id = {session:String}
                AND NOT has({unjudged:Array(String)}, toString(reason))
        ))
            OVER (PARTITION BY producer_id, producer_seq ORDER BY source_offset
                ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING) AS deliveries_before
    FROM history FINAL
    WHERE tenant_id = {tenant:String} AND session_id = {session:String} AND event_type != 'heartbeat'
        AND decode_error = ''
)
WHERE is_kept AND deliveries_before = 0 AND ({run:String} = '' OR run_id = {run:String})
ORDER BY source_offset LIMIT {limit:UInt32}
"""
_RUN: Final = """
SELECT status AS outcome, duration_s FROM v_runs
WHERE tenant_id = {tenant:String} AND session_id = {session:String} AND run_id = {run:String}
"""
_TOTALS: Final = ("", "A", "B")
_PAIRS: Final = ("A", "B", "agree by")
_TEXT_MAX: Final = 60
_WORK: Final = "SESSION/RUN; or SESSION alone for all of its work. A session's id may be its beginning, or its text."


class _Side(NamedTuple):
    """What is compared: its session, its run ('' for all work), outcome and duration, its trace."""

    tenant_id: str
    session_id: str
    run: str
    outcome: str
    duration_s: float | None
    origin: Origin

    @property
    def trace(self) -> Trace:
        return self.origin.trace

    @property
    def name(self) -> str:
        return f"{self.session_id}{f'/{self.run}' if self.run else ''}"


def compare_command(
    first: Annotated[str, typer.Argument(metavar="A", help=_WORK)],
    second: Annotated[str, typer.Argument(metavar="B", help="The other one, named alike.")],
    unrelated: Annotated[
        bool, typer.Option("--unrelated", help="Compare them although they have no common origin.")
    ] = False,
    tenant: TenantOption = None,
    data: DataOption = None,
    as_json: JsonOption = False,
) -> None:
    """Compare two runs: tool calls and steps side by side, where they part, and what each cost.

    They are aligned by name. Of each pair you see whether they agree by arguments and by result
    too. Common is their origin if both are of one session or descend from one, or if both have the
    same task, input and prompt, whose versions may differ. The score is the member `score` of a
    run's result.
    """
    source = clickhouse_client(data)
    one, other = (_read_side(source, work, tenant) for work in (first, second))
    if one.tenant_id != other.tenant_id:
        raise Invalid("invalid_value", "A and B are of two tenants, which are never compared: give --tenant")
    if one.name == other.name:
        raise Invalid("invalid_value", f"A and B are the same, {one.name}: name two runs, as sessionary run list does")
    origin = common_origin(one.origin, other.origin)
    if origin is None and not unrelated:
        raise Invalid(
            "invalid_value",
            f"{one.name} and {other.name} have no common origin: neither one session from which both descend, nor the "
            "same task, input and prompt. Give --unrelated to compare them all the same",
        )
    found = compare_traces(one.trace.pieces, other.trace.pieces)
    if wants_json(as_json):
        show_object(_document(one, other, found, origin), as_json=True)
        return
    print_message(f"A: {one.name}\nB: {other.name}\n{origin or 'no common origin'}\n")
    show_rows(_total_rows(one, other), as_json=False, columns=_TOTALS)
    for level, parted in found.divergences.items():
        if parted is None:
            print_message(f"by {level}: no difference")
        else:
            texts = (_piece_text(each, level) for each in (parted.first, parted.second))
            print_message(f"by {level}: they part at {parted.number}: {' and '.join(texts)}")
    show_rows(_pair_rows(found), as_json=False, columns=_PAIRS)
    if found.is_cut:
        print_message(f"only the first {len(found.pairs):,} lines are shown")


def _read_side(source: ClickHouseClient, work: str, tenant: str | None) -> _Side:
    """Return what a text names. Raises `NotFound`, and `Invalid` if it has too many events."""
    session, _, run = work.partition("/")
    found = find_session(source, session, tenant)
    of_session = {"tenant": found["tenant_id"], "session": found["session_id"]}
    rows = source.fetch_rows(_EVENTS, **of_session, run=run, limit=_EVENTS_MAX + 1, unjudged=f"{sorted(UNJUDGED)}")
    if run and not rows:
        raise NotFound(f"session {found['session_id']} has no run {run!r}; sessionary run list lists those there are")
    if len(rows) > _EVENTS_MAX:
        raise Invalid("invalid_value", f"{work} has more than {_EVENTS_MAX:,} events: name one of its runs")
    line = fetch_line(source, found["tenant_id"], found["session_id"])
    parents = [row["parent_session_id"] for row in reversed(line) if row["parent_session_id"]]
    ids = [f"{found['session_id']}", *parents]
    ended = next(iter(source.fetch_rows(_RUN, **of_session, run=run)), {}) if run else found
    outcome, duration_s = ended.get("outcome", "unknown"), ended.get("duration_s")
    return _Side(found["tenant_id"], found["session_id"], run, outcome, duration_s, Origin(ids, make_trace(rows)))


def _totals(side: _Side) -> dict[str, Json]:
    trace = side.trace
    return {
        "prompts": dict(trace.prompts),
        "tools": trace.tools,
        "calls": trace.calls,
        "failures": trace.failures,
        "model_calls": trace.model_calls,
        "tokens_in": trace.tokens_in,
        "tokens_out": trace.tokens_out,
        "cost_usd_nanos": trace.cost_usd_nanos,
        "duration_s": side.duration_s,
        "outcome": side.outcome,
        "score": trace.score,
        "result": trace.result,
    }


def _document(one: _Side, other: _Side, found: Comparison, origin: str | None) -> dict[str, Json]:
    parted = {
        level: None
        if each is None
        else {"number": each.number, "a": _piece_document(each.first), "b": _piece_document(each.second)}
        for level, each in found.divergences.items()
    }
    pairs = [
        {"a": _piece_document(pair.first), "b": _piece_document(pair.second), "agree_by": pair.agrees or None}
        for pair in found.pairs
    ]
    sides = {
        key: {"session_id": side.session_id, "run_id": side.run or None, **_totals(side)}
        for key, side in (("a", one), ("b", other))
    }
    return {"origin": origin, **sides, "divergences": parted, "pairs": pairs, "is_cut": found.is_cut}


def _piece_document(piece: Piece | None) -> dict[str, Json] | None:
    return None if piece is None else piece._asdict()


def _total_rows(one: _Side, other: _Side) -> list[dict[str, Json]]:
    totals = _totals(one), _totals(other)
    return [{"": name.replace("_", " "), **dict(zip("AB", _texts(name, totals), strict=True))} for name in totals[0]]


def _texts(name: str, totals: tuple[Mapping[str, Json], ...]) -> list[str]:
    values = [each[name] for each in totals]
    match name:
        case "prompts":
            return [", ".join(f"{prompt} {version}" for prompt, version in sorted(each.items())) for each in values]
        case "tools":
            return [" → ".join(each) for each in values]
        case "cost_usd_nanos":
            return [format_usd(each) for each in values]
        case "duration_s":
            return ["" if each is None else format_duration(each) for each in values]
        case _:
            return ["" if each is None else f"{each:,}" if isinstance(each, int) else f"{each}" for each in values]


def _pair_rows(found: Comparison) -> list[dict[str, Json]]:
    return [
        {
            "A": _piece_text(pair.first, "name") if pair.first else "",
            "B": _piece_text(pair.second, "name") if pair.second else "",
            "agree by": pair.agrees or "-",
        }
        for pair in found.pairs
    ]


def _piece_text(piece: Piece | None, level: str) -> str:
    if piece is None:
        return "the end"
    detail = {"name": piece.state, "arguments": piece.arguments, "result": piece.result}[level]
    text = f"{piece.kind} {piece.name} {detail or ''}".strip()
    return text if len(text) <= _TEXT_MAX else f"{text[:_TEXT_MAX]}…"
