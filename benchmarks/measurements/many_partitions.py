"""(p) One processor with many partitions: their idle cost, and latency at a steady rate.

An idle partition has live sessions, silent and far from any deadline. Its clock moves by a tick a
second. CPU time is that of the processes, so other load on the machine matters little.
"""

import time
from typing import NamedTuple

from benchmarks.bench import Bench
from benchmarks.harness.pipeline import Worker
from benchmarks.harness.proc_stats import cpu_seconds
from benchmarks.harness.stack import Stack, running_stack
from benchmarks.measurements.full_job import make_workload
from benchmarks.measurements.latency import Latency, measure_latency, warm_broker
from benchmarks.results import Result, Target
from benchmarks.workload.events import Workload
from benchmarks.workload.live_sessions import preload_sessions

IDLE_PARTITIONS, IDLE_PARTITIONS_QUICK = 256, 16
SESSIONS_A_PARTITION = 10
SETTLING_S, SETTLING_QUICK_S = 60.0, 2.0
WATCHED_S, WATCHED_QUICK_S = 120.0, 5.0
CPU_MAX = 0.25
PARTITIONS, RATE, P99_MAX_MS = 64, 2_000, 150.0
SECONDS, SECONDS_QUICK = 30.0, 4.0
WARM_UP_S, WARM_UP_QUICK_S = 10.0, 1.0


class IdleRun(NamedTuple):
    """The cost of idle partitions: cores, and numbers per second."""

    worker: float
    broker: float
    ticks: float
    transactions: float


def _measure_idle(stack: Stack, workload: Workload, partitions: int, settling_s: float, watched_s: float) -> IdleRun:
    kafka = stack.new_pipeline(partitions)
    preload_sessions(kafka, workload.templates, partitions * SESSIONS_A_PARTITION)
    worker = Worker(stack, kafka)
    try:
        worker.wait_ready()
        time.sleep(settling_s)
        before, began_s = _read_counters(stack, worker), time.monotonic()
        time.sleep(watched_s)
        stack.check_running(worker.child)
        after, span_s = _read_counters(stack, worker), time.monotonic() - began_s
    finally:
        worker.stop()
        stack.drop_pipeline(kafka)
    return IdleRun(*((end - begin) / span_s for begin, end in zip(before, after, strict=True)))


def _read_counters(stack: Stack, worker: Worker) -> IdleRun:
    """Return CPU seconds and numbers so far."""
    worker_s, broker_s = cpu_seconds(worker.pid), cpu_seconds(stack.broker_pid)
    metrics = worker.read_metrics()
    return IdleRun(
        worker_s,
        broker_s,
        metrics["sessionary_processor_ticks_sent_total"],
        metrics["sessionary_processor_batches_total"],
    )


def _measure_latency(stack: Stack, seconds: float, warm_up_s: float) -> Latency:
    kafka = stack.new_pipeline(PARTITIONS)
    worker = Worker(stack, kafka)
    try:
        worker.wait_ready()
        return measure_latency(stack, kafka, "client", RATE, seconds, warm_up_s)
    finally:
        worker.stop()
        stack.drop_pipeline(kafka)


def run(bench: Bench) -> list[Result]:
    """Measure both on one broker, or the one that `--part` names."""
    quick, part = bench.options.quick, bench.options.part
    latency: list[Latency] = []
    idle: list[IdleRun] = []
    partitions = IDLE_PARTITIONS_QUICK if quick else IDLE_PARTITIONS
    settling_s, watched_s = (SETTLING_QUICK_S, WATCHED_QUICK_S) if quick else (SETTLING_S, WATCHED_S)
    span = (SECONDS_QUICK, WARM_UP_QUICK_S) if quick else (SECONDS, WARM_UP_S)
    workload = make_workload(bench)
    with running_stack(bench) as stack:
        if not quick:
            bench.run_once("warm-up of the broker", lambda: warm_broker(stack, bench))
        if part != "idle":
            latency = bench.repeat(f"latency with {PARTITIONS} partitions", lambda _: _measure_latency(stack, *span))
        if part != "latency":
            idle = bench.repeat(
                f"{partitions} idle partitions",
                lambda _: _measure_idle(stack, workload, partitions, settling_s, watched_s),
            )
    return [*(_idle_results(partitions, idle) if idle else ()), *(_latency_results(latency) if latency else ())]


def _idle_results(partitions: int, runs: list[IdleRun]) -> list[Result]:
    title = f"{partitions} idle partitions"
    notes = (
        f"each with {SESSIONS_A_PARTITION} silent live sessions; CPU time of the processor and of the broker, "
        "in cores, once both have settled",
    )
    return [
        Result(f"{title}, CPU", "cores", [one.worker + one.broker for one in runs], Target("<=", CPU_MAX), notes),
        Result(f"{title}, CPU of the processor", "cores", [one.worker for one in runs]),
        Result(f"{title}, CPU of the broker", "cores", [one.broker for one in runs]),
        Result(f"{title}, ticks", "1/s", [one.ticks for one in runs]),
        Result(f"{title}, transactions", "1/s", [one.transactions for one in runs]),
    ]


def _latency_results(runs: list[Latency]) -> list[Result]:
    title = f"{PARTITIONS} partitions, {RATE:,}/s"
    details = {"runs": [one._asdict() for one in runs]}
    return [
        Result(f"{title}, p50", "ms", [one.p50 for one in runs], details=details),
        Result(f"{title}, p99", "ms", [one.p99 for one in runs], Target("<=", P99_MAX_MS)),
    ]
