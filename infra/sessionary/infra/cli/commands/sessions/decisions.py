"""`sessionary session why`: the decisions of a session, as ClickHouse has them."""

from collections.abc import Mapping
from typing import Annotated, Final

import typer

from sessionary.infra.cli.commands.sessions.lookup import SessionArgument, find_session
from sessionary.infra.cli.errors import NotFound
from sessionary.infra.cli.options import DataOption, JsonOption, LimitOption, TenantOption, clickhouse_client
from sessionary.infra.cli.output import print_message, wants_json
from sessionary.infra.cli.tables import Json, show_object, show_rows
from sessionary.infra.clickhouse_client import Row
from sessionary.infra.story.event_text import format_usd
from sessionary.schemas.errors import Invalid

_DECISIONS: Final = """
SELECT *, arrayMap(x -> map('name', x.name, 'score', toString(x.score)), candidates) AS options,
    tool_calls.tool_name AS called
FROM v_decisions
WHERE tenant_id = {tenant:String} AND session_id = {session:String} AND startsWith(decision_id, {decision:String})
ORDER BY source_offset LIMIT {limit:UInt32}
"""
_COLUMNS: Final = ("time", "choice", "candidates", "threshold", "inputs", "reason", "led to", "decision")


def why_command(
    session: SessionArgument,
    decision: Annotated[
        str, typer.Option("--decision", help="Only this decision: its id, or the beginning of it.", show_default=False)
    ] = "",
    tenant: TenantOption = None,
    limit: LimitOption = 1000,
    data: DataOption = None,
    as_json: JsonOption = False,
) -> None:
    """Show why a session's agent acted: each decision, with inputs, candidates and tool calls.

    With --decision: also the model, its parameters, the prompt and what it cost.
    """
    source = clickhouse_client(data)
    found = find_session(source, session, tenant)
    of_session = {"tenant": found["tenant_id"], "session": found["session_id"]}
    rows = source.fetch_rows(_DECISIONS, **of_session, decision=decision, limit=limit)
    if decision and not rows:
        raise NotFound(
            f"session {found['session_id']} has no decision {decision!r}; sessionary session why without --decision "
            "lists those that it has"
        )
    if decision and len(rows) > 1:
        raise Invalid("invalid_value", f"{decision!r} begins {len(rows)} decisions: give more of the id")
    documents = [_document(row) for row in rows]
    if wants_json(as_json):
        show_rows(documents, as_json=True)
    elif decision:
        show_object(_lines(documents[0]), as_json=False)
    else:
        show_rows(map(_lines, documents), as_json=False, columns=_COLUMNS)
    if any(not row["is_content_known"] for row in rows):
        print_message("the content of some decisions has expired with their personal data")


def _document(row: Row) -> dict[str, Json]:
    """Return a decision as a program reads it."""
    options = [{"name": option["name"], "score": float(option["score"])} for option in row["options"]]
    kept = {name: value for name, value in row.items() if name not in ("options", "called")}
    return {**kept, "candidates": options, "tool_calls": row["called"]}


def _lines(document: Mapping[str, Json]) -> dict[str, Json]:
    """Return a decision as a person reads it."""
    prompt = " ".join(filter(None, (document["prompt_id"], document["prompt_version"])))
    tokens = f"{document['tokens_in']:,} tokens in, {document['tokens_out']:,} out"
    return {
        "time": document["time"],
        "choice": document["choice"],
        "candidates": ", ".join(f"{option['name']} {option['score']:g}" for option in document["candidates"]),
        "threshold": document["threshold"],
        "inputs": document["inputs"],
        "reason": document["reason"],
        "tools": ", ".join(document["tools"]),
        "led to": ", ".join(document["tool_calls"]),
        "model": document["model"],
        "parameters": document["parameters"],
        "prompt": prompt,
        "used": f"{tokens}, {format_usd(document['model_cost_usd_nanos'])}",
        "run": document["run_id"],
        "decision": document["decision_id"],
    }
