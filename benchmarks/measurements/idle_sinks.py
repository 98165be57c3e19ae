"""(q) The cost of idle partitions for the sinks and ClickHouse's engine.

As in `many_partitions`, an idle partition has live sessions, silent and far from any deadline, and
its clock moves by a tick a second. The sinks delay ticks by up to a minute, so a span of
whole minutes is watched. CPU time is that of the processes.
"""

import time
from typing import NamedTuple

from benchmarks.bench import Bench
from benchmarks.harness.pipeline import Worker
from benchmarks.harness.proc_stats import cpu_seconds
from benchmarks.harness.sink_processes import start_sinks, stop_sinks
from benchmarks.harness.stack import Stack, running_stack
from benchmarks.measurements.full_job import make_workload
from benchmarks.results import Result, Target
from benchmarks.workload.events import Workload
from benchmarks.workload.live_sessions import preload_sessions
from sessionary.infra.clickhouse_client import ClickHouseClient
from sessionary.sinks.core.sink_kinds import SINKS

PARTITIONS, PARTITIONS_QUICK = 64, 4
SESSIONS_A_PARTITION = 10
SETTLING_S, SETTLING_QUICK_S = 90.0, 2.0
WATCHED_S, WATCHED_QUICK_S = 180.0, 65.0
_TARGET = Target("<=", 0.05)
_ROWS = "SELECT " + " + ".join(f"(SELECT count() FROM {table})" for table in SINKS) + " AS n"


class IdleSinks(NamedTuple):
    """The cost of idle partitions for the sinks and the engine: cores, and rows per second."""

    sinks: float
    engine: float
    rows: float


def measure_idle_sinks(
    stack: Stack, workload: Workload, partitions: int, settling_s: float, watched_s: float
) -> IdleSinks:
    """Run one sink of each kind beside a processor whose partitions are idle.

    Raises `RuntimeError` if a process ends, or if no row was written.
    """
    kafka, settings = stack.new_pipeline(partitions), stack.new_database()
    preload_sessions(kafka, workload.templates, partitions * SESSIONS_A_PARTITION)
    worker = Worker(stack, kafka)
    sinks = start_sinks(stack, kafka, settings, {kind: kind for kind in SINKS})
    clickhouse = ClickHouseClient(settings)

    def read_counters() -> IdleSinks:
        """Return CPU seconds and rows so far."""
        stack.check_running(worker.child, *sinks.values())
        sinks_s = sum(cpu_seconds(sink.pid) for sink in sinks.values())
        return IdleSinks(sinks_s, cpu_seconds(stack.clickhouse_pid), clickhouse.fetch_one(_ROWS)["n"])

    try:
        worker.wait_ready()
        time.sleep(settling_s)
        before, began_s = read_counters(), time.monotonic()
        time.sleep(watched_s)
        after, span_s = read_counters(), time.monotonic() - began_s
    finally:
        stop_sinks(sinks.values())
        worker.stop()
        stack.drop_pipeline(kafka)
    if after.rows == before.rows:
        raise RuntimeError(f"no tick became a row within {watched_s:g} s")
    return IdleSinks(*((end - begin) / span_s for begin, end in zip(before, after, strict=True)))


def run(bench: Bench) -> list[Result]:
    """Run the measurement."""
    quick = bench.options.quick
    partitions = PARTITIONS_QUICK if quick else PARTITIONS
    spans = (SETTLING_QUICK_S, WATCHED_QUICK_S) if quick else (SETTLING_S, WATCHED_S)
    workload, title = make_workload(bench), f"{partitions} idle partitions"
    with running_stack(bench) as stack:
        runs = bench.repeat(title, lambda _: measure_idle_sinks(stack, workload, partitions, *spans))
    notes = (
        f"each with {SESSIONS_A_PARTITION} silent live sessions; one sink of each kind; CPU time in cores, over "
        f"{spans[1]:g} s",
    )
    return [
        Result(f"{title}, CPU of sinks and engine", "cores", [one.sinks + one.engine for one in runs], _TARGET, notes),
        Result(f"{title}, CPU of the sinks", "cores", [one.sinks for one in runs]),
        Result(f"{title}, CPU of the engine", "cores", [one.engine for one in runs]),
        Result(f"{title}, rows", "1/s", [one.rows for one in runs]),
    ]
