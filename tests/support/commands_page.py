"""Writes the page of the commands: `python -m tests.support.commands_page`."""

from collections.abc import Iterator
from pathlib import Path

from typer.core import TyperCommand

from sessionary.infra.cli.app import EPILOG
from sessionary.infra.cli.command_tree import ROOT, LateGroup
from tests.support.command_lines import leaf_commands

PAGE = Path(__file__).parents[2] / "docs" / "commands.md"
_TOP = f"""# Commands

Every command has `--help`. {EPILOG} An error is one line on stderr. On a terminal rows are a table,
elsewhere one JSON object per line, as with `--json`.
"""


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
    yield "| command | it does | options |"
    yield "|---|---|---|"
    for name, command in commands.items():
        arguments = "".join(f" {_argument(each)}" for each in command.params if each.param_type_name == "argument")
        options = [each.opts[0] for each in command.params if each.param_type_name == "option"]
        listed = ", ".join(f"`{option}`" for option in options if option.startswith("--") and option != "--help")
        yield f"| `sessionary {name}{arguments}` | {command.short_help} | {listed} |"


def _argument(parameter: object) -> str:
    name = str(getattr(parameter, "metavar", None) or getattr(parameter, "name", "")).upper()
    return name if getattr(parameter, "required", False) else f"[{name}]"


if __name__ == "__main__":
    PAGE.write_text(commands_page(), "utf-8")
