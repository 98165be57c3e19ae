"""Rows of partitions that have opened are counted in slices."""

import asyncio
import sys

import pytest

from sessionary.stream_processors.core.model import LogRecord
from sessionary.stream_processors.core.partition import PartitionState
from sessionary.stream_processors.measures import row_census
from sessionary.stream_processors.measures.row_census import count_for_a_slice, count_rows
from tests.core.fold_rig import FoldRig
from tests.core.oracle_rig import START_MS
from tests.core.store_rig import JOB, StoreRig
from tests.support.event_factory import EventFactory

SESSIONS = 40


def loaded_state(sessions: int) -> PartitionState:
    """Return a state as it is after a recovery."""
    rig = FoldRig()
    for number in range(sessions):
        rig.start(EventFactory(f"s{number}"))
    state = JOB.new_state(0)
    for key, row in rig.fold.rows.items():
        state.load(key, row)
    state.finish_loading()
    return state


def test_a_slice_ends_in_time_and_the_next_one_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    states = [loaded_state(20), loaded_state(3)]
    monkeypatch.setattr(row_census, "_SLICE_S", -1.0)
    assert not count_for_a_slice(states)
    monkeypatch.setattr(row_census, "_SLICE_S", 60.0)
    assert [state.tally.is_complete for state in states] == [False, False]
    assert count_for_a_slice(states)
    assert [+state.tally.counts for state in states] == [{("Active", False): 20}, {("Active", False): 3}]
    assert count_for_a_slice([])


def test_what_is_counted_takes_no_memory_afterwards(monkeypatch: pytest.MonkeyPatch) -> None:
    """None of the rows stays decoded, nor does the room that their keys had."""
    rig = StoreRig()
    for number in range(SESSIONS):
        agent = EventFactory(f"s{number}")
        rig.fold_records([LogRecord(number, START_MS, agent.key.encoded(), agent.event_bytes("session_created"))])
    rig.recover_from(rig.store, [])
    monkeypatch.setattr(row_census, "_SLICE_S", 60.0)
    waiting_bytes = sys.getsizeof(rig.state.tally._waiting)
    assert count_for_a_slice([rig.state])
    assert sum(rig.state.tally.counts.values()) == SESSIONS
    assert rig.store.rows._recent == {}
    assert sys.getsizeof(rig.state.tally._waiting) == sys.getsizeof(set()) < waiting_bytes


def test_the_rows_of_a_partition_that_opens_later_are_counted_too() -> None:
    async def story() -> None:
        states: list[PartitionState] = []
        counting = asyncio.create_task(count_rows(lambda: states))
        await asyncio.sleep(0)
        states.append(loaded_state(2))
        async with asyncio.timeout(60):
            while not states[0].tally.is_complete:
                await asyncio.sleep(0.01)
        counting.cancel()

    asyncio.run(story())
