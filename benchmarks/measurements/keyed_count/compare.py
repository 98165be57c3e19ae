"""Runs the engines round by round on one broker: rates, ratios within a round, CPU time.

The rate is measured from the first fifth of the events to the last one, by the committed offsets of
the engine's group. Then the whole output is read and checked.
"""

import shutil
import statistics
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import NamedTuple

from benchmarks.bench import Bench
from benchmarks.harness import peers
from benchmarks.harness.consumption import GroupProgress, Rate, RunFailed, follow_commits, steady_rate
from benchmarks.harness.stack import Stack, running_stack
from benchmarks.measurements.keyed_count.check import OutputCheck, check_output, count_committed
from benchmarks.measurements.keyed_count.engines import ENGINES, Engine, program_environment
from benchmarks.measurements.keyed_count.job import PARTITIONS, Job, drawn_keys, fill_topic, make_topics, remove_topics
from benchmarks.results import Result, Target

EVENTS, EVENTS_QUICK = 5_000_000, 200_000
FEW_EVENTS, FEW_EVENTS_QUICK = 200_000, 10_000
OURS = "ours"
_GRACE_S = 20.0


class Source(NamedTuple):
    """A source topic, and the key number of each of its events."""

    topic: str
    keys: Sequence[int]


class Run(NamedTuple):
    """One run of one engine."""

    rate: Rate
    checked: OutputCheck
    changelog: int  # committed records
    start_s: float  # from the start of the program to its first commit


Rounds = Mapping[str, Sequence[Run]]


@contextmanager
def _job_topics(job: Job) -> Iterator[None]:
    # A changelog fits into one segment, so nothing is compacted while an engine runs.
    make_topics(job.bootstrap_servers, [job.output])
    make_topics(job.bootstrap_servers, [job.changelog], {"cleanup.policy": "compact"})
    try:
        yield
    finally:
        remove_topics(job.bootstrap_servers, [job.output, job.changelog])


def run_engine(bench: Bench, stack: Stack, engine: Engine, source: Source, name: str) -> Run:
    """Run an engine over a whole source topic, and check its output.

    `name` names its group and topics. Blocks. Raises `RunFailed`, `peers.PeerUnavailable`.
    """
    group, changelog = engine.names(name, source.topic)
    events, folder = len(source.keys), stack.folder / name
    job = Job(stack.bootstrap_servers, source.topic, f"{name}-out", changelog, group, events, folder)
    command = engine.command(job)
    folder.mkdir()
    with _job_topics(job):
        group_progress = GroupProgress(stack, job.source, job.group, PARTITIONS)
        child = stack.run(command, env=program_environment(folder), name=name)
        try:
            samples = follow_commits(
                group_progress, child, events, lambda text: bench.print_progress(f"{name}: {text}")
            )
        finally:
            child.stop(_GRACE_S)
            group_progress.close()
        shutil.rmtree(folder)
        started_s = next(sample.at_s for sample in samples if sample.committed) - samples[0].at_s
        checked = check_output(job.bootstrap_servers, job.output, source.keys)
        written = count_committed(job.bootstrap_servers, job.changelog)
        return Run(steady_rate(samples, events // 5), checked, written, started_s)


def _run_rounds(bench: Bench, stack: Stack, engines: Sequence[Engine], sources: Mapping[bool, Source]) -> Rounds:
    """Run all engines in turn, `bench.runs` times.

    An engine that fails or is missing is left out.
    """
    found: dict[str, list[Run]] = defaultdict(list)
    out: set[str] = set()
    for number in range(1, bench.runs + 1):
        for engine in engines:
            if engine.name in out:
                continue
            name = f"{engine.name}-{number}"
            try:
                run = bench.run_once(name, _engine_call(bench, stack, engine, sources[engine.few_events], name))
            except (RunFailed, peers.PeerUnavailable) as error:
                bench.print_progress(f"{engine.name} is left out: {error}")
                out.add(engine.name)
                continue
            found[engine.name].append(run)
            rate = run.rate
            bench.print_progress(
                f"{name}: {rate.per_s:,.0f} events/s, {rate.cpu_us:.2f} µs of CPU an event; {run.checked}"
            )
    # Ratios need both engines of a round, so an engine that failed once is left out of all rounds.
    return {name: runs for name, runs in found.items() if name not in out}


def _engine_call(bench: Bench, stack: Stack, engine: Engine, source: Source, name: str) -> Callable[[], Run]:
    return lambda: run_engine(bench, stack, engine, source, name)


def _engine_results(engine: Engine, runs: Sequence[Run]) -> list[Result]:
    wrong = [f"{engine.name}, run {n}: {run.checked}" for n, run in enumerate(runs, 1) if not run.checked.is_right]
    changelog = statistics.median(run.changelog / run.checked.outputs for run in runs)
    details = {
        "version": engine.version,
        "events_measured": [run.rate.events for run in runs],
        "seconds": [round(run.rate.elapsed_s, 2) for run in runs],
        "outputs": [run.checked.outputs for run in runs],
        "outputs_right": not wrong,
        "changelog_records": [run.changelog for run in runs],
        "broker_cpu_us_per_event": [round(run.rate.broker_cpu_us, 2) for run in runs],
        "start_s": [round(run.start_s, 2) for run in runs],
    }
    note = f"{engine.name}: {engine.version}, {runs[0].checked.outputs:,} events, the first fifth left out; "
    note += f"{changelog:.2f} changelog records an event"
    note += ", every output checked" if not wrong else ", OUTPUT WRONG"
    return [
        Result(engine.name, "events/s", [run.rate.per_s for run in runs], notes=[note, *wrong], details=details),
        Result(f"{engine.name}, CPU", "s per 1M events", [run.rate.cpu_us for run in runs]),
    ]


def _ratio_results(engine: Engine, ours: Sequence[Run], theirs: Sequence[Run]) -> list[Result]:
    pairs = [(mine.rate, its.rate) for mine, its in zip(ours, theirs, strict=True)]
    rates, costs = [a.per_s / b.per_s for a, b in pairs], [b.cpu_us / a.cpu_us for a, b in pairs]
    target, cost_target = (Target(">=", least) if least else None for least in (engine.target, engine.cost_target))
    return [
        Result(f"ours / {engine.name}", "times", rates, target),
        Result(f"CPU per event, {engine.name} / ours", "times", costs, cost_target),
    ]


def comparison_results(rounds: Rounds) -> list[Result]:
    """Return rates, CPU time and ratios. Raises `RuntimeError` if our own output is wrong."""
    ours = rounds.get(OURS, ())
    if wrong := [str(run.checked) for run in ours if not run.checked.is_right]:
        raise RuntimeError(f"our own output is wrong: {'; '.join(wrong)}")
    figures = [result for name, runs in rounds.items() for result in _engine_results(ENGINES[name], runs)]
    peers_of_ours = [name for name in rounds if name != OURS] if ours else []
    return figures + [one for name in peers_of_ours for one in _ratio_results(ENGINES[name], ours, rounds[name])]


def run(bench: Bench, names: Sequence[str] = tuple(ENGINES)) -> list[Result]:
    """Compare the named engines, by default all of them."""
    engines = [ENGINES[name] for name in names]
    with running_stack(bench) as stack:
        sources: dict[bool, Source] = {}
        many = bench.event_count(EVENTS, EVENTS_QUICK)
        few = min(many, FEW_EVENTS_QUICK if bench.options.quick else FEW_EVENTS)
        for is_few, events in ((False, many), (True, few)):
            if any(engine.few_events is is_few for engine in engines):
                sources[is_few] = source = Source(f"events-{events}-{'few' if is_few else 'all'}", drawn_keys(events))
                make_topics(stack.bootstrap_servers, [source.topic], {"message.timestamp.type": "LogAppendTime"})
                fill_topic(stack.bootstrap_servers, source.topic, source.keys, bench.print_progress)
        return comparison_results(_run_rounds(bench, stack, engines, sources))
