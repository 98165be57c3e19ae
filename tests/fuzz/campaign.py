"""Many fuzz runs in processes of their own: their sums, what they must have reached, the report."""

import gc
import os
import time
import traceback
from collections import Counter
from collections.abc import Generator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from multiprocessing import active_children
from typing import NamedTuple

from sessionary.schemas.events import PAYLOADS
from sessionary.stream_processors.runtime.changelog import give_back_memory
from tests.chaos.process_watch import read_sample
from tests.fuzz.fuzz_run import MARKS, REASONS, FuzzRun

RECORDS_PER_RUN = 50_000
# Of every 10,000 records, at least one has each event type, and one is rejected for each reason.
RECORDS_PER_KIND = 10_000
DECODED_SHARE_MIN = 0.4
_UNREADABLE = "(unreadable)"
_MIB = 1 << 20
# A process grows while it meets the first kinds of everything: that is the first third of its runs.
_WARM_SHARE = 1 / 3
_WARM_RUNS_MIN = 4
GROWTH_BYTES_MAX = 48 * _MIB


class Run(NamedTuple):
    """One run of a campaign: its seed, and how many records."""

    seed: int
    records: int


class RunResult(NamedTuple):
    """The counts of one run, or of several."""

    records: int = 0
    decoded: int = 0
    seen: Mapping[str, int] = {}  # decoded, by event type
    applied: Mapping[str, int] = {}  # by event type
    rejected: Mapping[tuple[str, str], int] = {}  # by event type and reason
    marks: Mapping[str, int] = {}  # what else was reached
    failures: tuple[str, ...] = ()
    memory_bytes: Mapping[int, tuple[int, ...]] = {}  # by process, after each of its runs

    def combine(self, other: "RunResult") -> "RunResult":
        """Return the sum of both; `other` came later."""
        memory = dict(self.memory_bytes)
        for pid, samples in other.memory_bytes.items():
            memory[pid] = memory.get(pid, ()) + samples
        return RunResult(
            self.records + other.records,
            self.decoded + other.decoded,
            Counter(self.seen) + Counter(other.seen),
            Counter(self.applied) + Counter(other.applied),
            Counter(self.rejected) + Counter(other.rejected),
            Counter(self.marks) + Counter(other.marks),
            self.failures + other.failures,
            memory,
        )


def plan_runs(seed: int, records: int) -> list[Run]:
    """Return the runs: the first one has `seed`, each next one the next."""
    starts = range(0, records, RECORDS_PER_RUN)
    return [Run(seed + n, min(RECORDS_PER_RUN, records - start)) for n, start in enumerate(starts)]


def run_seed(seed: int, records: int) -> RunResult:
    """Run one seed in this process. An exception becomes a failure that says how to repeat it."""
    run = FuzzRun(seed)
    failures: tuple[str, ...] = ()
    try:
        run.fold_records(records)
        run.columns.compare()
    except Exception:  # noqa: BLE001 - any exception is what the fuzzer looks for
        again = f"make fuzz SEED={seed} RECORDS={records}"
        failures = (f"seed {seed}, at offset {run.offset - 1}; to repeat: {again}\n{traceback.format_exc()}",)
    counts = dict(run.seen), dict(run.applied), dict(run.rejected), dict(run.marks)
    made, decoded = run.records, run.decoded
    del run
    # Otherwise memory would depend on when the collector ran last, and on what the C library keeps:
    # 90 MiB of 216 after texts of megabytes.
    gc.collect()
    give_back_memory()
    sample = read_sample(os.getpid())
    memory = sample.memory_bytes if sample is not None else 0
    return RunResult(made, decoded, *counts, failures, {os.getpid(): (memory,)})


def run_campaign(runs: Sequence[Run], processes: int) -> Generator[tuple[Run, RunResult]]:
    """Yield each run with its result as it ends; the runs are spread over processes.

    The processes end with the iteration, also if the caller is interrupted. Raises
    `BrokenProcessPool` if one dies.
    """
    with ProcessPoolExecutor(processes) as pool:
        try:
            submitted = {pool.submit(run_seed, *run): run for run in runs}
            for done in as_completed(submitted):
                yield submitted[done], done.result()
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            for child in active_children():
                child.kill()
            raise


def find_gaps(total: RunResult) -> list[str]:
    """Return a sentence for each thing that the runs did not reach, and each failure."""
    gaps = list(total.failures)
    names = {"event type": {*PAYLOADS, "tick"}, "rejection reason": REASONS, "mark": MARKS}
    counts = {"event type": Counter(total.seen), "rejection reason": _by_reason(total), "mark": Counter(total.marks)}
    required = total.records // RECORDS_PER_KIND
    for what, wanted in names.items():
        gaps += [
            f"{what} {name} came {counts[what][name]:,} times in {total.records:,} records, must be {required:,}"
            for name in sorted(wanted)
            if counts[what][name] < required
        ]
    share = total.decoded / max(total.records, 1)
    if share < DECODED_SHARE_MIN:
        gaps.append(f"only {share:.1%} of the records decode, must be {DECODED_SHARE_MIN:.0%}")
    return gaps


def _by_reason(total: RunResult) -> Counter[str]:
    reasons = Counter[str]()
    for (_, reason), count in total.rejected.items():
        reasons[reason] += count
    return reasons


def memory_growth(total: RunResult) -> int:
    """Return the most bytes by which a process grew after the first third of its runs.

    0 if no process had enough runs to tell.
    """
    return max((_growth_of(samples) for samples in total.memory_bytes.values()), default=0)


def _growth_of(samples: Sequence[int]) -> int:
    warm = max(_WARM_RUNS_MIN, round(len(samples) * _WARM_SHARE))
    return 0 if len(samples) <= warm else max(0, min(samples[-2:]) - max(samples[:warm]))


def find_growth(total: RunResult) -> list[str]:
    """Return a sentence if a process grew by more than it may; `total` has the runs in order."""
    growth = memory_growth(total)
    if growth <= GROWTH_BYTES_MAX:
        return []
    return [f"a process grew by {growth / _MIB:.1f} MiB, must be at most {GROWTH_BYTES_MAX / _MIB:.0f} MiB"]


def format_report(total: RunResult, seconds: float) -> list[str]:
    """Return lines: a table of event types and reasons, then the figures of the whole.

    `total`: the sum of all runs as they ended.
    """
    return [
        *_format_counts(total),
        "",
        f"{total.records:,} records in {seconds:,.0f} s, {total.records / max(seconds, 1e-9):,.0f} records/s; "
        f"{total.decoded / max(total.records, 1):.1%} decode; "
        f"memory of a process grew by at most {memory_growth(total) / _MIB:.1f} MiB",
    ]


def _format_counts(total: RunResult) -> list[str]:
    widths = max(map(len, [*PAYLOADS, _UNREADABLE])) + 2
    lines = ["", f"{'event type':<{widths}}{'decoded':>12}{'applied':>12}  rejected"]
    for name in [*sorted({*total.seen, *(name for name, _ in total.rejected)})]:
        by_reason = sorted(((reason, n) for (of, reason), n in total.rejected.items() if of == name), key=_by_count)
        rejected = ", ".join(f"{reason} {count:,}" for reason, count in by_reason)
        decoded, applied = total.seen.get(name, 0), total.applied.get(name, 0)
        lines.append(f"{name or _UNREADABLE:<{widths}}{decoded:>12,}{applied:>12,}  {rejected}")
    reasons = _by_reason(total).most_common()
    marks = Counter(total.marks).most_common()
    return [*lines, "", *(f"{name:<{widths}}{count:>12,}" for name, count in [*reasons, *marks])]


def _by_count(pair: tuple[str, int]) -> tuple[int, str]:
    return -pair[1], pair[0]


def progress_line(total: RunResult, records: int, began_s: float) -> str:
    """Return a line about how far a campaign is."""
    seconds = time.monotonic() - began_s
    rate = total.records / max(seconds, 1e-9)
    left_s = (records - total.records) / max(rate, 1e-9)
    return (
        f"{seconds:7.0f} s  {total.records:>12,} of {records:,} records, {rate:,.0f}/s, {left_s:,.0f} s left, "
        f"{len(total.failures)} failures"
    )
