"""The tables and views of this version, without a run of the migrations for each test.

A run of the migrations takes seconds of the engine. The first database on a server is therefore
migrated, and what it has then is made in all others. That too takes half a second of the engine, so
tests that leave the tables as they are use one database after each other: it is emptied meanwhile.
"""

import re
from graphlib import TopologicalSorter
from typing import NamedTuple

from sessionary.infra.clickhouse_client import ClickHouseClient
from sessionary.schemas.settings import ClickHouseSettings
from sessionary.sinks.clickhouse import migrate
from tests.support.pipelines import drop_database, new_clickhouse, run_sql

_QUERY_S = 300.0


class _Template(NamedTuple):
    """What a migrated database has: statements in order, and the database that they name."""

    database: str
    statements: tuple[str, ...]


class _Lent(NamedTuple):
    """A database that tests use one after the other, and what its tables and views are."""

    clickhouse: ClickHouseSettings
    definitions: str


# By the server's address.
_templates: dict[str, _Template] = {}
_lent: dict[str, _Lent] = {}


def make_tables(clickhouse: ClickHouseSettings) -> None:
    """Bring an empty database to this version; it is made if it is missing.

    Use `apply_migrations` where the migrations themselves are tested.
    """
    template = _templates.get(clickhouse.clickhouse_url)
    if template is None:
        migrate.apply_migrations(clickhouse)
        _templates[clickhouse.clickhouse_url] = _read_template(clickhouse)
        return
    for name in (clickhouse.clickhouse_database, clickhouse.between_database):
        run_sql(clickhouse, f"CREATE DATABASE IF NOT EXISTS {name}")
    for statement in template.statements:
        run_sql(clickhouse, statement.replace(template.database, clickhouse.clickhouse_database))


def lend_tables(url: str) -> ClickHouseSettings:
    """Return a database of this version whose tables are empty, to be taken back after the test."""
    if url not in _lent:
        clickhouse = new_clickhouse(url)
        make_tables(clickhouse)
        _lent[url] = _Lent(clickhouse, _hash_definitions(clickhouse))
    return _lent[url].clickhouse


def take_tables_back(url: str) -> None:
    """Empty the tables, and forget the tokens of their blocks.

    If a test has changed a table or view, the database is dropped, and the next test gets another.
    """
    clickhouse, definitions = _lent[url]
    database = clickhouse.clickhouse_database
    if _hash_definitions(clickhouse) == definitions:
        run_sql(clickhouse, f"TRUNCATE ALL TABLES FROM {database} NOT LIKE 'schema\\_%'")
    else:
        del _lent[url]
        drop_database(clickhouse)


def _hash_definitions(clickhouse: ClickHouseSettings) -> str:
    found = (
        f"FROM system.tables WHERE database IN ('{clickhouse.clickhouse_database}', '{clickhouse.between_database}')"
    )
    return run_sql(clickhouse, f"SELECT count(), sum(cityHash64(name, create_table_query)) {found}")


def _read_template(clickhouse: ClickHouseSettings) -> _Template:
    database = clickhouse.clickhouse_database
    found = ClickHouseClient(clickhouse, _QUERY_S).fetch_rows(
        "SELECT concat(database, '.', name) AS name, create_table_query, ifNull(total_rows, 0) AS rows "
        f"FROM system.tables WHERE database IN ('{database}', '{database}_between') ORDER BY name"
    )
    definitions = {str(row["name"]): str(row["create_table_query"]) for row in found}
    named = re.compile(rf"\b{database}(?:_between)?\.\w+")
    order = TopologicalSorter({name: {*named.findall(text)} - {name} for name, text in definitions.items()})
    statements = [definitions[name] for name in order.static_order()]
    for table in [row["name"] for row in found if row["rows"]]:
        rows = run_sql(clickhouse, f"SELECT * FROM {table} FINAL FORMAT Values")
        statements.append(f"INSERT INTO {table} VALUES {rows}")
    return _Template(database, tuple(statements))
