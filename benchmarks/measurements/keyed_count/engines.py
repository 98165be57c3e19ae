"""The start of each engine, and the names of its changelog and its group."""

import os
import sys
from collections.abc import Callable, Mapping
from importlib.metadata import version
from pathlib import Path
from typing import NamedTuple

from benchmarks.harness import peers
from benchmarks.machine import ROOT
from benchmarks.measurements.keyed_count.job import Job

QUIX_PROGRAM = peers.KEYED_COUNT / "run_quix.py"


class Engine(NamedTuple):
    """An engine and one way to run it.

    `target`: the least ratio of our rate to its rate. `cost_target`: the least ratio of its CPU
    time per event to ours.
    """

    name: str
    version: str
    command: Callable[[Job], list[str]]  # may raise `peers.PeerUnavailable`
    names: Callable[[str, str], tuple[str, str]]  # run id and source topic → group, changelog topic
    target: float | None = None
    cost_target: float | None = None
    few_events: bool = False  # it is so slow that it gets a small source topic


def _our_command(job: Job) -> list[str]:
    places = [job.bootstrap_servers, job.group, job.source, job.output, job.changelog]
    return [sys.executable, "-m", "benchmarks.measurements.keyed_count.run_ours", *places]


def _streams_command(store: str) -> Callable[[Job], list[str]]:
    def command(job: Job) -> list[str]:
        places = [job.bootstrap_servers, job.group, job.source, job.output, store, str(job.folder)]
        return [*peers.streams_command(), *places]

    return command


def _quix_command(job: Job) -> list[str]:
    places = [job.bootstrap_servers, job.group, job.source, job.output, str(job.folder)]
    return [str(peers.quix_python()), str(QUIX_PROGRAM), *places]


def _faust_command(job: Job) -> list[str]:
    places = [job.bootstrap_servers, job.group, job.source, job.output, str(job.folder)]
    return [sys.executable, "-m", "benchmarks.measurements.keyed_count.run_faust", *places]


def _our_names(run: str, source: str) -> tuple[str, str]:
    return f"{run}.processor", f"{run}-counts-changelog"


def _plain_names(run: str, source: str) -> tuple[str, str]:
    return run, f"{run}-counts-changelog"


def _quix_names(run: str, source: str) -> tuple[str, str]:
    return run, f"changelog__{run}--{source}--default"


ENGINES: Mapping[str, Engine] = {
    engine.name: engine
    for engine in (
        Engine("ours", f"sessionary {version('sessionary')}", _our_command, _our_names),
        Engine(
            "streams-memory",
            f"Kafka Streams {peers.STREAMS_VERSION}",
            _streams_command("memory"),
            _plain_names,
            target=0.6,
            cost_target=1.0,
        ),
        Engine(
            "streams-rocksdb", f"Kafka Streams {peers.STREAMS_VERSION}", _streams_command("rocksdb"), _plain_names, 1.0
        ),
        Engine("quix", f"Quix Streams {peers.quix_version()}", _quix_command, _quix_names, 3.0),
        Engine("faust", f"Faust {version('faust-streaming')}", _faust_command, _plain_names, 20.0, few_events=True),
    )
}


def program_environment(folder: Path) -> dict[str, str]:
    """Return the environment of an engine's program: ours, with the project on PYTHONPATH.

    `folder`: for temporary files.
    """
    return {**os.environ, "PYTHONPATH": str(ROOT), "PYTHONUNBUFFERED": "1", "TMPDIR": str(folder)}
