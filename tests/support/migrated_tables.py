"""The tables and views of this version in a new database, without a run of the migrations.

A run of the migrations takes seconds of the engine. The first database on a server is therefore
migrated, and what it has then is made in all others.
"""

import re
from graphlib import TopologicalSorter
from typing import NamedTuple

from sessionary.infra.clickhouse_client import ClickHouseClient
from sessionary.schemas.settings import ClickHouseSettings
from sessionary.sinks.clickhouse import migrate
from tests.support.pipelines import run_sql

_QUERY_S = 300.0


class _Template(NamedTuple):
    """What a migrated database has: statements in order, and the database that they name."""

    database: str
    statements: tuple[str, ...]


_templates: dict[str, _Template] = {}  # by the server's address


def make_tables(clickhouse: ClickHouseSettings) -> None:
    """Bring an empty database to this version; it is made if it is missing.

    Use `apply_migrations` where the migrations themselves are tested.
    """
    template = _templates.get(clickhouse.clickhouse_url)
    if template is None:
        migrate.apply_migrations(clickhouse)
        _templates[clickhouse.clickhouse_url] = _read_template(clickhouse)
        return
    run_sql(clickhouse, f"CREATE DATABASE IF NOT EXISTS {clickhouse.clickhouse_database}")
    for statement in template.statements:
        run_sql(clickhouse, statement.replace(template.database, clickhouse.clickhouse_database))


def _read_template(clickhouse: ClickHouseSettings) -> _Template:
    database = clickhouse.clickhouse_database
    found = ClickHouseClient(clickhouse, _QUERY_S).fetch_rows(
        f"SELECT name, create_table_query, ifNull(total_rows, 0) AS rows FROM system.tables "
        f"WHERE database = '{database}' ORDER BY name"
    )
    definitions = {str(row["name"]): str(row["create_table_query"]) for row in found}
    named = re.compile(rf"\b{database}\.(\w+)")
    order = TopologicalSorter({name: {*named.findall(text)} - {name} for name, text in definitions.items()})
    statements = [definitions[name] for name in order.static_order()]
    for table in [row["name"] for row in found if row["rows"]]:
        rows = run_sql(clickhouse, f"SELECT * FROM {database}.{table} FINAL FORMAT Values")
        statements.append(f"INSERT INTO {database}.{table} VALUES {rows}")
    return _Template(database, tuple(statements))
