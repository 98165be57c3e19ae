"""The SQL files of this release: tables, numbered migrations and views.

    tables/*.sql              the tables as release 0.2.0 makes them: all of them are migration 1
    migrations/NNNN_name.sql  changes of them, from 0002 on
    views/v_name.sql          a plain view with its comments

Statements end with `;` at the end of a line and name the database as `{database}`. Each of them can
run twice. The materialized view that feeds a table stands with the tables: if it were replaced, the
rows would be missing that sinks insert meanwhile.
"""

import hashlib
import re
from collections.abc import Mapping
from graphlib import TopologicalSorter
from importlib.metadata import version
from importlib.resources import files
from typing import Final, NamedTuple

_NAME: Final = re.compile(r"(\d{4})_(\w+)")
_COMMENT: Final = re.compile(r"^\s*--.*$", re.MULTILINE)
_FOLDER: Final = files("sessionary.sinks.clickhouse")


def _split_statements(sql: str, database: str) -> list[str]:
    parts = re.split(r";[ \t]*(?:\n|$)", sql.replace("{database}", database))
    return [part.strip() for part in parts if part.strip()]


def _hash_text(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


class Migration(NamedTuple):
    """A step of the tables."""

    version: int
    name: str
    sql: str

    @property
    def label(self) -> str:
        """Its number and name, as its file is named."""
        return f"{self.version:04d}_{self.name}"

    @property
    def checksum(self) -> str:
        """SHA-256 of its text, hex."""
        return _hash_text(self.sql)

    def statements(self, database: str) -> list[str]:
        """Return the statements for `database`, in order."""
        return _split_statements(self.sql, database)


class View(NamedTuple):
    """A plain view.

    The checksum is that of its text, of the views that it uses and of the last migration: the
    server keeps the columns' types in a view, so a view is made anew after each of them.
    """

    name: str
    sql: str
    checksum: str

    def statements(self, database: str) -> list[str]:
        """Return the statements for `database`, in order."""
        return _split_statements(self.sql, database)


class Schema(NamedTuple):
    """All that a release has: migrations by their numbers, each view after those that it uses."""

    release: str
    migrations: tuple[Migration, ...]
    views: tuple[View, ...]


def _read_files(folder: str) -> dict[str, str]:
    """Return the texts of SQL files by their names without the suffix, sorted."""
    found = sorted((path for path in _FOLDER.joinpath(folder).iterdir()), key=lambda path: path.name)
    return {path.name.removesuffix(".sql"): path.read_text("utf-8") for path in found if path.name.endswith(".sql")}


def shipped_migrations() -> list[Migration]:
    """Return this release's migrations in the order of their numbers; each number is used once."""
    later = [
        Migration(int(match[1]), match[2], sql)
        for name, sql in _read_files("migrations").items()
        if (match := _NAME.fullmatch(name))
    ]
    return [Migration(1, "tables", "\n".join(_read_files("tables").values())), *later]


def shipped_schema() -> Schema:
    """Return what this release has. Raises `graphlib.CycleError` if views use each other."""
    migrations = shipped_migrations()
    views = order_views(_read_files("views"), migrations[-1].checksum)
    return Schema(version("sessionary"), tuple(migrations), views)


def order_views(texts: Mapping[str, str], tables: str) -> tuple[View, ...]:
    """Return views by their names, each after those that it uses; always the same order.

    `texts` holds SQL by the views' names, `tables` the last migration's checksum. Raises
    `graphlib.CycleError`, a `ValueError`, if views use each other.
    """
    uses = {
        name: sorted({*re.findall(r"\{database\}\.(\w+)", _COMMENT.sub("", sql))} & {*texts} - {name})
        for name, sql in sorted(texts.items())
    }
    ordered: dict[str, View] = {}
    for name in TopologicalSorter(uses).static_order():
        parts = (texts[name], *(ordered[used].checksum for used in uses[name]), tables)
        ordered[name] = View(name, texts[name], _hash_text("\n".join(parts)))
    return tuple(ordered.values())
