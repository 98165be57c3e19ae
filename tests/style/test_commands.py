"""Every `sessionary …` that a text shows or names is a command of the tree, with its options."""

import json
import re
from collections.abc import Iterator

import pytest
from typer import BadParameter

from docs.build.commands_page import PAGE, commands_page, leaf_commands
from sessionary.infra.cli.command_tree import FORMER_NAMES
from sessionary.schemas.errors import SettingsError
from tests.style.project import ROOT, tracked_files
from tests.support.command_lines import find_fault, parse_command, read_mentions, texts_of

_KINDS = {".py", ".md", ".yml", ".yaml", ".json", ".toml", ".sh", ".sql", ""}
# The past, by the names of then; half a word that a test completes.
_ELSEWHERE = ("CHANGELOG.md", "benchmarks/results/", "sinks/sessionary/sinks/clickhouse/migrations/")
_HALVES = ("tests/core/infra/cli/test_app.py", "tests/style/test_commands.py")


def _texts() -> Iterator[tuple[str, str]]:
    for path in tracked_files():
        name = path.relative_to(ROOT).as_posix()
        if path.suffix in _KINDS and not name.startswith(_ELSEWHERE) and name not in _HALVES:
            yield name, path.read_text("utf-8")


def _faults(name: str, text: str) -> tuple[int, list[str]]:
    """Return how many commands a file names, and what is wrong with some."""
    mentions = [words for part in texts_of(name, text) for words in read_mentions(part)]
    faults = [f"{name}: sessionary {' '.join(words)}: {fault}" for words in mentions if (fault := find_fault(words))]
    return len(mentions), faults


def test_each_command_that_is_named_anywhere_exists_with_its_options() -> None:
    found = {name: _faults(name, text) for name, text in _texts()}
    assert [fault for _, faults in found.values() for fault in faults] == []
    for folder in (
        "docs/runbook.md",
        "docs/",
        "examples/",
        "infra/prometheus/",
        "infra/grafana/",
        "producers/",
        "tests/",
    ):
        assert sum(count for name, (count, _) in found.items() if name.startswith(folder)) > 0, folder
    assert sum(count for count, _ in found.values()) > 400


def test_the_compose_file_runs_commands_with_their_arguments() -> None:
    compose = (ROOT / "infra" / "compose" / "docker-compose.yml").read_text("utf-8")
    commands = [json.loads(found) for found in re.findall(r"^    command: (\[.*\])$", compose, re.M)]
    assert len(commands) > 6
    for words in commands:
        parse_command(words)


@pytest.mark.parametrize(
    ("name", "text", "fault"),
    [
        ("a.md", "Then run `sessionary sesion list`.", "no command 'sesion'"),
        ("a.md", "Look with `sessionary session\nlits`.", "no command 'lits'"),
        ("a.md", "```\nsessionary session move ID \\\n    --too shipping\n```\n", "no option --too"),
        ("a.md", "    sessionary up\n    sessionary sessions\n", "no command 'sessions'"),
        ("a.md", "    $ SESSIONARY_PIPELINE=x sessionary sink audit", "no command 'sink'"),
        ("a.py", 'X = f"{x} halts: sessionary partition " "retri {x}"', "no command 'retri'"),
        ("a.py", "X = 1  # see sessionary db upgrade", "no command 'upgrade'"),
        ("a.json", '{"a": "`sessionary call list` shows them"}', "no command 'list'"),
        ("Makefile", "\t@$(BIN)/sessionary demos $(ARGS)", "no command 'demos'"),
    ],
)
def test_a_command_that_does_not_exist_is_found(name: str, text: str, fault: str) -> None:
    ((_, (found,)),) = [_faults(name, text)]
    assert found.endswith(fault)


@pytest.mark.parametrize(
    "text",
    [
        "The release of sessionary that it runs, and sessionary raises it.",
        "`sessionary partition` lists them; `sessionary up --data DATA`, then `sessionary session list --json`.",
        "from sessionary import producers",
        "https://example.org/sessionary sessions",
    ],
)
def test_what_is_right_or_no_command_is_no_fault(text: str) -> None:
    assert _faults("a.md", text)[1] == []


def test_the_page_of_commands_is_the_tree() -> None:
    assert PAGE.read_text("utf-8") == commands_page(), "make docs brings it up to date"
    assert len(leaf_commands()) >= 55  # as many as before there were groups
    rows = re.findall(r"^\| `sessionary ([a-z -]+?)(?: [\[A-Z].*)?` \| .* \|$", commands_page(), re.M)
    assert rows == list(leaf_commands())


def test_a_former_name_is_given_its_new_one() -> None:
    leaves = leaf_commands()
    for former, name in FORMER_NAMES.items():
        assert name in leaves
        for words in (former.split(), [*former.split(), "--json"]):
            with pytest.raises(SettingsError, match=f"^`sessionary {former}` is now `sessionary {name}`$"):
                parse_command(words)


def test_a_line_is_parsed_as_the_shell_would_have_it() -> None:
    parse_command(["rejected", "list", "--limit", "5"])
    parse_command(["demo", "load", "--speed", "5"])
    for words in (["task-workers"], ["lag", "--no-such-option"], ["rejected", "list", "--limit", "many"]):
        with pytest.raises(Exception, match=r"task-workers|No such option|valid integer") as caught:
            parse_command(words)
        assert getattr(caught.value, "exit_code", None) == BadParameter("x").exit_code


def test_what_commands_write_goes_through_one_place_which_lets_no_text_drive_a_terminal() -> None:
    """The others name a missing package, write a file's bytes to a pipe, and clear the screen."""
    folder = ROOT / "infra/sessionary/infra/cli"
    writes = re.compile(r"\bstd(?:out|err)\.(?:write|buffer)|(?<![.\w])print\(|\becho\(|\bConsole\(")
    found = {
        path.relative_to(folder).as_posix(): sorted(set(writes.findall(path.read_text("utf-8"))))
        for path in folder.rglob("*.py")
    }
    assert {name: calls for name, calls in found.items() if calls} == {
        "entry.py": ["stderr.write"],
        "output.py": ["stderr.write", "stdout.write"],
        "tables.py": ["Console("],
        "commands/sql.py": ["stdout.buffer"],
        "commands/lag.py": ["Console("],
    }
