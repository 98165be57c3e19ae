"""(r) Failover: the time without a verdict after a processor is killed with signal 9 under load.

Restart: the same instance is started again at once; measured until its first committed batch is
read. Takeover: another worker runs beside it; measured until a batch of that worker is read from
every partition that the killed one owned. Renewal: the broker's answer to the end of a transaction
is lost 50 times, one after another; measured from each loss until the partition, whose producer is
replaced, has committed its next transaction.
"""

import statistics
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
from tests.late_requests.proxy import KafkaProxy
from tests.late_requests.wire import Request

SESSIONS, SESSIONS_QUICK = 10_000, 500
RATE, RATE_QUICK = 1_000, 200
RENEWALS, RENEWALS_QUICK = 50, 3
RENEWAL_MS_MAX = 100.0
SESSION_TIMEOUT_S = 6.0
_LOAD_S = 300.0
_STEADY_S = 3.0
_WAIT_S = 90.0
_STOP_S = 20.0
# Records that the killed process has sent may still be on their way to the broker.
_ON_ITS_WAY_S = 0.1


class _Setup(NamedTuple):
    """Servers, pipeline, reader of batches, rate, and lost answers of one measurement."""

    stack: Stack
    kafka: KafkaSettings
    reader: BatchReader
    rate: int
    renewals: int


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


def _measure_renewals(setup: _Setup) -> float:
    """Return the median, in ms."""
    with KafkaProxy(setup.kafka.bootstrap_servers) as proxy:
        proxied = setup.kafka.model_copy(update={"bootstrap_servers": proxy.address})
        worker = Worker(setup.stack, proxied, "w1")
        worker.wait_ready()
        load = _start_sender(setup)
        _wait_steady(setup, {"w1"}, worker.child, load)
        renewals_s = [_lose_answer(setup, proxy, worker.child, load) for _ in range(setup.renewals)]
        load.stop(_STOP_S)
        worker.stop()
    return 1_000 * statistics.median(renewals_s)


def _lose_answer(setup: _Setup, proxy: KafkaProxy, *children: Child) -> float:
    """Lose the next answer to an end; return the time, in s, until the partition's next commit."""
    lost: list[tuple[int, float]] = []  # partition, and when (s since the epoch)

    def is_end(request: Request) -> bool:
        if request.api != "EndTxn" or request.transactional_id is None:
            return False
        lost.append((int(request.transactional_id.rpartition("-")[2]), time.time()))
        return True

    def following(batches: list[Batch]) -> list[Batch]:
        """Return the transactions of the partition that began after the loss."""
        return [
            batch
            for partition, at_s in lost[:1]
            for batch in batches
            if batch.record.partition == partition and batch.record.started_at > at_s * 1e6
        ]

    proxy.hold(is_end)
    _wait_for_batches(
        setup, "two transactions after a lost answer", lambda found: len(following(found)) >= 2, *children
    )
    # The second one says when the first one was acknowledged.
    acknowledged_at = following(setup.reader.batches)[1].record.previous_acknowledged_at
    if acknowledged_at is None:
        raise RuntimeError("the partition was opened twice after one lost answer")
    return acknowledged_at / 1e6 - lost[0][1]


def _repeat_failover(
    stack: Stack, bench: Bench, workload: Workload, sessions: int, title: str, work: Callable[[_Setup], float]
) -> list[float]:
    def run_once(_: int) -> float:
        kafka = stack.new_pipeline()
        preload_sessions(kafka, workload.templates, sessions)
        rate, renewals = (RATE_QUICK, RENEWALS_QUICK) if bench.options.quick else (RATE, RENEWALS)
        setup = _Setup(stack, kafka, BatchReader(kafka), rate, renewals)
        try:
            return work(setup)
        finally:
            setup.reader.close()

    return bench.repeat(title, run_once)


def run(bench: Bench) -> list[Result]:
    """Measure restart, takeover and renewal."""
    sessions = bench.event_count(SESSIONS, SESSIONS_QUICK)
    rate = RATE_QUICK if bench.options.quick else RATE
    workload = make_workload(bench)
    with running_stack(bench) as stack:
        restarts = _repeat_failover(stack, bench, workload, sessions, "restart", _measure_restart)
        takeovers = _repeat_failover(stack, bench, workload, sessions, "takeover", _measure_takeover)
        renewals = _repeat_failover(stack, bench, workload, sessions, "renewal", _measure_renewals)
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
        Result(
            "a producer replaced, from a lost answer to its partition's next commit",
            "ms",
            renewals,
            Target("<=", RENEWAL_MS_MAX),
            (f"the median of {RENEWALS_QUICK if bench.options.quick else RENEWALS} lost answers in each run",),
        ),
    ]
