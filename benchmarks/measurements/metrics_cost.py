"""(u) The cost of metrics in the full job, compared with a processor that counts nothing, in pairs.

The ordinary processor's page is read once a second, fifteen times as often as Prometheus does by
default. Within a pair the order changes, so that what drifts falls on both. Only ratios within a
pair are judged.
"""

import contextlib
import threading
from typing import NamedTuple

from benchmarks.bench import Bench
from benchmarks.harness.pipeline import Worker
from benchmarks.harness.stack import Stack, running_stack
from benchmarks.measurements.full_job import JobRun, make_workload, run_job, warm_up
from benchmarks.results import Result, Target
from benchmarks.workload.events import Workload
from sessionary.schemas.settings import KafkaSettings

EVENTS, EVENTS_QUICK = 200_000, 60_000
COST_MAX = 1.02
_PAIRS_PER_RUN = 2
_SCRAPE_S = 1.0
_UNMEASURED = "benchmarks.programs.unmeasured_processor"


class MetricsPair(NamedTuple):
    """One job with metrics, and one without."""

    measured: JobRun
    unmeasured: JobRun


class ScrapedWorker(Worker):
    """A processor process whose metrics are read once a second."""

    def __init__(self, stack: Stack, kafka: KafkaSettings) -> None:
        """Start both."""
        super().__init__(stack, kafka)
        self.scrapes = 0
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._scrape, name="scraping")
        self._thread.start()

    def _scrape(self) -> None:
        while not self._ended.wait(_SCRAPE_S):
            with contextlib.suppress(OSError):  # it does not serve its page yet
                self.scrapes += bool(self.read_metrics())

    def stop(self) -> None:
        """Stop both. Blocks. Raises `RuntimeError` if no page was ever read."""
        self._ended.set()
        self._thread.join()
        super().stop()
        if not self.scrapes:
            raise RuntimeError("the processor's metrics were never read")


def unmeasured_worker(stack: Stack, kafka: KafkaSettings) -> Worker:
    """Start a processor that counts nothing."""
    return Worker(stack, kafka, module=_UNMEASURED)


def measure_metrics_pair(stack: Stack, bench: Bench, workload: Workload, events: int, number: int) -> MetricsPair:
    """Run both jobs; who begins changes with each pair. Raises `RuntimeError`."""
    starts = (ScrapedWorker, unmeasured_worker)
    found = {
        start: run_job(stack, bench, workload, events, start=start)
        for start in (starts if number % 2 else starts[::-1])
    }
    pair = MetricsPair(found[ScrapedWorker], found[unmeasured_worker])
    bench.print_progress(f"  {pair.measured.cpu_us:.1f} µs CPU an event, without metrics {pair.unmeasured.cpu_us:.1f}")
    return pair


def run(bench: Bench) -> list[Result]:
    """Run the measurement."""
    events, workload = bench.event_count(EVENTS, EVENTS_QUICK), make_workload(bench)
    with running_stack(bench) as stack:
        warm_up(stack, bench, workload)
        pairs = [
            bench.run_once(
                f"pair {number + 1}, {events:,} events",
                lambda number=number: measure_metrics_pair(stack, bench, workload, events, number),  # type: ignore[misc]
            )
            for number in range(1 if bench.options.quick else bench.runs * _PAIRS_PER_RUN)
        ]
    notes = (
        f"{len(pairs)} pairs of {events:,} events; with metrics, a page is read each {_SCRAPE_S:g} s; without, no "
        "transaction is counted and no row gets a label",
    )
    costs = [pair.measured.cpu_us / pair.unmeasured.cpu_us for pair in pairs]
    rates = [pair.measured.events_per_s / pair.unmeasured.events_per_s for pair in pairs]
    details = {"pairs": [{name: job._asdict() for name, job in pair._asdict().items()} for pair in pairs]}
    return [
        Result("CPU per event: with metrics / without", "ratio", costs, Target("<=", COST_MAX), notes, details),
        Result("events per second: with metrics / without", "ratio", rates),
        Result("with metrics", "events/s", [pair.measured.events_per_s for pair in pairs]),
        Result("without metrics", "events/s", [pair.unmeasured.events_per_s for pair in pairs]),
    ]
