"""Options, progress lines, repetition and earlier figures, for every measurement."""

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
PARTS = ("idle", "latency")


class Options(NamedTuple):
    """The command line. None: the measurement's own choice."""

    runs: int = RUNS
    quick: bool = False  # small, one run: shows that the programs work; its figures mean nothing
    events: int | None = None
    seed: int = 1
    runs_file: Path | None = None
    keep: bool = False
    base: str = "HEAD^"  # the commit that v compares with
    part: str | None = None  # the only figure that p measures; no results file is written then

    @property
    def writes_file(self) -> bool:
        """True if the results are whole and meaningful."""
        return not self.quick and self.part is None


class Bench:
    """One call of the program.

    `done` holds the results of earlier measurements by name, `log` the runs of the current one.
    """

    def __init__(self, options: Options) -> None:
        """`options` hold for every measurement."""
        self.options = options
        self.done: dict[str, Sequence[Result]] = {}
        self.log: list[RunLog] = []
        self._began_s = time.monotonic()

    @property
    def runs(self) -> int:
        """The number of runs of each figure."""
        return 1 if self.options.quick else self.options.runs

    def event_count(self, full: int, quick: int) -> int:
        """Return `--events` if given, else `full`, or `quick` with `--quick`."""
        return self.options.events or (quick if self.options.quick else full)

    def print_progress(self, text: str) -> None:
        """Print a progress line to stderr with the seconds since the start."""
        sys.stderr.write(f"[{time.monotonic() - self._began_s:7.1f} s] {text}\n")
        sys.stderr.flush()

    def run_once(self, title: str, work: Callable[[], T]) -> T:
        """Call `work` and return its result.

        Its time, and the load average before and after, go into the results file.
        """
        self.print_progress(f"{title} …")
        before, began_s = load_average(), time.monotonic()
        outcome = work()
        self.log.append(RunLog(title, round(time.monotonic() - began_s, 3), before, load_average()))
        return outcome

    def repeat(self, title: str, work: Callable[[int], T]) -> list[T]:
        """Call `work(n)` for each run, n from 0; return the results in order."""
        return [self.run_once(f"{title}, run {n + 1} of {self.runs}", lambda n=n: work(n)) for n in range(self.runs)]  # type: ignore[misc]

    def earlier_result(self, part: str, name: str) -> Result | None:
        """Return a figure that an earlier measurement of this call found; None if there is none."""
        return next((result for result in self.done.get(part, ()) if result.name == name), None)


def parse_options(words: Sequence[str], letters: Sequence[str], names: Sequence[str] = ()) -> tuple[Options, list[str]]:
    """Return the options, and the letters or names of the measurements to run.

    Exits if an argument is wrong.
    """
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description="measure the pipeline")
    parser.add_argument(
        "--only", default=",".join(letters), help=f"measurements by letter or name: {','.join(letters)}"
    )
    parser.add_argument("--runs", type=int, default=RUNS, help="runs per figure")
    parser.add_argument("--quick", action="store_true", help="small, one run: shows that the programs work")
    parser.add_argument("--events", type=int, help="events (or sessions) instead of each measurement's own number")
    parser.add_argument("--seed", type=int, default=1, help="seed of everything that is random")
    parser.add_argument(
        "--runs-file", type=Path, help="recorded agent runs (NDJSON, gzipped or not); default: the sample"
    )
    parser.add_argument("--keep", action="store_true", help="keep the temporary folder with data and logs")
    parser.add_argument("--base", default="HEAD^", metavar="COMMIT", help="the commit that v compares with")
    parser.add_argument("--part", choices=PARTS, help="the only figure that p measures; no results file is written")
    given = parser.parse_args(words)
    wanted = [letter.strip() for letter in given.only.split(",") if letter.strip()]
    if unknown := sorted(set(wanted) - {*letters, *names}):
        parser.error(f"there is no measurement {', '.join(unknown)}; choose from {', '.join(letters)}")
    if given.runs < 1:
        parser.error("--runs is at least 1")
    if given.events is not None and given.events < 1:
        parser.error("--events is at least 1")
    if given.runs_file is not None and not given.runs_file.is_file():
        parser.error(f"--runs-file: there is no file {given.runs_file}")
    return Options(**{name: getattr(given, name) for name in Options._fields}), wanted
