"""Numbered SQL, applied by an explicit command; sinks only check.

`migrations/NNNN_name.sql` holds statements that end with `;` at a line's end and name the database as `{database}`.
Statements can be run again: a migration that broke off is simply applied anew. What was applied stands in
`schema_migrations`, with a checksum: a file that changes afterwards is an error, not a surprise.
"""

import hashlib
import re
from collections.abc import Callable, Sequence
from importlib.resources import files
from typing import NamedTuple

from clickhouse_connect.driver.client import Client

from sessionary.schemas.settings import ClickHouseSettings
from sessionary.sinks.clickhouse.connection import command, connect, rows_of
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
    """One file."""

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


def migrations() -> list[Migration]:
    """Return the migrations that ship with this version, in order; numbers run from 1 without gaps."""
    folder = files("sessionary.sinks.clickhouse").joinpath("migrations")
    named = ((_NAME.fullmatch(path.name), path) for path in folder.iterdir())
    return sorted(Migration(int(match[1]), match[2], path.read_text("utf-8")) for match, path in named if match)


def pending(applied: Sequence[tuple[int, str]], shipped: Sequence[Migration]) -> list[Migration]:
    """Return what is still to be applied; `applied` holds (version, checksum).

    Versions that are not shipped come from a newer release, and are left alone. Raises `OperatorError` where an applied
    file has changed since.
    """
    known = dict(applied)
    for migration in shipped:
        if known.get(migration.version, migration.checksum) != migration.checksum:
            raise OperatorError(
                "migration_changed",
                f"migration {migration.version:04d}_{migration.name} differs from the one that was applied",
            )
    return [migration for migration in shipped if migration.version not in known]


def _applied(client: Client, database: str) -> list[tuple[int, str]]:
    rows = rows_of(client, f"SELECT version, checksum FROM {database}.schema_migrations FINAL ORDER BY version")
    return [(int(version), str(checksum)) for version, checksum in rows]


def apply(settings: ClickHouseSettings, progress: Callable[[str], None] = lambda _: None) -> list[str]:
    """Make the database and bring it to this version; return the names of what was applied (none: it was there).

    Idempotent; not meant to run twice at once. Raises `Transient`, `OperatorError`.
    """
    database = settings.clickhouse_database
    client = connect(settings)
    try:
        command(client, f"CREATE DATABASE IF NOT EXISTS {database}")
        command(client, _TABLE.format(database=database))
        todo = pending(_applied(client, database), migrations())
        for migration in todo:
            progress(f"applying {migration.version:04d}_{migration.name} to {database}")
            for statement in migration.statements(database):
                command(client, statement)
            command(
                client,
                f"INSERT INTO {database}.schema_migrations (version, name, checksum) "
                f"VALUES ({migration.version}, '{migration.name}', '{migration.checksum}')",
            )
    finally:
        client.close()
    return [f"{migration.version:04d}_{migration.name}" for migration in todo]


def check_client(client: Client, database: str) -> None:
    """Raise `OperatorError` unless `database` holds everything that this version needs; else as `connect`."""
    try:
        todo = pending(_applied(client, database), migrations())
    except OperatorError as error:
        if error.reason not in ("no_table", "no_database"):
            raise
        todo = migrations()
    if todo:
        names = ", ".join(f"{migration.version:04d}_{migration.name}" for migration in todo)
        raise OperatorError("not_migrated", f"database {database} lacks {names}; run: sessionary db migrate")


def check(settings: ClickHouseSettings) -> None:
    """As `check_client`, over a client of its own."""
    client = connect(settings)
    try:
        check_client(client, settings.clickhouse_database)
    finally:
        client.close()


__all__ = ["Migration", "apply", "check", "check_client", "migrations", "pending"]
