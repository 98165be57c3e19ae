"""A figure with its runs, the results file that keeps it, and the table that shows it."""

import json
import statistics
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Literal, NamedTuple

from rich import box
from rich.console import Console
from rich.table import Table

from benchmarks.machine import ROOT, Json

RESULTS = ROOT / "benchmarks" / "results"


class Target(NamedTuple):
    """The target of a figure: `>= value` or `<= value`, in the figure's unit."""

    sense: Literal[">=", "<="]
    value: float

    def met(self, figure: float) -> bool:
        """Return True if the figure meets the target."""
        return figure >= self.value if self.sense == ">=" else figure <= self.value


class Result(NamedTuple):
    """One figure: one value per run.

    `notes`: what a reader must know. `details`: what else was measured, by name.
    """

    name: str
    unit: str
    runs: Sequence[float]
    target: Target | None = None
    notes: Sequence[str] = ()
    details: dict[str, Json] = {}

    @property
    def median(self) -> float:
        """The median of the runs."""
        return statistics.median(self.runs)

    @property
    def spread(self) -> float:
        """(Largest - smallest) / median; 0 if the median is 0."""
        return (max(self.runs) - min(self.runs)) / self.median if self.median else 0.0

    @property
    def met(self) -> bool | None:
        """True if the median meets the target; None if there is no target."""
        return None if self.target is None else self.target.met(self.median)

    def as_json(self) -> dict[str, Json]:
        """Return the figure as JSON values."""
        return {
            "name": self.name,
            "unit": self.unit,
            "median": self.median,
            "min": min(self.runs),
            "max": max(self.runs),
            "spread": round(self.spread, 4),
            "runs": list(self.runs),
            "target": None if self.target is None else {"sense": self.target.sense, "value": self.target.value},
            "met": self.met,
            "notes": list(self.notes),
            "details": self.details,
        }


class RunLog(NamedTuple):
    """One timed piece of work, with the load average before and after it."""

    title: str
    seconds: float
    load_before: Sequence[float]
    load_after: Sequence[float]


def write_results(
    part: str, results: Sequence[Result], runs: Sequence[RunLog], facts: dict[str, Json], folder: Path = RESULTS
) -> Path:
    """Write `<folder>/<part>.json`, return its path."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{part}.json"
    content = {
        "part": part,
        "finished_at": datetime.now(UTC).isoformat(timespec="seconds"),
        **facts,
        "results": [result.as_json() for result in results],
        "runs": [run._asdict() for run in runs],
    }
    draft = path.with_suffix(".json.new")
    draft.write_text(json.dumps(content, indent=1) + "\n")
    draft.replace(path)
    return path


def quantile(ordered: Sequence[float], share: float) -> float:
    """Return the value below which `share` of `ordered` lie."""
    return ordered[min(len(ordered) - 1, int(len(ordered) * share))]


def format_figure(value: float) -> str:
    """Return a number for people: four significant digits, thousands separated."""
    if value == 0 or abs(value) >= 1_000:
        return f"{value:,.0f}"
    return f"{value:.4g}"


def print_results(title: str, results: Iterable[Result], console: Console) -> None:
    """Print the figures as an ASCII table, then their notes."""
    shown = list(results)
    table = Table(title=title, box=box.ASCII2, title_justify="left")
    table.add_column("figure", overflow="fold")
    for column in ("median", "min", "max", "spread", "unit", "target", ""):
        table.add_column(column, justify="left" if column in ("unit", "") else "right", no_wrap=True)
    for result in shown:
        target = "" if result.target is None else f"{result.target.sense} {format_figure(result.target.value)}"
        verdict = {None: "", True: "met", False: "MISSED"}[result.met]
        numbers = [format_figure(value) for value in (result.median, min(result.runs), max(result.runs))]
        table.add_row(result.name, *numbers, f"{result.spread:.0%}", result.unit, target, verdict)
    console.print(table)
    for note in dict.fromkeys(note for result in shown for note in result.notes):
        console.print(f"  - {note}", highlight=False, markup=False)
