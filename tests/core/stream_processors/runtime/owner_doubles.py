"""What an owner of a partition stands on, without a broker."""

import asyncio
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from sessionary.schemas.records import Position
from sessionary.stream_processors.core.model import BatchResult
from sessionary.stream_processors.core.partition import PartitionState
from sessionary.stream_processors.errors import Aborted, Lost
from sessionary.stream_processors.metrics import Metrics
from sessionary.stream_processors.runtime.assignment import Assignment
from sessionary.stream_processors.runtime.changelog import RecoveryProgress
from sessionary.stream_processors.runtime.executor import UnboundedExecutor
from sessionary.stream_processors.runtime.job import processor_job
from sessionary.stream_processors.runtime.log_identity import TopicIds
from sessionary.stream_processors.runtime.transaction import CommitReceipt, Seal
from sessionary.stream_processors.runtime.worker_context import WorkerContext
from sessionary.stream_processors.settings import ProcessorSettings
from sessionary.stream_processors.store.packed_rows import RowCodec, StoredLookup
from sessionary.stream_processors.store.stores import PartitionStores, Store
from tests.auditor.signatures import SECRETS

Wanted = Callable[[], bool]


class FakeFetchControl:
    """Accepts all commands; counts the bytes that wait."""

    def __init__(self) -> None:
        self.pending_bytes = 0

    def fetch_from(self, partition: int, offset: int, believed_from: int) -> None:
        """Nothing is fetched."""

    def pause_partition(self, partition: int) -> None:
        """Nothing is fetched."""

    def resume_partition(self, partition: int) -> None:
        """Nothing is fetched."""

    def drop_partition(self, partition: int) -> None:
        """Nothing is fetched."""

    def add_pending_bytes(self, size: int) -> None:
        self.pending_bytes += size


class FakeWriter:
    """A transaction writer that commits everything."""

    def __init__(self, *_: Any) -> None:
        self.called_s = time.monotonic()

    def fence_former_owner(self) -> None:
        """There is no former owner."""

    def write_result(self, outcome: BatchResult, started_at: int, seal: Seal, stored: StoredLookup) -> CommitReceipt:
        return CommitReceipt({}, seal(outcome.position, {}), 1, started_at, 0.0)

    def discard(self) -> None:
        """There is no producer."""


class RecordingWriter(FakeWriter):
    """A transaction writer that keeps what it commits; as many as `aborts` abort before that.

    They belong to the class, because each owner makes its own writer.
    """

    written: list[BatchResult] = []
    started_at: list[int] = []  # of each of them, µs
    aborts = 0

    def write_result(self, outcome: BatchResult, started_at: int, seal: Seal, stored: StoredLookup) -> CommitReceipt:
        if RecordingWriter.aborts:
            RecordingWriter.aborts -= 1
            raise Aborted("reported so")
        self.started_at.append(started_at)
        # The owner may go on with what an outcome refers to.
        self.written.append(outcome._replace(rows=dict(outcome.rows), emitted=list(outcome.emitted)))
        return super().write_result(outcome, started_at, seal, stored)


class GatedWriter(FakeWriter):
    """A transaction writer whose commits each wait for `gate` to be released once."""

    gate = threading.Semaphore(0)
    under_way = 0

    def write_result(self, outcome: BatchResult, started_at: int, seal: Seal, stored: StoredLookup) -> CommitReceipt:
        GatedWriter.under_way += 1
        assert self.gate.acquire(timeout=120)
        return super().write_result(outcome, started_at, seal, stored)


class RejectedWriter(FakeWriter):
    """A transaction writer whose partition cannot be fenced."""

    def fence_former_owner(self) -> None:
        try:
            raise OSError("reported so")
        except OSError as error:
            raise Lost("rejected") from error


class FakeRecovery:
    """Empty changelogs; each reading lasts until `gate` is released once.

    `topic_ids`: with which the last one began.
    """

    def __init__(self) -> None:
        self.topic_ids = TopicIds()
        self.under_way = self.most = self.ended = 0
        self.gate, self._lock = threading.Semaphore(0), threading.Lock()

    def has_ended(self, times: int) -> bool:
        return self.ended >= times

    def recover(
        self,
        settings: ProcessorSettings,
        state: PartitionState,
        store: Store,
        codec: RowCodec,
        wanted: Wanted,
        progress: RecoveryProgress,
        topic_ids: TopicIds,
        changelog_end: int,
    ) -> int:
        with self._lock:
            self.topic_ids = topic_ids
            self.under_way += 1
            self.most = max(self.most, self.under_way)
        assert self.gate.acquire(timeout=120)
        with self._lock:
            self.under_way -= 1
            self.ended += 1
        if not wanted():
            raise Lost("no longer wanted")
        state.rows = store.rows
        state.finish_loading(store.rows.due_rows())
        return 0


class OwnerBench:
    """An assignment of a worker without a broker."""

    def __init__(
        self,
        topic_ids: Callable[[], TopicIds] = TopicIds,
        find_traces: Callable[[int, Position], list[str]] = lambda *_: [],
        changelog_end: Callable[[int], int] = lambda _: 0,
        **settings: Any,
    ) -> None:
        self.settings = ProcessorSettings(bootstrap_servers="127.0.0.1:1", signing_keys=SECRETS, **settings)
        self.metrics, self.fetch_control = Metrics(), FakeFetchControl()
        job = processor_job(self.settings)
        self.context = WorkerContext(
            *(self.settings, job, self.metrics, UnboundedExecutor(), self.fetch_control),
            topic_ids=topic_ids,
            find_traces=find_traces,
            changelog_end=changelog_end,
        )
        self.assignment = Assignment(self.context, PartitionStores(self.settings, None, job.row_codec))

    def count_errors(self, kind: str) -> int:
        return int(self.metrics.errors.labels(kind)._value.get())

    @staticmethod
    async def seen(condition: Callable[[], object], timeout_s: float = 120.0) -> None:
        """Wait until `condition` returns a true value."""
        async with asyncio.timeout(timeout_s):
            while not condition():
                await asyncio.sleep(0.001)


def count_threads() -> int:
    """Return the number of this process's threads, librdkafka's among them."""
    return len(list(Path("/proc/self/task").iterdir()))


def count_descriptors() -> int:
    """Return the number of this process's open descriptors."""
    return len(list(Path("/proc/self/fd").iterdir()))
