"""Every section of the runbook shows a command with sample output, and its commands exist."""

from tests.support.command_lines import parse_command
from tests.support.runbook import RUNBOOK, Command, first_program, page_queries, read_commands, read_sections

PAGE = RUNBOOK.read_text("utf-8")
SECTIONS = read_sections(PAGE)
TYPED = [words for words in map(first_program, read_commands(PAGE)) if words[0].rpartition("/")[2] == "sessionary"]


def test_every_section_shows_a_command_and_what_it_prints() -> None:
    assert SECTIONS
    without = [name for name, text in SECTIONS.items() if not any(command.output for command in read_commands(text))]
    assert without == []


def test_every_command_that_is_shown_can_be_parsed() -> None:
    for words in TYPED:
        parse_command(words[1:])


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
