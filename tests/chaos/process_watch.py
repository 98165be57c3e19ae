"""Samples threads, descriptors and memory of the processes, and compares the end with the middle.

Only processes that lived long enough without a restart are judged. The least value of the end must
not exceed the greatest value of the middle by more than an allowance: a peak, for example while a
client is replaced, is in one of the samples of each window, not in all. A worker that had more
partitions after the middle than before is not judged by its memory.
"""

import contextlib
import itertools
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Final, NamedTuple

from tests.chaos.watch_thread import WatchThread

_LOOK_S = 2.0
_MIB = 1 << 20
# Caches fill, and a worker that starts amid faults gets its partitions, each with threads and
# connections, one by one; a broker may be away for 100 s on a busy machine. In a shorter life that
# would be the growth from the middle to the end.
LIFE_S_MIN: Final = 300.0
# A load that lasts so long leaves a life, although the watch begins only once each partition has a
# transaction, which may take three minutes.
JUDGING_S_MIN: Final = 2 * LIFE_S_MIN
# The first part of a life is for starting: caches fill, code is compiled.
_MIDDLE: Final = (0.4, 0.6)
_END: Final = (0.85, 1.0)
_SAMPLES_MIN = 3
_THREADS_MORE, _DESCRIPTORS_MORE = 6, 12
_MEMORY_FACTOR, _MEMORY_MORE = 1.1, 24 * _MIB


class Sample(NamedTuple):
    """What a process used at a time (monotonic)."""

    at_s: float
    threads: int
    descriptors: int
    memory_bytes: int
    partitions: int = 0  # of a worker, that are open or opening, each with clients of its own
    at_work: int = 0  # of these, that had a transaction lately


class PartitionCount(NamedTuple):
    """How many partitions a worker has, open or opening, and in how many it wrote lately."""

    partitions: int = 0
    at_work: int = 0


class Growth(NamedTuple):
    """The use of a process in the middle and at the end of its life, as medians."""

    name: str
    lived_s: float
    threads: tuple[float, float]
    descriptors: tuple[float, float]
    memory_bytes: tuple[float, float]
    faults: tuple[str, ...]


def read_sample(pid: int) -> Sample | None:
    """Return what a process uses now; None if it has ended."""
    with contextlib.suppress(OSError, KeyError, ValueError):
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
        fields = dict(line.split(":", 1) for line in lines if ":" in line)
        memory = int(fields["VmRSS"].split()[0]) * 1_024
        descriptors = len(list(Path(f"/proc/{pid}/fd").iterdir()))
        return Sample(time.monotonic(), int(fields["Threads"]), descriptors, memory)
    return None


def compare_windows(name: str, samples: Sequence[Sample]) -> Growth | None:
    """Return how a process grew; None if it lived too briefly, or got to work late. Pure."""
    first_s, lived_s = samples[0].at_s, samples[-1].at_s - samples[0].at_s
    middle, end = (
        [one for one in samples if low <= (one.at_s - first_s) / max(lived_s, 1e-9) <= high]
        for low, high in (_MIDDLE, _END)
    )
    # With fewer partitions, or fewer at work, a worker needs less: with none while its broker is
    # away.
    partitions = max((one.partitions for one in end), default=0)
    at_work = max((one.at_work for one in end), default=0)
    middle = [one for one in middle if one.partitions >= partitions and one.at_work >= at_work]
    if lived_s < LIFE_S_MIN or min(len(middle), len(end)) < _SAMPLES_MIN:
        return None
    faults = []
    for what, place, factor, more, compared in (
        ("threads", 1, 1.0, _THREADS_MORE, middle),
        ("descriptors", 2, 1.0, _DESCRIPTORS_MORE, middle),
        ("bytes of memory", 3, _MEMORY_FACTOR, _MEMORY_MORE, _with_most_partitions(samples, middle)),
    ):
        before, after = max((one[place] for one in compared), default=0), min(one[place] for one in end)
        if len(compared) >= _SAMPLES_MIN and after > before * factor + more:
            faults.append(f"{name} had at most {before:,} {what} in the middle and at least {after:,} at the end")
    pairs = [tuple(statistics.median(one[place] for one in window) for window in (middle, end)) for place in (1, 2, 3)]
    (threads, descriptors, memory) = ((pair[0], pair[1]) for pair in pairs)
    return Growth(name, round(lived_s, 1), threads, descriptors, memory, tuple(faults))


def find_growth(growth: Sequence[Growth], seconds: float) -> list[str]:
    """Return a sentence for each growth, and one if a run could have judged, but did not. Pure.

    `seconds` is how long the load lasted; an agent that no fault hits lives as long.
    """
    if not growth and seconds >= JUDGING_S_MIN:
        return [f"no process was watched for {LIFE_S_MIN:g} s in {seconds:g} s of load, so none was judged"]
    return [text for one in growth for text in one.faults]


def _with_most_partitions(samples: Sequence[Sample], middle: Sequence[Sample]) -> list[Sample]:
    """Return the samples of the middle by which a worker had had as many partitions as ever.

    The allocator keeps the memory of partitions that are given back.
    """
    had = list(itertools.accumulate((one.partitions for one in samples), max))
    return [one for one in middle if had[samples.index(one)] == had[-1]]


class ProcessWatch(WatchThread):
    """Samples processes in a thread, for the context."""

    def __init__(
        self, pids: Callable[[], Mapping[str, int | None]], count_partitions: Callable[[str], PartitionCount]
    ) -> None:
        """`pids` returns the process id of each part by name; None while it does not run."""
        super().__init__("processes", _LOOK_S)
        self._pids, self._count_partitions = pids, count_partitions
        self._samples: dict[tuple[str, int], list[Sample]] = {}

    def growth(self) -> list[Growth]:
        """Return how each process grew that lived long enough; call it after the context."""
        found = (compare_windows(name, samples) for (name, _), samples in sorted(self._samples.items()))
        return [one for one in found if one is not None]

    def look(self) -> None:
        """Sample each process that runs."""
        for name, pid in self._pids().items():
            if pid is not None and (sample := read_sample(pid)) is not None:
                partitions, at_work = self._count_partitions(name)
                owning = sample._replace(partitions=partitions, at_work=at_work)
                self._samples.setdefault((name, pid), []).append(owning)
