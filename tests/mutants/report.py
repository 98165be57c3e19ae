"""The report: a table by module, survivors as a diff, the score; and all of it as JSON."""

import json
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from difflib import ndiff
from pathlib import Path
from typing import Literal, NamedTuple

from tests.mutants.trials import Result

MutantOutcome = Literal["killed", "equivalent", "survived"]
_COLUMNS = ("mutants", "killed", "equivalent", "survived", "score")


class Tally(NamedTuple):
    """Counts of mutants by outcome; `equivalent` are those listed with a reason."""

    mutants: int
    killed: int
    equivalent: int
    survived: int

    @property
    def score(self) -> float:
        """Return the share of killed mutants in percent, without equivalents."""
        total = self.killed + self.survived
        return 100 * self.killed / total if total else 100.0


def outcome(result: Result, known: Mapping[str, str]) -> MutantOutcome:
    """Return the outcome, given the mutants that are listed as equivalent."""
    if result.killed_by is not None:
        return "killed"
    return "equivalent" if result.mutant.id in known else "survived"


def tally(results: Sequence[Result], known: Mapping[str, str]) -> Tally:
    """Count outcomes."""
    counts = Counter(outcome(result, known) for result in results)
    return Tally(len(results), counts["killed"], counts["equivalent"], counts["survived"])


def by_module(results: Iterable[Result], known: Mapping[str, str]) -> dict[str, Tally]:
    """Count outcomes per module, in the order in which modules first occur."""
    parts: dict[str, list[Result]] = {}
    for result in results:
        parts.setdefault(result.mutant.module, []).append(result)
    return {module: tally(part, known) for module, part in parts.items()}


def wrongly_listed(results: Iterable[Result], known: Mapping[str, str]) -> list[str]:
    """Return the ids of listed mutants that a test kills."""
    return [result.mutant.id for result in results if result.mutant.id in known and result.killed_by is not None]


def difference(before: str, after: str) -> list[str]:
    """Return the lines that differ, with `- ` for the original and `+ ` for the mutant."""
    return [line for line in ndiff(before.splitlines(), after.splitlines()) if line[0] in "-+"]


def report(results: Sequence[Result], known: Mapping[str, str]) -> str:
    """Return the survivors and the table as text."""
    lines: list[str] = []
    for result in results:
        if outcome(result, known) == "survived":
            mutant = result.mutant
            lines += [f"survived: {mutant.id}", f"  {mutant.module}.py, line {mutant.line}, {mutant.operator}"]
            lines += [*(f"    {line}" for line in difference(mutant.before, mutant.after)), ""]
    lines += [f"listed as equivalent, but killed: {id_}" for id_ in wrongly_listed(results, known)]
    rows = {**by_module(results, known), "all": tally(results, known)}
    width = max(map(len, rows))
    lines.append(f"{'module':{width}}" + "".join(f"{name:>12}" for name in _COLUMNS))
    for module, row in rows.items():
        lines.append(f"{module:{width}}" + "".join(f"{count:12,}" for count in row) + f"{row.score:10.1f} %")
    return "\n".join(lines)


def write_json(results: Sequence[Result], known: Mapping[str, str], path: Path) -> None:
    """Write all results as JSON."""
    path.parent.mkdir(exist_ok=True)
    rows = {**by_module(results, known), "all": tally(results, known)}
    mutants = [
        {
            "id": mutant.id,
            "module": mutant.module,
            "line": mutant.line,
            "operator": mutant.operator,
            "before": mutant.before,
            "after": mutant.after,
            "outcome": outcome(result, known),
            "killed_by": result.killed_by,
            "why_equivalent": known.get(mutant.id),
            "cpu_s": round(result.cpu_s, 3),
        }
        for result in results
        for mutant in [result.mutant]
    ]
    tallies = {module: {**row._asdict(), "score": round(row.score, 2)} for module, row in rows.items()}
    path.write_text(json.dumps({"modules": tallies, "mutants": mutants}, indent=1) + "\n", "utf-8")
