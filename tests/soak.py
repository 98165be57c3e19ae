"""Runs the parts of the soak one after another: `make soak`, or `make soak PART='sinks load'`.

Each part is one run of pytest, which prints its lines as it goes, and is ended after 30 minutes.
`build/soak/<part>.log` has its output. `build/soak/summary.md` has the newest result of each part
with its commit, duration and seeds; it is written anew after each part.
"""

import json
import subprocess
import sys
import time
import xml.etree.ElementTree as ElementTree
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from signal import SIGINT, SIGKILL
from threading import Timer
from typing import Final

from tests.style.project import ROOT
from tests.support.levels import OPTION, SOAK, read_levels

FOLDER: Final = ROOT / "build" / "soak"
PART_S_MAX: Final = 1_800.0
SEED: Final = "seed"  # the property by which a test names its seed
_END_S: Final = 60.0  # for pytest to end its workers and their servers


@dataclass(frozen=True, slots=True)
class Result:
    """One run of a part."""

    part: str
    commit: str
    began: str  # UTC
    minutes: float
    seeds: list[str]
    outcome: str  # `passed`, `failed` or `took too long`, and how many tests had which outcome


def main(words: Sequence[str]) -> int:
    """Run the parts that are named before `--`, or all of them, with pytest's options after it."""
    split = words.index("--") if "--" in words else len(words)
    parts, options = read_levels().parts(), words[split + 1 :]
    chosen = words[:split] or parts
    if unknown := [part for part in chosen if part not in parts]:
        sys.stderr.write(f"there is no part {', '.join(unknown)}, but {', '.join(parts)}\n")
        return 2
    FOLDER.mkdir(parents=True, exist_ok=True)
    results: list[Result] = []
    for number, part in enumerate(chosen, 1):
        _say(f"part {number} of {len(chosen)}: {part}\n")
        results.append(_run_part(part, options))
        (FOLDER / f"{part}.json").write_text(json.dumps(asdict(results[-1])))
        (FOLDER / "summary.md").write_text(summary_of(_newest_results(parts)))
    _say(f"{summary_of(results)}\n{(FOLDER / 'summary.md').relative_to(ROOT)} has the newest run of each part\n")
    return 0 if all(result.outcome.startswith("passed") for result in results) else 1


def _say(text: str) -> None:
    sys.stdout.write(text)
    sys.stdout.flush()


def _run_part(part: str, options: Sequence[str]) -> Result:
    describe = ["git", "describe", "--always", "--abbrev=12", "--dirty", "--exclude=*"]
    commit = subprocess.run(describe, cwd=ROOT, capture_output=True, text=True, check=True).stdout.strip()
    began, began_s = time.strftime("%Y-%m-%d %H:%M", time.gmtime()), time.monotonic()
    report = FOLDER / f"{part}.xml"
    report.unlink(missing_ok=True)
    command = [sys.executable, "-m", "pytest", *options, f"{OPTION}={SOAK}{part}", f"--junit-xml={report}", "tests"]
    code = run_with_limit(command, FOLDER / f"{part}.log", PART_S_MAX)
    minutes = (time.monotonic() - began_s) / 60
    outcome = {0: "passed", None: "took too long"}.get(code, "failed")
    counts, seeds = read_report(report) if report.exists() else ("no report", [])
    return Result(part, commit, began, minutes, seeds, f"{outcome}: {counts}")


def run_with_limit(command: Sequence[str], log: Path, limit_s: float) -> int | None:
    """Run a command, show and keep its output; return its exit code, None if it took too long."""
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as child:
        limits = [Timer(limit_s, child.send_signal, [SIGINT]), Timer(limit_s + _END_S, child.send_signal, [SIGKILL])]
        began_s = time.monotonic()
        for limit in limits:
            limit.start()
        try:
            with log.open("w") as kept:
                for line in child.stdout or ():
                    _say(line)
                    kept.write(line)
            code = child.wait()
        finally:
            for limit in limits:
                limit.cancel()
    return code if time.monotonic() - began_s < limit_s else None


def read_report(report: Path) -> tuple[str, list[str]]:
    """Return how many tests had which outcome, and the seeds as `test=seed`, from pytest's XML."""
    root = ElementTree.parse(report).getroot()
    suite = root if root.tag == "testsuite" else root.find("testsuite")
    assert suite is not None
    counts = {name: int(suite.get(name, 0)) for name in ("failures", "errors", "skipped", "tests")}
    cases = ((case.get("name"), case.iterfind("properties/property")) for case in suite.iterfind("testcase"))
    seeds = [f"{name}={one.get('value')}" for name, found in cases for one in found if one.get("name") == SEED]
    return ", ".join(f"{number} {name}" for name, number in counts.items() if number or name == "tests"), seeds


def _newest_results(parts: Iterable[str]) -> list[Result]:
    files = [FOLDER / f"{part}.json" for part in parts]
    return [Result(**json.loads(file.read_text())) for file in files if file.exists()]


def summary_of(results: Sequence[Result]) -> str:
    """Return a table with a line for each result."""
    lines = ["| part | commit | began (UTC) | minutes | seeds | result |", "|---|---|---|---|---|---|"]
    for one in results:
        cells = (one.part, one.commit, one.began, f"{one.minutes:.1f}", ", ".join(one.seeds) or "none", one.outcome)
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join([*lines, ""])


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
