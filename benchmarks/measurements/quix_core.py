"""(b) The same pure core inside Quix Streams and in our processor, on the same events, in turn.

python -m benchmarks --only b
"""

import os
from collections.abc import Sequence
from functools import partial

from benchmarks.bench import Bench
from benchmarks.harness import peers
from benchmarks.harness.consumption import GroupProgress, Rate, follow_commits, steady_rate
from benchmarks.harness.pipeline import preload_events
from benchmarks.harness.stack import Stack, running_stack
from benchmarks.machine import ROOT
from benchmarks.measurements.full_job import EVENTS, EVENTS_QUICK, JobRun, make_workload, run_job
from benchmarks.measurements.keyed_count.check import count_committed
from benchmarks.measurements.keyed_count.job import remove_topics
from benchmarks.results import Result, Target
from benchmarks.workload.events import Workload

FORMS = {
    "avro": "rows in avro: as the bytes of our changelog, which any later release reads",
    "pickle": "rows in pickle: faster, but only one release can read them, so no choice for a lasting state",
}
_NOTE = (
    "Quix Streams {}: the same core in a stateful apply, exactly once, RocksDB state, commits every second; no timers, "
    "batch records or API there; as many audit records of events as ours"
)
RATIO_MIN = 5.0
_GRACE_S = 20.0
_SOURCE_ROOTS = ("schemas", "stream_processors")
_PROGRAM = ROOT / "benchmarks" / "programs" / "run_quix_core.py"


def run_quix(stack: Stack, bench: Bench, workload: Workload, events: int, form: str) -> tuple[Rate, int]:
    """Write the events, let the core judge them in Quix Streams.

    Return the rate, without the first tenth, and the number of audit records. `form`: of the rows,
    see
    `run_quix_core`. Raises `RunFailed`, `peers.PeerUnavailable`, and `RuntimeError` if an event was
    rejected.
    """
    python, kafka = peers.quix_python(), stack.new_pipeline()
    preload_events(kafka, workload.event_stream(events), bench.print_progress)
    group, folder = f"{kafka.topic_prefix}.quix", stack.folder / kafka.topic_prefix
    path = os.pathsep.join(str(ROOT / root) for root in ("", *_SOURCE_ROOTS))
    places = [kafka.bootstrap_servers, group, kafka.topic_prefix, str(kafka.partitions), str(folder), form]
    group_progress = GroupProgress(stack, kafka.topics.events, group, kafka.partitions)
    child = stack.run([str(python), str(_PROGRAM), *places], env={"PYTHONPATH": path}, name="quix-core")
    try:
        samples = follow_commits(group_progress, child, events, bench.print_progress)
    finally:
        child.stop(_GRACE_S)
        group_progress.close()
    rejected, audits = (
        count_committed(kafka.bootstrap_servers, topic) for topic in (kafka.topics.rejected, kafka.topics.audit)
    )
    if rejected:
        raise RuntimeError(f"{rejected} of {events} legal events were rejected in Quix Streams")
    stack.drop_pipeline(kafka)
    remove_topics(kafka.bootstrap_servers, [f"changelog__{group}--{kafka.topics.events}--default"])
    return steady_rate(samples, events // 10), audits


def _check_audits(ours: JobRun, audits: int, events: int) -> None:
    """Check that both made as many audit records, except for archiving: Quix has no timers."""
    expected = round(ours.audits_a_event * events) - ours.archived
    if audits != expected:
        raise RuntimeError(f"{audits} audit records in Quix Streams, {expected} in our processor")


def run(bench: Bench) -> list[Result]:
    """Measure both, in turn. If Quix Streams cannot be installed, print so and measure nothing."""
    events = bench.event_count(EVENTS, EVENTS_QUICK)
    try:
        peers.quix_python()
    except peers.PeerUnavailable as why:
        bench.print_progress(f"skipped: {why}")
        return []
    workload, ours = make_workload(bench), list[JobRun]()
    theirs: dict[str, list[Rate]] = {form: [] for form in FORMS}
    with running_stack(bench) as stack:
        for n in range(1, bench.runs + 1):
            ours.append(bench.run_once(f"ours, run {n}", partial(run_job, stack, bench, workload, events)))
            for form, rates in theirs.items():
                work = partial(run_quix, stack, bench, workload, events, form)
                rate, audits = bench.run_once(f"Quix Streams, {form}, run {n}", work)
                _check_audits(ours[-1], audits, events)
                rates.append(rate)
                bench.print_progress(f"ours {ours[-1].events_per_s:,.0f}/s, Quix Streams, {form}: {rate.per_s:,.0f}/s")
    results = [
        Result("our processor in the same rounds", "events/s", [one.events_per_s for one in ours]),
        Result("our processor, CPU per event", "µs", [one.cpu_us for one in ours]),
    ]
    for form, rates in theirs.items():
        results += form_results(form, rates, ours)
    return results


def form_results(form: str, rates: Sequence[Rate], ours: Sequence[JobRun]) -> list[Result]:
    """Return the figures of Quix Streams with rows in `form`, and ours to them, round by round."""
    name = f"the core in Quix Streams, rows in {form}"
    ratios = [a.events_per_s / b.per_s for a, b in zip(ours, rates, strict=True)]
    return [
        Result(
            name, "events/s", [rate.per_s for rate in rates], notes=[_NOTE.format(peers.quix_version()), FORMS[form]]
        ),
        Result(f"{name}, CPU per event", "µs", [rate.cpu_us for rate in rates]),
        Result(f"ours / {name}", "times", ratios, Target(">=", RATIO_MIN) if form == "avro" else None),
    ]
