"""Rows and objects as commands print them: tables on a terminal, JSON lines elsewhere."""

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from sessionary.infra.cli.output import print_line, print_message, visible, wants_json

Json = Any
# On a terminal times are shown in UTC to the millisecond, without the letters T and Z.
_INSTANT = re.compile(r"(\d{4}-\d\d-\d\d)T(\d\d:\d\d:\d\d\.\d{3})\d*Z")
# A column of prose is folded to this width, never below it; rich leaves this gap between columns.
_TEXT_MIN = 20
_GAP = 2
# On a narrow terminal ids lose their last three groups (commands accept the beginning of an id),
# and times lose year and milliseconds.
_SHORT = re.compile(
    r"([0-9a-f]{8}-[0-9a-f]{4})-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}|\d{4}-(\d\d-\d\d \d\d:\d\d:\d\d)\.\d{3}"
)


def show_rows(rows: Iterable[Mapping[str, Json]], *, as_json: bool, columns: Sequence[str] | None = None) -> None:
    """Print rows: one JSON object per line, or a table of `columns` (None: all columns).

    Columns that do not fit the terminal are left out, from the last one on; a message names them.
    """
    if wants_json(as_json):
        for row in rows:
            print_line(json.dumps(row, ensure_ascii=False, default=str))
        return
    found = list(rows)
    if not found:
        print_message("no rows")
        return
    table = Table(box=None, header_style="bold", pad_edge=False)
    names = list(columns or found[0])
    cells = {name: [_cell_text(row.get(name)) for row in found] for name in names}
    console = Console()
    shown = names if columns is None else _fit_columns(cells, console.width)
    for name in shown:
        no_wrap = columns is not None and not _is_text(name, cells)
        table.add_column(Text(_column_title(name)), overflow="fold", no_wrap=no_wrap)
    for line in zip(*(cells[name] for name in shown), strict=True):
        table.add_row(*map(Text, line))  # of a str, rich would read [words] as markup
    console.print(table)
    if left_out := [_column_title(name) for name in names if name not in shown]:
        print_message(f"columns left out: {', '.join(left_out)}; widen the terminal or give --json to see them")


def show_line(row: Mapping[str, Json], *, as_json: bool, columns: Sequence[str]) -> None:
    """Print one more row of a list: a JSON line, or the cells of `columns` that are not empty."""
    if wants_json(as_json):
        print_line(json.dumps(row, ensure_ascii=False, default=str))
        return
    print_line("  ".join(filter(None, (_cell_text(row.get(name)) for name in columns))))


def show_object(fields: Mapping[str, Json], *, as_json: bool) -> None:
    """Print one object: a JSON line, or one line per field."""
    if wants_json(as_json):
        print_line(json.dumps(fields, ensure_ascii=False, default=str))
        return
    table = Table(box=None, show_header=False, pad_edge=False)
    table.add_column(style="bold")
    table.add_column(overflow="fold")
    for name, value in fields.items():
        table.add_row(Text(visible(name)), Text(_cell_text(value)))
    Console().print(table)


def _cell_text(value: Json) -> str:
    if value is None:
        return ""
    if isinstance(value, list | tuple):
        return " ".join(_cell_text(part) for part in value)
    if isinstance(value, dict):
        return "  ".join(f"{visible(name)} {_cell_text(part) or '-'}" for name, part in value.items())
    if isinstance(value, str) and (instant := _INSTANT.fullmatch(value)):
        return f"{instant[1]} {instant[2]}"
    return visible(str(value))


def _column_title(name: str) -> str:
    return visible(name).removeprefix("source_").removesuffix("_id")


def _is_text(name: str, cells: Mapping[str, Sequence[str]]) -> bool:
    """Return True if a column may be folded: it holds prose, no value that a reader would copy."""
    return max(map(len, cells[name])) >= _TEXT_MIN and any(" " in cell for cell in cells[name])


def _column_width(name: str, cells: Mapping[str, Sequence[str]]) -> int:
    natural = max(len(_column_title(name)), *map(len, cells[name]))
    return min(natural, _TEXT_MIN) if _is_text(name, cells) else natural


def _shorten_cell(cell: str) -> str:
    match = _SHORT.fullmatch(cell)
    return cell if match is None else match[1] or match[2]


def _fit_columns(cells: dict[str, list[str]], width: int) -> list[str]:
    """Return the columns that fit; shorten ids and times (in place) before leaving columns out."""

    def needed_width(names: Sequence[str]) -> int:
        return sum(_column_width(name, cells) for name in names) + _GAP * (len(names) - 1)

    names = list(cells)
    if needed_width(names) > width:
        for column in cells.values():
            column[:] = map(_shorten_cell, column)
    while len(names) > 1 and needed_width(names) > width:
        names.pop()
    return names
