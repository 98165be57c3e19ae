"""(r) Failover: the time without a verdict after a processor is killed with signal 9 under load.

Restart: the same instance is started again at once; measured until its first committed batch is
read. Takeover: another worker runs beside it; measured until a batch of that worker is read from
every partition that the killed one owned.
"""

import time
from collections.abc import Callable
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

SESSIONS, SESSIONS_QUICK = 10_000, 500
RATE, RATE_QUICK = 1_000, 200
SESSION_TIMEOUT_S = 6.0
_LOAD_S = 300.0
_STEADY_S = 3.0
_WAIT_S = 90.0
_STOP_S = 20.0
# Records that the killed process has sent may still be on their way to the broker.
_ON_ITS_WAY_S = 0.1


class _Setup(NamedTuple):
    """Servers, pipeline, reader of batches, and rate of one measurement."""

    stack: Stack
    kafka: KafkaSettings
    reader: BatchReader
    rate: int


def _wait_for_batches(setup: _Setup, what: str, found: Callable[[list[Batch]], bool], *children: Child) -> float:
    """Read batches until `found` returns True; return the time, in s since the epoch.

    Raises `RuntimeError` after 90 s.
    """
    deadline_s = time.monotonic() + _WAIT_S
    while not found(setup.reader.batches):
        setup.stack.check_running(*children)
        if time.monotonic() > deadline_s:
            raise RuntimeError(f"waited {_WAIT_S:g} s in vain for {what}")
        setup.reader.read_batches(0.02)
    return time.time()


def _start_sender(setup: _Setup) -> Child:
    out = setup.stack.folder / f"{setup.kafka.topic_prefix}.sent"
    words = ("client", "--rate", str(setup.rate), "--seconds", str(_LOAD_S), "--out", str(out))
    return setup.stack.start("benchmarks.programs.sender", *words, env=environment(setup.kafka), name="sender")


def _wait_steady(setup: _Setup, owners: set[str], *children: Child) -> None:
    """Wait until the `owners` judge events on every partition, and then for 3 s more."""
    since_s = time.time()

    def is_steady(batches: list[Batch]) -> bool:
        recent = {
            (batch.record.partition, batch.record.instance)
            for batch in batches
            if batch.at_s > since_s and batch.record.applied
        }
        partitions = {partition for partition, _ in recent}
        return len(partitions) == setup.kafka.partitions and {name for _, name in recent} == owners

    _wait_for_batches(setup, "load on every partition", is_steady, *children)
    steady_until_s = time.time() + _STEADY_S
    _wait_for_batches(setup, "steady load", lambda _: time.time() > steady_until_s, *children)


def _measure_restart(setup: _Setup) -> float:
    worker = Worker(setup.stack, setup.kafka, "w1")
    worker.wait_ready()
    load = _start_sender(setup)
    _wait_steady(setup, {"w1"}, worker.child, load)
    worker.child.kill()
    again = Worker(setup.stack, setup.kafka, "w1")
    from_s = again.started_s + _ON_ITS_WAY_S
    first_s = _wait_for_batches(
        setup,
        "a batch of the restarted worker",
        lambda batches: any(batch.at_s > from_s and batch.record.applied for batch in batches),
        again.child,
        load,
    )
    load.stop(_STOP_S)
    again.stop()
    return first_s - again.started_s


def _measure_takeover(setup: _Setup) -> float:
    workers = [Worker(setup.stack, setup.kafka, name) for name in ("w1", "w2")]
    for worker in workers:
        worker.wait_ready()
    load = _start_sender(setup)
    _wait_steady(setup, {"w1", "w2"}, *(worker.child for worker in workers), load)
    lately_s = time.time() - _STEADY_S
    owned = {
        batch.record.partition
        for batch in setup.reader.batches
        if batch.at_s > lately_s and batch.record.instance == "w1" and batch.record.applied
    }
    killed_s = time.time()
    workers[0].child.kill()

    def is_taken_over(batches: list[Batch]) -> bool:
        after = (batch.record for batch in batches if batch.at_s > killed_s)
        return owned <= {record.partition for record in after if record.instance == "w2" and record.applied}

    done_s = _wait_for_batches(setup, "the other worker to take over", is_taken_over, workers[1].child, load)
    load.stop(_STOP_S)
    workers[1].stop()
    return done_s - killed_s


def _repeat_failover(
    stack: Stack, bench: Bench, workload: Workload, sessions: int, title: str, work: Callable[[_Setup], float]
) -> list[float]:
    def run_once(_: int) -> float:
        kafka = stack.new_pipeline()
        preload_sessions(kafka, workload.templates, sessions)
        setup = _Setup(stack, kafka, BatchReader(kafka), RATE_QUICK if bench.options.quick else RATE)
        try:
            return work(setup)
        finally:
            setup.reader.close()

    return bench.repeat(title, run_once)


def run(bench: Bench) -> list[Result]:
    """Measure restart and takeover."""
    sessions = bench.event_count(SESSIONS, SESSIONS_QUICK)
    rate = RATE_QUICK if bench.options.quick else RATE
    workload = make_workload(bench)
    with running_stack(bench) as stack:
        restarts = _repeat_failover(stack, bench, workload, sessions, "restart", _measure_restart)
        takeovers = _repeat_failover(stack, bench, workload, sessions, "takeover", _measure_takeover)
    notes = (
        f"{sessions:,} live sessions in the state, {rate:,} events/s; until the first batch (takeover: of every "
        "partition that the dead worker had) is read by a read-committed reader",
    )
    beyond = [taken_s - SESSION_TIMEOUT_S for taken_s in takeovers]
    title = f"takeover by another worker, beyond the session time-out of {SESSION_TIMEOUT_S:g} s"
    return [
        Result("restart after kill -9, from the start", "s", restarts, Target("<=", 5.0), notes),
        Result("takeover by another worker, from the kill", "s", takeovers),
        Result(title, "s", beyond, Target("<=", 5.0), notes),
    ]
