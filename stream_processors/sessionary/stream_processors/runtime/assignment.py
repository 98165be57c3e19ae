"""The partitions that this worker owns: who opens them, who opens them again, who watches over them."""

import asyncio
import logging
import tempfile
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from sessionary.stream_processors.core.partition import LogRecord
from sessionary.stream_processors.errors import Halted, Lost
from sessionary.stream_processors.runtime.partition_owner import PartitionOwner, WorkerContext
from sessionary.stream_processors.settings import ProcessorSettings
from sessionary.stream_processors.store.packed_rows import unpack
from sessionary.stream_processors.store.stores import MemoryStore, RocksStore, Store

_log = logging.getLogger(__name__)
_BACK_OFF_S = 0.1
_BACK_OFF_S_MAX = 2.0  # an attempt is patient by itself where the broker is away
_CLOSE_S = 15.0


class PartitionStores:
    """The stores of this process, by partition. A memory store stays while its partition is assigned."""

    def __init__(
        self, settings: ProcessorSettings, folder: Path | None, unpack_row: Callable[[bytes], Any] = unpack
    ) -> None:
        self._folder = folder
        self._unpack = unpack_row
        self._rocks = settings.store == "rocksdb"
        self._prefix = settings.topic_prefix
        self._stores: dict[int, Store] = {}

    def store_of(self, partition: int) -> Store:
        """Return the partition's store, opened. May block; raises where another worker has it open."""
        store = self._stores.get(partition)
        if store is None:
            store = self._stores[partition] = self._new(partition)
        return store

    def close_store(self, partition: int) -> None:
        """Close a partition's store; what stands in memory is gone."""
        if store := self._stores.pop(partition, None):
            store.close()

    def close(self) -> None:
        """Close all."""
        for partition in list(self._stores):
            self.close_store(partition)

    def _new(self, partition: int) -> Store:
        if not self._rocks or self._folder is None:
            return MemoryStore(self._unpack)
        return RocksStore(self._folder / f"{self._prefix}-{partition}", self._unpack)


def state_folder(settings: ProcessorSettings) -> "tempfile.TemporaryDirectory[str] | None":
    """Return a temporary folder where the settings name none; the caller keeps it as long as it is needed."""
    return None if settings.state_dir else tempfile.TemporaryDirectory(prefix="sessionary-processor-")


class Assignment:
    """Who owns what. Everything here runs on the event loop and returns at once, but for `close`."""

    def __init__(self, context: WorkerContext, stores: PartitionStores) -> None:
        self.owners: dict[int, PartitionOwner] = {}
        self.has_assignment = False
        self._context = context
        self._stores = stores
        self._retiring: dict[int, PartitionOwner] = {}
        self._failures: dict[int, int] = {}
        self._closed = False

    def take_assignment(self, partitions: Iterable[int]) -> None:
        """Take a new generation's whole assignment: what was owned ends, what is assigned begins anew."""
        if self._closed:
            return
        self.has_assignment = True
        self._context.metrics.rebalances.inc()
        former, self.owners = self.owners, {}
        for partition, owner in former.items():
            owner.request_end()
            self._retiring[partition] = owner
        self._failures.clear()
        wanted = sorted(partitions)
        for partition in wanted:
            self._start_owner(partition)
        for partition in former.keys() - set(wanted):
            self._retire_owner(partition)
        self._update_gauges()

    def offer_records(self, partition: int, records: Sequence[LogRecord]) -> None:
        """Hand records to their partition's owner; without one they are dropped."""
        if (owner := self.owners.get(partition)) is not None:
            owner.offer_records(records)

    def reopen_partition(self, partition: int) -> None:
        """End a partition's ownership and begin a new one."""
        owner = self.owners.pop(partition)
        owner.request_end()
        self._retiring[partition] = owner
        self._start_owner(partition)

    async def close(self) -> dict[int, int]:
        """End all, and wait (bounded) for the transactions under way. Return the next offsets, as `positions` does."""
        self._closed = True
        opened = [owner for owner in self.owners.values() if owner.is_open]
        for owner in self.owners.values():
            owner.request_end()
        tasks = [owner.task for owner in (*self.owners.values(), *self._retiring.values())]
        if tasks:
            _, late = await asyncio.wait(tasks, timeout=_CLOSE_S)
            for task in late:
                _log.warning("%s did not end in time", task.get_name())
        self.owners = {}
        self._stores.close()
        return {owner.partition: owner.fold.position.next_offset for owner in opened}

    @property
    def next_offsets(self) -> dict[int, int]:
        """The next offset of each open partition."""
        return {partition: owner.fold.position.next_offset for partition, owner in self.owners.items() if owner.is_open}

    @property
    def halted_partitions(self) -> dict[int, Halted]:
        """Partitions that stand still until an operator acts."""
        return {partition: owner.halted for partition, owner in self.owners.items() if owner.halted is not None}

    @property
    def is_ready(self) -> bool:
        """Whether the group gave an assignment and all of it is open."""
        return self.has_assignment and all(owner.is_open for owner in self.owners.values())

    def _start_owner(self, partition: int) -> None:
        former = self._retiring.pop(partition, None)
        owner = PartitionOwner(self._context, partition, lambda: self._stores.store_of(partition), former)
        self.owners[partition] = owner
        owner.task.add_done_callback(lambda task: self._on_owner_end(owner, task))

    def _retire_owner(self, partition: int) -> None:
        """Once its last owner is done, a partition that went elsewhere leaves nothing behind."""
        owner = self._retiring[partition]

        def forget(_: object) -> None:
            if self._retiring.get(partition) is owner:
                del self._retiring[partition]
                self._stores.close_store(partition)

        owner.task.add_done_callback(forget)

    def _on_owner_end(self, owner: PartitionOwner, task: "asyncio.Task[None]") -> None:
        """A task that dies must not vanish."""
        fault = None if task.cancelled() else task.exception()
        if self.owners.get(owner.partition) is not owner or owner.end_requested or self._closed:
            if fault is not None and not isinstance(fault, Lost):
                _log.warning("partition %d, no longer owned: %r", owner.partition, fault)
            return
        if isinstance(fault, Halted):
            self._context.metrics.errors.labels("halted").inc()
            _log.error("partition %d stands still: %s", owner.partition, fault)
            self._update_gauges()
            return
        self._context.metrics.errors.labels("reopened").inc()
        known = isinstance(fault, Lost)
        _log.warning("partition %d is opened again: %s", owner.partition, fault, exc_info=None if known else fault)
        failures = 0 if owner.commits else self._failures.get(owner.partition, 0) + 1
        self._failures[owner.partition] = failures
        pause_s = min(_BACK_OFF_S_MAX, _BACK_OFF_S * 2.0**failures)
        asyncio.get_running_loop().call_later(pause_s, self._reopen_if_current, owner)

    def _reopen_if_current(self, owner: PartitionOwner) -> None:
        if not self._closed and self.owners.get(owner.partition) is owner:
            self.reopen_partition(owner.partition)

    def _update_gauges(self) -> None:
        metrics = self._context.metrics
        metrics.owned.set(len(self.owners))
        metrics.halted.clear()
        for fault in self.halted_partitions.values():
            metrics.halted.labels(fault.reason).inc()


class _Progress(NamedTuple):
    """Where a partition stood when its position last moved, and when it was last looked at."""

    position: int
    end: int
    since_s: float
    looked_s: float


class StuckPartitionWatchdog:
    """Owned, the log moves, the position does not: the partition is opened again; if that does not help, `give_up`."""

    def __init__(
        self, assignment: Assignment, context: WorkerContext, stuck_s: float, give_up: Callable[[str], None]
    ) -> None:
        self._assignment = assignment
        self._context = context
        self._stuck_s = stuck_s
        self._give_up = give_up
        self._seen: dict[int, _Progress] = {}
        self._reopened_at: dict[int, int] = {}  # the position at which a partition was opened again

    def check_progress(self, ends: Mapping[int, int], now_s: float) -> None:
        """Look at every open partition once; `ends` are the ends of the log, where known."""
        for partition, end in ends.items():
            owner, seen = self._assignment.owners.get(partition), self._seen.get(partition)
            if owner is None or not owner.is_open:
                continue
            position = owner.fold.position.next_offset
            # Time in which the log did not answer, or the partition was being opened, says nothing.
            if seen is None or now_s - seen.looked_s >= self._stuck_s or seen.position != position or position >= end:
                self._seen[partition] = _Progress(position, end, now_s, now_s)
            elif end > seen.end and now_s - seen.since_s >= self._stuck_s:
                self._seen[partition] = _Progress(position, end, now_s, now_s)
                self._reopen_or_give_up(partition, position)
            else:
                self._seen[partition] = seen._replace(looked_s=now_s)

    def _reopen_or_give_up(self, partition: int, position: int) -> None:
        self._context.metrics.errors.labels("stuck").inc()
        if self._reopened_at.get(partition) == position:
            self._give_up(f"partition {partition} stays at {position} although its log moves")
            return
        _log.error("partition %d stays at %d although its log moves: opened again", partition, position)
        self._reopened_at[partition] = position
        self._assignment.reopen_partition(partition)


__all__ = ["Assignment", "PartitionStores", "StuckPartitionWatchdog", "state_folder"]
