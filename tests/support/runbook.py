"""Reads the runbook: its sections, and the commands in them with their sample output."""

import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

RUNBOOK = Path(__file__).parents[2] / "docs" / "runbook.md"
_PROMPT = "    $ "


class Command(NamedTuple):
    """A command as it is typed, in words, and the lines of its sample output."""

    words: tuple[str, ...]
    output: tuple[str, ...]


def read_sections(text: str) -> dict[str, str]:
    """Return the text of each alert's section, by the alert's name."""
    parts = re.split(r"^### (\w+)$", text, flags=re.M)[1:]
    return dict(zip(parts[::2], (part.partition("\n## ")[0] for part in parts[1::2]), strict=True))


def read_commands(text: str) -> Iterator[Command]:
    """Yield the commands of a text, in order.

    A command in quotes may have several lines. A block without a prompt shows no command.
    """
    typed: str | None = None
    words: tuple[str, ...] | None = None
    output: list[str] = []
    for line in [*text.splitlines(), ""]:
        if line.startswith(_PROMPT) or not line.startswith("    "):
            if words is not None:
                yield Command(words, tuple(output))
            words, output, typed = None, [], line.removeprefix(_PROMPT) if line.startswith(_PROMPT) else None
        elif words is not None:
            output.append(line)
        elif typed is not None:
            typed = f"{typed}\n{line}"
        if typed is not None and words is None and typed.count('"') % 2 == 0:
            words = tuple(shlex.split(typed))


def first_program(command: Command) -> tuple[str, ...]:
    """Return the words of a command before its first pipe."""
    words = command.words
    return words[: words.index("|")] if "|" in words else words


def page_queries() -> list[str]:
    """Return the queries of the page that `sessionary sql` runs."""
    programs = map(first_program, read_commands(RUNBOOK.read_text("utf-8")))
    return [words[2] for words in programs if words[:2] == ("sessionary", "sql")]
