"""The gauges that are read at each scrape of a worker. On the event loop; nothing blocks."""

import asyncio
import time
from collections import Counter
from collections.abc import Callable, Collection, Hashable, Iterable, Mapping
from pathlib import Path
from typing import Final, NamedTuple, cast

from sessionary.schemas.kafka.log_progress import LogEnd
from sessionary.schemas.telemetry.role_logs import role_logger
from sessionary.stream_processors.core.children.call import CallLabel
from sessionary.stream_processors.core.partition import PartitionState
from sessionary.stream_processors.core.run.rows import RunLabel
from sessionary.stream_processors.core.run.transitions import FINISHED, OPEN
from sessionary.stream_processors.metrics import Metrics
from sessionary.stream_processors.runtime.assignment import Assignment
from sessionary.stream_processors.runtime.fetcher import Fetcher
from sessionary.stream_processors.runtime.partition_owner import PartitionOwner
from sessionary.stream_processors.runtime.ticker import Ticker
from sessionary.stream_processors.store.packed_rows import LAYERS
from sessionary.stream_processors.store.stores import PartitionStores, free_bytes

# Reports the partitions of the events topic that another producer's open transaction holds up.
#
# Processors and sinks read committed records only. They stop at the last stable offset, where the
# oldest open transaction begins, and continue once it is committed or aborted. No client and no
# worker writes events in transactions, so a transaction that is open for seconds is a foreign
# producer's, or abandoned.


_log = role_logger(__name__)


class LogEnds(NamedTuple):
    """The two ends of a partition's log: for readers of committed records, and for all others."""

    stable: int  # the last stable offset
    high: int  # the high watermark


def join_ends(high: Mapping[int, LogEnd], stable: Mapping[int, LogEnd]) -> dict[int, LogEnds]:
    """Return both ends of the partitions that answered both questions.

    The stable ends must have been asked for after the high ones.
    """
    return {number: LogEnds(stable[number].offset, high[number].offset) for number in high.keys() & stable.keys()}


class OpenTransactionWatch:
    """Reports a partition that two observations in a row find held up at the same offset."""

    def __init__(self, metrics: Metrics) -> None:
        self._metrics = metrics
        self._seen: dict[int, int] = {}  # where held partitions stood at the last observation
        self._reported: dict[int, int] = {}

    def observe(self, ends: Mapping[int, LogEnds]) -> None:
        """Take the ends of the owned partitions; a partition that is left out starts again."""
        held = {partition: end for partition, end in ends.items() if end.stable < end.high}
        self._metrics.held_records.clear()
        for partition, end in sorted(held.items()):
            if self._seen.get(partition) != end.stable:
                continue
            self._metrics.held_records.labels(str(partition)).set(end.high - end.stable)
            if self._reported.get(partition) != end.stable:
                self._reported[partition] = end.stable
                _log.warning(
                    "partition %(partition)d is held up at offset %(offset)d: a producer's transaction is open, and "
                    "%(held_records)d records wait for its end; `kafka-transactions.sh describe-producers` names it",
                    held_records=end.high - end.stable,
                    partition=partition,
                    offset=end.stable,
                )
        for partition in self._reported.keys() & ends.keys() - held.keys():
            offset = self._reported.pop(partition)
            _log.info(
                "partition %(partition)d continues: the transaction at offset %(offset)d ended",
                partition=partition,
                offset=offset,
            )
        self._seen = {partition: end.stable for partition, end in held.items()}


# How far partitions are behind their logs, by the ends of the logs that were asked for; pure.


class LogLag:
    """The ends of the logs of owned partitions, and how far these were folded.

    `folded` is always by partition: the offset below which nothing is left to fold. Times are in ms
    of the wall clock.
    """

    def __init__(self) -> None:
        self._log_ends: dict[int, int] = {}
        self._folded: dict[int, int] = {}
        self._level_ms: dict[int, float] = {}  # when a partition was last known to be at its log's end

    def observe(
        self, owned: Collection[int], folded: Mapping[int, int], log_ends: Mapping[int, int], asked_ms: float
    ) -> None:
        """Take the ends of the logs, by an answer to a question at `asked_ms`.

        `folded` was read after the answer. Partitions that are no longer owned are forgotten.
        """
        self._log_ends |= log_ends
        self._folded |= folded
        for partition, end in log_ends.items():
            if folded.get(partition, -1) >= end:
                self._level_ms[partition] = asked_ms
        for known in (self._log_ends, self._folded, self._level_ms):
            for partition in known.keys() - set(owned):
                del known[partition]

    def lag_records(self, folded: Mapping[int, int]) -> dict[int, int]:
        """Return the offsets between `folded` and the log's end.

        A partition that is not in `folded` is halted, or is opened again: its last known place
        counts. A partition is left out if this place or its log's end is not known.
        """
        known = self._folded | dict(folded)
        return {number: max(0, end - known[number]) for number, end in self._log_ends.items() if number in known}

    def lag_seconds(
        self,
        folded: Mapping[int, int],
        waiting_ms: Mapping[int, int],
        clocks_ms: Mapping[int, int],
        now_ms: float,
    ) -> dict[int, float]:
        """Return how long ago the first record behind `folded` was appended; 0 without one.

        `waiting_ms`: the append times, of partitions whose record is fetched. Other records were
        appended not before the partition's clock, nor before it was last level with its log.
        """
        found: dict[int, float] = {}
        for number, records in self.lag_records(folded).items():
            since_ms: float | None = waiting_ms.get(number)
            if since_ms is None:
                since_ms = max(clocks_ms.get(number, 0), self._level_ms.get(number, 0)) or now_ms
            found[number] = max(0.0, now_ms - since_ms) / 1_000 if records else 0.0
        return found


# Counts the rows of partitions that have opened, a few at a time on the event loop.
#
# Counting decodes each row, which takes some 10 µs, so an opening partition does not wait for the
# count. 10,000 rows are counted within two seconds.


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


# The states of sessions that have a row; of archived ones a tombstone remains.
STATES: Final = ("Idle", "Active", "Paused", "Timeout", "Error", "Terminated")
RUN_STATES: Final = (*OPEN, *sorted(FINISHED))
CALL_STATES: Final = ("running", "succeeded", "failed", "unknown")
_OTHER_LABELS: Final = (RunLabel, CallLabel)  # than those of sessions
_OVERDUE_LOOKS_MAX = 20_000  # rows of all partitions


class WorkerGauges:
    """Reads the gauges of one worker from its parts."""

    def __init__(
        self,
        assignment: Assignment,
        stores: PartitionStores,
        fetcher: Fetcher,
        ticker: Ticker,
        heartbeat_s: Callable[[], float],
        state_folder: Path | None,
    ) -> None:
        """`heartbeat_s`: when the group last acknowledged a heartbeat, on the monotonic clock.

        `state_folder`: where the stores are; None: in memory.
        """
        self._assignment = assignment
        self._stores = stores
        self._fetcher = fetcher
        self._ticker = ticker
        self._heartbeat_s = heartbeat_s
        self._state_folder = state_folder
        self._lag = LogLag()

    def serve(self, metrics: Metrics) -> None:
        """Let `metrics` read these gauges."""
        read = metrics.read_at_scrape
        read("sessionary_processor_next_offset", lambda: self._assignment.next_offsets)
        read("sessionary_processor_lag_records", lambda: self._lag.lag_records(self._folded()))
        read("sessionary_processor_lag_seconds", self._lag_seconds)
        read("sessionary_processor_clock_ahead_seconds", self._clocks_ahead_s)
        read("sessionary_processor_outage_grace_partitions", self._count_in_grace)
        read("sessionary_processor_timers_due", self._count_overdue)
        read("sessionary_processor_sessions", self._count_sessions)
        read("sessionary_processor_sessions_over_context_limit", self._count_exceeded)
        read("sessionary_processor_runs", self._count_runs)
        read("sessionary_processor_attached_runs", self._count_attached)
        read("sessionary_processor_attached_run_age_seconds", self._attached_age_s)
        read("sessionary_processor_tool_calls", self._count_calls)
        read("sessionary_processor_tombstones", self._count_tombstones)
        read("sessionary_processor_stored_bytes", self._count_bytes)
        read("sessionary_processor_disk_free_bytes", lambda: free_bytes(self._state_folder))
        read("sessionary_processor_recovery_remaining_records", self._recovering)
        read("sessionary_processor_tick_age_seconds", self._tick_ages_s)
        read("sessionary_processor_group_heartbeat_age_seconds", lambda: time.monotonic() - self._heartbeat_s())

    def observe_log_ends(self, log_ends: Mapping[int, int], asked_s: float) -> None:
        """Take the logs' ends for readers of committed records, asked at `asked_s` (epoch)."""
        self._lag.observe(self._assignment.owners.keys(), self._folded(), log_ends, asked_s * 1_000)

    def _opened(self) -> list[PartitionOwner]:
        return [owner for owner in self._assignment.owners.values() if owner.is_open]

    def _folded(self) -> dict[int, int]:
        """Return the offset below which nothing is left to fold, for partitions that know it."""
        folded = {}
        for partition, owner in self._assignment.owners.items():
            position = owner.position
            if owner.is_open or (owner.halted is not None and position.batch_number):
                folded[partition] = self._fetcher.skip_markers(partition, position.next_offset)
        return folded

    def _lag_seconds(self) -> dict[int, float]:
        owners = self._assignment.owners.items()
        waiting = {partition: ms for partition, owner in owners if (ms := owner.first_waiting_ms) is not None}
        clocks = {partition: owner.position.clock_ms for partition, owner in owners}
        return self._lag.lag_seconds(self._folded(), waiting, clocks, time.time() * 1_000)

    def _clocks_ahead_s(self) -> dict[int, float]:
        now_s, positions = time.time(), self._assignment.open_positions
        # A clock of 0 is that of a partition that never had a record.
        return {partition: one.clock_ms / 1_000 - now_s for partition, one in positions.items() if one.clock_ms}

    def _count_in_grace(self) -> int:
        return sum(one.clock_ms < one.outage_grace_until_ms for one in self._assignment.open_positions.values())

    def _count_overdue(self) -> dict[int, int]:
        opened, now_ms = self._opened(), int(time.time() * 1_000)
        looks_max = _OVERDUE_LOOKS_MAX // max(1, len(opened))
        return {owner.partition: owner.state.count_overdue(now_ms, looks_max) for owner in opened}

    def _count_labels(self) -> Counter[Hashable]:
        counts: Counter[Hashable] = Counter()
        for owner in self._opened():
            counts.update(owner.state.tally.counts)
        return counts

    def _session_labels(self) -> dict[tuple[str, bool], int]:
        """Return how many sessions there are by state, and by whether the context is too large."""
        labels = cast(Counter[tuple[str, bool]], self._count_labels())
        return {label: number for label, number in labels.items() if not isinstance(label, _OTHER_LABELS)}

    def _count_sessions(self) -> dict[str, int]:
        found = dict.fromkeys(STATES, 0)
        for (state, _), number in self._session_labels().items():
            found[state] = found.get(state, 0) + number
        return found

    def _count_exceeded(self) -> int:
        return sum(number for (_, exceeded), number in self._session_labels().items() if exceeded)

    def _count_runs(self) -> dict[str, int]:
        found: dict[str, int] = dict.fromkeys(RUN_STATES, 0)
        for label, number in self._count_labels().items():
            if isinstance(label, RunLabel):
                found[label.state] = found.get(label.state, 0) + number
        return found

    def _count_attached(self) -> int:
        return sum(len(owner.state.tally.open_since_ms) for owner in self._opened())

    def _attached_age_s(self) -> float:
        now_ms = time.time() * 1_000
        oldest_ms = (min(owner.state.tally.open_since_ms.values(), default=now_ms) for owner in self._opened())
        return max(0.0, now_ms - min(oldest_ms, default=now_ms)) / 1_000

    def _count_calls(self) -> dict[str, int]:
        found: dict[str, int] = dict.fromkeys(CALL_STATES, 0)
        for label, number in self._count_labels().items():
            if isinstance(label, CallLabel):
                found[label.state] = found.get(label.state, 0) + number
        return found

    def _count_tombstones(self) -> int:
        return sum(owner.state.tombstones for owner in self._opened())

    def _count_bytes(self) -> dict[str, int]:
        found = self._stores.list_layer_bytes()
        return {layer: sum(one.get(layer, 0) for one in found) for layer in LAYERS}

    def _recovering(self) -> dict[int, int]:
        left = {number: owner.recovery.remaining_records for number, owner in self._assignment.owners.items()}
        return {partition: records for partition, records in left.items() if records is not None}

    def _tick_ages_s(self) -> dict[int, float]:
        ages_s = self._ticker.tick_ages_s(time.time() * 1_000)
        return {owner.partition: ages_s[owner.partition] for owner in self._opened() if owner.partition in ages_s}
