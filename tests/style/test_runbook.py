"""Every section of the runbook shows a command with sample output, and its commands exist."""

import re
from collections.abc import Sequence
from typing import Any

import pytest
from typer.core import TyperGroup

from tests.support.runbook import RUNBOOK, Command, first_program, page_queries, read_commands, read_sections

PAGE = RUNBOOK.read_text("utf-8")
SECTIONS = read_sections(PAGE)
TYPED = [words for words in map(first_program, read_commands(PAGE)) if words[0].rpartition("/")[2] == "sessionary"]
NAMED = sorted(set(re.findall(r"`(sessionary [a-z][^`]*)`", PAGE)))


def parse_command(words: Sequence[str]) -> None:
    """Parse a command line as `sessionary` does, and run nothing. Raises click's `UsageError`."""
    from sessionary.infra.cli.command_tree import load_command  # here, as it loads roles

    command: Any = load_command(words[0])
    rest = list(words[1:])
    context = command.make_context(words[0], rest)
    while isinstance(command, TyperGroup):
        name, command, rest = command.resolve_command(context, [*context._protected_args, *context.args])
        context = command.make_context(name, rest, parent=context)


def test_every_section_shows_a_command_and_what_it_prints() -> None:
    assert SECTIONS
    without = [name for name, text in SECTIONS.items() if not any(command.output for command in read_commands(text))]
    assert without == []


def test_every_command_that_is_shown_can_be_parsed() -> None:
    for words in TYPED:
        parse_command(words[1:])


def unknown_options(text: str) -> set[str]:
    """Return the options of a named command that it does not have."""
    from sessionary.infra.cli.command_tree import load_command  # here, as it loads roles

    _, name, *rest = text.split()
    command: Any = load_command(name)
    while isinstance(command, TyperGroup) and rest and rest[0] in command.commands:
        command = command.commands[rest.pop(0)]
    options = {option for parameter in command.params for option in parameter.opts}
    return {word for word in rest if word.startswith("--")} - options


def test_every_command_that_is_named_exists_with_its_options() -> None:
    assert NAMED
    assert {text: unknown for text in NAMED if (unknown := unknown_options(text))} == {}
    assert unknown_options("sessionary lag --no-such") == {"--no-such"}


def test_commands_are_read_with_their_output() -> None:
    text = (
        'a\n\n    $ sessionary sql "SELECT 1\n      FROM x"\n    1\n    $ df -h | tail\n    2\n    3\n\nb\n\n    $ x\n'
    )
    assert list(read_commands(text)) == [
        Command(("sessionary", "sql", "SELECT 1\n      FROM x"), ("    1",)),
        Command(("df", "-h", "|", "tail"), ("    2", "    3")),
        Command(("x",), ()),
    ]
    assert first_program(Command(("df", "|", "tail"), ())) == ("df",)


def test_the_page_has_commands_and_queries() -> None:
    assert len(TYPED) > 20
    assert len(page_queries()) > 10


def test_a_command_that_does_not_exist_is_found() -> None:
    for words in (["task-workers"], ["lag", "--no-such-option"], ["rejected", "list", "--limit", "many"]):
        with pytest.raises(Exception, match=r"task-workers|No such option|valid integer"):
            parse_command(words)
