"""Child processes of a test: each has a log, and ends with the test or the test run."""

import os
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from sessionary.infra.local.process import Child, tail
from tests.support.logs import log_folder

_STOP_GRACE_S = 10.0
_TAIL_LINES = 40
_READ_LINES, _READ_BYTES = 4_000, 1 << 20
_LIBRARY = '"logger": "aiokafka'


class Processes:
    """Starts child processes; `started` has them in order."""

    def __init__(self, name: str) -> None:
        """Use `name` as the first part of the log files' names."""
        self._name = re.sub(r"[^A-Za-z0-9_.-]+", "_", name)
        self.started: list[Child] = []

    def start(self, module: str, *args: str, env: Mapping[str, str] | None = None, name: str | None = None) -> Child:
        """Run `python -m module args` with `env` added to our environment.

        A second process of the same name shares the log.
        """
        return self.run([sys.executable, "-m", module, *args], env=env, name=name or module.rpartition(".")[2])

    def run(self, argv: Sequence[str], *, env: Mapping[str, str] | None = None, name: str) -> Child:
        """Run a command line."""
        log = log_folder() / f"{self._name}.{name}.log"
        child = Child(argv, log, {**os.environ, "PYTHONUNBUFFERED": "1", **(env or {})})
        self.started.append(child)
        return child

    def tails(self) -> Iterator[tuple[str, str]]:
        """Yield each log's name and last lines, for the report of a failure."""
        for log in dict.fromkeys(child.log for child in self.started):
            yield log.name, log_tail(log)

    def stop(self) -> None:
        """Stop all running processes, the last one first."""
        for child in reversed(self.started):
            child.stop(_STOP_GRACE_S)


def log_tail(log: Path) -> str:
    """Return the last lines of a log, without what would hide a role's own lines.

    That is what aiokafka says of a broker that is away, and lines of the broker that repeat the one
    before but for numbers.
    """
    ours = [line for line in tail(log, _READ_LINES, _READ_BYTES).splitlines() if _LIBRARY not in line]
    kept = [line for last, line in zip(["", *ours], ours, strict=False) if _plain(last) != _plain(line)]
    return "\n".join(kept[-_TAIL_LINES:])


def _plain(line: str) -> str:
    return line if line.startswith("{") else re.sub(r"\d+", "0", line)
