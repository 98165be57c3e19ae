"""Waits until the pipeline has nothing left to do for a play: by what its rows say, never by a fixed time."""

import time
from collections.abc import Callable, Hashable
from typing import NamedTuple

from sessionary.infra.clickhouse import ClickHouse
from sessionary.infra.demo import queries

_PAUSE_S = 0.4


class Look(NamedTuple):
    """One look at the pipeline: is all done, what would differ if it had moved, and a line for people."""

    done: bool
    state: Hashable
    text: str


def wait_for(look: Callable[[], Look], stall_s: float, progress: Callable[[str], None]) -> bool:
    """Look again and again until all is done, or nothing has moved for `stall_s`; return whether all is done."""
    former: Hashable = None
    moved_at = time.monotonic()
    while not (seen := look()).done:
        progress(seen.text)
        if seen.state != former:
            former, moved_at = seen.state, time.monotonic()
        elif time.monotonic() - moved_at > stall_s:
            return False
        time.sleep(_PAUSE_S)
    return True


def sessions_at_rest(clickhouse: ClickHouse, play_id: str) -> Look:
    """Whether every session went its planned way and every requested clean-up is confirmed."""
    row = clickhouse.one(queries.PROGRESS, play=play_id)
    text = f"{row['finished']} of {row['planned']} sessions at their end, {row['uncleaned']} clean-ups outstanding"
    return Look(row["finished"] == row["planned"] and row["uncleaned"] == 0, tuple(row.items()), text)


def rows_complete(clickhouse: ClickHouse, play_id: str) -> Look:
    """Whether every acknowledged event and every outcome has its row."""
    row = clickhouse.one(queries.MISSING, play=play_id)
    # Of a partition's last batch nobody tells the acknowledgement, where nothing comes after it.
    waiting = {name: count for name, count in row.items() if count and name != "unacknowledged"}
    text = "waiting for rows: " + ", ".join(f"{name} {count}" for name, count in waiting.items())
    return Look(not any(count > 0 for count in waiting.values()), tuple(row.items()), text)


__all__ = ["Look", "rows_complete", "sessions_at_rest", "wait_for"]
