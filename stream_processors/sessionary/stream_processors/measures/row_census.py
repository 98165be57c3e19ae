"""Counts the rows of partitions that have opened, a few at a time on the event loop.

A row is decoded to be counted, which takes some 10 µs, so that a partition does not wait for it
when it opens. 10,000 rows are counted within two seconds.
"""

import asyncio
import time
from collections.abc import Callable, Iterable

from sessionary.stream_processors.core.partition import PartitionState

_SLICE_S = 0.002  # of counting, between two pauses
_PAUSE_S = 0.02
_IDLE_S = 0.5  # between two looks if all rows are counted
_ROWS = 16  # between two readings of the clock


def count_for_a_slice(states: Iterable[PartitionState]) -> bool:
    """Count rows for 2 ms at most; return whether all of them are counted then."""
    ends_s = time.perf_counter() + _SLICE_S
    for state in states:
        while not state.tally.is_complete:
            if time.perf_counter() > ends_s:
                return False
            state.tally.count_waiting(state.peek_row, _ROWS)
    return True


async def count_rows(states: Callable[[], Iterable[PartitionState]]) -> None:
    """Count the rows of the states of open partitions, for ever. `states` returns them."""
    while True:
        await asyncio.sleep(_IDLE_S if count_for_a_slice(states()) else _PAUSE_S)
