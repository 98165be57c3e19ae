"""(t) Latency of a recorded tool call: from its reservation to its grant.

A real client makes the calls, at a fixed rate, in one process; broker and processor are separate
processes, with their default settings. The control API reports a grant over HTTP.
"""

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from types import MappingProxyType
from typing import Any

from benchmarks.bench import Bench
from benchmarks.harness.pipeline import Worker
from benchmarks.harness.stack import Stack, running_stack
from benchmarks.measurements.latency import warm_broker
from benchmarks.results import Result, Target
from benchmarks.workload.live_sessions import preload_sessions
from sessionary.schemas.settings import KafkaSettings

RATE, RATE_QUICK = 200, 50
SECONDS, SECONDS_QUICK = 30.0, 4.0
WARM_UP_S, WARM_UP_QUICK_S = 10.0, 1.0
P50_MS_MAX, P99_MS_MAX = 40.0, 100.0
LATE_MS_MAX = 50.0
_TOKEN = "token-of-acme"


@contextmanager
def judged_pipeline(
    stack: Stack, tokens: Mapping[str, Any] = MappingProxyType({})
) -> Iterator[tuple[KafkaSettings, dict[str, str]]]:
    """Run a processor that judges by the newest rules; yield its topics, and a client's settings.

    The settings are by field name. `tokens`: further ones of the control API.
    """
    kafka = stack.new_pipeline()
    preload_sessions(kafka, (), 0)
    worker = Worker(stack, kafka, api_tokens=json.dumps({_TOKEN: "acme", **tokens}))
    try:
        worker.wait_ready()
        yield kafka, {"control_url": worker.control_url, "api_token": _TOKEN, "verdict_timeout_s": "120"}
    finally:
        worker.stop()
        stack.drop_pipeline(kafka)


def load_words(bench: Bench, rate: int) -> list[str]:
    """Return the arguments of a program that makes a load of so many requests per second."""
    seconds, warm_up_s = (SECONDS_QUICK, WARM_UP_QUICK_S) if bench.options.quick else (SECONDS, WARM_UP_S)
    return ["--rate", f"{rate}", "--seconds", f"{seconds:g}", "--warm-up-s", f"{warm_up_s:g}"]


def late_notes(runs: list[dict[str, Any]]) -> list[str]:
    """Return a note if a program could not keep its pace."""
    late_ms = max(one["late_ms"] for one in runs)
    if late_ms <= LATE_MS_MAX:
        return []
    return [f"a request began up to {late_ms:.0f} ms late, as the machine was too busy: the figures are an upper bound"]


def latency_results(
    name: str, runs: list[dict[str, Any]], notes: tuple[str, ...], p99_ms_max: float, p50_ms_max: float | None = None
) -> list[Result]:
    """Return the latencies of all runs; the first result has the notes, and the runs themselves."""
    target = None if p50_ms_max is None else Target("<=", p50_ms_max)
    return [
        Result(f"{name}, p50", "ms", [one["p50"] for one in runs], target, notes, {"runs": runs}),
        Result(f"{name}, p95", "ms", [one["p95"] for one in runs]),
        Result(f"{name}, p99", "ms", [one["p99"] for one in runs], Target("<=", p99_ms_max)),
        Result(f"{name}, largest", "ms", [one["max"] for one in runs]),
    ]


def measure_calls(stack: Stack, bench: Bench, rate: int, what: str = "calls") -> dict[str, Any]:
    """Measure `calls` or `tasks` once; return what `programs.calling` prints."""
    with judged_pipeline(stack) as (kafka, fields):
        words = [what, *load_words(bench, rate)]
        return stack.run_program("benchmarks.programs.calling", *words, kafka=kafka, name="calling", **fields)


def run(bench: Bench) -> list[Result]:
    """Run the measurement."""
    rate = RATE_QUICK if bench.options.quick else RATE
    with running_stack(bench) as stack:
        if not bench.options.quick:
            bench.run_once("warm-up of the broker", lambda: warm_broker(stack, bench))
        found = bench.repeat(f"{rate} calls/s", lambda _: measure_calls(stack, bench, rate))
    notes = (
        "from the call of the decorated function to the first line of its body, one client process, default settings "
        "of the processor; the first seconds are left out",
        *late_notes(found),
    )
    name = f"reserve → granted at {rate}/s"
    return [
        *latency_results(name, found, notes, P99_MS_MAX, P50_MS_MAX),
        Result("calls per second that were made", "calls/s", [one["per_s"] for one in found]),
    ]
