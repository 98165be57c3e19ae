"""A worker's gauges, read from the owners of its partitions; without a broker."""

import asyncio
import logging
import sys
import time
from collections.abc import Callable, Coroutine
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from sessionary.schemas.ids import partition_of
from sessionary.stream_processors import worker_gauges
from sessionary.stream_processors.core.children.call import CallLabel
from sessionary.stream_processors.core.model import LogRecord
from sessionary.stream_processors.core.partition import PartitionState
from sessionary.stream_processors.core.run.rows import RunLabel
from sessionary.stream_processors.errors import Halted
from sessionary.stream_processors.metrics import Metrics
from sessionary.stream_processors.runtime import partition_owner
from sessionary.stream_processors.runtime.log_probe import LogProbe
from sessionary.stream_processors.runtime.pending_records import FollowingRecords
from sessionary.stream_processors.worker_gauges import (
    LogEnds,
    LogLag,
    OpenTransactionWatch,
    WorkerGauges,
    count_for_a_slice,
    count_rows,
)
from tests.core.fold_rig import FoldRig
from tests.core.oracle_rig import START_MS
from tests.core.store_rig import JOB, StoreRig
from tests.core.stream_processors.runtime.owner_doubles import FakeRecovery, OwnerBench, RecordingWriter
from tests.support.event_factory import TICK, EventFactory
from tests.support.metrics_page import read_series

PARTITIONS = 4
MARKERS = 2  # that the fetcher saw behind the last record of each partition


class FakeFetcher:
    """Has seen markers behind the record at `last_offset`."""

    last_offset = -1

    def skip_markers(self, _: int, position: int) -> int:
        return position + MARKERS if position > self.last_offset else position


class FakeTicker:
    def tick_ages_s(self, _: float) -> dict[int, float]:
        return {0: 0.25, 1: 0.5, 9: 700.0}


class Rig:
    """A worker's gauges and the page that they are on."""

    def __init__(self, bench: OwnerBench, state_folder: Path | None) -> None:
        self.bench, self.fetcher, self.heartbeat_s = bench, FakeFetcher(), time.monotonic()
        fetcher: Any = self.fetcher
        ticker: Any = FakeTicker()
        stores = bench.assignment._stores
        self.gauges = WorkerGauges(bench.assignment, stores, fetcher, ticker, lambda: self.heartbeat_s, state_folder)
        self.gauges.serve(bench.metrics)

    def read(self) -> dict[str, float]:
        found = read_series(self.bench.metrics.exposition().decode())
        return {name.removeprefix("sessionary_processor_"): value for name, value in found.items()}

    def of_partition(self, partition: int) -> set[str]:
        """Return the names of the series of a partition."""
        label = f'{{partition="{partition}"}}'
        return {name.removesuffix(label) for name in self.read() if name.endswith(label)}

    async def opened(self, *partitions: int) -> None:
        self.bench.assignment.take_assignment(partitions)
        owners = self.bench.assignment.owners
        await self.bench.seen(lambda: all(owners[partition].is_open for partition in partitions))

    async def fold(self, partition: int, *records: LogRecord) -> None:
        owner = self.bench.assignment.owners[partition]
        owner.offer_records(records[0].offset, records)
        await self.bench.seen(lambda: owner.position.next_offset > records[-1].offset)


@pytest.fixture
def recovery(monkeypatch: pytest.MonkeyPatch) -> FakeRecovery:
    found = FakeRecovery()
    monkeypatch.setattr(partition_owner, "TransactionWriter", RecordingWriter)
    monkeypatch.setattr(partition_owner, "recover", found.recover)
    monkeypatch.setattr(partition_owner, "probe_log", lambda settings, partition, offset: LogProbe(0, 0))
    monkeypatch.setattr(RecordingWriter, "aborts", 0)
    return found


def run(story: Callable[[Rig], Coroutine[Any, Any, None]], state_folder: Path | None = None) -> None:
    async def play() -> None:
        rig = Rig(OwnerBench(partitions=PARTITIONS, commit_interval_ms=0), state_folder)
        await story(rig)
        await rig.bench.assignment.close()

    asyncio.run(play())


def now_ms() -> int:
    return time.time_ns() // 1_000_000


def activity_log(begin_ms: int, partition: int = 0) -> list[LogRecord]:
    """Return a log of a partition with a session that becomes active at `begin_ms`."""
    agents = (EventFactory(f"s{number}") for number in count())
    agent = next(agent for agent in agents if partition_of(agent.key.encoded(), PARTITIONS) == partition)
    values = [
        agent.event_bytes("session_created"),
        agent.event_bytes("session_phase_changed", phase="validating"),
        agent.event_bytes("session_phase_changed", phase="connecting"),
        agent.event_bytes("session_started"),
    ]
    return [LogRecord(n, begin_ms, agent.key.encoded(), value) for n, value in enumerate(values)]


def test_the_series_of_a_partition_go_with_it(recovery: FakeRecovery) -> None:
    async def story(rig: Rig) -> None:
        recovery.gate.release(100)
        await rig.opened(0, 1)
        for partition in (0, 1):
            await rig.fold(partition, *activity_log(now_ms(), partition))
        rig.gauges.observe_log_ends({0: 4, 1: 4, 2: 4}, time.time())
        names = {"next_offset", "lag_records", "lag_seconds", "clock_ahead_seconds", "timers_due", "tick_age_seconds"}
        assert rig.of_partition(0) == rig.of_partition(1) == names
        rig.bench.assignment.take_assignment([1])
        rig.gauges.observe_log_ends({1: 4}, time.time())
        assert (rig.of_partition(0), rig.of_partition(1)) == (set(), names)

    run(story)


def test_lag_does_not_count_markers_and_is_there_before_the_record_is_folded(recovery: FakeRecovery) -> None:
    async def story(rig: Rig) -> None:
        recovery.gate.release(100)
        await rig.opened(0)
        await rig.fold(0, *activity_log(now_ms()))
        rig.fetcher.last_offset = 3
        rig.gauges.observe_log_ends({0: 4 + MARKERS}, time.time())
        found = rig.read()
        assert (found['lag_records{partition="0"}'], found['lag_seconds{partition="0"}']) == (0, 0)
        rig.fetcher.last_offset = 6
        rig.gauges.observe_log_ends({0: 7}, time.time())
        owner = rig.bench.assignment.owners[0]
        owner._pending.append_batch(FollowingRecords(4, [LogRecord(6, now_ms() - 90_000, None, TICK)]))
        found = rig.read()
        assert found['lag_records{partition="0"}'] == 3
        assert 90 <= found['lag_seconds{partition="0"}'] < 300

    run(story)


def test_sessions_and_their_bytes_are_counted_and_what_is_overdue(
    recovery: FakeRecovery, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(worker_gauges, "_SLICE_S", 60.0)

    async def story(rig: Rig) -> None:
        recovery.gate.release(100)
        await rig.opened(0, 1)
        await rig.fold(0, *activity_log(now_ms() - 3_600_000))
        await rig.fold(1, *activity_log(now_ms(), 1))
        states = [owner.state for owner in rig.bench.assignment.owners.values()]
        assert count_for_a_slice(states)
        found = rig.read()
        assert (found['sessions{state="Active"}'], found['sessions{state="Paused"}'], found["tombstones"]) == (2, 0, 0)
        assert found["sessions_over_context_limit"] == 0
        assert (found['timers_due{partition="0"}'], found['timers_due{partition="1"}']) == (1, 0)
        assert found["outage_grace_partitions"] == 0
        await rig.fold(1, LogRecord(4, now_ms() + 6_000, None, TICK))
        assert rig.read()["outage_grace_partitions"] == 1
        assert set(rig.of_partition(0)) >= {"next_offset", "clock_ahead_seconds"}
        assert {f'stored_bytes{{layer="{layer}"}}' for layer in ("rows", "contents", "tombstones")} <= found.keys()
        assert found["group_heartbeat_age_seconds"] < 60
        rig.heartbeat_s -= 100
        assert rig.read()["group_heartbeat_age_seconds"] > 100

    run(story)


def test_a_recovery_tells_what_is_left_only_while_it_lasts(
    recovery: FakeRecovery, monkeypatch: pytest.MonkeyPatch
) -> None:
    def recover(*arguments: Any) -> int:
        *_, progress, _, _ = arguments
        progress.next_offset, progress.end_offset, progress.found_damaged_store = 30, 100, True
        return recovery.recover(*arguments)

    monkeypatch.setattr(partition_owner, "recover", recover)

    async def story(rig: Rig) -> None:
        rig.bench.assignment.take_assignment([2])
        series = 'recovery_remaining_records{partition="2"}'
        await rig.bench.seen(lambda: rig.read().get(series) == 70)
        assert 'next_offset{partition="2"}' not in rig.read()
        recovery.gate.release()
        await rig.bench.seen(lambda: rig.bench.assignment.owners[2].is_open)
        found = rig.read()
        assert series not in found
        assert found['state_hash_mismatches_total{source="store"}'] == 1

    run(story)


def test_the_free_disk_is_that_of_the_stores(recovery: FakeRecovery, tmp_path: Path) -> None:
    async def absent(rig: Rig) -> None:
        assert "disk_free_bytes" not in rig.read()

    async def served(rig: Rig) -> None:
        assert rig.read()["disk_free_bytes"] > 0

    run(absent)
    run(absent, tmp_path / "not there yet")
    run(served, tmp_path)


def test_a_halted_partition_still_has_its_lag(recovery: FakeRecovery, monkeypatch: pytest.MonkeyPatch) -> None:
    async def story(rig: Rig) -> None:
        recovery.gate.release(100)
        await rig.opened(0)
        await rig.fold(0, *activity_log(now_ms() - 50_000))
        halt = Halted("log_gap", "reported so")
        rig.bench.assignment.halt_partition(0, halt)
        await rig.bench.seen(lambda: rig.bench.assignment.halted_partitions)
        rig.fetcher.last_offset = 9
        rig.gauges.observe_log_ends({0: 10}, time.time())
        found = rig.read()
        assert found['lag_records{partition="0"}'] == 6
        assert 50 <= found['lag_seconds{partition="0"}'] < 300
        assert found['partitions_halted{reason="log_gap"}'] == 1
        recovery.gate = type(recovery.gate)(0)
        rig.bench.assignment.reopen_partition(0)
        assert rig.read()['lag_records{partition="0"}'] == 6, "while it is opened again"
        recovery.gate.release(100)

    run(story)


def test_open_attached_runs_are_counted_and_the_oldest_ones_age_is_reported(recovery: FakeRecovery) -> None:
    async def story(rig: Rig) -> None:
        recovery.gate.release(100)
        await rig.opened(0)
        found = rig.read()
        assert (found["attached_runs"], found["attached_run_age_seconds"]) == (0, 0)
        now_ms = int(time.time() * 1_000)
        since = {b"acme:s:a:": now_ms - 90_000, b"acme:s:b:": now_ms - 5_000}
        rig.bench.assignment.owners[0].state.tally.open_since_ms.update(since)
        found = rig.read()
        assert found["attached_runs"] == 2
        assert 90 <= found["attached_run_age_seconds"] < 300

    run(story)


def test_runs_and_calls_are_counted_by_state_and_are_no_tombstones(recovery: FakeRecovery) -> None:
    async def story(rig: Rig) -> None:
        recovery.gate.release(100)
        await rig.opened(0)
        state = rig.bench.assignment.owners[0].state
        state.vanishing, state.unpacked = 5, 3  # three of these rows are finished runs
        state.tally.counts.update({RunLabel("completed", "attached"): 3, CallLabel("unknown"): 2})
        found = rig.read()
        assert found["tombstones"] == 2
        assert (found['runs{state="completed"}'], found['runs{state="queued"}']) == (3, 0)
        assert (found['tool_calls{state="unknown"}'], found['tool_calls{state="running"}']) == (2, 0)
        assert sum(value for name, value in found.items() if name.startswith("sessions{")) == 0

    run(story)


NOW_MS = 1_795_219_200_000


def test_a_lag_is_the_offsets_between_what_is_folded_and_the_log_s_end() -> None:
    lag = LogLag()
    assert lag.lag_records({0: 5}) == {}, "its log's end is not known yet"
    lag.observe([0, 1, 2], {0: 5, 1: 9}, {0: 8, 1: 9, 2: 4}, NOW_MS)
    assert lag.lag_records({0: 5, 1: 9}) == {0: 3, 1: 0}
    assert lag.lag_records({0: 8, 1: 12}) == {0: 0, 1: 0}, "what was folded since"
    assert lag.lag_records({1: 9}) == {0: 3, 1: 0}, "a halted partition that is opened again is where it was"
    lag.observe([0, 1, 2], {1: 9}, {1: 11}, NOW_MS)
    assert lag.lag_records({1: 9}) == {0: 3, 1: 2}, "the end that did not answer is as before"


def test_a_partition_that_left_is_forgotten_with_its_next_observation() -> None:
    lag = LogLag()
    lag.observe([0, 1], {0: 5, 1: 5}, {0: 8, 1: 8}, NOW_MS)
    lag.observe([1], {1: 6}, {1: 8}, NOW_MS)
    assert lag.lag_records({1: 6}) == {1: 2}
    lag.observe([0, 1], {1: 6}, {0: 8, 1: 8}, NOW_MS)
    assert lag.lag_records({1: 6}) == {1: 2}, "where it is now is not known"


def test_a_lag_in_seconds_begins_with_the_first_record_that_waits() -> None:
    lag = LogLag()
    lag.observe([0, 1, 2, 3, 4], {0: 5, 1: 8, 2: 5, 3: 5, 4: 5}, dict.fromkeys(range(5), 8), NOW_MS - 1_000)
    lag.observe([0, 1, 2, 3, 4], {0: 5, 1: 8, 2: 5, 3: 5, 4: 5}, {1: 9}, NOW_MS)
    found = lag.lag_seconds(
        {0: 5, 1: 8, 2: 8, 3: 5, 4: 5},
        {0: NOW_MS - 7_000},
        {0: NOW_MS - 90_000, 1: NOW_MS - 90_000, 2: NOW_MS - 90_000, 3: NOW_MS - 3_000, 4: 0},
        NOW_MS,
    )
    assert found == {
        0: 7.0,  # it was fetched
        1: 1.0,  # not fetched, but the partition was level with its log a second ago
        2: 0.0,
        3: 3.0,  # appended after the last record that was folded
        4: 0.0,  # nothing is known of it
    }
    assert lag.lag_seconds({0: 5}, {0: NOW_MS + 5}, {}, NOW_MS)[0] == 0.0, "the broker's clock may be ahead"


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
    monkeypatch.setattr(worker_gauges, "_SLICE_S", -1.0)
    assert not count_for_a_slice(states)
    monkeypatch.setattr(worker_gauges, "_SLICE_S", 60.0)
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
    monkeypatch.setattr(worker_gauges, "_SLICE_S", 60.0)
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


def held_records(metrics: Metrics) -> dict[str, float]:
    return {
        sample.labels["partition"]: sample.value
        for family in metrics.held_records.collect()
        for sample in family.samples
    }


def test_a_partition_that_rests_at_a_stable_offset_below_the_logs_end_is_reported_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO)
    metrics = Metrics()
    watch = OpenTransactionWatch(metrics)
    watch.observe({0: LogEnds(5, 8), 1: LogEnds(7, 7)})
    assert (held_records(metrics), caplog.text) == ({}, "")
    for high in (9, 12):
        watch.observe({0: LogEnds(5, high), 1: LogEnds(7, 7)})
        assert held_records(metrics) == {"0": high - 5}
    assert caplog.text.count("partition 0 is held up at offset 5") == 1
    watch.observe({0: LogEnds(12, 12)})
    assert held_records(metrics) == {}
    assert caplog.text.count("partition 0 continues") == 1


def test_short_transactions_and_lost_partitions_are_not_reported(caplog: pytest.LogCaptureFixture) -> None:
    metrics = Metrics()
    watch = OpenTransactionWatch(metrics)
    for stable in (5, 6, 7):
        watch.observe({0: LogEnds(stable, 9)})
    watch.observe({})
    watch.observe({0: LogEnds(7, 9)})
    assert (held_records(metrics), caplog.text) == ({}, "")


def test_a_second_transaction_at_another_offset_is_reported_too(caplog: pytest.LogCaptureFixture) -> None:
    watch = OpenTransactionWatch(Metrics())
    for stable in (5, 5, 20, 20):
        watch.observe({0: LogEnds(stable, 30)})
    assert caplog.text.count("is held up at offset 5") == caplog.text.count("is held up at offset 20") == 1
