"""What the owners of a worker's partitions share."""

import asyncio
import functools
import time
from collections.abc import Callable, Mapping
from concurrent.futures import Executor
from dataclasses import dataclass, field
from typing import ParamSpec, TypeVar

from sessionary.schemas.records import BatchAcknowledged, Position
from sessionary.stream_processors.errors import Lost
from sessionary.stream_processors.metrics import Metrics
from sessionary.stream_processors.runtime.executor import wait_unless_hung
from sessionary.stream_processors.runtime.fetching.pending_records import FetchControl
from sessionary.stream_processors.runtime.job import Job
from sessionary.stream_processors.runtime.transaction import BatchLimits, TransactionWriter
from sessionary.stream_processors.settings import ProcessorSettings
from sessionary.stream_processors.store.stores import SavedPosition, Store

_P = ParamSpec("_P")
_T = TypeVar("_T")
CALL_S_MAX = 12.0  # longer than the time-out of each call into librdkafka
# Recoveries at a time in a worker. Each has a thread, and all want the interpreter's lock: with 64
# the event loop waited for seconds, longer than the group waits for a heartbeat.
RECOVERIES_MAX = 4
# A transaction costs the brokers some 4 ms of one core: 270 a second kept one busy. So a worker
# keeps at most one busy, until the cap: beyond 25 partitions, latency matters more.
MS_PER_PARTITION = 4
SPREAD_MS_MAX = 100


def spread_interval_ms(commit_interval_ms: int, open_partitions: int) -> int:
    """Return how far apart each partition's transactions begin if a worker has several open.

    `commit_interval_ms` is the setting: the least, and 0 turns this off.
    """
    if commit_interval_ms == 0:
        return 0
    return max(commit_interval_ms, min(SPREAD_MS_MAX, MS_PER_PARTITION * open_partitions))


@dataclass(frozen=True)
class WorkerContext:
    """What all partition owners of a worker share.

    `recovery_turns` are taken in order. Each owner enters its partition in `open_partitions`.
    `acknowledged` has the last transaction of each partition, until the worker reports it.
    """

    settings: ProcessorSettings
    job: Job
    metrics: Metrics
    executor: Executor
    fetch_control: FetchControl
    recovery_turns: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(RECOVERIES_MAX))
    open_partitions: set[int] = field(default_factory=set)
    batch_limits: BatchLimits = field(default_factory=BatchLimits)
    acknowledged: dict[int, BatchAcknowledged] = field(default_factory=dict)

    @property
    def commit_interval_s(self) -> float:
        """How far apart a partition's transactions begin, at least."""
        return spread_interval_ms(self.settings.commit_interval_ms, len(self.open_partitions)) / 1_000

    def note_acknowledgement(self, partition: int, position: Position, acknowledged_at: int) -> None:
        """Let the worker report when a transaction was acknowledged (µs), if its rules allow."""
        told = self.job.acknowledgement(partition, position, acknowledged_at)
        if told is not None:
            self.acknowledged[partition] = told

    async def run_blocking(self, call: Callable[_P, _T], *args: _P.args, **kwargs: _P.kwargs) -> _T:
        """Make a call that blocks in a thread of the executor."""
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self.executor, functools.partial(call, *args, **kwargs))

    async def save_rows(self, store: Store, rows: Mapping[bytes, bytes | None], saved: SavedPosition) -> None:
        """Save packed rows in a store; in a thread if the store waits for a disk."""
        if store.blocks:
            await self.run_blocking(store.save_rows, rows, saved)
        else:
            store.save_rows(rows, saved)

    async def run_bounded(
        self, partition: int, writer: TransactionWriter, call: Callable[_P, _T], *args: _P.args, **kwargs: _P.kwargs
    ) -> _T:
        """Wait for a call of `writer` as long as its calls into librdkafka return in time.

        Raises `Lost` if one hangs. Its thread is left behind: the next producer fences its
        producer, and it touches nothing of ours.
        """
        writer.called_s = time.monotonic()
        try:
            return await wait_unless_hung(self.run_blocking(call, *args, **kwargs), lambda: writer.called_s, CALL_S_MAX)
        except TimeoutError:
            self.metrics.errors.labels("hung").inc()
            raise Lost(f"partition {partition}: a call into librdkafka hangs for {CALL_S_MAX:g} s") from None


__all__ = ["CALL_S_MAX", "MS_PER_PARTITION", "RECOVERIES_MAX", "SPREAD_MS_MAX", "WorkerContext", "spread_interval_ms"]
