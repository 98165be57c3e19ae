"""Waits until the pipeline has finished a demo run: by its rows, never by a fixed time."""

import time
from collections.abc import Callable, Hashable
from pathlib import Path
from typing import NamedTuple

from sessionary.infra.clickhouse_client import ClickHouseClient, Row
from sessionary.infra.demo.report import MISSING, PROGRESS
from sessionary.infra.local.process import Child, tail
from sessionary.schemas.errors import Unavailable
from sessionary.schemas.settings import ClickHouseSettings

# The folders of the examples that a demo runs.


def example_folder(demo: Path, name: str) -> Path:
    """Return the folder of the example `name`: next to a demo's module, or in the repository.

    `demo` is the path of a module in the demo's package.
    """
    packed = demo.parent / "examples" / name
    return packed if packed.is_dir() else demo.parents[4] / "examples" / name


# The output of a child process, and a wait for a line of it.


_LINE_PATIENCE_S = 60.0
_LINE_PAUSE_S = 0.05


def lines_of(child: Child) -> list[str]:
    """Return the output of a process so far, in whole lines."""
    text = child.log.read_text("utf-8") if child.log.exists() else ""
    return text[: text.rfind("\n") + 1].splitlines()


def wait_for_line(
    child: Child, is_it: Callable[[str], bool], purpose: str, patience_s: float = _LINE_PATIENCE_S
) -> str:
    """Return the first line of a process for which `is_it` holds. Blocks for `patience_s` at most.

    Raises `Unavailable` if none comes.
    """
    deadline = time.monotonic() + patience_s
    while True:
        ended = child.exit_code is not None
        for line in lines_of(child):
            if is_it(line):
                return line
        if ended or time.monotonic() > deadline:
            raise Unavailable(f"{purpose} did not come; the log ends with: {tail(child.log, 3)}", 1.0)
        time.sleep(_LINE_PAUSE_S)


_PAUSE_S = 0.4
_PATIENCE_S = 120.0


class PatientClickHouse(ClickHouseClient):
    """A client whose queries wait for a server that is away, for two minutes at most."""

    def __init__(self, settings: ClickHouseSettings, progress: Callable[[str], None]) -> None:
        """`progress` is called while the server is away."""
        super().__init__(settings)
        self._progress = progress

    def fetch_rows(self, sql: str, **parameters: str | int | float | None) -> list[Row]:
        """Return rows as `ClickHouseClient` does. Raises `Unavailable` after two minutes."""
        deadline = time.monotonic() + _PATIENCE_S
        while True:
            try:
                return super().fetch_rows(sql, **parameters)
            except Unavailable as error:
                if time.monotonic() >= deadline:
                    raise
                self._progress(f"waiting: {error}")
                time.sleep(_PAUSE_S)


class PipelineStatus(NamedTuple):
    """The result of one query.

    `done`: nothing is left to do. `state`: differs from the last one if the pipeline has moved.
    `text`: a progress line.
    """

    done: bool
    state: Hashable
    text: str


def wait_until_done(check: Callable[[], PipelineStatus], stall_s: float, progress: Callable[[str], None]) -> bool:
    """Block until `check` reports that all is done, or until nothing has moved for `stall_s`.

    Return True if all is done. `progress` is called with each text before that. The time that
    `check` waits, for a server that is away, is no stall.
    """
    previous: Hashable = None
    moved_at = asked_at = time.monotonic()
    while not (seen := check()).done:
        moved_at += time.monotonic() - asked_at
        progress(seen.text)
        if seen.state != previous:
            previous, moved_at = seen.state, time.monotonic()
        elif time.monotonic() - moved_at > stall_s:
            return False
        time.sleep(_PAUSE_S)
        asked_at = time.monotonic()
    return True


def check_sessions(clickhouse: ClickHouseClient, demo_id: str) -> PipelineStatus:
    """Check that every session has ended as planned and every requested clean-up is confirmed."""
    row = clickhouse.fetch_one(PROGRESS, demo=demo_id)
    text = f"{row['finished']} of {row['planned']} sessions finished, {row['uncleaned']} clean-ups outstanding"
    return PipelineStatus(row["finished"] == row["planned"] and row["uncleaned"] == 0, tuple(row.items()), text)


def check_rows(clickhouse: ClickHouseClient, demo_id: str) -> PipelineStatus:
    """Check that every acknowledged event and every outcome has its row."""
    row = clickhouse.fetch_one(MISSING, demo=demo_id)
    # A batch's acknowledgement is recorded by the next batch, so the last one's may stay unknown.
    waiting = {name: count for name, count in row.items() if count and name != "unacknowledged"}
    text = "waiting for rows: " + ", ".join(f"{name} {count}" for name, count in waiting.items())
    return PipelineStatus(not any(count > 0 for count in waiting.values()), tuple(row.items()), text)
