"""`sessionary env`: the variables of a local stack, for a shell or a program."""

import shlex
from collections.abc import Mapping
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from sessionary.infra.cli.options import JsonOption
from sessionary.infra.cli.output import print_line, print_message
from sessionary.infra.cli.tables import show_object
from sessionary.infra.environment import DEFAULT_DATA, client_environment, stack_is_running


class ShellName(StrEnum):
    """A shell, by the way in which it sets a variable."""

    SH = "sh"
    BASH = "bash"
    ZSH = "zsh"
    FISH = "fish"


def env_command(
    shell: Annotated[
        ShellName, typer.Option("--shell", help="Whose syntax the lines have.", case_sensitive=False)
    ] = ShellName.SH,
    tenant: Annotated[
        str | None,
        typer.Option("--tenant", help="Tenant of SESSIONARY_API_TOKEN. Default: the first.", show_default=False),
    ] = None,
    data: Annotated[
        Path, typer.Option("--data", help="Folder of the stack.", file_okay=False, show_default=True)
    ] = DEFAULT_DATA,
    as_json: JsonOption = False,
) -> None:
    """Print the variables that a shell needs to work with a local stack, secrets too.

    In sh, bash and zsh: eval "$(sessionary env)". In fish: sessionary env --shell fish | source.
    The variables are those of the folder, so they are the same after a restart of the stack.
    """
    environ = client_environment(data, tenant)
    if as_json:
        show_object(environ, as_json=True)
    else:
        for line in shell_lines(environ, shell):
            print_line(line)
    if not stack_is_running(data):
        print_message(f"the stack of {data} is not running; start it: sessionary up --data {data}")


def shell_lines(environ: Mapping[str, str], shell: ShellName) -> list[str]:
    """Return a line per variable that sets and exports it."""
    if shell is ShellName.FISH:
        return [f"set -gx {name} {_quote_for_fish(value)};" for name, value in environ.items()]
    return [f"export {name}={shlex.quote(value)}" for name, value in environ.items()]


def _quote_for_fish(value: str) -> str:
    # In single quotes, fish reads no other escapes than these two.
    return "'" + value.replace("\\", "\\\\").replace("'", "\\'") + "'"
