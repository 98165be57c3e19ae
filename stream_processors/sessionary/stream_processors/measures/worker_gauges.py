"""The gauges that are read when a worker's metrics are. On the event loop; nothing blocks."""

import time
from collections import Counter
from collections.abc import Callable, Hashable, Mapping
from pathlib import Path
from typing import Final, cast

from sessionary.stream_processors.core.children.call import CallLabel
from sessionary.stream_processors.core.run.rows import RunLabel
from sessionary.stream_processors.core.run.transitions import FINISHED, OPEN
from sessionary.stream_processors.measures.log_lag import LogLag
from sessionary.stream_processors.metrics import Metrics
from sessionary.stream_processors.runtime.assignment import Assignment
from sessionary.stream_processors.runtime.fetching.fetcher import Fetcher
from sessionary.stream_processors.runtime.partition_owner import PartitionOwner
from sessionary.stream_processors.runtime.ticker import Ticker
from sessionary.stream_processors.store.full_disk import free_bytes
from sessionary.stream_processors.store.packed_rows import LAYERS
from sessionary.stream_processors.store.stores import PartitionStores

# The states of sessions that have a row; of archived ones a gravestone remains.
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
        read("sessionary_processor_quiet_partitions", self._count_quiet)
        read("sessionary_processor_timers_due", self._count_overdue)
        read("sessionary_processor_sessions", self._count_sessions)
        read("sessionary_processor_sessions_over_context_limit", self._count_exceeded)
        read("sessionary_processor_runs", self._count_runs)
        read("sessionary_processor_attached_runs", self._count_attached)
        read("sessionary_processor_attached_run_age_seconds", self._attached_age_s)
        read("sessionary_processor_tool_calls", self._count_calls)
        read("sessionary_processor_gravestones", self._count_gravestones)
        read("sessionary_processor_stored_bytes", self._count_bytes)
        read("sessionary_processor_disk_free_bytes", lambda: free_bytes(self._state_folder))
        read("sessionary_processor_recovery_remaining_records", self._recovering)
        read("sessionary_processor_tick_age_seconds", self._tick_ages_s)
        read("sessionary_processor_group_heartbeat_age_seconds", lambda: time.monotonic() - self._heartbeat_s())

    def observe_log_ends(self, log_ends: Mapping[int, int], asked_s: float) -> None:
        """Take where the logs end for readers of committed records, asked at `asked_s` (epoch)."""
        self._lag.observe(self._assignment.owners.keys(), self._folded(), log_ends, asked_s * 1_000)

    def _opened(self) -> list[PartitionOwner]:
        return [owner for owner in self._assignment.owners.values() if owner.is_open]

    def _folded(self) -> dict[int, int]:
        """Return below which offset nothing is left to fold, of each partition that knows it."""
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

    def _count_quiet(self) -> int:
        return sum(one.clock_ms < one.quiet_until_ms for one in self._assignment.open_positions.values())

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

    def _count_gravestones(self) -> int:
        return sum(owner.state.gravestones for owner in self._opened())

    def _count_bytes(self) -> dict[str, int]:
        found = self._stores.list_layer_bytes()
        return {layer: sum(one.get(layer, 0) for one in found) for layer in LAYERS}

    def _recovering(self) -> dict[int, int]:
        left = {number: owner.recovery.remaining_records for number, owner in self._assignment.owners.items()}
        return {partition: records for partition, records in left.items() if records is not None}

    def _tick_ages_s(self) -> dict[int, float]:
        ages_s = self._ticker.tick_ages_s(time.time() * 1_000)
        return {owner.partition: ages_s[owner.partition] for owner in self._opened() if owner.partition in ages_s}
