"""What the owners of a worker's partitions share."""

import asyncio
from concurrent.futures import Executor
from dataclasses import dataclass, field

from sessionary.stream_processors.metrics import Metrics
from sessionary.stream_processors.runtime.fetching.pending_records import FetchControl
from sessionary.stream_processors.runtime.job import Job
from sessionary.stream_processors.settings import ProcessorSettings

# Recoveries at a time in a worker. Each has a thread, and all want the interpreter's lock: with 64
# the event loop waited for seconds, longer than the group waits for a heartbeat.
RECOVERIES_MAX = 4


@dataclass(frozen=True)
class WorkerContext:
    """What all partition owners of a worker share. `recovery_turns` are taken in order."""

    settings: ProcessorSettings
    job: Job
    metrics: Metrics
    executor: Executor
    fetch_control: FetchControl
    recovery_turns: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(RECOVERIES_MAX))


__all__ = ["RECOVERIES_MAX", "WorkerContext"]
