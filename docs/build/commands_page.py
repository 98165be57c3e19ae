"""The page of the commands."""

from collections.abc import Iterable, Iterator
from pathlib import Path
from textwrap import fill

from typer.core import TyperCommand

from sessionary.infra.cli.app import EPILOG
from sessionary.infra.cli.command_tree import ROOT, LateCommand, LateGroup, load_command

PAGE = Path(__file__).parents[2] / "docs" / "commands.md"
_INTRODUCTION = (
    f"Every command has `--help`. {EPILOG} An error is one line on stderr. Rows are a table on a terminal, "
    "otherwise one JSON object per line, as with `--json`."
)
_TOP = f"""# Commands

{fill(_INTRODUCTION, 100)}
"""


def leaf_commands() -> dict[str, TyperCommand]:
    """Return the commands that do something, in order, by their names after `sessionary`."""

    def find(late: LateCommand | LateGroup, name: str) -> Iterator[tuple[str, TyperCommand]]:
        if isinstance(late, LateGroup):
            for each in late.commands:
                yield from find(each, f"{name} {each.name}")
            return
        command = load_command(late)
        if isinstance(command, TyperCommand):
            yield name, command
            return
        yield name, TyperCommand(name, params=command.params, help=command.help, short_help=command.short_help)
        for part, verb in command.commands.items():
            assert isinstance(verb, TyperCommand)
            yield f"{name} {part}", verb

    return dict(found for late in ROOT for found in find(late, late.name))


def commands_page() -> str:
    """Return the page: a table of the top level, and one of each group."""
    leaves = leaf_commands()
    groups = {late.name: late.short_help for late in ROOT if isinstance(late, LateGroup)}
    top = {name: command for name, command in leaves.items() if name.split()[0] not in groups}
    parts = [_TOP, *_table(top)]
    for group, short_help in groups.items():
        parts += ["", f"## {group}", "", short_help, ""]
        parts += _table({name: command for name, command in leaves.items() if name.split()[0] == group})
    return "\n".join(parts) + "\n"


def _table(commands: dict[str, TyperCommand]) -> Iterator[str]:
    yield "| command | effect | options |"
    yield "|---|---|---|"
    for name, command in commands.items():
        arguments = "".join(f" {_argument(each)}" for each in command.params if each.param_type_name == "argument")
        options = [each.opts[0] for each in command.params if each.param_type_name == "option"]
        listed = ", ".join(f"`{option}`" for option in options if option.startswith("--") and option != "--help")
        yield f"| `sessionary {name}{arguments}` | {command.short_help} | {listed} |"


def _argument(parameter: object) -> str:
    name = str(getattr(parameter, "metavar", None) or getattr(parameter, "name", "")).upper()
    return name if getattr(parameter, "required", False) else f"[{name}]"


def write() -> Iterable[Path]:
    """Write the page, and return its file."""
    PAGE.write_text(commands_page(), "utf-8")
    return [PAGE]
