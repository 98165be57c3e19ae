"""`sessionary demo` and `sessionary load`: recorded agent runs, played as sessions, accounted for event by event."""

import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from sessionary.infra.cli.errors import CheckFailed
from sessionary.infra.cli.options import DataOption, JsonOption
from sessionary.infra.cli.output import Json, Progress, remark, show_object, wants_json
from sessionary.infra.cli.stack import START_S_MAX, running, tell_deaths

if TYPE_CHECKING:
    from sessionary.infra.demo.report import Report

# Recorded seconds between two starts: in a demo nobody wants to wait for the pauses between runs.
_DEMO_GAP_S = 12.0
_LOAD_GAP_S = 86_400.0

SpeedOption = Annotated[
    float,
    typer.Option(
        "--speed", min=0.1, max=10_000, help="Shortens pauses and limits; the inactivity budget stays above 3 s."
    ),
]
SeedOption = Annotated[int, typer.Option("--seed", help="Chooses who finishes, pauses, fails, falls silent.")]


def demo(
    sessions: Annotated[int, typer.Option("--sessions", min=1, max=10_000, help="How many runs to play.")] = 60,
    speed: SpeedOption = 60.0,
    seed: SeedOption = 1,
    as_json: JsonOption = False,
) -> None:
    """Start a stack on a temporary folder, warm it up, play agent runs, account for every event, stop.

    Ends with 1 where an event is missing or doubled, or a session went another way than planned.
    """
    from sessionary.infra.demo.runner import run_play, warm_up
    from sessionary.infra.demo.runs import sample_runs
    from sessionary.infra.stack import Stack

    began = time.monotonic()
    progress = Progress()
    with tempfile.TemporaryDirectory(prefix="sessionary-demo-") as folder:
        stack = Stack(Path(folder), on_change=tell_deaths)
        with running(stack):
            progress("starting broker, ClickHouse, processor and sinks (the very first time: about a minute)")
            stack.wait_ready(START_S_MAX)
            started_s = time.monotonic() - began
            warm_up(stack.environ, progress, remark)
            report = run_play(
                sample_runs(sessions),
                stack.environ,
                speed=speed,
                seed=seed,
                gap_s_max=_DEMO_GAP_S,
                progress=progress,
                on_trouble=remark,
            )
            progress("stopping the stack")
    progress.end()
    report.figures["play_s"] = report.figures["elapsed_s"]
    report.figures["stack_start_s"] = round(started_s, 1)
    report.figures["elapsed_s"] = round(time.monotonic() - began, 1)
    _show(report, as_json=as_json)


def load(
    file: Annotated[Path, typer.Argument(help="Runs, one JSON object a line; may be gzipped.", dir_okay=False)],
    speed: SpeedOption = 60.0,
    sessions: Annotated[int | None, typer.Option("--sessions", min=1, help="The first N runs only.")] = None,
    seed: SeedOption = 1,
    data: DataOption = None,
    as_json: JsonOption = False,
) -> None:
    """Play the agent runs of a file against a running stack and account for every event.

    Ends with 1 where an event is missing or doubled, or a session went another way than planned.
    """
    from sessionary.infra.demo.runner import run_play
    from sessionary.infra.demo.runs import read_runs
    from sessionary.infra.environment import stack_environment

    progress = Progress()
    report = run_play(
        read_runs(file, sessions),
        stack_environment(data),
        speed=speed,
        seed=seed,
        gap_s_max=_LOAD_GAP_S,
        progress=progress,
        on_trouble=remark,
    )
    progress.end()
    _show(report, as_json=as_json)


def _show(report: "Report", *, as_json: bool) -> None:
    show_object(_flat(report.figures) if not wants_json(as_json) else report.figures, as_json=as_json)
    if report.faults:
        remark("sessions that went another way than planned:")
        for row in report.unexpected:
            remark(f"  {row['outcome']} {row['tenant_id']} {row['session_id']}: {row['seen']} for {row['expected']}")
        raise CheckFailed(", ".join(f"{name}: {count}" for name, count in report.faults.items()))


def _flat(figures: Mapping[str, Json]) -> dict[str, Json]:
    return {name.replace("_", " "): value for name, value in figures.items()}


__all__ = ["demo", "load"]
