"""The measuring programs work: one of them, small."""

from pathlib import Path

import pytest

from benchmarks.bench import Bench, Options
from benchmarks.harness.stack import Stack
from benchmarks.measurements.full_job import run_job
from benchmarks.workload.events import Workload, agent_runs
from sessionary.schemas.settings import KafkaSettings

pytestmark = pytest.mark.long


def test_the_full_job_is_measured_on_events_that_all_apply(kafka: KafkaSettings, tmp_path: Path) -> None:
    events = 60_000  # some batches in each partition, and longer than a sample of the CPU time
    bench = Bench(Options(quick=True))
    stack = Stack(bench, tmp_path, kafka.bootstrap_servers)
    workload = Workload(agent_runs(), concurrent=100)
    try:
        found = run_job(stack, bench, workload, events)
    finally:
        stack.stop()
    assert found.events_per_s > 0
    assert found.cpu_us > 0
    assert 0 < found.audits_a_event < 1
