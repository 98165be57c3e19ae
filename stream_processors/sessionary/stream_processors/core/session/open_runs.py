"""The runs of a session: what an event comes to for its run, and a transition for the open runs."""

from collections.abc import Sequence
from typing import Final

from sessionary.schemas.codec import Event
from sessionary.schemas.ids import run_key
from sessionary.schemas.records import RunState, SessionState
from sessionary.schemas.types import OpenRun
from sessionary.stream_processors.core.machine import Arrival, ForRow
from sessionary.stream_processors.core.run.facts import SessionEnded, SessionTimedOut
from sessionary.stream_processors.core.run.judge import RunStep, is_of_detached_run, judge_run, makes_run_open
from sessionary.stream_processors.core.run.transitions import RunRow
from sessionary.stream_processors.core.session.facts import (
    RunClosed,
    RunEventTaken,
    RunOpened,
    SessionFact,
    Transitioned,
    WorkDone,
)
from sessionary.stream_processors.core.session.row_size import object_to_size
from sessionary.stream_processors.core.session.transitions import Objection

# Beside Active, where all work is possible.
_OUTLIVED_STATES: Final = frozenset({"Paused", "Timeout", "Error", "Terminated"})


def outlives_state(row: SessionState, event: Event, run: RunRow | None) -> bool:
    """Return whether an event of a detached run is possible although its session is not Active."""
    return row.state in _OUTLIVED_STATES and is_of_detached_run(event, run) and not makes_run_open(event, run)


def step_of_run(
    row: SessionState, event: Event, arrival: Arrival, fact: SessionFact | Objection
) -> tuple[SessionFact | Objection, RunStep | None]:
    """Judge an event against its run if the session has nothing against it.

    `fact` is what the event comes to for the session. Returns it, or an objection, and the step of
    the run, if there is one.
    """
    if arrival.rules.version < 2 or type(fact) not in (WorkDone, RunEventTaken):
        return fact, None
    step = judge_run(row, event, arrival)
    if isinstance(step, Objection):
        return step, None
    if step is not None and step.opens and (objection := object_to_size(row, _session_facts(step, event), arrival)):
        return objection, None
    return fact, step


def facts_of_step(step: RunStep, event: Event, arrival: Arrival) -> Sequence[SessionFact | ForRow]:
    """Return what the step of a run is for its session, and for the run's own row."""
    run_id = event.envelope.run_id
    if step.fact is None or run_id is None:
        return ()
    return *_session_facts(step, event), ForRow(run_key(*arrival.session, run_id), RunState, step.fact)


def _session_facts(step: RunStep, event: Event) -> Sequence[SessionFact]:
    run_id = event.envelope.run_id or ""
    if step.opens:
        return (RunOpened(OpenRun(run_id, step.is_detached)),)
    return (RunClosed(run_id),) if step.closes else ()


def facts_for_runs(row: SessionState, fact: Transitioned) -> Sequence[ForRow]:
    """Return what a transition is for the attached runs of the session; `row`: before or after."""
    if not row.open_runs:
        return ()
    told: SessionTimedOut | SessionEnded
    if fact.transition.target == "Timeout":
        told = SessionTimedOut(fact.at_ms, fact.reason_code)
    elif fact.transition.target == "Terminated":
        told = SessionEnded(fact.at_ms, fact.reason_code)
    else:
        return ()
    session = row.tenant_id, row.session_id
    return [ForRow(run_key(*session, run.run_id), RunState, told) for run in row.open_runs if not run.detached]


__all__ = ["facts_for_runs", "facts_of_step", "outlives_state", "step_of_run"]
