"""The result of a run, as text and as JSON."""

import statistics
from collections import Counter
from collections.abc import Iterable
from typing import Any, NamedTuple

from tests.auditor.checks import Difference
from tests.auditor.take_overs import ClaimFigures
from tests.chaos.process_watch import Growth
from tests.chaos.quota_runs import QuotaFigures
from tests.chaos.recovery import FaultOutcome
from tests.chaos.schedule import KINDS

_SHOWN_MAX = 40
_MIB = 1 << 20


class Result(NamedTuple):
    """The result of a run. It is good if nothing differs and every fault recovered."""

    seed: int
    minutes: float
    brokers: int
    namespace: bool
    events: int
    other_records: int
    sessions: int
    audits: int
    rejections: int
    timeouts: int
    dropped: int
    seconds: float
    left_out: int
    claims: ClaimFigures
    quotas: QuotaFigures
    outcomes: list[FaultOutcome]
    growth: list[Growth]
    differences: list[Difference]

    @property
    def good(self) -> bool:
        """Return True if the run found no difference."""
        return not self.differences

    def count(self, kind: str) -> int:
        """Return the number of differences of a kind."""
        return sum(difference.kind == kind for difference in self.differences)


def _row(cells: Iterable[object], widths: Iterable[int]) -> str:
    first, *rest = zip(cells, widths, strict=True)
    return f"{first[0]!s:<{first[1]}}" + "".join(f"{cell!s:>{width}}" for cell, width in rest)


def _seconds(value: float | None) -> str:
    return "never" if value is None else f"{value:.1f}"


def fault_table(outcomes: list[FaultOutcome]) -> list[str]:
    """Return lines: each fault in order of time, then recovery times by kind."""
    lines = ["", f"{'at s':>7}  {'fault':<18} {'target':<14} {'recovered s':>11}  note"]
    for fault, took, note, began_s in sorted(outcomes, key=lambda one: one.began_s):
        lines.append(f"{began_s:7.1f}  {fault.kind:<18} {fault.target:<14} {_seconds(took):>11}  {note}")
    widths = (20, 8, 10, 10)
    lines += ["", _row(("recovery, s", "faults", "p50", "max"), widths)]
    for kind in KINDS:
        times = [one.recovered_s for one in outcomes if one.fault.kind == kind]
        known = [took for took in times if took is not None]
        if times:
            most = None if len(known) < len(times) else max(known)
            lines.append(
                _row(
                    (kind, len(times), _seconds(statistics.median(known)) if known else "never", _seconds(most)), widths
                )
            )
    return lines


def growth_table(growth: list[Growth]) -> list[str]:
    """Return lines: what each process used in the middle and at the end of its life."""
    widths = (20, 9, 14, 16, 16)
    lines = ["", _row(("middle → end", "lived s", "threads", "descriptors", "MiB"), widths)]
    for one in growth:
        memory = (one.memory_bytes[0] / _MIB, one.memory_bytes[1] / _MIB)
        pairs = (f"{before:.0f} → {after:.0f}" for before, after in (one.threads, one.descriptors, memory))
        lines.append(_row((one.name, f"{one.lived_s:.0f}", *pairs), widths))
    return lines if growth else ["", "no process lived long enough to tell how it grew"]


def format_report(result: Result) -> list[str]:
    """Return the whole report as lines."""
    lines = fault_table(result.outcomes) + growth_table(result.growth)
    disk = "small tmpfs in a user namespace" if result.namespace else "ENOSPC injected when the spool allocates blocks"
    lines += ["", f"full disks: {disk}; sinks write nothing to disk", ""]
    figures = {
        "events": result.events,
        "heartbeats, ticks, garbage": result.other_records,
        "sessions": result.sessions,
        "audit records": result.audits,
        "rejections": result.rejections,
        "deadlines fired": result.timeouts,
        "dropped and reported": result.dropped,
        "faults": len(result.outcomes),
        "faults left out for time": result.left_out,
        "too rare kinds of faults": result.count("rare fault"),
        "ready but standing still": result.count("readiness"),
        "sessions of frozen agents": result.claims.sessions,
        "stale events of theirs": result.claims.stale,
        "stale events accepted": result.claims.accepted,
        "runs that took a slot": result.quotas.runs,
        "slots taken at once": result.quotas.at_once,
        "runs given up": result.quotas.given_up,
        "processes that grew": sum(bool(one.faults) for one in result.growth),
        "lost": result.count("lost"),
        "doubled": result.count("doubled"),
        "false timeouts": result.count("false timeout"),
        "differences": len(result.differences),
    }
    lines += [f"{name:<28}{figure:>8,}" for name, figure in figures.items()]
    kinds = Counter(difference.kind for difference in result.differences)
    lines += [f"  {kind:<24}{count:>10,}" for kind, count in kinds.most_common()]
    shown = result.differences[:_SHOWN_MAX]
    lines += ["", *(f"{difference.kind}: {difference.text}" for difference in shown)] if shown else []
    if len(result.differences) > _SHOWN_MAX:
        lines.append(f"… and {len(result.differences) - _SHOWN_MAX} more, in the JSON file")
    return lines


def as_json(result: Result) -> dict[str, Any]:
    """Return the result as a JSON object."""
    return {
        **result._asdict(),
        "good": result.good,
        "outcomes": [
            {**one.fault._asdict(), "recovered_s": one.recovered_s, "note": one.note, "began_s": one.began_s}
            for one in result.outcomes
        ],
        "growth": [one._asdict() for one in result.growth],
        "claims": result.claims._asdict(),
        "quotas": result.quotas._asdict(),
        "differences": [difference._asdict() for difference in result.differences],
    }
