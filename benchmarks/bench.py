"""What every part is given: the options, progress lines, repetition, and what earlier parts of this call found."""

import argparse
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple, TypeVar

from benchmarks.machine import load_average
from benchmarks.results import Result, RunLog

T = TypeVar("T")
RUNS = 3


class Options(NamedTuple):
    """The command line. None: the part's own choice."""

    runs: int = RUNS
    quick: bool = False  # small and once: shows that the programs work; its figures mean nothing
    events: int | None = None
    seed: int = 1
    runs_file: Path | None = None
    keep: bool = False


class Bench:
    """One call of the program. `done` holds the results of the parts before, by part's name, for ratios of one call."""

    def __init__(self, options: Options) -> None:
        """`options` hold for every part."""
        self.options = options
        self.done: dict[str, Sequence[Result]] = {}
        self.log: list[RunLog] = []
        self._began_s = time.monotonic()

    @property
    def runs(self) -> int:
        """How often each figure is measured."""
        return 1 if self.options.quick else self.options.runs

    def event_count(self, full: int, quick: int) -> int:
        """Return how many events a part uses: what the caller named, else its own number."""
        return self.options.events or (quick if self.options.quick else full)

    def print_progress(self, text: str) -> None:
        """Print a progress line to stderr, with the seconds since the start."""
        sys.stderr.write(f"[{time.monotonic() - self._began_s:7.1f} s] {text}\n")
        sys.stderr.flush()

    def run_once(self, title: str, work: Callable[[], T]) -> T:
        """Do one timed piece of work; its time and the load around it go into the results file."""
        self.print_progress(f"{title} …")
        before, began_s = load_average(), time.monotonic()
        outcome = work()
        self.log.append(RunLog(title, round(time.monotonic() - began_s, 3), before, load_average()))
        return outcome

    def repeat(self, title: str, work: Callable[[int], T]) -> list[T]:
        """Call `work(n)` for each run, n from 0; return the outcomes in order."""
        return [self.run_once(f"{title}, run {n + 1} of {self.runs}", lambda n=n: work(n)) for n in range(self.runs)]  # type: ignore[misc]

    def earlier_result(self, part: str, name: str) -> Result | None:
        """Return a figure that an earlier part of this call measured, None where there is none."""
        return next((result for result in self.done.get(part, ()) if result.name == name), None)


def parse_options(words: Sequence[str], letters: Sequence[str]) -> tuple[Options, list[str]]:
    """Return the options and the letters of the parts to run. Exits on a wrong word."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description="measure the pipeline")
    parser.add_argument("--only", default=",".join(letters), help=f"parts, comma-separated: {','.join(letters)}")
    parser.add_argument("--runs", type=int, default=RUNS, help="runs per figure")
    parser.add_argument("--quick", action="store_true", help="small, one run: shows that the programs work")
    parser.add_argument("--events", type=int, help="events (or records, sessions) in place of each part's own number")
    parser.add_argument("--seed", type=int, default=1, help="seed of everything that is drawn")
    parser.add_argument("--runs-file", type=Path, help="recorded agent runs (NDJSON, gzipped or not); default: sample")
    parser.add_argument("--keep", action="store_true", help="keep the temporary folder with data and logs")
    given = parser.parse_args(words)
    wanted = [letter.strip() for letter in given.only.split(",") if letter.strip()]
    if unknown := sorted(set(wanted) - set(letters)):
        parser.error(f"no part {', '.join(unknown)}; there are {', '.join(letters)}")
    if given.runs < 1:
        parser.error("--runs is at least 1")
    if given.events is not None and given.events < 1:
        parser.error("--events is at least 1")
    if given.runs_file is not None and not given.runs_file.is_file():
        parser.error(f"--runs-file: there is no file {given.runs_file}")
    options = Options(given.runs, given.quick, given.events, given.seed, given.runs_file, given.keep)
    return options, wanted


__all__ = ["Bench", "Options", "parse_options"]
