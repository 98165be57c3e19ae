"""The tree of commands, and how a command ends.

Every expected error ends in one line on stderr and an exit code, never in a traceback.
"""

import logging
import os
import sys
from collections.abc import Sequence
from typing import Annotated

import typer

from sessionary.infra.cli.commands import (
    admin,
    alerts,
    demo,
    doctor,
    integrity,
    lag,
    rejected,
    roles,
    sql,
    up,
)
from sessionary.infra.cli.commands.operators import partition, rules, spool
from sessionary.infra.cli.commands.sessions import lists, timeline
from sessionary.infra.cli.errors import INTERRUPTED, USAGE, error_text, exit_code
from sessionary.infra.cli.extras import missing_extra
from sessionary.infra.cli.output import print_line, print_message

_EPILOG = (
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
    """Return the application with all its commands."""
    app = typer.Typer(
        no_args_is_help=True,
        pretty_exceptions_enable=False,
        rich_markup_mode=None,
        epilog=_EPILOG,
        callback=_root_options,
    )
    app.command("demo", short_help="Run agent runs on a temporary stack; account for every event.")(demo.demo_command)
    app.command("up", short_help="Run the local stack until Ctrl-C; its data is kept.")(up.up_command)
    app.command("load", short_help="Run a file of agent runs against a running stack.")(demo.load_command)
    app.command("sessions", short_help="List sessions.")(lists.list_sessions)
    app.command("show", short_help="Show the state of one session.")(lists.show_session)
    app.command("timeline", short_help="Show the history of one session.")(timeline.timeline_command)
    app.add_typer(rejected.app, name="rejected")
    app.command("sql", short_help="Run a query in ClickHouse.")(sql.run_query)
    app.add_typer(partition.app, name="partition")
    app.add_typer(rules.app, name="rules")
    app.add_typer(spool.app, name="spool")
    app.command("lag", short_help="Show how far each consumer group is behind.")(lag.lag_command)
    app.add_typer(alerts.app, name="alerts")
    app.command("doctor", short_help="Check every part of a stack; say what to fix.")(doctor.doctor_command)
    app.command("integrity", short_help="Check that ClickHouse has every row, once.")(integrity.integrity_command)
    app.command("repair", short_help="Read rows that are missing from Kafka again.")(integrity.repair_command)
    app.add_typer(admin.topics_app, name="topics")
    app.add_typer(admin.db_app, name="db")
    app.command("broker", short_help="Run a Kafka broker, for development.")(roles.broker_command)
    app.command("clickhouse", short_help="Serve a ClickHouse engine, for development.")(roles.clickhouse_command)
    app.command("processor", short_help="Run a processor.")(roles.processor_command)
    app.command("sink", short_help="Run a sink: write one topic to ClickHouse.")(roles.sink_command)
    app.command("lag-exporter", short_help="Serve the groups' lag to Prometheus.")(roles.lag_exporter_command)
    return app


def run(arguments: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code. Only unexpected errors (bugs) are raised."""
    # Without a handler the driver's own error line would be printed beside ours.
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


__all__ = ["make_app", "run"]
