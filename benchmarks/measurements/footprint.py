"""(e) The cost of an idle session: memory with each store, and RocksDB's disk space."""

import time
from pathlib import Path
from typing import NamedTuple

from benchmarks.bench import Bench
from benchmarks.harness.pipeline import Worker
from benchmarks.harness.proc_stats import folder_bytes, rss_bytes
from benchmarks.harness.stack import Stack, running_stack
from benchmarks.measurements.full_job import make_workload
from benchmarks.results import Result, Target
from benchmarks.workload.live_sessions import preload_sessions
from sessionary.schemas.settings import KafkaSettings

SESSIONS, SESSIONS_QUICK = 200_000, 2_000
_BYTES_MAX = 800  # of a session without runs
_SETTLED_S = 2.0


class _Size(NamedTuple):
    memory: int
    disk: int


def _measure_size(stack: Stack, kafka: KafkaSettings, folder: Path | None) -> _Size:
    """Start a processor, let it recover and settle, return its size.

    `folder`: of a RocksDB store; None: a memory store.
    """
    settings = {} if folder is None else {"store": "rocksdb", "state_dir": str(folder)}
    worker = Worker(stack, kafka, **settings)
    try:
        worker.wait_ready()
        time.sleep(_SETTLED_S)
        stack.check_running(worker.child)
        memory = rss_bytes(worker.pid)
    finally:
        worker.stop()
    return _Size(memory, 0 if folder is None else folder_bytes(folder))


def run(bench: Bench) -> list[Result]:
    """Measure a process with the sessions, less one without, both just after recovery."""
    sessions = bench.event_count(SESSIONS, SESSIONS_QUICK)
    workload = make_workload(bench)
    results: list[Result] = []
    with running_stack(bench) as stack:
        full, empty = stack.new_pipeline(), stack.new_pipeline()
        changelog = bench.run_once(
            f"changelog of {sessions:,} sessions",
            lambda: preload_sessions(full, workload.templates, sessions),
        )
        preload_sessions(empty, workload.templates, 0)
        for store in ("memory", "rocksdb"):
            sizes: list[list[_Size]] = []
            for kafka, what in ((empty, "none"), (full, f"{sessions:,}")):

                def measure_size(n: int, kafka: KafkaSettings = kafka, store: str = store) -> _Size:
                    folder = stack.folder / f"state-{store}-{kafka.topic_prefix}-{n}"
                    return _measure_size(stack, kafka, folder if store == "rocksdb" else None)

                sizes.append(bench.repeat(f"{store} store, {what} sessions", measure_size))
            without, with_them = sizes
            results += _store_results(store, sessions, without, with_them, changelog)
    return results


def _store_results(
    store: str, sessions: int, without: list[_Size], with_them: list[_Size], changelog: int
) -> list[Result]:
    floor = sorted(size.memory for size in without)[len(without) // 2]
    notes = (
        f"{sessions:,} silent Active sessions, {changelog / sessions:.0f} B each in the changelog; resident memory "
        f"of the process {_SETTLED_S:g} s after recovery, less that of one without sessions ({floor >> 20} MiB)",
    )
    details = {"without": [size._asdict() for size in without], "with": [size._asdict() for size in with_them]}
    found = [
        Result(
            f"memory per idle session, {store} store",
            "B",
            [(size.memory - floor) / sessions for size in with_them],
            Target("<=", _BYTES_MAX),
            notes,
            details,
        )
    ]
    if store == "rocksdb":
        disk = [size.disk / sessions for size in with_them]
        found.append(Result("disk per idle session, rocksdb store", "B", disk, Target("<=", _BYTES_MAX)))
    return found
