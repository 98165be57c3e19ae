"""What clients that find no broker leave behind, a thousand of them."""

import asyncio
import os

import pytest

from sessionary.stream_processors.runtime import transaction
from tests.chaos.process_watch import read_sample
from tests.core.stream_processors.runtime.owner_doubles import OwnerBench, count_descriptors, count_threads

PARTITIONS = range(4)
_MEMORY_MORE = 16 << 20  # bytes; a client that is not freed keeps some 100 kB, and each of its threads a stack


def memory_bytes() -> int:
    """Return what this process has in memory."""
    sample = read_sample(os.getpid())
    assert sample is not None
    return sample.memory_bytes


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transaction, "_CALL_TIMEOUT_S", 0.01)
    monkeypatch.setattr(transaction, "_PATIENCE_S", 0.02)


async def close_and_compare(bench: OwnerBench, threads: int, descriptors: int) -> None:
    """Close all owners, and wait until no more is left than before them."""
    bench.assignment.take_assignment([])
    await bench.assignment.close()
    idle = 2 * len(PARTITIONS)  # threads of the executor
    await bench.seen(lambda: count_threads() <= threads + idle and count_descriptors() <= descriptors + 2)


@pytest.mark.usefixtures("no_collection")
def test_an_absent_broker_costs_no_more_threads_and_descriptors_with_time() -> None:
    async def story() -> None:
        threads, descriptors = count_threads(), count_descriptors()
        bench = OwnerBench()
        bench.assignment.take_assignment(PARTITIONS)
        await bench.seen(lambda: bench.count_errors("reopened") >= 40)
        await close_and_compare(bench, threads, descriptors)

    asyncio.run(story())


@pytest.mark.usefixtures("no_collection")
def test_a_thousand_real_clients_that_fail_cost_no_more_than_hundreds() -> None:
    async def story() -> None:
        threads, descriptors = count_threads(), count_descriptors()
        bench = OwnerBench()
        bench.assignment.take_assignment(PARTITIONS)
        used: list[tuple[int, int, int]] = []
        for failures in range(50, 1_001, 50):
            await bench.seen(lambda failures=failures: bench.count_errors("reopened") >= failures, timeout_s=240)  # type: ignore[misc]
            used.append((count_threads(), count_descriptors(), memory_bytes()))
        early, late = used[4:10], used[-5:]
        for place, more in enumerate((4 * len(PARTITIONS), 8 * len(PARTITIONS), _MEMORY_MORE)):
            assert min(one[place] for one in late) <= max(one[place] for one in early) + more, (place, used)
        await close_and_compare(bench, threads, descriptors)

    asyncio.run(story())
