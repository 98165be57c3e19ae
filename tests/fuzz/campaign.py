"""Many fuzz runs in processes of their own: their sums, what they must have reached, the report."""

import gc
import os
import time
import traceback
from collections import Counter
from collections.abc import Generator, Mapping
from concurrent.futures import ProcessPoolExecutor, as_completed
from multiprocessing import active_children
from typing import NamedTuple

from sessionary.schemas.events import PAYLOADS
from tests.chaos.process_watch import read_sample
from tests.fuzz.fuzz_run import REASONS, FuzzRun

RECORDS_PER_RUN = 50_000
# Of every 10,000 records, at least one has each event type, and one is refused for each reason.
RECORDS_PER_KIND = 10_000
DECODED_SHARE_MIN = 0.4
_UNREADABLE = "(unreadable)"
_MIB = 1 << 20


class RunResult(NamedTuple):
    """The counts of one run, or of several."""

    records: int = 0
    decoded: int = 0
    seen: Mapping[str, int] = {}  # decoded, by event type
    applied: Mapping[str, int] = {}  # by event type
    refused: Mapping[tuple[str, str], int] = {}  # by event type and reason
    failures: tuple[str, ...] = ()
    memory_bytes: Mapping[int, tuple[int, int]] = {}  # by process, after its first and its last run

    def combine(self, other: "RunResult") -> "RunResult":
        """Return the sum of both; `other` came later."""
        memory = dict(self.memory_bytes)
        for pid, (first, last) in other.memory_bytes.items():
            memory[pid] = memory.get(pid, (first, last))[0], last
        return RunResult(
            self.records + other.records,
            self.decoded + other.decoded,
            Counter(self.seen) + Counter(other.seen),
            Counter(self.applied) + Counter(other.applied),
            Counter(self.refused) + Counter(other.refused),
            self.failures + other.failures,
            memory,
        )


def plan_runs(seed: int, records: int) -> list[tuple[int, int]]:
    """Return (seed, records) of each run: the first one has `seed`, each next one the next."""
    full, rest = divmod(records, RECORDS_PER_RUN)
    sizes = [RECORDS_PER_RUN] * full + ([rest] if rest else [])
    return [(seed + number, size) for number, size in enumerate(sizes)]


def run_seed(seed: int, records: int, rules: int = 1) -> RunResult:
    """Run one seed in this process. An exception becomes a failure that says how to repeat it."""
    run = FuzzRun(seed, rules)
    failures: tuple[str, ...] = ()
    try:
        run.fold_records(records)
    except Exception:  # noqa: BLE001 - any exception is what the fuzzer looks for
        again = f"make fuzz SEED={seed} RECORDS={records}"
        failures = (f"seed {seed}, at offset {run.offset - 1}; to repeat: {again}\n{traceback.format_exc()}",)
    counts = dict(run.seen), dict(run.applied), dict(run.refused)
    offset, decoded = run.offset, run.decoded
    del run
    gc.collect()  # otherwise memory would depend on when the collector ran last
    sample = read_sample(os.getpid())
    memory = sample.memory_bytes if sample is not None else 0
    return RunResult(offset, decoded, *counts, failures, {os.getpid(): (memory, memory)})


def run_campaign(seed: int, records: int, processes: int) -> Generator[RunResult]:
    """Yield the result of each run as it ends; the runs are spread over processes.

    The processes end with the iteration, also if the caller is interrupted. Raises
    `BrokenProcessPool` if one dies.
    """
    with ProcessPoolExecutor(processes) as pool:
        try:
            for done in as_completed([pool.submit(run_seed, *run) for run in plan_runs(seed, records)]):
                yield done.result()
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            for child in active_children():
                child.kill()
            raise


def find_gaps(total: RunResult) -> list[str]:
    """Return a sentence for each thing that the runs did not reach, and each failure."""
    required = total.records // RECORDS_PER_KIND
    reasons = Counter[str]()
    for (_, reason), count in total.refused.items():
        reasons[reason] += count
    gaps = list(total.failures)
    for what, counts, names in (
        ("event type", Counter(total.seen), {*PAYLOADS, "tick"}),
        ("refusal reason", reasons, REASONS),
    ):
        gaps += [
            f"{what} {name} came {counts[name]:,} times in {total.records:,} records, must be {required:,}"
            for name in sorted(names)
            if counts[name] < required
        ]
    share = total.decoded / max(total.records, 1)
    if share < DECODED_SHARE_MIN:
        gaps.append(f"only {share:.1%} of the records decode, must be {DECODED_SHARE_MIN:.0%}")
    return gaps


def memory_growth(total: RunResult) -> int:
    """Return the most bytes by which a process grew from its first run to its last."""
    return max((last - first for first, last in total.memory_bytes.values()), default=0)


def format_report(total: RunResult, seconds: float) -> list[str]:
    """Return lines: a table of event types and reasons, then the figures of the whole."""
    widths = max(map(len, [*PAYLOADS, _UNREADABLE])) + 2
    lines = ["", f"{'event type':<{widths}}{'decoded':>12}{'applied':>12}  refused"]
    for name in [*sorted({*total.seen, *(name for name, _ in total.refused)})]:
        by_reason = sorted(((reason, n) for (of, reason), n in total.refused.items() if of == name), key=_by_count)
        refused = ", ".join(f"{reason} {count:,}" for reason, count in by_reason)
        decoded, applied = total.seen.get(name, 0), total.applied.get(name, 0)
        lines.append(f"{name or _UNREADABLE:<{widths}}{decoded:>12,}{applied:>12,}  {refused}")
    reasons = Counter[str]()
    for (_, reason), count in total.refused.items():
        reasons[reason] += count
    lines += ["", *(f"{reason:<{widths}}{count:>12,}" for reason, count in reasons.most_common())]
    return [
        *lines,
        "",
        f"{total.records:,} records in {seconds:,.0f} s, {total.records / max(seconds, 1e-9):,.0f} records/s; "
        f"{total.decoded / max(total.records, 1):.1%} decode; "
        f"memory of a process grew by at most {memory_growth(total) / _MIB:.1f} MiB",
    ]


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


__all__ = [
    "DECODED_SHARE_MIN",
    "RECORDS_PER_KIND",
    "RECORDS_PER_RUN",
    "RunResult",
    "find_gaps",
    "format_report",
    "memory_growth",
    "plan_runs",
    "progress_line",
    "run_campaign",
    "run_seed",
]
