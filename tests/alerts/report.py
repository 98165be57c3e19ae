"""What came of the alerts: a table, one JSON object, and which alerts were late."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from tests.alerts.episode import TIMES, Episode
from tests.alerts.monitoring import Message
from tests.alerts.scenarios import ReclaimFigures

LAG_SERVED_S_MAX = 2.0
PAGE_S_MAX = 10.0  # beyond the rule's own time
RECLAIM_MIN, RECLAIM_MAX = 0.85, 0.95


@dataclass
class Figures:
    """Figures of a whole run."""

    load_events: int = 0
    seconds: float = 0.0
    reclaim: ReclaimFigures | None = None
    is_ready_while_halted: bool | None = None  # None: no partition was halted
    other_alerts: dict[str, str] = field(default_factory=dict)  # with a summary
    left_over: list[str] = field(default_factory=list)  # ports and folders, after the end
    slack_s: float = 0.0  # by how much limits are longer, as the machine is busy


def served_after_s(episode: Episode) -> float | None:
    """Return the time from the fact to its series; None if one of both is unknown."""
    if episode.series_s is None or episode.fact_s is None:
        return None
    return round(episode.series_s - episode.fact_s, 2)


def paged_after_s(episode: Episode) -> float | None:
    """Return the time from the fact to the message, without the time that the rule waits."""
    if episode.webhook_s is None or episode.fact_s is None:
        return None
    return round(episode.webhook_s - episode.fact_s - episode.hold_s, 2)


def find_faults(episodes: Sequence[Episode], figures: Figures) -> list[str]:
    """Return a sentence for each alert or series that was late, and for each wrong figure."""
    found = []
    page_s_max, served_s_max = PAGE_S_MAX + figures.slack_s, LAG_SERVED_S_MAX + figures.slack_s
    for episode in episodes:
        if episode.alert == "SessionaryReclaimLow":
            continue  # its figure leaves the youngest timeouts out, so the fact has no time of its own
        served_s, paged_s = served_after_s(episode), paged_after_s(episode)
        if paged_s is None or paged_s > page_s_max:
            found.append(
                f"{episode.scenario}: {episode.alert} came {paged_s} s after its time, {page_s_max:g} are allowed"
            )
        if episode.alert == "SessionaryLagTime" and (served_s is None or served_s > served_s_max):
            found.append(f"{episode.scenario}: the lag was served after {served_s} s, {served_s_max:g} are allowed")
    if figures.is_ready_while_halted is False:
        found.append("the worker with the halted partition is not ready: one halted partition is no reason")
    if figures.reclaim is not None:
        for name, ratio in (("ClickHouse", figures.reclaim.ratio), ("the exporter", figures.reclaim.exporter_ratio)):
            if not RECLAIM_MIN <= ratio < RECLAIM_MAX:
                found.append(f"the reclaim ratio is {ratio:.3f} by {name}, about 0.90 is expected")
    return found + [f"left behind: {one}" for one in figures.left_over]


def other_alerts(messages: Sequence[Message], episodes: Sequence[Episode]) -> dict[str, str]:
    """Return the alerts that fired beside those of the episodes, each with its first summary."""
    expected = {episode.alert for episode in episodes}
    found: dict[str, str] = {}
    for message in messages:
        name = message.labels["alertname"]
        if name not in expected:
            found.setdefault(name, message.annotations["summary"])
    return found


def report_lines(episodes: Sequence[Episode], figures: Figures) -> list[str]:
    """Return the table, for people. Times are seconds since the fault."""
    lines = [f"{'seconds since the fault':56}" + "".join(f"{name:>10}" for name in TIMES)]
    for episode in episodes:
        times = episode.times()
        cells = "".join(f"{'-' if times[name] is None else format(times[name], '.1f'):>10}" for name in TIMES)
        lines += [f"{episode.scenario}, {episode.alert.removeprefix('Sessionary')}"[:56].ljust(56) + cells]
        lines += [f"    {episode.says}"]
        lines += [
            f"    served {served_after_s(episode)} s after the fact; message {paged_after_s(episode)} s after "
            f"the rule's {episode.hold_s:g} s"
        ]
    if figures.reclaim is not None:
        found = figures.reclaim
        lines.append(f"clean-ups confirmed: {found.confirmed} of {found.timed_out}, {found.ratio:.2f}")
        lines.append(f"    by the exporter: {found.exporter_ratio:.2f}")
    lines.append(f"other alerts meanwhile: {len(figures.other_alerts)}")
    lines += [f"    {name.removeprefix('Sessionary')}: {says}" for name, says in figures.other_alerts.items()]
    lines.append(f"{figures.load_events} events of the load, {figures.seconds:.0f} s in total")
    return lines


def report_object(episodes: Sequence[Episode], figures: Figures) -> dict[str, Any]:
    """Return the same for programs."""
    return {
        "episodes": [
            {
                "scenario": episode.scenario,
                "alert": episode.alert,
                "labels": dict(episode.labels),
                "says": episode.says,
                "for_s": episode.hold_s,
                "times_s": episode.times(),
                "served_after_s": served_after_s(episode),
                "message_after_for_s": paged_after_s(episode),
            }
            for episode in episodes
        ],
        "reclaim": figures.reclaim and {**figures.reclaim._asdict(), "ratio": figures.reclaim.ratio},
        "is_ready_while_halted": figures.is_ready_while_halted,
        "other_alerts": figures.other_alerts,
        "load_events": figures.load_events,
        "seconds": figures.seconds,
    }
