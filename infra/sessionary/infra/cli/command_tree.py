"""The names of all commands, and a group that imports a command's module when it is needed."""

from importlib import import_module
from typing import Any, Final, NamedTuple

import typer
import typer.core
import typer.main

_COMMANDS: Final = "sessionary.infra.cli.commands"


class LateCommand(NamedTuple):
    """A command, or a group of commands, by the place of its function or `typer.Typer`."""

    name: str
    module: str  # below `commands`
    attribute: str
    short_help: str


COMMANDS: Final = (
    LateCommand("demo", "demo", "demo_command", "Run agent runs on a temporary stack; account for every event."),
    LateCommand("up", "up", "up_command", "Run the local stack until Ctrl-C; its data is kept."),
    LateCommand("env", "env", "env_command", "Print the variables of the local stack, for a shell."),
    LateCommand("load", "demo", "load_command", "Run a file of agent runs against a running stack."),
    LateCommand("sessions", "sessions.lists", "list_sessions", "List sessions."),
    LateCommand("show", "sessions.lists", "show_session", "Show the state of one session."),
    LateCommand("timeline", "sessions.timeline", "timeline_command", "Show the history of one session."),
    LateCommand("follow", "sessions.following", "follow_command", "Print each committed change of one session."),
    LateCommand("conversation", "sessions.conversation", "conversation_command", "Show the last turns of one session."),
    LateCommand("runs", "sessions.runs", "list_runs", "List runs, as the processors know them."),
    LateCommand("run", "sessions.runs", "app", "Show one run; say what resuming it would do."),
    LateCommand("rejected", "rejected", "app", "List, show and replay refused records."),
    LateCommand("sql", "sql", "run_query", "Run a query in ClickHouse."),
    LateCommand(
        "partition", "operators.partition", "app", "List the partitions; open a halted one, or decide its skips."
    ),
    LateCommand("pause", "operators.people", "pause_command", "Hold a session."),
    LateCommand("resume", "operators.people", "resume_command", "Let a held session go on."),
    LateCommand("cancel", "operators.people", "cancel_command", "End a session that is called off."),
    LateCommand("claim", "operators.people", "claim_command", "Let a service own a session at once."),
    LateCommand("approve", "operators.people", "approve_command", "Answer a session's question: yes."),
    LateCommand("refuse", "operators.people", "refuse_command", "Answer a session's question: no."),
    LateCommand("waiting", "operators.people", "waiting_command", "List the questions that wait for a person."),
    LateCommand("migrate", "operators.migrations", "migrate_command", "Move a session to another service."),
    LateCommand("migrations", "operators.migrations", "migrations_command", "List migrations of sessions."),
    LateCommand("drain", "operators.migrations", "drain_command", "Move all sessions of a service to another one."),
    LateCommand("unknown", "operators.unknown", "app", "List tool calls of unknown outcome; say what came of one."),
    LateCommand("artifacts", "operators.artifacts", "app", "Remove artifacts that have expired."),
    LateCommand("rules", "operators.rules", "app", "List the rules in force; activate newer ones."),
    LateCommand("spool", "operators.spool", "app", "List, check and drain the clients' spools on this machine."),
    LateCommand("lag", "lag", "lag_command", "Show how far each consumer group is behind."),
    LateCommand("alerts", "alerts", "app", "Print alert rules for Prometheus."),
    LateCommand("doctor", "doctor", "doctor_command", "Check every part of a stack; say what to fix."),
    LateCommand("integrity", "integrity", "integrity_command", "Check that ClickHouse has every row, once."),
    LateCommand("repair", "integrity", "repair_command", "Read rows that are missing from Kafka again."),
    LateCommand("topics", "admin", "topics_app", "Create and configure the Kafka topics."),
    LateCommand("db", "admin", "db_app", "Create and migrate the ClickHouse database."),
    LateCommand("broker", "roles", "broker_command", "Run a Kafka broker, for development."),
    LateCommand("clickhouse", "roles", "clickhouse_command", "Serve a ClickHouse engine, for development."),
    LateCommand("processor", "roles", "processor_command", "Run a processor."),
    LateCommand("quotas", "roles", "quotas_command", "Run the role that admits runs and sessions by tenants' limits."),
    LateCommand("sink", "roles", "sink_command", "Run a sink: write one topic to ClickHouse."),
    LateCommand("task-worker", "roles", "task_worker_command", "Carry out the long tasks of a service."),
    LateCommand("lag-exporter", "roles", "lag_exporter_command", "Serve the groups' lag to Prometheus."),
)


class CommandTree(typer.core.TyperGroup):
    """The root's commands, in the order of `COMMANDS`.

    Help, completion and a command that is misspelt need the names and short helps alone. The
    command that is run or completed is imported then.
    """

    def __init__(self, **attrs: Any) -> None:
        """Take typer's arguments; import nothing."""
        super().__init__(**attrs)
        for late in COMMANDS:
            self.add_command(typer.core.TyperCommand(late.name, short_help=late.short_help))

    def resolve_command(self, ctx: Any, args: list[str]) -> tuple[str | None, Any, list[str]]:
        """Return the command that `args` begin with, imported, and the other arguments."""
        name, command, rest = super().resolve_command(ctx, args)
        return name, None if command is None else load_command(name or ""), rest


def load_command(name: str) -> typer.core.TyperCommand | typer.core.TyperGroup:
    """Return a command of `COMMANDS` with its options; import its module.

    Raises `KeyError` if there is none of this name.
    """
    late = {late.name: late for late in COMMANDS}[name]
    found = getattr(import_module(f"{_COMMANDS}.{late.module}"), late.attribute)
    # A group of one, because typer makes commands of functions only as parts of an application.
    parent = typer.Typer(rich_markup_mode=None, callback=lambda: None)
    if isinstance(found, typer.Typer):
        parent.add_typer(found, name=name, short_help=late.short_help)
    else:
        parent.command(name, short_help=late.short_help)(found)
    command = typer.main.get_group(parent).commands[name]
    if not isinstance(command, typer.core.TyperCommand | typer.core.TyperGroup):
        raise TypeError(f"{late.module}.{late.attribute} is no command")
    return command


__all__ = ["COMMANDS", "CommandTree", "LateCommand", "load_command"]
