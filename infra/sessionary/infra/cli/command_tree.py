"""The tree of all commands: a command's module is imported when the command runs.

`ROOT` is the whole command line on one screen. Help, completion and a misspelt command need the
names and short helps alone, of groups too.
"""

from collections.abc import Mapping, Sequence
from difflib import get_close_matches
from importlib import import_module
from types import MappingProxyType
from typing import Any, Final, NamedTuple

import typer
import typer.core
import typer.main

from sessionary.schemas.errors import SettingsError

_COMMANDS: Final = "sessionary.infra.cli.commands"


class LateCommand(NamedTuple):
    """A command by the place of its function, or of its `typer.Typer`."""

    name: str
    place: str  # MODULE:ATTRIBUTE, below `commands`
    short_help: str


class LateGroup(NamedTuple):
    """Commands under one word."""

    name: str
    short_help: str
    commands: "Sequence[LateCommand | LateGroup]"


_SESSION: Final = (
    LateCommand("list", "sessions.lists:list_sessions", "List sessions."),
    LateCommand("show", "sessions.lists:show_session", "Show the state of one session."),
    LateCommand("timeline", "sessions.timeline:timeline_command", "Show the history of one session."),
    LateCommand("why", "sessions.decisions:why_command", "Show why the agent of one session acted."),
    LateCommand("simulate", "sessions.simulate:simulate_command", "Show what another result would have changed."),
    LateCommand("follow", "sessions.following:follow_command", "Print each committed change of one session."),
    LateCommand("at", "sessions.past:at_command", "Show the state of one session at a past point."),
    LateCommand("diff", "sessions.past:diff_command", "Show what changed between two points of one session."),
    LateCommand("snapshots", "sessions.past:snapshots_command", "Show the chain of snapshots of one session."),
    LateCommand("conversation", "sessions.lists:conversation_command", "Show the last turns of one session."),
    LateCommand("pause", "operators.people:pause_command", "Hold a session."),
    LateCommand("resume", "operators.people:resume_command", "Release a held session; its agent continues."),
    LateCommand("cancel", "operators.people:cancel_command", "Cancel a session."),
    LateCommand("ask-again", "operators.ask_again:ask_again_command", "Send a session's open requests again."),
    LateCommand("claim", "operators.people:claim_command", "Make a service the owner of a session at once."),
    LateCommand("move", "operators.moves:move_command", "Move a session to another service."),
    LateCommand("moves", "operators.moves:moves_command", "List moves of sessions between services."),
    LateCommand("drain", "operators.moves:drain_command", "Move all sessions of a service to another one."),
)
_QUESTION: Final = (
    LateCommand("list", "operators.people:list_questions", "List the questions that wait for a person."),
    LateCommand("approve", "operators.people:approve_command", "Answer a session's question: yes."),
    LateCommand("deny", "operators.people:deny_command", "Answer a session's question: no."),
)
_RUN: Final = (
    LateCommand("list", "sessions.runs:list_runs", "List the runs that the processors have."),
    LateCommand("show", "sessions.runs:show_run", "Show one run: its state, steps and tool calls."),
    LateCommand("resume", "sessions.runs:resume_command", "Show the effect of resuming a run."),
    LateCommand("compare", "sessions.comparing:compare_command", "Compare two runs, or two sessions."),
)
_CALL: Final = (
    LateCommand("unknown", "operators.calls:list_unknown", "List tool calls of unknown outcome."),
    LateCommand("resolve", "operators.calls:resolve_unknown", "Record the outcome of such a call."),
)
_REJECTED: Final = (
    LateCommand("list", "rejected:list_rejected", "List rejected records, newest first."),
    LateCommand("show", "rejected:show_rejected", "Show one rejected record and its event."),
    LateCommand("replay", "rejected:replay_rejected", "Send a rejected record to the events topic again."),
)
_PARTITION: Final = (
    LateCommand("list", "operators.partition:list_partitions", "List the partitions, and the reasons of halts."),
    LateCommand("retry", "operators.partition:retry_partition", "Open a halted partition again."),
    LateCommand("accept-gap", "operators.partition:accept_gap", "Continue after lost records."),
    LateCommand("accept-truncation", "operators.partition:accept_truncation", "Continue in a truncated log."),
    LateCommand("repair-clock", "operators.partition:repair_clock", "Set a partition's clock to the broker's time."),
    LateCommand("rebuild", "operators.partition:rebuild_rows", "Rebuild rows that a changelog lost."),
    LateCommand("skip", "operators.partition:skip_records", "Skip records that halt a partition."),
)
_RULES: Final = (
    LateCommand("list", "operators.rules:list_rules", "List the rules in force in each partition."),
    LateCommand("activate", "operators.rules:activate_rules", "Activate newer rules."),
)
_SPOOL: Final = (
    LateCommand("list", "operators.spool:list_spools", "List the clients' spools on this machine."),
    LateCommand("verify", "operators.spool:verify_spools", "Read every event of every spool."),
    LateCommand("drain", "operators.spool:drain_spools", "Send the events of dead clients."),
)
_INTEGRITY: Final = (
    LateCommand("check", "integrity:check_command", "Check that ClickHouse has every row, once."),
    LateCommand("repair", "integrity:repair_command", "Read missing rows from Kafka again."),
    LateCommand("dismiss", "integrity:dismiss_command", "Dismiss faults that cannot be repaired, with a reason."),
)
_SERVE: Final = (
    LateCommand("processor", "roles:processor_command", "Run a processor."),
    LateCommand("sink", "roles:sink_command", "Run a sink: write one topic to ClickHouse."),
    LateCommand("quotas", "roles:quotas_command", "Admit runs and sessions by tenants' limits."),
    LateCommand("lag-exporter", "roles:lag_exporter_command", "Serve the groups' lag to Prometheus."),
    LateCommand("task-worker", "roles:task_worker_command", "Carry out the long tasks of a service."),
    LateCommand("broker", "roles:broker_command", "Run a Kafka broker, for development."),
    LateCommand("clickhouse", "roles:clickhouse_command", "Serve a ClickHouse engine, for development."),
)

ROOT: Final = (
    LateCommand("up", "up:up_command", "Run the local stack until Ctrl-C; its data is kept."),
    LateCommand("demo", "demo:app", "Run agent runs on a temporary stack; account for every event."),
    LateCommand("doctor", "doctor:doctor_command", "Check every part of a stack; name the remedies."),
    LateCommand("env", "admin:env_command", "Print the variables of the local stack, for a shell."),
    LateCommand("sql", "sql:run_query", "Run a query in ClickHouse."),
    LateCommand("lag", "lag:lag_command", "Show the lag of each consumer group."),
    LateGroup("session", "List, show, pause, cancel and move sessions.", _SESSION),
    LateGroup("question", "List and answer the questions that wait for a person.", _QUESTION),
    LateGroup("run", "List and show runs; show the effect of resuming one.", _RUN),
    LateGroup("call", "List tool calls of unknown outcome; record an outcome.", _CALL),
    LateGroup("rejected", "List, show and replay rejected records.", _REJECTED),
    LateGroup("partition", "List partitions; open halted ones, or skip records.", _PARTITION),
    LateGroup("rules", "List the rules in force; activate newer ones.", _RULES),
    LateGroup("spool", "List, check and drain the clients' spools on this machine.", _SPOOL),
    LateGroup("integrity", "Check that ClickHouse has every row; repair missing ones.", _INTEGRITY),
    LateGroup(
        "artifact",
        "Remove artifacts that have expired.",
        (LateCommand("sweep", "operators.artifacts:sweep_command", "Mark expired artifacts; remove their bodies."),),
    ),
    LateGroup(
        "alerts",
        "Print alert rules for Prometheus.",
        (LateCommand("render", "admin:render_command", "Print the alert rules as YAML."),),
    ),
    LateGroup(
        "topics",
        "Create and configure the Kafka topics.",
        (LateCommand("apply", "admin:apply_topics_command", "Create missing topics; correct settings."),),
    ),
    LateGroup(
        "db",
        "Create and migrate the ClickHouse database.",
        (
            LateCommand("migrate", "admin:migrate_command", "Create the database; apply missing migrations."),
            LateCommand("rights", "admin:rights_command", "Print grants for the rows of one tenant."),
        ),
    ),
    LateGroup("serve", "Run one process of a pipeline.", _SERVE),
)

# To be deleted with the release: commands by the names that they had.
FORMER_NAMES: Final[Mapping[str, str]] = MappingProxyType(
    {
        "load": "demo load",
        **{name: f"session {name}" for name in ("show", "timeline", "follow", "conversation", "drain")},
        **{name: f"session {name}" for name in ("pause", "resume", "cancel", "claim")},
        "sessions": "session list",
        "migrate": "session move",
        "migrations": "session moves",
        "waiting": "question list",
        "approve": "question approve",
        "refuse": "question deny",
        "runs": "run list",
        "unknown": "call unknown",
        "unknown resolve": "call resolve",
        "artifacts": "artifact sweep",
        "integrity": "integrity check",
        "repair": "integrity repair",
        **{name: f"serve {name}" for name in ("processor", "sink", "quotas", "lag-exporter", "task-worker")},
        **{name: f"serve {name}" for name in ("broker", "clickhouse")},
    }
)


class CommandTree(typer.core.TyperGroup):
    """A group of late commands and groups, in their order."""

    def __init__(self, late: Sequence[LateCommand | LateGroup] = ROOT, **attrs: Any) -> None:
        """Take typer's arguments too; import nothing."""
        super().__init__(**attrs)
        self.late = {each.name: each for each in late}
        for each in late:
            self.add_command(typer.core.TyperCommand(each.name, short_help=each.short_help))

    def resolve_command(self, ctx: Any, args: list[str]) -> tuple[str | None, Any, list[str]]:
        """Return the command that `args` begin with, imported, and the other arguments.

        Raises `SettingsError` for a command's former name. The error of an unknown name has the
        names that look like it, or all of its group.
        """
        if ctx.parent is None and not ctx.resilient_parsing:
            _check_former(args)
        elif not (args[0] in self.late or get_close_matches(args[0], self.late) or ctx.resilient_parsing):
            ctx.fail(f"No such command {args[0]!r}. There are {', '.join(self.late)}.")  # typer names close ones
        name, command, rest = super().resolve_command(ctx, args)
        return name, None if command is None else load_command(self.late[name or ""]), rest


def load_command(late: LateCommand | LateGroup) -> typer.core.TyperCommand | typer.core.TyperGroup:
    """Return a command with its options; imports its module, but none of a group's commands."""
    if isinstance(late, LateGroup):
        return CommandTree(
            late.commands,
            name=late.name,
            help=late.short_help,
            short_help=late.short_help,
            no_args_is_help=True,
            rich_markup_mode=None,
        )
    module, _, attribute = late.place.partition(":")
    found = getattr(import_module(f"{_COMMANDS}.{module}"), attribute)
    # A group of one, because typer makes commands of functions only as parts of an application.
    parent = typer.Typer(rich_markup_mode=None, callback=lambda: None)
    if isinstance(found, typer.Typer):
        parent.add_typer(found, name=late.name, short_help=late.short_help)
    else:
        parent.command(late.name, short_help=late.short_help)(found)
    command = typer.main.get_group(parent).commands[late.name]
    if not isinstance(command, typer.core.TyperCommand | typer.core.TyperGroup):
        raise TypeError(f"{late.place} is no command")
    return command


def _check_former(words: Sequence[str]) -> None:
    """Raise `SettingsError` with the new name if `words` begin with a command's former name.

    A word that names a group today was a command only if no other name follows it.
    """
    further = words[1] if len(words) > 1 else "-"
    if words[0] in {late.name for late in ROOT} and (further == "--help" or not further.startswith("-")):
        return
    for former in (f"{words[0]} {further}", words[0]):
        if former in FORMER_NAMES:
            raise SettingsError(f"`sessionary {former}` is now `sessionary {FORMER_NAMES[former]}`")
