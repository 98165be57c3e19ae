"""Waits until the pipeline has finished a demo run: by its rows, never by a fixed time."""

import time
from collections.abc import Callable, Hashable
from typing import NamedTuple

from sessionary.infra.clickhouse_client import ClickHouseClient
from sessionary.infra.demo import queries

_PAUSE_S = 0.4


class PipelineStatus(NamedTuple):
    """What one query found.

    `done`: nothing is left to do. `state`: differs from the last one if the pipeline has moved.
    `text`: a progress line.
    """

    done: bool
    state: Hashable
    text: str


def wait_until_done(check: Callable[[], PipelineStatus], stall_s: float, progress: Callable[[str], None]) -> bool:
    """Block until `check` reports that all is done, or until nothing has moved for `stall_s`.

    Return True if all is done. `progress` is called with each text before that.
    """
    previous: Hashable = None
    moved_at = time.monotonic()
    while not (seen := check()).done:
        progress(seen.text)
        if seen.state != previous:
            previous, moved_at = seen.state, time.monotonic()
        elif time.monotonic() - moved_at > stall_s:
            return False
        time.sleep(_PAUSE_S)
    return True


def check_sessions(clickhouse: ClickHouseClient, demo_id: str) -> PipelineStatus:
    """Check that every session has ended as planned and every requested clean-up is confirmed."""
    row = clickhouse.fetch_one(queries.PROGRESS, demo=demo_id)
    text = f"{row['finished']} of {row['planned']} sessions finished, {row['uncleaned']} clean-ups outstanding"
    return PipelineStatus(row["finished"] == row["planned"] and row["uncleaned"] == 0, tuple(row.items()), text)


def check_rows(clickhouse: ClickHouseClient, demo_id: str) -> PipelineStatus:
    """Check that every acknowledged event and every outcome has its row."""
    row = clickhouse.fetch_one(queries.MISSING, demo=demo_id)
    # A batch's acknowledgement is recorded by the next batch, so the last one's may stay unknown.
    waiting = {name: count for name, count in row.items() if count and name != "unacknowledged"}
    text = "waiting for rows: " + ", ".join(f"{name} {count}" for name, count in waiting.items())
    return PipelineStatus(not any(count > 0 for count in waiting.values()), tuple(row.items()), text)


__all__ = ["PipelineStatus", "check_rows", "check_sessions", "wait_until_done"]
