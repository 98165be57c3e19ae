"""(k) A rolling restart of three processors under load: the waiting time of a partition's events.

Each worker in turn is stopped (SIGTERM) and started again by its name; the next one follows when it
is ready. A pause is the time between two batches of a partition in the log. Those between batches
of two workers belong to a partition that moved, all others to one that stayed where it was.

A process that starts takes the cores from the others for seconds. So the same load is also measured
while as many processors of another pipeline start and end, which share nothing but the machine and
its broker.
"""

import itertools
import time
from collections import defaultdict
from collections.abc import Iterable
from typing import NamedTuple

from benchmarks.bench import Bench
from benchmarks.harness.pipeline import Batch, BatchReader, Worker
from benchmarks.harness.stack import Stack, environment, running_stack
from benchmarks.measurements.full_job import make_workload
from benchmarks.results import Result, Target
from benchmarks.workload.events import Workload
from benchmarks.workload.live_sessions import preload_sessions
from sessionary.infra.local.process import Child
from sessionary.schemas.settings import KafkaSettings

WORKERS = ("w1", "w2", "w3")
PARTITIONS = 12
SESSIONS, SESSIONS_QUICK = 10_000, 500
RATE, RATE_QUICK = 600, 240
MOVED_S_MAX, STAYED_S_MAX = 5.0, 0.1
_STEADY_S, _STEADY_QUICK_S = 10.0, 3.0
_WAIT_S = 90.0
_STOP_S = 20.0
_LOAD_S = 600.0


class Pauses(NamedTuple):
    """Seconds between two batches of a partition."""

    moved: list[float]  # of two workers
    stayed: list[float]  # of one worker


class RollingRun(NamedTuple):
    """Pauses in s: the largest ones, and how many partitions moved."""

    moved_max: float
    moved_median: float
    moves: int
    stayed_max: float
    steady_max: float  # under the same load, before the first restart
    beside_max: float  # under the same load, while processors of another pipeline start and end


def find_pauses(batches: Iterable[Batch], from_s: float, until_s: float) -> Pauses:
    """Return the pauses that end between two times, in s since the epoch.

    Batches without events do not count.
    """
    of_partition: dict[int, list[Batch]] = defaultdict(list)
    for batch in batches:
        if batch.record.applied:
            of_partition[batch.record.partition].append(batch)
    pauses = Pauses([], [])
    for found in of_partition.values():
        found.sort(key=lambda batch: batch.record.number)
        for former, batch in itertools.pairwise(found):
            if from_s <= batch.at_s < until_s:
                is_same = former.record.instance == batch.record.instance
                (pauses.stayed if is_same else pauses.moved).append(batch.at_s - former.at_s)
    return pauses


def _read_until(stack: Stack, reader: BatchReader, until_s: float, children: list[Child]) -> None:
    while time.time() < until_s:
        stack.check_running(*children)
        reader.read_batches(0.1)


def _wait_all_judged(stack: Stack, reader: BatchReader, children: list[Child]) -> None:
    """Read until events of each partition were judged that came from now on.

    Raises `RuntimeError` after 90 s.
    """
    since_s = time.time()

    def judged_partitions() -> set[int]:
        return {batch.record.partition for batch in reader.batches if batch.at_s > since_s and batch.record.applied}

    while len(judged_partitions()) < PARTITIONS:
        if time.time() - since_s > _WAIT_S:
            raise RuntimeError(f"no event was judged in some partitions for {_WAIT_S:g} s")
        _read_until(stack, reader, time.time() + 0.2, children)


def _measure_rolling(
    stack: Stack, kafka: KafkaSettings, other: KafkaSettings, rate: int, steady_s: float
) -> RollingRun:
    workers = {name: Worker(stack, kafka, name) for name in WORKERS}
    for worker in workers.values():
        worker.wait_ready()
    reader, out = BatchReader(kafka), stack.folder / f"{kafka.topic_prefix}.sent"
    words = ("client", "--rate", str(rate), "--seconds", str(_LOAD_S), "--out", str(out))
    load = stack.start("benchmarks.programs.sender", *words, env=environment(kafka), name="sender")
    try:
        _wait_all_judged(stack, reader, [load])
        steady_from_s = time.time()
        _read_until(stack, reader, steady_from_s + steady_s, [load])
        steady_until_s = time.time()
        _start_others(stack, other)
        _read_until(stack, reader, time.time() + steady_s, [load])
        begun_s = time.time()
        for name in WORKERS:
            workers[name].stop()
            workers[name] = Worker(stack, kafka, name)
            workers[name].wait_ready()
            _wait_all_judged(stack, reader, [load, workers[name].child])
            _read_until(stack, reader, time.time() + steady_s, [load])
        steady, beside, rolling = (
            find_pauses(reader.batches, *span)
            for span in ((steady_from_s, steady_until_s), (steady_until_s, begun_s), (begun_s, time.time()))
        )
    finally:
        load.stop(_STOP_S)
        reader.close()
        for worker in workers.values():
            worker.stop()
        stack.drop_pipeline(kafka)
        stack.drop_pipeline(other)
    moved = sorted(rolling.moved)
    return RollingRun(
        moved_max=moved[-1],
        moved_median=moved[len(moved) // 2],
        moves=len(moved),
        stayed_max=max(rolling.stayed),
        steady_max=max(steady.stayed),
        beside_max=max(beside.stayed),
    )


def _start_others(stack: Stack, kafka: KafkaSettings) -> None:
    """Start a processor of another pipeline and end it, as often as there are workers."""
    for _ in WORKERS:
        worker = Worker(stack, kafka, "other")
        try:
            worker.wait_ready()
        finally:
            worker.stop()


def _repeat_rolling(stack: Stack, bench: Bench, workload: Workload) -> list[RollingRun]:
    quick = bench.options.quick
    sessions = bench.event_count(SESSIONS, SESSIONS_QUICK)
    rate, steady_s = (RATE_QUICK, _STEADY_QUICK_S) if quick else (RATE, _STEADY_S)

    def run_once(_: int) -> RollingRun:
        kafka, other = stack.new_pipeline(PARTITIONS), stack.new_pipeline(PARTITIONS)
        preload_sessions(kafka, workload.templates, sessions)
        preload_sessions(other, workload.templates, 0)
        return _measure_rolling(stack, kafka, other, rate, steady_s)

    return bench.repeat("rolling restart", run_once)


def run(bench: Bench) -> list[Result]:
    """Measure rolling restarts."""
    workload = make_workload(bench)
    with running_stack(bench) as stack:
        runs = _repeat_rolling(stack, bench, workload)
    notes = (
        f"{len(WORKERS)} workers, {PARTITIONS} partitions; the longest time between two batches of a partition, by "
        "the broker's time stamps",
        "a partition that stays waits no longer than under the same load while processors of another pipeline start "
        "and end, which takes the cores as much",
    )
    beyond = [max(0.0, one.stayed_max - one.beside_max) for one in runs]
    return [
        Result("partition that moves, longest pause", "s", [one.moved_max for one in runs], Target("<=", MOVED_S_MAX)),
        Result("partition that moves, median pause", "s", [one.moved_median for one in runs]),
        Result("moves", "number", [float(one.moves) for one in runs]),
        Result("partition that stays, longest pause", "s", [one.stayed_max for one in runs]),
        Result("steady load, longest pause", "s", [one.steady_max for one in runs]),
        Result("others start beside the steady load, longest pause", "s", [one.beside_max for one in runs]),
        Result("partition that stays, beyond the starts of others", "s", beyond, Target("<=", STAYED_S_MAX), notes),
    ]
