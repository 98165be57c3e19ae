"""`sessionary sql`: run a query in ClickHouse."""

import re
import shutil
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Final, NamedTuple, Protocol

import typer

from sessionary.infra.cli.file_formats import (
    BINARY,
    FORMATS,
    OutputFormat,
    encode_bytes,
    find_bytes,
    guard_csv,
    mark_arrow,
    mark_parquet,
)
from sessionary.infra.cli.options import DataOption, JsonOption, clickhouse_client
from sessionary.infra.cli.output import print_line, print_message, wants_json
from sessionary.infra.cli.tables import show_rows
from sessionary.infra.clickhouse_client import ClickHouseClient, Row
from sessionary.schemas.errors import Invalid

# Finds the parts of a query that reach out of the database: files, other servers, programs.
#
# ClickHouse parses the query itself (`EXPLAIN AST`), so that no spelling hides a call from us.
# Table functions are allowed by name, because new ones appear in each release.


_NODE: Final = re.compile(
    r"^(?P<indent> *)(?P<kind>\S+)(?: (?P<name>.*?))??(?: \(alias .*\))?(?: \(children \d+\))?$", re.DOTALL
)
_SAFE_TABLE_FUNCTIONS: Final = frozenset(
    (
        "dictionary",
        "format",
        "generate_series",
        "generaterandom",
        "generateseries",
        "merge",
        "mergetreeindex",
        "mergetreeprojection",
        "null",
        "numbers",
        "numbers_mt",
        "primes",
        "sqlstandardvalues",
        "values",
        "view",
        "viewifpermitted",
        "zeros",
        "zeros_mt",
    )
)
_OUTWARD_FUNCTIONS: Final = frozenset(("catboostevaluate", "file", "hascolumnintable", "reversednsquery"))
_LANGUAGE_MODELS: Final = "ai"  # aiGenerate and others ask a service
_UNQUALIFIED: Final = re.compile(r"\w+")
_UNION: Final = "SelectWithUnionQuery"
# Expressions that hide calls from the parser's tree, by kind of node.
_OPAQUE: Final = {
    "ColumnsApplyTransformer": "APPLY may call any function",
    "Set": "SETTINGS may hold expressions",
}


class _QueryClient(Protocol):
    def fetch_rows(self, sql: str, **parameters: str | int | float | None) -> list[Row]: ...


class _Node(NamedTuple):
    kind: str
    name: str
    depth: int


def find_outward_calls(client: _QueryClient, statement: str) -> list[str]:
    """Return why a query is not safe, a phrase each; empty if it stays in the database.

    Blocks. Raises as the client does, for a syntax error too.
    """
    table_functions = {str(row["name"]).lower() for row in client.fetch_rows("SELECT name FROM system.table_functions")}
    users = {
        str(row["name"]): row
        for row in client.fetch_rows("SELECT name, origin, create_query FROM system.functions WHERE origin != 'System'")
    }
    found: set[str] = set()
    waiting, seen = [statement], set[str]()
    while waiting:
        nodes = _parse_tree(client, waiting.pop())
        found.update(_opaque_parts(nodes))
        found.update(_outward_names(nodes, table_functions))
        found.update(_foreign_tables(client, nodes))
        for name in {node.name for node in nodes if node.kind in ("Function", "Identifier")} & users.keys() - seen:
            seen.add(name)
            if users[name]["origin"] == "SQLUserDefined":
                waiting.append(str(users[name]["create_query"]))
            else:
                found.add(f"{name}() runs a program")
    return sorted(found)


def _parse_tree(client: _QueryClient, statement: str) -> list[_Node]:
    rows = client.fetch_rows(f"EXPLAIN AST {statement}")
    return [node for row in rows for node in _nodes(str(next(iter(row.values()))))]


def _nodes(text: str) -> Iterator[_Node]:
    for line in text.splitlines():
        match = _NODE.match(line)
        if match is not None:
            yield _Node(match["kind"], match["name"] or "", len(match["indent"]))


def _opaque_parts(nodes: list[_Node]) -> Iterator[str]:
    for place, node in enumerate(nodes):
        if node.kind in _OPAQUE:
            yield _OPAQUE[node.kind]
        if node.kind == "Explain" and "OVERRIDE" in node.name:
            yield "EXPLAIN TABLE OVERRIDE asks another server"
        # The lists of a SELECT are separate nodes: a literal next to them is a file's name.
        if node.kind == "Literal" and _parent_kind(nodes, place) == _UNION:
            yield "INTO OUTFILE writes a file"


def _parent_kind(nodes: list[_Node], place: int) -> str:
    depth = nodes[place].depth - 1
    return next((node.kind for node in reversed(nodes[:place]) if node.depth == depth), "")


def _outward_names(nodes: list[_Node], table_functions: set[str]) -> Iterator[str]:
    for node in nodes:
        name = node.name.lower()
        outward = name in _OUTWARD_FUNCTIONS or (name.startswith(_LANGUAGE_MODELS) and node.kind == "Function")
        table = node.kind == "Function" and name in table_functions and name not in _SAFE_TABLE_FUNCTIONS
        # A function may be an argument by its bare name: arrayMap(file, names).
        if node.kind in ("Function", "Identifier") and (outward or table):
            yield f"{node.name}() reaches out of the database"
        if node.kind == "Identifier" and "/" in node.name:
            yield f"{node.name} is no column or table of the database"


def _foreign_tables(client: _QueryClient, nodes: list[_Node]) -> Iterator[str]:
    """Yield the tables that the server does not list; the local engine would open files instead."""
    for name in sorted({node.name for node in nodes if node.kind == "TableIdentifier"}):
        if _UNQUALIFIED.fullmatch(name):
            continue  # of this database, or of a WITH
        known = client.fetch_rows(
            "SELECT 1 AS n FROM system.tables WHERE concat(database, '.', name) = {name:String} "
            "OR (database = currentDatabase() AND name = {name:String}) LIMIT 1",
            name=name,
        )
        if not known:
            yield f"{name} is no table of the server"


_COMMENTS = r"(?:\s|--[^\n]*(?:\n|$)|/\*.*?\*/)*"
_READS = re.compile(_COMMENTS + r"\(*\s*(SELECT|WITH|SHOW|DESCRIBE|DESC|EXPLAIN|EXISTS)\b", re.IGNORECASE | re.DOTALL)


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
        typer.Option("--output", "-o", help="Write the rows to this file: .parquet, .arrow, .csv or .json."),
    ] = None,
    data: DataOption = None,
    unsafe: Annotated[
        bool,
        typer.Option("--unsafe", help="Also run statements that leave the database: files, other servers, programs."),
    ] = False,
    as_json: JsonOption = False,
) -> None:
    """Run a query and print its rows. Statements with side effects are refused."""
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
        _write_file(source, query, chosen or OutputFormat.JSON, output)
    elif chosen in BINARY:
        if sys.stdout.isatty():
            raise Invalid("invalid_value", f"{chosen} is not for a terminal: name a file with --output")
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "rows"
            _write_rows(source, query, chosen, path)
            with path.open("rb") as rows:
                shutil.copyfileobj(rows, sys.stdout.buffer)
    elif chosen == OutputFormat.CSV:
        for lines in _csv_lines(source, query):
            if sys.stdout.isatty():
                print_line(lines.decode().removesuffix("\n"))
            else:
                sys.stdout.buffer.write(lines)
    elif chosen == OutputFormat.JSON:
        show_rows(source.fetch_rows(encode_bytes(query, find_bytes(source, query))), as_json=True)
    else:
        show_rows(source.fetch_rows(query), as_json=False)


def _write_file(source: ClickHouseClient, query: str, chosen: OutputFormat, output: Path) -> None:
    part = output.with_name(f"{output.name}.part")  # a query that fails leaves a former file as it was
    try:
        _write_rows(source, query, chosen, part)
        part.replace(output)
    finally:
        part.unlink(missing_ok=True)
    print_message(f"{output}: {output.stat().st_size:,} bytes")


def _write_rows(source: ClickHouseClient, query: str, chosen: OutputFormat, path: Path) -> None:
    columns = find_bytes(source, query)
    if chosen not in BINARY:
        query = encode_bytes(query, columns)
    rows = source.iter_rows(query, FORMATS[chosen])
    with path.open("wb") as into:
        into.writelines(guard_csv(rows) if chosen == OutputFormat.CSV else rows)
    if chosen == OutputFormat.PARQUET:
        mark_parquet(path, columns)
    elif chosen == OutputFormat.ARROW:
        mark_arrow(path, columns)


def _csv_lines(source: ClickHouseClient, query: str) -> Iterator[bytes]:
    encoded = encode_bytes(query, find_bytes(source, query))
    return guard_csv(source.iter_rows(encoded, FORMATS[OutputFormat.CSV]))


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
        asked = next((one for one in FORMATS if output.suffix.lower() == f".{one}"), None)
        if asked is None:
            raise Invalid(
                "invalid_value", f"--output {output}: end the name in .parquet, .arrow, .csv or .json, or give --format"
            )
    return OutputFormat.JSON if asked is None and wants_json(as_json) else asked
