"""What commands print: tables for people, JSON lines where stdout is no terminal or `--json` is given.

stdout holds the answer and nothing else; progress and remarks go to stderr.
"""

import json
import re
import shutil
import sys
import time
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from rich.console import Console
from rich.table import Table

Json = Any
_LINE_EVERY_S = 5.0
# For people: to the millisecond, without the letters; all times are UTC.
_INSTANT = re.compile(r"(\d{4}-\d\d-\d\d)T(\d\d:\d\d:\d\d\.\d{3})\d*Z")


# A column with words is folded down to this width, never below; between two columns rich leaves this gap.
_TEXT_MIN = 24
_GAP = 2
# The part of a session's id that commands take for the whole; a time without year and milliseconds.
_SHORT = re.compile(
    r"([0-9a-f]{8}-[0-9a-f]{4})-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}|\d{4}-(\d\d-\d\d \d\d:\d\d:\d\d)\.\d{3}"
)


def wants_json(asked: bool) -> bool:
    """Whether the answer is for a program."""
    return asked or not sys.stdout.isatty()


def _cell(value: Json) -> str:
    if value is None:
        return ""
    if isinstance(value, list | tuple):
        return " ".join(_cell(part) for part in value)
    if isinstance(value, dict):
        return "  ".join(f"{name} {_cell(part) or '-'}" for name, part in value.items())
    if isinstance(value, str) and (time_of_day := _INSTANT.fullmatch(value)):
        return f"{time_of_day[1]} {time_of_day[2]}"
    return str(value)


def say(text: str) -> None:
    """Write one line to stdout as it is."""
    sys.stdout.write(text + "\n")


def remark(text: str) -> None:
    """Write one line to stderr, over a line of progress where one stands."""
    sys.stderr.write(("\r\x1b[K" if sys.stderr.isatty() else "") + text + "\n")
    sys.stderr.flush()


def show_rows(rows: Iterable[Mapping[str, Json]], *, as_json: bool, columns: Sequence[str] | None = None) -> None:
    """Show rows: one JSON object a line, or a table of `columns` (all where not given)."""
    if wants_json(as_json):
        for row in rows:
            say(json.dumps(row, ensure_ascii=False, default=str))
        return
    found = list(rows)
    if not found:
        remark("nothing found")
        return
    table = Table(box=None, header_style="bold", pad_edge=False)
    names = list(columns or found[0])
    cells = {name: [_cell(row.get(name)) for row in found] for name in names}
    console = Console()
    shown = names if columns is None else _fit(cells, console.width)
    for name in shown:
        table.add_column(_head_of(name), overflow="fold", no_wrap=columns is not None and not _is_text(name, cells))
    for line in zip(*(cells[name] for name in shown), strict=True):
        table.add_row(*map(_escaped, line))
    console.print(table)
    if left_out := [_head_of(name) for name in names if name not in shown]:
        remark(f"too narrow for: {', '.join(left_out)} (a wider terminal or --json has all)")


def _head_of(name: str) -> str:
    return name.removeprefix("source_").removesuffix("_id")


def _is_text(name: str, cells: Mapping[str, Sequence[str]]) -> bool:
    """Whether a column may be folded: words for people, nothing that one would copy."""
    return max(map(len, cells[name])) >= _TEXT_MIN and any(" " in cell for cell in cells[name])


def _width(name: str, cells: Mapping[str, Sequence[str]]) -> int:
    natural = max(len(_head_of(name)), *map(len, cells[name]))
    return min(natural, _TEXT_MIN) if _is_text(name, cells) else natural


def _shortened(cell: str) -> str:
    match = _SHORT.fullmatch(cell)
    return cell if match is None else match[1] or match[2]


def _fit(cells: dict[str, list[str]], width: int) -> list[str]:
    """Return the columns that fit. Where space is short, ids and times are cut first (in place), then the last go."""

    def needed(names: Sequence[str]) -> int:
        return sum(_width(name, cells) for name in names) + _GAP * (len(names) - 1)

    names = list(cells)
    if needed(names) > width:
        for column in cells.values():
            column[:] = map(_shortened, column)
    while len(names) > 1 and needed(names) > width:
        names.pop()
    return names


def show_object(fields: Mapping[str, Json], *, as_json: bool) -> None:
    """Show one object: a JSON line, or a line per field."""
    if wants_json(as_json):
        say(json.dumps(fields, ensure_ascii=False, default=str))
        return
    table = Table(box=None, show_header=False, pad_edge=False)
    table.add_column(style="bold")
    table.add_column(overflow="fold")
    for name, value in fields.items():
        table.add_row(name, _escaped(_cell(value)))
    Console().print(table)


def _escaped(text: str) -> str:
    # rich reads [words] as markup; what comes from events must stay text.
    return text.replace("[", "\\[")


class Progress:
    """One line on stderr that says where a long command stands: rewritten on a terminal, else repeated now and then."""

    def __init__(self) -> None:
        """Writes nothing yet."""
        self._terminal = sys.stderr.isatty()
        self._last = ""
        self._said_at = 0.0
        self._began = time.monotonic()

    def __call__(self, text: str) -> None:
        """Say where it stands."""
        now = time.monotonic()
        line = f"{now - self._began:5.1f} s  {text}"
        if self._terminal:
            # A line that wraps could not be rewritten.
            width = shutil.get_terminal_size().columns
            sys.stderr.write(f"\r\x1b[K{line[: width - 1]}")
            sys.stderr.flush()
        elif text != self._last and (now - self._said_at >= _LINE_EVERY_S or _head(text) != _head(self._last)):
            remark(line)
        else:
            return
        self._last, self._said_at = text, now

    def end(self) -> None:
        """Clear the line."""
        if self._terminal and self._last:
            sys.stderr.write("\r\x1b[K")
            sys.stderr.flush()


def _head(text: str) -> str:
    return text.partition(" ")[0]


__all__ = ["Progress", "remark", "say", "show_object", "show_rows", "wants_json"]
