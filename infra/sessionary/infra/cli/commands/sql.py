"""`sessionary sql`: run a query in ClickHouse."""

import re
import sys
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Final

import typer

from sessionary.infra.cli.options import DataOption, JsonOption, clickhouse_client
from sessionary.infra.cli.output import print_message, wants_json
from sessionary.infra.cli.tables import show_rows
from sessionary.infra.outward_calls import find_outward_calls
from sessionary.schemas.errors import Invalid

_COMMENTS = r"(?:\s|--[^\n]*(?:\n|$)|/\*.*?\*/)*"
_READS = re.compile(_COMMENTS + r"\(*\s*(SELECT|WITH|SHOW|DESCRIBE|DESC|EXPLAIN|EXISTS)\b", re.IGNORECASE | re.DOTALL)


class OutputFormat(StrEnum):
    """A format of the rows."""

    JSON = "json"
    CSV = "csv"
    PARQUET = "parquet"


_FORMATS: Final = {OutputFormat.JSON: "JSONEachRow", OutputFormat.CSV: "CSVWithNames", OutputFormat.PARQUET: "Parquet"}


def run_query(
    statement: Annotated[
        str | None,
        typer.Argument(
            help="A SELECT; unqualified tables are in the pipeline's database. Without it: the standard input.",
            show_default=False,
        ),
    ] = None,
    file: Annotated[
        Path | None,
        typer.Option("--file", "-f", help="Read the statement from this file.", exists=True, dir_okay=False),
    ] = None,
    output_format: Annotated[
        OutputFormat | None,
        typer.Option(
            "--format",
            help="Default: a table on a terminal, else JSON lines.",
            case_sensitive=False,
            show_default=False,
        ),
    ] = None,
    output: Annotated[
        Path | None,
        typer.Option("--output", "-o", help="Write the rows to this file, by its ending: .csv, .parquet, .json."),
    ] = None,
    data: DataOption = None,
    unsafe: Annotated[
        bool,
        typer.Option("--unsafe", help="Also run what reaches out of the database: files, other servers, programs."),
    ] = False,
    as_json: JsonOption = False,
) -> None:
    """Run a query and print its rows. Statements that change something are refused."""
    query = _read_statement(statement, file)
    if not _READS.match(query):
        raise Invalid(
            "invalid_value",
            "this statement is not a query: only SELECT, WITH, SHOW, DESCRIBE, EXPLAIN and EXISTS can be run",
        )
    chosen = _choose_format(output_format, output, as_json=as_json)
    source, query = clickhouse_client(data), query.rstrip().rstrip(";")
    if not unsafe and (reasons := find_outward_calls(source, query)):
        raise Invalid("invalid_value", f"this query is not safe: {'; '.join(reasons)}. If you trust it, add --unsafe")
    if output is not None:
        part = output.with_name(f"{output.name}.part")  # a query that fails leaves a former file as it was
        try:
            with part.open("wb") as into:
                source.copy_rows(query, _FORMATS[chosen or OutputFormat.JSON], into)
            part.replace(output)
        finally:
            part.unlink(missing_ok=True)
        print_message(f"{output}: {output.stat().st_size:,} bytes")
    elif chosen in (OutputFormat.CSV, OutputFormat.PARQUET):
        if chosen == OutputFormat.PARQUET and sys.stdout.isatty():
            raise Invalid("invalid_value", "Parquet is not for a terminal: name a file with --output")
        source.copy_rows(query, _FORMATS[chosen], sys.stdout.buffer)
    else:
        show_rows(source.fetch_rows(query), as_json=chosen == OutputFormat.JSON)


def _read_statement(statement: str | None, file: Path | None) -> str:
    if statement is not None and file is not None:
        raise Invalid("invalid_value", "give a statement or --file, not both")
    if file is not None:
        return file.read_text("utf-8")
    if statement not in (None, "-"):
        return f"{statement}"
    if sys.stdin.isatty():
        print_message("type a query, then Ctrl-D")
    return sys.stdin.read()


def _choose_format(asked: OutputFormat | None, output: Path | None, *, as_json: bool) -> OutputFormat | None:
    """Return the format of the rows; None: a table on a terminal."""
    if asked is None and output is not None:
        asked = next((one for one in _FORMATS if output.suffix.lower() == f".{one}"), None)
        if asked is None:
            raise Invalid(
                "invalid_value", f"--output {output}: end the name in .csv, .parquet or .json, or give --format"
            )
    return OutputFormat.JSON if asked is None and wants_json(as_json) else asked
