"""(c) Latency at three rates: from the client's call to the audit record at a committed reader.

The baselines of the machine are measured in the same run and at the same rate: a bare producer with
the client's settings, a bare transactional hop, the same reader. One hop commits back to back, the
other at the processor's commit interval. Sender, hop or processor, and
reader are separate processes. The sender is an open loop; if the machine is too busy, its delay
is reported. The first seconds of each measurement are left out.
"""

import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Literal, NamedTuple, get_args

from benchmarks.bench import Bench
from benchmarks.harness.pipeline import Worker
from benchmarks.harness.proc_stats import compiler_cpu_seconds
from benchmarks.harness.stack import Stack, environment, running_stack
from benchmarks.programs.sender import SHARE
from benchmarks.results import Result, Target, quantile
from sessionary.infra.local.process import Child
from sessionary.schemas.settings import KafkaSettings
from sessionary.stream_processors.settings import ProcessorSettings

RATES = (200, 2_000, 8_000)
RATES_QUICK = (200,)
SECONDS, SECONDS_QUICK = 20.0, 4.0
WARM_UP_S, WARM_UP_QUICK_S = 5.0, 1.0
JUDGED_RATE, TARGET_MS, TARGET_RATIO = 2_000, 100.0, 1.5
# p99 to that of the hop at the processor's commit interval, by rate.
PACED_RATIO_MAX = {2_000: 1.3, 8_000: 2.0}
# A new broker compiles its code for a minute or two, on the cores that are measured.
WARM_RATE, WARM_S, WARM_ROUNDS_MAX, COMPILING_MAX = 4_000, 15.0, 8, 0.1
_ARRIVAL_S = 30.0
_READY_S = 60.0

Stage = Literal["hop", "paced hop", "processor"]


class Latency(NamedTuple):
    """One measurement, ms."""

    p50: float
    p95: float
    p99: float
    max: float
    records: int
    sender_late_ms: float


def wait_file(stack: Stack, path: Path, *children: Child) -> None:
    """Block until a process has created its file. Raises `RuntimeError` if it does not."""
    deadline_s = time.monotonic() + _READY_S
    while not path.exists():
        stack.check_running(*children)
        if time.monotonic() > deadline_s:
            raise RuntimeError(f"{path.name} did not appear within {_READY_S:g} s")
        time.sleep(0.02)


def _read_times(path: Path) -> dict[str, float]:
    return {name: float(value) for name, value in (line.split() for line in path.read_text().splitlines())}


def measure_latency(
    stack: Stack, kafka: KafkaSettings, mode: str, rate: float, seconds: float, warm_up_s: float
) -> Latency:
    """Send for `seconds` through the processor or hop that runs, and compare sent and seen times.

    `mode`: `client` or `plain`, as in `sender`. The first `warm_up_s` are left out.
    """
    own = {"client": "audit", "plain": "plain"}[mode]
    sent_file, seen_file = stack.folder / f"sent-{time.time_ns()}", stack.folder / f"seen-{time.time_ns()}"
    env = environment(kafka)
    reader = stack.start(
        "benchmarks.programs.reader", own, kafka.topics.audit, "--out", str(seen_file), env=env, name=f"reader-{own}"
    )
    wait_file(stack, seen_file.with_suffix(".ready"), reader)
    span = ("--rate", str(rate), "--seconds", str(seconds), "--out", str(sent_file))
    sender = stack.start("benchmarks.programs.sender", mode, *span, env=env, name=f"sender-{mode}")
    if not sender.wait(seconds * 5 + _READY_S) or sender.exit_code != 0:
        raise RuntimeError(f"the sender ended with {sender.exit_code}; see its log with --keep")
    sent = _read_times(sent_file)
    late_ms = sent.pop("late_ms")
    _wait_seen(stack, seen_file.with_suffix(".count"), len(sent), reader)
    reader.stop(_ARRIVAL_S)
    seen = _read_times(seen_file)
    return _compare_times(sent, seen, warm_up_s, late_ms)


def _wait_seen(stack: Stack, count: Path, wanted: int, reader: Child) -> None:
    """Wait up to 30 s until the reader has seen `wanted` records."""
    deadline_s = time.monotonic() + _ARRIVAL_S
    while time.monotonic() < deadline_s and not (count.exists() and int(count.read_text() or 0) >= wanted):
        stack.check_running(reader)
        time.sleep(0.1)


def _compare_times(sent: dict[str, float], seen: dict[str, float], warm_up_s: float, late_ms: float) -> Latency:
    missing = sent.keys() - seen.keys()
    if missing:
        raise RuntimeError(f"{len(missing)} of {len(sent)} records were not seen within {_ARRIVAL_S:g} s")
    first_ns = min(sent.values()) + warm_up_s * 1e9
    found = sorted((seen[name] - at_ns) / 1e6 for name, at_ns in sent.items() if at_ns >= first_ns)
    p50, p95, p99 = (quantile(found, share) for share in (0.5, 0.95, 0.99))
    return Latency(p50, p95, p99, found[-1], len(found), late_ms)


def _measure_stage(stack: Stack, bench: Bench, stage: Stage, rate: int, seconds: float, warm_up_s: float) -> Latency:
    """Measure one rate of one stage on separate topics."""
    kafka = stack.new_pipeline()
    child = _start_processor(stack, kafka) if stage == "processor" else _start_hop(stack, kafka, stage)
    try:
        mode = "client" if stage == "processor" else "plain"
        found = measure_latency(stack, kafka, mode, rate, seconds, warm_up_s)
    finally:
        child.stop(20.0)
        stack.drop_pipeline(kafka)
    bench.print_progress(f"  {stage}, {rate:,} events/s: p99 {found.p99:.1f} ms")
    return found


def _one_run(stack: Stack, bench: Bench, rates: Sequence[int]) -> dict[tuple[Stage, int], Latency]:
    """Measure every rate, the hops and the product in turn."""
    span = (SECONDS_QUICK, WARM_UP_QUICK_S) if bench.options.quick else (SECONDS, WARM_UP_S)
    stages: Sequence[Stage] = get_args(Stage)
    return {(stage, rate): _measure_stage(stack, bench, stage, rate, *span) for rate in rates for stage in stages}


def warm_broker(stack: Stack, bench: Bench) -> None:
    """Load the broker until its compiler is done, up to `WARM_ROUNDS_MAX` rounds."""
    for number in range(WARM_ROUNDS_MAX):
        stage: Stage = ("processor", "hop")[number % 2]
        before_s, began_s = compiler_cpu_seconds(stack.broker_pid), time.monotonic()
        _measure_stage(stack, bench, stage, WARM_RATE, WARM_S, WARM_UP_S)
        share = (compiler_cpu_seconds(stack.broker_pid) - before_s) / (time.monotonic() - began_s)
        bench.print_progress(f"  the broker's compiler used {share:.0%} of a core")
        if number and share < COMPILING_MAX:
            return


def _start_hop(stack: Stack, kafka: KafkaSettings, stage: Stage) -> Child:
    ready = stack.folder / f"{kafka.topic_prefix}.hop-ready"
    interval_ms = ProcessorSettings().commit_interval_ms if stage == "paced hop" else 0
    options = ("--ready", str(ready), "--commit-interval-ms", str(interval_ms))
    topics = (kafka.topics.events, kafka.topics.audit)
    hop = stack.start("benchmarks.programs.transactional_hop", *topics, *options, env=environment(kafka), name="hop")
    wait_file(stack, ready, hop)
    return hop


def _start_processor(stack: Stack, kafka: KafkaSettings) -> Child:
    worker = Worker(stack, kafka)
    worker.wait_ready()
    return worker.child


def run(bench: Bench) -> list[Result]:
    """Run the measurement."""
    rates = RATES_QUICK if bench.options.quick else RATES
    with running_stack(bench) as stack:
        if not bench.options.quick:
            bench.run_once("warm-up of the broker", lambda: warm_broker(stack, bench))
        found = bench.repeat("latency at every rate", lambda _: _one_run(stack, bench, rates))
    results: list[Result] = []
    for rate in rates:
        runs: dict[Stage, list[Latency]] = {stage: [one[stage, rate] for one in found] for stage in get_args(Stage)}
        results += rate_results(rate, runs)
    return results


def rate_results(rate: int, runs: Mapping[Stage, Sequence[Latency]]) -> list[Result]:
    """Return the figures of one rate: of the product, of the hops, and their ratios."""
    ours, base, paced = (runs[stage] for stage in ("processor", "hop", "paced hop"))
    notes = [
        f"{SHARE:.0%} of the events make an audit record (3 of the 11 of a short session); latency is from the call of "
        "the client's verb to the reader's poll, both on one clock",
        "baselines: bare producer with the client's linger → bare transactional hop → the same reader, at that rate; "
        "one hop commits back to back, the other at the processor's commit interval",
        f"target at {JUDGED_RATE:,}/s: {TARGET_MS:g} ms, or {TARGET_RATIO} times the first baseline's p99 if larger",
    ]
    late = max(one.sender_late_ms for one in (*ours, *base, *paced))
    if late > TARGET_MS / 2:
        notes.append(f"at {rate:,}/s a sender was late by up to {late:.0f} ms")
    limit = max(TARGET_MS, TARGET_RATIO * sorted(other.p99 for other in base)[len(base) // 2])
    details = {f"runs of {stage}": [one._asdict() for one in found] for stage, found in runs.items()}
    results = [
        Result(f"{rate:,}/s, p50", "ms", [one.p50 for one in ours], notes=tuple(notes), details=details),
        Result(f"{rate:,}/s, p95", "ms", [one.p95 for one in ours]),
        Result(
            f"{rate:,}/s, p99", "ms", [one.p99 for one in ours], Target("<=", limit) if rate == JUDGED_RATE else None
        ),
        Result(f"{rate:,}/s, largest", "ms", [one.max for one in ours]),
    ]
    for name, found in (("baseline", base), ("paced baseline", paced)):
        results += [
            Result(f"{rate:,}/s, {name} p50", "ms", [one.p50 for one in found]),
            Result(f"{rate:,}/s, {name} p99", "ms", [one.p99 for one in found]),
        ]
    ratio_max = PACED_RATIO_MAX.get(rate)
    return [
        *results,
        Result(f"{rate:,}/s, p99 to the baseline's", "ratio", _p99_ratios(ours, base)),
        Result(
            f"{rate:,}/s, p99 to the paced baseline's",
            "ratio",
            _p99_ratios(ours, paced),
            Target("<=", ratio_max) if ratio_max is not None else None,
        ),
    ]


def _p99_ratios(ours: Sequence[Latency], base: Sequence[Latency]) -> list[float]:
    return [one.p99 / other.p99 for one, other in zip(ours, base, strict=True)]
