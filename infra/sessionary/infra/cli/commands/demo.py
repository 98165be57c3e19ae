"""`sessionary demo` and `sessionary demo load`: recorded agent runs become sessions of a pipeline.

Both account for every event afterwards, from the rows in ClickHouse. `sessionary demo --workflow`
kills an agent instead, and shows how another process continues. `sessionary demo --migration` moves
one session through three services. `sessionary demo --replay` replays and forks recorded agents.
"""

import shlex
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from sessionary.infra.cli.commands.sessions.timeline import write_story
from sessionary.infra.cli.commands.up import START_S_MAX, activate_newest_rules, running_stack
from sessionary.infra.cli.errors import CheckFailed
from sessionary.infra.cli.options import DataOption, JsonOption
from sessionary.infra.cli.output import Progress, command_name, print_message, wants_json
from sessionary.infra.cli.tables import Json, show_object, show_rows
from sessionary.schemas.errors import Invalid

if TYPE_CHECKING:
    from sessionary.infra.demo.migration import MigrationReport
    from sessionary.infra.demo.replay import ReplayReport
    from sessionary.infra.demo.report import Report
    from sessionary.infra.demo.workflow import WorkflowReport
    from sessionary.infra.stack import Stack

app = typer.Typer()
# Longest pause between two starts, in recorded seconds: recordings have pauses of hours.
_GAP_S = 12.0
_SAMPLE_RUNS = 60
# The title and the columns of each table of a `MigrationReport` except its trail.
_MIGRATION_TABLES: dict[str, tuple[str, Sequence[str] | None]] = {
    "owners": ("owners", ("epoch", "service_id", "how", "since", "until")),
    "migrations": (
        "migrations",
        ("from_service", "to_service", "step", "silence_ms", "held_ms", "epoch", "released_at"),
    ),
    "waits": ("waits for people", ("question", "answer", "answered_by", "said", "wait_s")),
    "handovers": ("hand-overs", ("time", "from_agent_id", "to_agent_id", "sync_type")),
    "tasks": ("tasks", ("agent_id", "role", "service_id", "task", "times_done", "result")),
    "integrity": ("v_integrity", None),
}

NEXT = """
Try next, with a stack that stays:
  {command} up                                     in another terminal; its data is kept
  {command} demo load                              run the same agent runs on it
  {command} session timeline ID --html story.html  a session's story, as a page

{command} session list lists the sessions and their ids."""

NEXT_WORKFLOW = """
Where to look, {with_stack}:
  GET {page}
  {command} sql --data {folder} "SELECT name, state, attempt, output FROM v_steps WHERE run_id = '{run_id}'"
  {command} sql --data {folder} "SELECT * FROM v_causes WHERE run_id = '{run_id}' ORDER BY time, source_offset"
docs/learn/examples.md says how to run the workflow on a stack, and how to kill it yourself."""

NEXT_MIGRATION = """
Where to look, {with_stack}:
  {command} session timeline {session_id} --html story.html --data {folder}
  {command} session moves --service payments --data {folder}
  {command} sql --data {folder} "SELECT * FROM v_session_owners WHERE session_id = '{session_id}' ORDER BY epoch"
docs/learn/examples.md says how to run the three services on a stack, and how to kill one yourself."""

NEXT_REPLAY = """
Where to look, {with_stack}:
  {command} session at {session_id} --snapshot {snapshot_id} --data {folder}
  {command} run compare {session_id} {fork_id} --data {folder}
  {command} session timeline {session_id} --trace --data {folder}
docs/guides/replay.md mends such an agent, step by step."""


class WorkflowStep(StrEnum):
    """A step of the workflow in which its process is killed."""

    FETCH_ISSUE = "fetch_issue"
    SEARCH_KB = "search_kb"
    NOTIFY_TEAM = "notify_team"


SpeedOption = Annotated[
    float,
    typer.Option(
        "--speed",
        min=0.1,
        max=10_000,
        help="Divides pauses and limits; the inactivity limit never falls below 3 s.",
    ),
]
SeedOption = Annotated[
    int, typer.Option("--seed", help="Seed that decides which session finishes, pauses, fails or falls silent.")
]


@app.callback(invoke_without_command=True)
def demo_command(
    context: typer.Context,
    sessions: Annotated[
        int, typer.Option("--sessions", min=1, max=10_000, help="Number of agent runs.")
    ] = _SAMPLE_RUNS,
    speed: SpeedOption = 60.0,
    seed: SeedOption = 1,
    open_page: Annotated[
        bool, typer.Option("--open", help="Write the timeline of one session as a page, and open it in a browser.")
    ] = False,
    workflow: Annotated[
        bool, typer.Option("--workflow", help="Instead, kill an agent in a tool call, and continue in another process.")
    ] = False,
    kill_at: Annotated[
        WorkflowStep, typer.Option("--kill-at", help="With --workflow: the step in which the agent is killed.")
    ] = WorkflowStep.NOTIFY_TEAM,
    migration: Annotated[
        bool, typer.Option("--migration", help="Instead, move a session through three services, and kill one of them.")
    ] = False,
    replay: Annotated[
        bool, typer.Option("--replay", help="Instead, record agents, replay and fork them, and count what was done.")
    ] = False,
    data: Annotated[
        Path | None, typer.Option("--data", help="Keep the stack's data in this folder.", file_okay=False)
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Start a temporary stack, run agent runs as sessions, account for every event, stop.

    The exit code is 1 if an event is missing or duplicated, or if a session did not end as planned;
    with --workflow, if an effect was repeated; with --migration, if an epoch had two owners, or an
    event of a former owner was accepted; with --replay, if a count is not what it must be.
    """
    if context.invoked_subcommand is not None:
        _refuse_options(context)
        return
    chosen = {"--workflow": workflow, "--migration": migration, "--replay": replay}
    demos = [option for option, is_chosen in chosen.items() if is_chosen]
    if len(demos) > 1:
        raise Invalid("invalid_value", f"{' and '.join(demos)} are demos of their own: give one of them")
    _check_options(context, demos[0] if demos else "")
    if replay:
        _play_replay(data, open_page=open_page, as_json=as_json)
        return
    if migration:
        _play_migration(data, open_page=open_page, as_json=as_json)
        return
    if workflow:
        _play_workflow(kill_at, data, open_page=open_page, as_json=as_json)
        return
    _play_runs(sessions, speed, seed, data, open_page=open_page, as_json=as_json)


def _play_runs(sessions: int, speed: float, seed: int, data: Path | None, *, open_page: bool, as_json: bool) -> None:
    from sessionary.infra.demo.demo_run import run_demo, warm_up
    from sessionary.infra.demo.runs import sample_runs

    began = time.monotonic()
    progress = Progress()
    with _demo_stack(progress, data) as stack:
        started_s = time.monotonic() - began
        warm_up(stack.environ, progress, print_message)
        report = run_demo(
            sample_runs(sessions),
            stack.environ,
            speed=speed,
            seed=seed,
            gap_s_max=_GAP_S,
            progress=progress,
            on_action_error=print_message,
        )
        page = write_story(stack.environ) if open_page else None
    progress.clear()
    report.figures["play_s"] = report.figures["elapsed_s"]
    report.figures["stack_start_s"] = round(started_s, 1)
    report.figures["elapsed_s"] = round(time.monotonic() - began, 1)
    if page is not None:
        open_story(page)
    _show_report(report, as_json=as_json)
    if not wants_json(as_json):
        print_message(NEXT.format(command=command_name()))


@contextmanager
def _demo_stack(progress: Progress, data: Path | None) -> Iterator["Stack"]:
    """Run a stack inside the context: in a temporary folder, or in `data`, which is kept."""
    from sessionary.infra.cli.commands.up import PartReports
    from sessionary.infra.stack import Stack

    temporary = tempfile.TemporaryDirectory(prefix="sessionary-demo-") if data is None else nullcontext(str(data))
    with temporary as folder:
        stack = Stack(Path(folder), lag_exporter=False, on_change=PartReports().report_change)
        with running_stack(stack):
            progress("starting broker, ClickHouse, processor and sinks (about a minute the first time)")
            stack.wait_ready(START_S_MAX)
            activate_newest_rules(stack)
            yield stack
            progress("stopping the stack")


def _refuse_options(context: typer.Context) -> None:
    """Raise `Invalid` for an option between `demo` and its command: it would have no effect."""
    for parameter in context.command.params:
        source = context.get_parameter_source(parameter.name or "")
        if source is not None and source.name == "COMMANDLINE":
            command = context.invoked_subcommand
            where = f"{parameter.opts[0]} stands before {command}: the options of demo {command} stand after it"
            raise Invalid("invalid_value", where)


def _check_options(context: typer.Context, demo: str) -> None:
    """Raise `Invalid` for an option that a demo does not know; `demo`: its option, '' for none."""
    foreign = {"kill_at": "--kill-at"} if demo != "--workflow" else {}
    if demo:
        foreign |= {"sessions": "--sessions", "speed": "--speed", "seed": "--seed"}
    for name, option in foreign.items():
        source = context.get_parameter_source(name)
        if source is not None and source.name == "COMMANDLINE":
            where = f"{demo} takes no {option}" if demo else f"{option} goes with --workflow"
            raise Invalid("invalid_value", where)


def _play_workflow(kill_at: WorkflowStep, data: Path | None, *, open_page: bool, as_json: bool) -> None:
    from sessionary.infra.demo.workflow import play_workflow

    began = time.monotonic()
    progress = Progress()
    with _demo_stack(progress, data) as stack:
        started_s = time.monotonic() - began
        report = play_workflow(stack.environ, stack.data / "workflow", kill_at.value, progress)
        session_id = report.figures["session_id"]
        page = f"{stack.environ['SESSIONARY_CONTROL_URL']}/v1/sessions/{session_id}/runs"
        story = write_story(stack.environ, session_id) if open_page else None
    progress.clear()
    if story is not None:
        open_story(story)
    report.figures["killed_in"] = kill_at.value
    report.figures["stack_start_s"] = round(started_s, 1)
    report.figures["elapsed_s"] = round(time.monotonic() - began, 1)
    _show_workflow(report, page, data, as_json=as_json)


def _show_workflow(report: "WorkflowReport", page: str, data: Path | None, *, as_json: bool) -> None:
    if wants_json(as_json):
        show_object(
            {**report.figures, "steps": report.steps, "calls": report.calls, "trail": report.trail}, as_json=True
        )
    else:
        show_rows(report.trail, as_json=False, columns=("time", "process", "event_type", "name", "state", "reason"))
        print_message("")
        show_rows(report.steps, as_json=False)
        print_message("")
        show_object(_spaced_names(report.figures), as_json=False)
        run_id, kept = report.figures["run_id"], _kept_stack(data)
        places = {"page": f"{page}/{run_id}", "run_id": run_id, "folder": shlex.quote(str(data or "FOLDER"))}
        print_message(NEXT_WORKFLOW.format(command=command_name(), with_stack=kept, **places))
    _check_faults(report.faults)


def _play_migration(data: Path | None, *, open_page: bool, as_json: bool) -> None:
    from sessionary.infra.demo.migration import play_migration

    began = time.monotonic()
    progress = Progress()
    with _demo_stack(progress, data) as stack:
        started_s = time.monotonic() - began
        report = play_migration(stack.environ, stack.data / "migration", progress)
        page = write_story(stack.environ, report.figures["session_id"]) if open_page else None
    progress.clear()
    report.figures["stack_start_s"] = round(started_s, 1)
    report.figures["elapsed_s"] = round(time.monotonic() - began, 1)
    if page is not None:
        open_story(page)
    _show_migration(report, data, as_json=as_json)


def _show_migration(report: "MigrationReport", data: Path | None, *, as_json: bool) -> None:
    from sessionary.infra.demo.migration import describe_line

    if wants_json(as_json):
        tables = {name: rows for name, rows in report._asdict().items() if name != "figures"}
        show_object({**report.figures, **tables}, as_json=True)
    else:
        trail = [{**line, "epoch": line["owner_epoch"], "what": describe_line(line)} for line in report.trail]
        show_rows(trail, as_json=False, columns=("time", "service", "agent", "epoch", "what", "times"))
        for name, (title, columns) in _MIGRATION_TABLES.items():
            print_message(f"\n{title}:")
            show_rows(getattr(report, name), as_json=False, columns=columns)
        print_message("")
        show_object(_spaced_names(report.figures), as_json=False)
        places = {"session_id": report.figures["session_id"], "folder": shlex.quote(str(data or "FOLDER"))}
        print_message(NEXT_MIGRATION.format(command=command_name(), with_stack=_kept_stack(data), **places))
    _check_faults(report.faults)


def _play_replay(data: Path | None, *, open_page: bool, as_json: bool) -> None:
    from sessionary.infra.demo.replay import play_replay

    began = time.monotonic()
    progress = Progress()
    with _demo_stack(progress, data) as stack:
        started_s = time.monotonic() - began
        report = play_replay(stack.environ, stack.data, progress)
        page = write_story(stack.environ, report.figures["sessions"]["1"]) if open_page else None
    progress.clear()
    if page is not None:
        open_story(page)
    report.figures["stack_start_s"] = round(started_s, 1)
    report.figures["elapsed_s"] = round(time.monotonic() - began, 1)
    _show_replay(report, data, as_json=as_json)


def _show_replay(report: "ReplayReport", data: Path | None, *, as_json: bool) -> None:
    tables = {"replays": report.replays, "travels": report.travels, "comparisons": report.comparisons}
    if wants_json(as_json):
        show_object({**report.figures, **tables}, as_json=True)
    else:
        titles = ("calls", "states at a point, by the source that served", "run compare of a session and its fork")
        for title, rows in zip(titles, tables.values(), strict=True):
            print_message(f"\n{title}:")
            show_rows([_spaced_names(row) for row in rows], as_json=False)
        places = {name: report.figures[f"{name}s"]["1"] for name in ("session", "fork", "snapshot")}
        ids = {f"{name}_id": value for name, value in places.items()}
        folder = shlex.quote(str(data or "FOLDER"))
        print_message(NEXT_REPLAY.format(command=command_name(), with_stack=_kept_stack(data), folder=folder, **ids))
    _check_faults(report.faults)


def _kept_stack(data: Path | None) -> str:
    """Return the way to start a demo's stack again, for people."""
    up = f"{command_name()} up --data"
    return f"with {up} {data}" if data is not None else f"if you add --data FOLDER, and then run {up} FOLDER"


def _check_faults(faults: Mapping[str, Json]) -> None:
    if faults:
        raise CheckFailed(", ".join(f"{name}: {value}" for name, value in faults.items()))


@app.command("load", short_help="Run a file of agent runs against a running stack.")
def load_command(
    file: Annotated[
        Path | None,
        typer.Argument(
            help="Agent runs, one JSON object per line; may be gzipped. Without it: the package's sample.",
            dir_okay=False,
            show_default=False,
        ),
    ] = None,
    speed: SpeedOption = 60.0,
    gap_s: Annotated[
        float, typer.Option("--gap", min=0, help="Longest pause between two starts, in recorded seconds.")
    ] = _GAP_S,
    sessions: Annotated[
        int | None, typer.Option("--sessions", min=1, help="Only the first N runs. Of the sample: 60.")
    ] = None,
    seed: SeedOption = 1,
    data: DataOption = None,
    as_json: JsonOption = False,
) -> None:
    """Run the agent runs of a file against a running stack, account for every event.

    The exit code is 1 if an event is missing or duplicated, or if a session did not end as planned.
    """
    from sessionary.infra.demo.demo_run import run_demo
    from sessionary.infra.demo.runs import read_runs, sample_runs
    from sessionary.infra.environment import stack_environment

    progress = Progress()
    report = run_demo(
        sample_runs(sessions or _SAMPLE_RUNS) if file is None else read_runs(file, sessions),
        stack_environment(data),
        speed=speed,
        seed=seed,
        gap_s_max=gap_s,
        progress=progress,
        on_action_error=print_message,
    )
    progress.clear()
    _show_report(report, as_json=as_json)


def open_story(page: Path) -> None:
    """Open a page in a browser, and say where it is."""
    import webbrowser

    opened = webbrowser.open(page.as_uri())
    print_message(f"the story of a session is in {page}" + ("" if opened else "; no browser was found to open it"))


def _show_report(report: "Report", *, as_json: bool) -> None:
    show_object(_spaced_names(report.figures) if not wants_json(as_json) else report.figures, as_json=as_json)
    if report.figures["unacknowledged_transitions"] and not wants_json(as_json):
        print_message("(the next batch of a partition reports the last one's acknowledgement: some stay unknown)")
    if report.faults:
        print_message("sessions that did not end as planned:")
        for row in report.unexpected:
            session = f"{row['outcome']} {row['tenant_id']} {row['session_id']}"
            print_message(f"  {session}: expected {row['expected']}, saw {row['seen']}")
    _check_faults(report.faults)


def _spaced_names(figures: Mapping[str, Json]) -> dict[str, Json]:
    return {name.replace("_", " "): value for name, value in figures.items()}
