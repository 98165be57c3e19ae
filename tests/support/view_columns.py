"""The columns of views, read from the text of the migrations that create them."""

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Final, NamedTuple

from sessionary.sinks.clickhouse.migrate import Migration

_VIEW: Final = re.compile(r"CREATE OR REPLACE VIEW \{database\}\.(\w+) AS\s(.*)", re.DOTALL)
_TOKEN: Final = re.compile(r"'(?:[^'\\]|\\.|'')*'|`\w+`|\w+|\S")
# A line of a migration that leaves columns of a view out: `-- v_sessions leaves out: gaps, agents`.
_LEAVES_OUT: Final = re.compile(r"^-- (v_\w+) leaves out: (\w+(?:, \w+)*)$", re.MULTILINE)
_SOURCE: Final = ("FROM", "{", "database", "}", ".")


class ViewForm(NamedTuple):
    """A view as one migration creates it."""

    migration: str
    view: str
    columns: tuple[str, ...]


def view_forms(migrations: Sequence[Migration]) -> Iterator[ViewForm]:
    """Yield each creation of a view, in order. Raises ValueError if its columns cannot be read."""
    known: dict[str, tuple[str, ...]] = {}
    for migration in migrations:
        text = re.sub(r"^\s*--.*$", "", migration.sql, flags=re.MULTILINE)
        for statement in re.split(r";[ \t]*(?:\n|$)", text):
            match = _VIEW.fullmatch(statement.strip())
            if match is not None:
                known[match[1]] = _columns_of(match[2], known)
                yield ViewForm(f"{migration.version:04d}_{migration.name}", match[1], known[match[1]])


def lost_columns(migrations: Sequence[Migration]) -> list[tuple[str, str, str]]:
    """Return migration, view and column of each column that a view lost without a word."""
    former: dict[str, ViewForm] = {}
    found = []
    for form in view_forms(migrations):
        (text,) = (one.sql for one in migrations if form.migration == f"{one.version:04d}_{one.name}")
        said = {
            column for view, names in _LEAVES_OUT.findall(text) if view == form.view for column in names.split(", ")
        }
        before = former.get(form.view, form).columns
        found += [(form.migration, form.view, name) for name in before if name not in {*form.columns, *said}]
        former[form.view] = form
    return found


def _columns_of(select: str, known: Mapping[str, tuple[str, ...]]) -> tuple[str, ...]:
    """Return the columns of a query's first SELECT, in their order."""
    tokens = _outer_tokens(select)
    begin = tokens.index("SELECT") + 1
    end = tokens.index("FROM", begin) if "FROM" in tokens[begin:] else len(tokens)
    columns: list[str] = []
    for item in _split_items(tokens[begin:end]):
        if item == ["*"]:
            columns += known[_source_of(tokens[end:])]
        elif re.fullmatch(r"\w+|`\w+`", item[-1]):
            columns.append(item[-1].strip("`"))  # its alias, or the name of the column
        else:
            raise ValueError(f"a column without a name: {' '.join(item)}")
    return tuple(columns)


def _source_of(tokens: Sequence[str]) -> str:
    """Return the view that a FROM names first."""
    if tuple(tokens[: len(_SOURCE)]) != _SOURCE:
        raise ValueError(f"no view: {' '.join(tokens[:8])}")
    return tokens[len(_SOURCE)]


def _outer_tokens(select: str) -> list[str]:
    """Return the tokens outside of all brackets; of a pair, the opening one."""
    found, depth = [], 0
    for token in _TOKEN.findall(select):
        depth -= token in ")]"
        if not depth and token not in ")]":
            found.append(token)
        depth += token in "(["
    return found


def _split_items(tokens: Sequence[str]) -> list[list[str]]:
    items: list[list[str]] = [[]]
    for token in tokens:
        if token == ",":
            items.append([])
        else:
            items[-1].append(token)
    return items


__all__ = ["ViewForm", "lost_columns", "view_forms"]
