"""Numbered SQL migrations, applied by an explicit command; sinks only check them.

`migrations/NNNN_name.sql` holds statements that end with `;` at the end of a line and name the
database as `{database}`. Every statement can run twice, so a migration that was interrupted is
applied again from its start. The table `schema_migrations` keeps a checksum of each applied file;
a file that changes afterwards is an error.
"""

import hashlib
import re
from collections.abc import Callable, Sequence
from importlib.resources import files
from typing import NamedTuple

from clickhouse_connect.driver.client import Client

from sessionary.schemas.settings import ClickHouseSettings
from sessionary.sinks.clickhouse.connection import connect, query_rows, run_statement
from sessionary.sinks.errors import OperatorError

_NAME = re.compile(r"(\d{4})_(\w+)\.sql")
_TABLE = """CREATE TABLE IF NOT EXISTS {database}.schema_migrations
(
    version UInt32,
    name String,
    checksum String,
    applied_at DateTime64(3, 'UTC') DEFAULT now64(3)
)
ENGINE = ReplacingMergeTree ORDER BY version"""


class Migration(NamedTuple):
    """One migration file."""

    version: int
    name: str
    sql: str

    @property
    def checksum(self) -> str:
        """SHA-256 of the file's text, hex."""
        return hashlib.sha256(self.sql.encode()).hexdigest()

    def statements(self, database: str) -> list[str]:
        """Return the statements for `database`, in order."""
        parts = re.split(r";[ \t]*(?:\n|$)", self.sql.replace("{database}", database))
        return [part.strip() for part in parts if part.strip()]


def shipped_migrations() -> list[Migration]:
    """Return this version's migrations in the order of their numbers; each number is used once."""
    folder = files("sessionary.sinks.clickhouse").joinpath("migrations")
    named = ((_NAME.fullmatch(path.name), path) for path in folder.iterdir())
    return sorted(Migration(int(match[1]), match[2], path.read_text("utf-8")) for match, path in named if match)


def pending_migrations(applied: Sequence[tuple[int, str]], shipped: Sequence[Migration]) -> list[Migration]:
    """Return what is still to be applied; `applied` holds (version, checksum).

    Versions that are not shipped come from a newer release and are ignored. Raises
    `OperatorError` if an applied file has changed since.
    """
    known = dict(applied)
    for migration in shipped:
        if known.get(migration.version, migration.checksum) != migration.checksum:
            raise OperatorError(
                "migration_changed",
                f"migration {migration.version:04d}_{migration.name} differs from the one that was applied",
            )
    return [migration for migration in shipped if migration.version not in known]


def _read_applied(client: Client, database: str) -> list[tuple[int, str]]:
    rows = query_rows(client, f"SELECT version, checksum FROM {database}.schema_migrations FINAL ORDER BY version")
    return [(int(version), str(checksum)) for version, checksum in rows]


def apply_migrations(settings: ClickHouseSettings, progress: Callable[[str], None] = lambda _: None) -> list[str]:
    """Create the database, bring it to this version and return the names of applied migrations.

    Returns an empty list if the database is up to date. Calls `progress` with a line before each
    migration. Blocks. Idempotent, but two processes must not run it at once. Raises `Transient`,
    `OperatorError`.
    """
    database = settings.clickhouse_database
    client = connect(settings)
    try:
        run_statement(client, f"CREATE DATABASE IF NOT EXISTS {database}")
        run_statement(client, _TABLE.format(database=database))
        todo = pending_migrations(_read_applied(client, database), shipped_migrations())
        for migration in todo:
            progress(f"applying {migration.version:04d}_{migration.name} to {database}")
            for statement in migration.statements(database):
                run_statement(client, statement)
            run_statement(
                client,
                f"INSERT INTO {database}.schema_migrations (version, name, checksum) "
                f"VALUES ({migration.version}, '{migration.name}', '{migration.checksum}')",
            )
    finally:
        client.close()
    return [f"{migration.version:04d}_{migration.name}" for migration in todo]


def check_client_database(client: Client, database: str) -> None:
    """Raise `OperatorError` if `database` lacks a migration, `Transient` on faults that pass."""
    try:
        todo = pending_migrations(_read_applied(client, database), shipped_migrations())
    except OperatorError as error:
        if error.reason not in ("no_table", "no_database"):
            raise
        todo = shipped_migrations()
    if todo:
        names = ", ".join(f"{migration.version:04d}_{migration.name}" for migration in todo)
        raise OperatorError("not_migrated", f"database {database} lacks {names}; run: sessionary db migrate")


def check_migrations(settings: ClickHouseSettings) -> None:
    """Raise `OperatorError` if the database lacks a migration of this version.

    Opens a connection of its own and blocks. Raises `Transient` on faults that pass.
    """
    client = connect(settings)
    try:
        check_client_database(client, settings.clickhouse_database)
    finally:
        client.close()


__all__ = [
    "Migration",
    "apply_migrations",
    "check_client_database",
    "check_migrations",
    "pending_migrations",
    "shipped_migrations",
]
