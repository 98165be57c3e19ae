"""The tree of commands. Every expected error ends in one line on stderr and its exit code, never in a traceback."""

import logging
import os
import sys
from collections.abc import Sequence
from typing import Annotated

import typer

from sessionary.infra.cli import admin, doctor, playing, query, rejected, roles, stack
from sessionary.infra.cli.errors import INTERRUPTED, exit_code, in_words
from sessionary.infra.cli.output import remark, say

_EPILOG = (
    "Exit codes: 0 done, 1 a check failed, 2 usage or settings, 3 unreachable, 4 not found, 5 refused input, "
    "6 something must be set up first, 130 interrupted."
)


def _version(asked: bool) -> None:
    if asked:
        from importlib.metadata import version

        say(version("sessionary"))
        raise typer.Exit


def _root(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    """State and audit trail of AI-agent sessions, over Kafka and ClickHouse."""


def make_app() -> typer.Typer:
    """Return the application with all its commands."""
    app = typer.Typer(
        no_args_is_help=True,
        add_completion=False,
        pretty_exceptions_enable=False,
        rich_markup_mode=None,
        epilog=_EPILOG,
        callback=_root,
    )
    app.command("demo", short_help="Play agent runs on a stack of its own; account for each.")(playing.demo)
    app.command("up", short_help="Run the local stack until Ctrl-C; the data stays.")(stack.up)
    app.command("load", short_help="Play a file of agent runs against a running stack.")(playing.load)
    app.command("sessions")(query.sessions)
    app.command("show", short_help="Show one session as it is.")(query.show)
    app.command("timeline", short_help="Show one session as it went.")(query.timeline)
    app.add_typer(rejected.app, name="rejected")
    app.command("sql")(query.sql)
    app.command("doctor", short_help="Say what is reachable, what is wrong, what to do.")(doctor.doctor)
    app.add_typer(admin.topics_app, name="topics")
    app.add_typer(admin.db_app, name="db")
    app.command("broker")(roles.broker)
    app.command("clickhouse", short_help="Serve a ClickHouse engine, for development.")(roles.clickhouse)
    app.command("processor")(roles.processor)
    app.command("sink")(roles.sink)
    return app


def run(arguments: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code; raises only what is a fault of ours."""
    # The driver's own line about a failure would stand beside ours; a role's log has it all the same.
    logging.getLogger("clickhouse_connect").addHandler(logging.NullHandler())
    try:
        result = make_app()(args=arguments, standalone_mode=False, prog_name="sessionary")
        sys.stdout.flush()
    except typer.Abort:
        result = INTERRUPTED
    except BaseException as error:
        # typer makes a SystemExit of a broken pipe that it sees itself. A server's broken pipe comes as `Unavailable`.
        if isinstance(error.__context__ if isinstance(error, SystemExit) else error, BrokenPipeError):
            # The reader, `head` perhaps, has what it wants. What is still buffered must not fail once more at exit.
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            return 0
        if isinstance(error, SystemExit):
            raise
        code = getattr(error, "exit_code", None)  # typer's own errors: wrong options
        if code is not None and hasattr(error, "show"):
            error.show()
            return int(code)
        code = exit_code(error)
        if code is None:
            raise
        remark(f"sessionary: {in_words(error)}")
        return code
    if result == INTERRUPTED:  # typer answers Ctrl-C by this code, not by an error
        remark("sessionary: interrupted")
    return result if isinstance(result, int) else 0


def main() -> None:
    """Entry point of `sessionary`."""
    sys.exit(run())


__all__ = ["main", "make_app", "run"]
