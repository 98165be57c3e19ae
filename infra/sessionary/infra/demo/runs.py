"""Recorded agent runs: one JSON object per line, gzipped or not.

`{"run": "task-000/1", "task": …, "duration_s": …, "start_offset_s": …, "events": [[t_s, "start"],
[t_s, "llm", tokens_in, tokens_out], [t_s, "tool", name, succeeded], …]}`; `t_s` is the time since
the run's start in seconds.
"""

import gzip
import json
from collections.abc import Iterator
from importlib.resources import as_file, files
from pathlib import Path
from typing import IO, NamedTuple, cast

from sessionary.schemas.errors import Invalid

_GZIP_MAGIC = b"\x1f\x8b"
_SAMPLE = "sample_runs.ndjson.gz"


class ModelCall(NamedTuple):
    """A call of a model, `t_s` seconds after the run's start."""

    t_s: float
    tokens_in: int
    tokens_out: int


class ToolCall(NamedTuple):
    """A call of a tool, `t_s` seconds after the run's start."""

    t_s: float
    name: str
    succeeded: bool


Step = ModelCall | ToolCall


class Run(NamedTuple):
    """One recorded run. `start_offset_s`: its start within the recording, in seconds."""

    name: str
    task: str
    duration_s: float
    start_offset_s: float
    steps: tuple[Step, ...]


def _parse_step(event: object) -> Step | None:
    match event:
        case [int() | float(), "start"]:
            return None
        case [int() | float() as t_s, "llm", int() as tokens_in, int() as tokens_out]:
            return ModelCall(float(t_s), tokens_in, tokens_out)
        case [int() | float() as t_s, "tool", str() as name, bool() as succeeded]:
            return ToolCall(float(t_s), name, succeeded)
    raise ValueError(f"{event!r} is not a start, llm or tool event")


def parse_run(line: str) -> Run:
    """Parse one line. Raises `ValueError`, also for a missing field or one of a wrong type."""
    try:
        raw = json.loads(line)
        steps = tuple(step for event in raw["events"] if (step := _parse_step(event)) is not None)
        return Run(
            str(raw["run"]),
            str(raw["task"]),
            float(raw["duration_s"]),
            float(raw["start_offset_s"]),
            tuple(sorted(steps, key=lambda step: step.t_s)),
        )
    except (KeyError, TypeError) as error:
        raise ValueError(f"{type(error).__name__}: {error}") from None


def _read_lines(path: Path) -> Iterator[str]:
    with path.open("rb") as plain:
        zipped = plain.read(2) == _GZIP_MAGIC
        plain.seek(0)
        # GzipFile is a binary stream, but is not declared as one.
        source = cast("IO[bytes]", gzip.GzipFile(fileobj=plain)) if zipped else plain
        for line in source:
            yield line.decode()


def read_runs(path: Path, count_max: int | None = None) -> list[Run]:
    """Read the runs of a file, at most `count_max`.

    Raises `Invalid` with the line's number, `OSError`.
    """
    runs: list[Run] = []
    lines = 0
    try:
        for line in _read_lines(path):
            if count_max is not None and len(runs) >= count_max:
                break
            lines += 1
            if line.strip():
                runs.append(parse_run(line))
    except (ValueError, EOFError, gzip.BadGzipFile) as error:
        raise Invalid("undecodable", f"{path}, line {lines}: {error}") from None
    if not runs:
        raise Invalid("undecodable", f"{path} holds no runs: it needs one JSON object per line")
    return runs


def sample_runs(count: int) -> list[Run]:
    """Return `count` runs of the package's sample of 60; beyond 60 the sample is repeated."""
    with as_file(files("sessionary.infra.demo") / _SAMPLE) as path:
        sample = read_runs(path)
    return [sample[n % len(sample)] for n in range(count)]
