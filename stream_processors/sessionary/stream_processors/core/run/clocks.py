"""The clock of an open run: when it is due, derived from the row. Times are ms of log time.

An attached run that has started has a limit, which nothing postpones. A detached run, and one that
waits in a queue, is given up if nothing is heard of it for a day.
"""

from collections.abc import Sequence
from typing import NamedTuple

from sessionary.schemas.limits import RUN_SILENCE_MS
from sessionary.schemas.records import RunState
from sessionary.schemas.types import ClockRepair
from sessionary.stream_processors.core.clock import format_seconds


class RunDeadline(NamedTuple):
    """When a run's clock is due, and what is said of it then."""

    due_ms: int
    reason_code: str
    reason: str


def run_deadline(run: RunState, hole_end_ms: int = 0) -> RunDeadline:
    """Return the deadline of a run.

    Silence is measured from `hole_end_ms` on, if no event could be heard before; 0: there was no
    such time.
    """
    if run.due_at is not None:
        limit = format_seconds(run.attached_run_ms)
        return RunDeadline(run.due_at, "attached_limit", f"Attached run failed after {limit}: its limit is over")
    limit = format_seconds(RUN_SILENCE_MS)
    return RunDeadline(
        max(run.last_event_at, hole_end_ms) + RUN_SILENCE_MS,
        "run_silent",
        f"Run failed after {limit}: nothing was heard of it",
    )


def run_due_ms(run: RunState, hole_end_ms: int = 0) -> int:
    """Return when a run's clock is due, as `run_deadline`."""
    return max(run.last_event_at, hole_end_ms) + RUN_SILENCE_MS if run.due_at is None else run.due_at


def attached_since_ms(run: RunState) -> int | None:
    """Return when an attached run was started or resumed; None for one in a queue or detached."""
    return None if run.due_at is None else run.due_at - run.attached_run_ms


def repair_run_times(run: RunState, repairs: Sequence[ClockRepair]) -> RunState:
    """Return a run with its times as they are after repairs of the partition's clock.

    The same object if it includes them all. Of the limit never more than the whole is left.
    """
    for number, _, clock_ms, shift_ms, _ in repairs:
        if number <= run.clock_repair:
            continue
        due_at = run.due_at
        if due_at is not None:
            due_at = min(due_at + shift_ms, clock_ms + run.attached_run_ms)
        checkpoint = run.checkpoint
        if checkpoint is not None:
            checkpoint = checkpoint._replace(at=min(checkpoint.at + shift_ms, clock_ms))
        run = run._replace(
            created_at=min(run.created_at + shift_ms, clock_ms),
            entered_at=min(run.entered_at + shift_ms, clock_ms),
            last_event_at=min(run.last_event_at + shift_ms, clock_ms),
            due_at=due_at,
            checkpoint=checkpoint,
            clock_repair=number,
        )
    return run
