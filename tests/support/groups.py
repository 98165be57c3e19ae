"""Prints a line per group of tests instead of a dot per test (`--groups`).

A group is a folder below `tests/`, or a file in folders whose files take long.
"""

import time
from collections import Counter
from collections.abc import Sequence

import pytest

_BY_FILE = ("integration", "simulation", "chaos")


def group_of(nodeid: str) -> str:
    """Return the group of a test by its id."""
    path = nodeid.partition("::")[0].removeprefix("tests/")
    folder = path.partition("/")[0]
    return path.removesuffix(".py") if folder in _BY_FILE else folder


class Groups:
    """Plugin of the reporting process: counts outcomes and prints a line when a group has ended."""

    def __init__(self, reporter: pytest.TerminalReporter) -> None:
        self._reporter = reporter
        self._left: Counter[str] = Counter()
        self._outcomes: dict[str, Counter[str]] = {}
        self._spent_s: Counter[str] = Counter()
        self._started = time.monotonic()
        self._collected = False

    @pytest.hookimpl(optionalhook=True)
    def pytest_xdist_node_collection_finished(self, node: object, ids: Sequence[str]) -> None:
        """Take the tests from the first worker; all workers collect the same."""
        self._expect(ids)

    def pytest_collection_finish(self, session: pytest.Session) -> None:
        """Take the tests if one process runs everything."""
        if session.items:
            self._expect([item.nodeid for item in session.items])

    def _expect(self, ids: Sequence[str]) -> None:
        if not self._collected:
            self._collected = True
            self._left.update(group_of(nodeid) for nodeid in ids)

    @pytest.hookimpl(tryfirst=True)
    def pytest_report_teststatus(self, report: pytest.TestReport) -> tuple[str, str, str] | None:
        """Print no letter per test; pytest's last line still counts it."""
        outcome = _outcome(report)
        if outcome is None or hasattr(report, "wasxfail"):
            return None
        return outcome, "", "" if outcome == "passed" else outcome.upper()

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Count a phase of a test; the last test of a group prints the line."""
        group = group_of(report.nodeid)
        counts = self._outcomes.setdefault(group, Counter())
        self._spent_s[group] += report.duration  # type: ignore[assignment]  # Counter's stubs know integers only
        outcome = _outcome(report)
        if outcome is not None:
            counts["xfailed" if hasattr(report, "wasxfail") else outcome] += 1
        if report.failed:
            self._line(f"{outcome}: {report.nodeid}")
        if report.when == "teardown":
            self._left[group] -= 1
            if self._left[group] == 0:
                self._report_group(group, counts)

    def _report_group(self, group: str, counts: Counter[str]) -> None:
        outcome = ", ".join(
            f"{counts[name]} {name}" for name in ("failed", "error", "passed", "xfailed", "skipped") if counts[name]
        )
        self._line(f"{group:<34} {outcome} ({self._spent_s[group]:.1f} s of tests)")

    def _line(self, text: str) -> None:
        self._reporter.ensure_newline()
        self._reporter.write_line(f"{time.monotonic() - self._started:5.0f} s  {text}")


def _outcome(report: pytest.TestReport) -> str | None:
    """Return how pytest counts this phase of a test; None if it does not."""
    if report.failed:
        return "failed" if report.when == "call" else "error"
    return report.outcome if report.when == "call" or report.skipped else None
