"""(m) A million sessions: recovery, restart in place with RocksDB, and the cost of tombstones.

A recovery also compares the rows' sum with the position's.
"""

import time
from pathlib import Path
from typing import NamedTuple

from benchmarks.bench import Bench
from benchmarks.harness.pipeline import Worker
from benchmarks.harness.proc_stats import cpu_seconds, rss_bytes
from benchmarks.harness.stack import Stack, running_stack
from benchmarks.measurements.full_job import make_workload
from benchmarks.results import Result, Target
from benchmarks.workload.live_sessions import preload_sessions
from benchmarks.workload.tombstones import preload_tombstones
from sessionary.schemas.settings import KafkaSettings

SESSIONS, SESSIONS_QUICK = 1_000_000, 2_000
TOMBSTONES_PER_SESSION = 10
_SETTLED_S = 2.0


class _Run(NamedTuple):
    """A process from its start until its partitions are open."""

    open_s: float  # from the assignment to the last partition's opening
    from_start_s: float
    cpu_s: float
    memory: int  # resident, 2 s later


def _measure_opening(stack: Stack, kafka: KafkaSettings, folder: Path | None = None) -> _Run:
    """`folder`: of a RocksDB store; None: a memory store."""
    settings = {} if folder is None else {"store": "rocksdb", "state_dir": str(folder)}
    worker = Worker(stack, kafka, **settings)
    try:
        ready_s = worker.wait_ready()
        cpu_s = cpu_seconds(worker.pid)
        began_s, opened_s = worker.opened_s()
        time.sleep(_SETTLED_S)
        stack.check_running(worker.child)
        return _Run(opened_s - began_s, ready_s - worker.started_s, cpu_s, rss_bytes(worker.pid))
    finally:
        worker.stop()


def _median(values: list[float]) -> float:
    return sorted(values)[len(values) // 2]


def run(bench: Bench) -> list[Result]:
    """Run the measurement; every run is a new process."""
    sessions = bench.event_count(SESSIONS, SESSIONS_QUICK)
    stones = TOMBSTONES_PER_SESSION * sessions
    workload = make_workload(bench)
    with running_stack(bench) as stack:
        full, graves, empty = stack.new_pipeline(), stack.new_pipeline(), stack.new_pipeline()
        preload_sessions(empty, workload.templates, 0)
        bench.run_once(
            f"changelog of {sessions:,} sessions",
            lambda: preload_sessions(full, workload.templates, sessions),
        )
        written = bench.run_once(f"changelog of {stones:,} tombstones", lambda: preload_tombstones(graves, stones))
        none = bench.repeat("recovery of nothing", lambda _: _measure_opening(stack, empty))
        live = bench.repeat(f"recovery of {sessions:,} sessions", lambda _: _measure_opening(stack, full))
        dead = bench.repeat(f"recovery of {stones:,} tombstones", lambda _: _measure_opening(stack, graves))
        folder = stack.folder / "state-million"
        bench.run_once("RocksDB is filled", lambda: _measure_opening(stack, full, folder))
        kept = bench.repeat("restart in place", lambda _: _measure_opening(stack, full, folder))
    return _results(sessions, stones, written, none, live, dead, kept)


def _results(
    sessions: int, stones: int, written: int, none: list[_Run], live: list[_Run], dead: list[_Run], kept: list[_Run]
) -> list[Result]:
    idle_s, idle_cpu_s = _median([run.open_s for run in none]), _median([run.cpu_s for run in none])
    floor = _median([run.memory for run in none])
    notes = (
        f"{sessions:,} sessions or {stones:,} packed tombstones in 4 partitions; one process; time from the "
        f"assignment until the last partition is open, less that of a process without rows ({idle_s:.2f} s)",
        "CPU: of the process until it is ready, less that of a process without rows",
    )
    details = {
        name: [run._asdict() for run in runs]
        for name, runs in (("none", none), ("sessions", live), ("tombstones", dead), ("rocksdb", kept))
    }

    def rates(runs: list[_Run], rows: int) -> list[float]:
        return [rows / max(run.open_s - idle_s, 0.001) for run in runs]

    def costs(runs: list[_Run], rows: int) -> list[float]:
        return [(run.cpu_s - idle_cpu_s) / rows * 1e6 for run in runs]

    return [
        Result("recovery, sessions per second", "1/s", rates(live, sessions), Target(">=", 200_000), notes, details),
        Result("recovery, CPU per session", "µs", costs(live, sessions)),
        Result("recovery, tombstones per second", "1/s", rates(dead, stones), Target(">=", 3_000_000)),
        Result("recovery, CPU per tombstone", "µs", costs(dead, stones)),
        Result("tombstone in the changelog", "B", [written / stones], Target("<=", 40)),
        Result("tombstone in memory", "B", [(run.memory - floor) / stones for run in dead], Target("<=", 40)),
        Result(
            "restart in place with RocksDB, from the assignment", "s", [run.open_s for run in kept], Target("<=", 5.0)
        ),
        Result("the same, from the process's start", "s", [run.from_start_s for run in kept]),
        Result("the same, CPU of the process", "s", [run.cpu_s for run in kept]),
    ]
