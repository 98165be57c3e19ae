"""What each fact does to a run's row. A finished run is a row of another class."""

from collections.abc import Callable
from typing import Any, Final

from sessionary.schemas.fast_replace import make_replacer
from sessionary.schemas.records import FinishedRun, RunState
from sessionary.stream_processors.core.run.facts import (
    CallsCounted,
    ClaimMoved,
    RunAdmitted,
    RunBegun,
    RunFact,
    RunGivenUp,
    RunHeard,
    RunHeld,
    RunMoved,
    RunReleased,
    RunRevived,
    RunTurnedAway,
)
from sessionary.stream_processors.core.run.transitions import (
    AT_WORK,
    FINISHED,
    QUOTA_EXCEEDED,
    QUOTA_GRANTED,
    QUOTA_REQUESTED,
    STATES_ADMITTED,
    RunRow,
)

_replace_heard: Final = make_replacer(RunState, "run_seq", "last_event_at")


def _begin_run(row: None, fact: RunBegun) -> RunState:
    return fact.row


def _hear_run(row: RunRow, fact: RunHeard) -> RunRow:
    if isinstance(row, FinishedRun):
        return row._replace(run_seq=row.run_seq + 1, last_event_at=fact.at_ms)
    return _replace_heard(row, row.run_seq + 1, fact.at_ms)


def _move_run(row: RunState, fact: RunMoved) -> RunRow:
    target, at_ms = fact.target, fact.at_ms
    brought = {name: value for name, value in fact.change._asdict().items() if value is not None}
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
        "state": "running" if fact.quota is None else "queued",
        "run_seq": row.run_seq + 1,
        "entered_at": fact.at_ms,
        "last_event_at": fact.at_ms,
        "reason_code": "resumed" if fact.quota is None else QUOTA_REQUESTED,
        "error": None if fact.quota is None else row.error,  # it is failed again if it is turned away
        "resumes": row.resumes + 1,
        "due_at": fact.at_ms + fact.attached_run_ms if row.mode == "attached" and fact.quota is None else None,
        "attached_run_ms": fact.attached_run_ms,
        "clock_repair": fact.clock_repair,
        "quota": fact.quota,
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


def _admit_run(row: RunState, fact: RunAdmitted) -> RunState:
    assert row.quota is not None
    target = STATES_ADMITTED.get(row.quota.event_type, "queued")
    after = row._replace(
        state=target,
        entered_at=fact.at_ms,
        last_event_at=fact.at_ms,
        reason_code=QUOTA_GRANTED,
        error=None,
        quota=row.quota._replace(granted=True),
    )
    if row.mode == "attached" and target in AT_WORK:
        return after._replace(due_at=fact.at_ms + row.attached_run_ms)
    return after


def _turn_away_run(row: RunState, fact: RunTurnedAway) -> FinishedRun | None:
    if not row.resumes or row.error is None:
        return None
    return _finish_run(row._replace(state="failed", entered_at=fact.at_ms, reason_code=QUOTA_EXCEEDED))


def _keep_run(row: RunRow | None, fact: ClaimMoved) -> RunRow | None:
    return row


_EFFECTS: Final[dict[type[Any], Callable[[Any, Any], RunRow | None]]] = {
    CallsCounted: _count_calls,
    ClaimMoved: _keep_run,
    RunAdmitted: _admit_run,
    RunBegun: _begin_run,
    RunGivenUp: _give_up_run,
    RunHeard: _hear_run,
    RunHeld: _hold_run,
    RunMoved: _move_run,
    RunReleased: _release_run,
    RunRevived: _revive_run,
    RunTurnedAway: _turn_away_run,
}


def apply_run_fact(row: RunRow | None, fact: RunFact) -> RunRow | None:
    """Return the row after a fact; None if the run has none any more."""
    return _EFFECTS[type(fact)](row, fact)
