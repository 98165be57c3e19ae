"""`sessionary sql`: run a query in ClickHouse."""

import re
from typing import Annotated

import typer

from sessionary.infra.cli.options import DataOption, JsonOption, clickhouse_client
from sessionary.infra.cli.tables import show_rows
from sessionary.infra.outward_calls import find_outward_calls
from sessionary.schemas.errors import Invalid

_COMMENTS = r"(?:\s|--[^\n]*(?:\n|$)|/\*.*?\*/)*"
_READS = re.compile(_COMMENTS + r"\(*\s*(SELECT|WITH|SHOW|DESCRIBE|DESC|EXPLAIN|EXISTS)\b", re.IGNORECASE | re.DOTALL)


def run_query(
    statement: Annotated[str, typer.Argument(help="A SELECT; unqualified tables are in the pipeline's database.")],
    data: DataOption = None,
    unsafe: Annotated[
        bool,
        typer.Option("--unsafe", help="Also run what reaches out of the database: files, other servers, programs."),
    ] = False,
    as_json: JsonOption = False,
) -> None:
    """Run a query and print its rows. Statements that change something are refused."""
    if not _READS.match(statement):
        raise Invalid(
            "invalid_value",
            "this statement is not a query: only SELECT, WITH, SHOW, DESCRIBE, EXPLAIN and EXISTS can be run",
        )
    client, query = clickhouse_client(data), statement.rstrip().rstrip(";")
    if not unsafe and (reasons := find_outward_calls(client, query)):
        raise Invalid("invalid_value", f"this query is not safe: {'; '.join(reasons)}. If you trust it, add --unsafe")
    show_rows(client.fetch_rows(query), as_json=as_json)


__all__ = ["run_query"]
