"""What each fact does to a run's row. A finished run is a row of another class."""

from collections.abc import Callable
from typing import Any

from sessionary.schemas.fast_replace import make_replacer
from sessionary.schemas.records import FinishedRun, RunState
from sessionary.stream_processors.core.run.facts import (
    CallsCounted,
    RunBegun,
    RunFact,
    RunGivenUp,
    RunHeard,
    RunHeld,
    RunMoved,
    RunReleased,
    RunRevived,
)
from sessionary.stream_processors.core.run.transitions import FINISHED, RunRow

_replace_heard = make_replacer(RunState, "run_seq", "last_event_at")


def _begin_run(row: None, fact: RunBegun) -> RunState:
    return fact.row


def _hear_run(row: RunRow, fact: RunHeard) -> RunRow:
    if isinstance(row, FinishedRun):
        return row._replace(run_seq=row.run_seq + 1, last_event_at=fact.at_ms)
    return _replace_heard(row, row.run_seq + 1, fact.at_ms)


def _move_run(row: RunState, fact: RunMoved) -> RunRow:
    target, at_ms, change = fact
    brought = {name: value for name, value in change._asdict().items() if value is not None}
    if target == row.state:
        brought.pop("reason_code", None)
    else:
        brought.update(state=target, entered_at=at_ms)
        if target == "started" and row.mode == "attached":
            brought["due_at"] = at_ms + row.attached_run_ms
    after = row._replace(run_seq=row.run_seq + 1, last_event_at=at_ms, **brought)
    return _finish_run(after) if target in FINISHED else after


def _finish_run(row: RunState) -> FinishedRun:
    values = row._asdict()
    return FinishedRun(**{name: values[name] for name in FinishedRun._fields})


def _revive_run(row: FinishedRun, fact: RunRevived) -> RunState:
    revived = {
        **row._asdict(),
        "state": "running",
        "run_seq": row.run_seq + 1,
        "entered_at": fact.at_ms,
        "last_event_at": fact.at_ms,
        "reason_code": "resumed",
        "error": None,
        "resumes": row.resumes + 1,
        "due_at": fact.at_ms + fact.attached_run_ms if row.mode == "attached" else None,
        "attached_run_ms": fact.attached_run_ms,
        "clock_repair": fact.clock_repair,
    }
    return RunState(**revived)


def _hold_run(row: RunState, fact: RunHeld) -> RunState:
    return row._replace(state="paused", entered_at=fact.at_ms, reason_code=fact.reason_code)


def _count_calls(row: RunRow, fact: CallsCounted) -> RunRow:
    return row._replace(unresolved_calls=fact.unresolved)


def _release_run(row: RunState, fact: RunReleased) -> RunState:
    return row._replace(state="running", entered_at=fact.at_ms, reason_code=fact.reason_code)


def _give_up_run(row: RunState, fact: RunGivenUp) -> FinishedRun:
    error = fact.error
    return _finish_run(row._replace(state="failed", entered_at=fact.at_ms, reason_code=error.code, error=error))


_EFFECTS: dict[type[Any], Callable[[Any, Any], RunRow]] = {
    CallsCounted: _count_calls,
    RunBegun: _begin_run,
    RunGivenUp: _give_up_run,
    RunHeard: _hear_run,
    RunHeld: _hold_run,
    RunMoved: _move_run,
    RunReleased: _release_run,
    RunRevived: _revive_run,
}


def apply_run_fact(row: RunRow | None, fact: RunFact) -> RunRow:
    """Return the row after a fact."""
    return _EFFECTS[type(fact)](row, fact)


__all__ = ["apply_run_fact"]
