"""The real control API over clients in memory: its pages read the rows that the memory judged."""

import asyncio
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from sessionary.producers.testing import InMemoryTransport
from sessionary.stream_processors.core.model import RecentVerdicts
from sessionary.stream_processors.runtime.partition_owner import CommitNotifications
from sessionary.stream_processors.settings import ProcessorSettings
from tests.core.stream_processors.api.api_server import FakeAssignment, running_server


def new_memory() -> InMemoryTransport:
    """Return a memory with as many partitions as the API that `serve_memory` begins."""
    return InMemoryTransport(partitions=ProcessorSettings().partitions)


@contextmanager
def serve_memory(memory: InMemoryTransport, folder: Path) -> Iterator[str]:
    """Serve the API of a worker that owns all partitions of a memory; `token` is acme's."""
    assignment = FakeAssignment()
    for partition, state in enumerate(memory.core.judge._states):
        assignment.owners[partition] = _owner_of(partition, state)
    started, urls = threading.Event(), list[str]()
    loop = asyncio.new_event_loop()
    stopped = asyncio.Event()

    async def serve() -> None:
        async with running_server(folder, assignment) as server:
            urls.append(server.url)
            started.set()
            await stopped.wait()

    thread = threading.Thread(target=lambda: loop.run_until_complete(serve()))
    thread.start()
    try:
        assert started.wait(60)
        yield urls[0]
    finally:
        loop.call_soon_threadsafe(stopped.set)
        thread.join(60)
        loop.close()


def _owner_of(partition: int, state: Any) -> Any:
    async def wait_until_committed(offset: int, timeout_s: float) -> bool:
        return bool(offset < state.position.next_offset)

    async def wait_until_merged(timeout_s: float) -> bool:
        return True  # no transaction is under way

    return SimpleNamespace(
        partition=partition,
        state=state,
        is_readable=True,
        committed_s=time.monotonic(),
        commits=1,
        notifications=CommitNotifications(),
        recent_verdicts=RecentVerdicts(),
        wait_until_committed=wait_until_committed,
        wait_until_merged=wait_until_merged,
    )
