"""Results files as values."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks.results import RESULTS


class Figure(NamedTuple):
    """One figure of a results file. `target` is as the file has it; None without one."""

    name: str
    unit: str
    median: float
    low: float
    high: float
    runs: int
    target: str | None
    met: bool | None
    notes: tuple[str, ...] = ()


class ResultFile(NamedTuple):
    """A results file: where and of what it was measured, and its figures by name."""

    part: str
    finished_at: str  # ISO 8601
    machine: Mapping[str, Any]
    versions: Mapping[str, str]
    commit: str
    figures: Mapping[str, Figure]


def read_results(folder: Path = RESULTS) -> dict[str, ResultFile]:
    """Return the results files of a folder, by part."""
    found = [_read_file(path) for path in sorted(folder.glob("*.json"))]
    return {result.part: result for result in found}


def _read_file(path: Path) -> ResultFile:
    content = json.loads(path.read_text("utf-8"))
    figures = [_read_figure(one) for one in content["results"]]
    source = content["source"]
    return ResultFile(
        part=content["part"],
        finished_at=content["finished_at"],
        machine=content["machine"],
        versions=content["versions"],
        commit=source["commit"] + (" with changes" if source["dirty"] else ""),
        figures={figure.name: figure for figure in figures},
    )


def _read_figure(one: Mapping[str, Any]) -> Figure:
    target = one["target"]
    said = None if target is None else f"{target['sense']} {target['value']:g}"
    runs, notes = len(one["runs"]), tuple(one["notes"])
    return Figure(one["name"], one["unit"], one["median"], one["min"], one["max"], runs, said, one["met"], notes)
