"""The application, and how a command ends.

Every expected error ends in one line on stderr and an exit code, never in a traceback.
"""

import logging
import os
import sys
from collections.abc import Sequence
from typing import Annotated

import typer

from sessionary.infra.cli.command_tree import CommandTree
from sessionary.infra.cli.errors import INTERRUPTED, USAGE, error_text, exit_code
from sessionary.infra.cli.extras import missing_extra
from sessionary.infra.cli.output import print_line, print_message

EPILOG = (
    "Exit codes: 0 done, 1 a check failed, 2 usage or settings, 3 unreachable, 4 not found, 5 input refused, "
    "6 something must be set up first, 130 interrupted."
)


def _print_version(asked: bool) -> None:
    if asked:
        from importlib.metadata import version

        print_line(version("sessionary"))
        raise typer.Exit


def _root_options(
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    """State and audit trail of AI-agent sessions, over Kafka and ClickHouse."""


def make_app() -> typer.Typer:
    """Return the application with all its commands; none of them is imported yet."""
    return typer.Typer(
        cls=CommandTree,
        no_args_is_help=True,
        pretty_exceptions_enable=False,
        rich_markup_mode=None,
        epilog=EPILOG,
        callback=_root_options,
    )


def run(arguments: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code. Only unexpected errors (bugs) are raised."""
    # Without a handler the driver's own error line would be printed next to ours.
    logging.getLogger("clickhouse_connect").addHandler(logging.NullHandler())
    try:
        result = make_app()(args=arguments, standalone_mode=False, prog_name="sessionary")
        sys.stdout.flush()
    except typer.Abort:
        result = INTERRUPTED
    except BaseException as error:
        # typer turns a broken pipe into a SystemExit. A server's broken pipe is `Unavailable`.
        if isinstance(error.__context__ if isinstance(error, SystemExit) else error, BrokenPipeError):
            # The reader (`head`, for example) has enough. The buffered rest must not fail at exit.
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            return 0
        if isinstance(error, SystemExit):
            raise
        code = getattr(error, "exit_code", None)  # typer's own errors: wrong options
        if code is not None and hasattr(error, "show"):
            if isinstance(error, typer.BadParameter):
                error.message = error.message.removeprefix("Value error, ")  # pydantic's, not for people
            error.show()
            return int(code)
        if (advice := missing_extra(error)) is not None:
            _report_end(advice)
            return USAGE
        code = exit_code(error)
        if code is None:
            raise
        _report_end(error_text(error))
        return code
    if result == INTERRUPTED:  # typer returns this code for Ctrl-C; it raises no error
        print_message("sessionary: interrupted")
    return result if isinstance(result, int) else 0


def _report_end(why: str) -> None:
    """Write why the command ends: to the log of a role that has begun one, else for people."""
    role_logs = sys.modules.get("sessionary.schemas.telemetry.role_logs")  # a command has no log
    if role_logs is None or not role_logs.report_role_end(why):
        print_message(f"sessionary: {why}")
