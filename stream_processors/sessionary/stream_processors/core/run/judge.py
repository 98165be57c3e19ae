"""The judgement of an event against its run; the session has accepted the event before.

run id ─▶ row ─▶ pair of state and event ─▶ values ─▶ room in the session ─▶ size
"""

from collections.abc import Sequence
from typing import Final, final

from sessionary.schemas.codec import Event
from sessionary.schemas.events import RunQueued, RunStarted
from sessionary.schemas.limits import RUNS_OPEN_MAX
from sessionary.schemas.records import FinishedRun, RunState, SessionState
from sessionary.schemas.types import Envelope, RunQuota
from sessionary.stream_processors.core.family import SessionArrival, object_to_row_size
from sessionary.stream_processors.core.judge import Objection
from sessionary.stream_processors.core.model import COMPLETIONS
from sessionary.stream_processors.core.run.changes import RunFact, begin_run, hear_run, move_run, revive_run
from sessionary.stream_processors.core.run.transitions import (
    ACCEPTED,
    BY_EVENT,
    EVENTS_OF_RUNS,
    FINISHED,
    OF_ANY_WORKER,
    QUOTA_REQUESTED,
    RUN_EVENTS,
    RunChange,
    RunMoment,
    RunRow,
)

# Events of a child that a finished run takes too: the outcome of a reserved call is always welcome,
# and an artifact is deleted long after it was made.
_OUTLASTING: Final = COMPLETIONS | {"artifact_soft_deleted", "artifact_purged"}


@final
class RunJudgement:
    """The outcome of an event for its run: the row after it (None: there is none), and facts.

    `opens` and `closes` say whether the run is among the session's open ones from now on;
    `asks_quota`: it then waits for its tenant's quota. `is_only_heard`: the event brings nothing
    for the run.
    """

    __slots__ = ("after", "asks_quota", "closes", "facts", "is_only_heard", "opens")

    def __init__(
        self,
        after: RunRow | None,
        facts: Sequence[RunFact] = (),
        *,
        opens: bool = False,
        closes: bool = False,
        asks_quota: bool = False,
        is_only_heard: bool = False,
    ) -> None:
        self.after = after
        self.facts = facts
        self.opens = opens
        self.closes = closes
        self.asks_quota = asks_quota
        self.is_only_heard = is_only_heard


def is_of_detached_run(event: Event, run: RunRow | None) -> bool:
    """Return whether an event is one of a detached run that exists."""
    return run is not None and run.mode == "detached" and event.envelope.event_type in EVENTS_OF_RUNS


def makes_run_open(event: Event, run: RunRow | None) -> bool:
    """Return whether an event would begin a run, or resume a failed one; a queued one is open."""
    name = event.envelope.event_type
    if run is None:
        return name in ("run_queued", "run_started")
    return name == "run_queued" or (name == "run_resumed" and run.state == "failed")


def judge_run(session: SessionState, event: Event, arrival: SessionArrival) -> RunJudgement | Objection | None:
    """Judge an event against `arrival.run`; None if it names no run, and needs none."""
    name, run_id, run = event.envelope.event_type, event.envelope.run_id, arrival.run
    if name not in EVENTS_OF_RUNS:
        return None
    if not run_id:
        return Objection("invalid_value", f"{name} names no run") if name in RUN_EVENTS else None
    judgement = _judge_unknown(session, event, arrival) if run is None else _judge_known(session, run, event, arrival)
    if isinstance(judgement, Objection):
        return judgement
    if judgement.opens and len(session.open_runs) >= RUNS_OPEN_MAX:
        return Objection("too_many_runs", f"the session has {len(session.open_runs)} open runs, which is the most")
    if judgement.is_only_heard or judgement.after is None:
        return judgement
    return object_to_row_size("run", arrival.run_key, judgement.after, arrival) or judgement


def _judge_unknown(session: SessionState, event: Event, arrival: SessionArrival) -> RunJudgement | Objection:
    envelope, payload = event.envelope, event.payload
    transition = BY_EVENT.get((None, envelope.event_type))
    if transition is None:
        return Objection("unknown_run", f"{envelope.event_type} of run {envelope.run_id}, which did not begin")
    change = transition.guard(None, payload, _moment_of(arrival, envelope))
    if isinstance(change, Objection):
        return change
    if transition.target is None:
        return RunJudgement(None)
    assert isinstance(payload, (RunQueued, RunStarted))
    row = _new_run(session, event, payload, arrival, change)
    quota = _claim_of(event, arrival)
    if quota is not None:
        row = row._replace(state="queued", reason_code=QUOTA_REQUESTED, due_at=None, quota=quota)
    return RunJudgement(row, begin_run(row), opens=True, asks_quota=quota is not None)


def _moment_of(arrival: SessionArrival, envelope: Envelope) -> RunMoment:
    return RunMoment(arrival.now_ms, envelope.actor, arrival.rules.resume_ms, envelope.producer_id)


def _claim_of(event: Event, arrival: SessionArrival) -> RunQuota | None:
    """Return the claim of a run that an event opens; None if the rules have no quotas."""
    if not arrival.rules.quotas:
        return None
    return RunQuota(arrival.record.offset, event.envelope.event_type, event.envelope.event_id, granted=False)


def _new_run(
    session: SessionState, event: Event, payload: RunQueued | RunStarted, arrival: SessionArrival, change: RunChange
) -> RunState:
    envelope, now_ms, limit_ms = event.envelope, arrival.now_ms, session.limits.attached_run_ms
    is_started = isinstance(payload, RunStarted)
    return RunState(
        tenant_id=session.tenant_id,
        session_id=session.session_id,
        run_id=envelope.run_id or "",
        user_id=session.user_id if envelope.user_id is None else envelope.user_id,
        agent_id=envelope.agent_id,
        mode=payload.mode,
        task_type=payload.task_type,
        state="started" if is_started else "queued",
        run_seq=1,
        created_at=now_ms,
        entered_at=now_ms,
        last_event_at=now_ms,
        progress=None,
        reason_code=change.reason_code or "",
        error=None,
        resumes=0,
        due_at=now_ms + limit_ms if is_started and payload.mode == "attached" else None,
        attached_run_ms=limit_ms,
        input_json=change.input_json,
        plan_json=change.plan_json,
        clock_repair=arrival.clock_repair,
        kept_days=arrival.rules.finished_run_days,
    )


def _object_to_worker(run: RunRow, envelope: Envelope) -> Objection | None:
    """Object to the work of a process on a task that another one has."""
    if not isinstance(run, RunState) or run.holder in (None, envelope.producer_id):
        return None
    return Objection("task_taken_over", f"process {run.holder} has the task, and not {envelope.producer_id}")


def _judge_known(session: SessionState, run: RunRow, event: Event, arrival: SessionArrival) -> RunJudgement | Objection:
    envelope = event.envelope
    name, moment = envelope.event_type, _moment_of(arrival, envelope)
    if name not in OF_ANY_WORKER and (taken := _object_to_worker(run, envelope)):
        return taken
    if run.state in FINISHED and arrival.child_key is not None and name in _OUTLASTING:
        return RunJudgement(hear_run(run, moment.now_ms), is_only_heard=True)
    transition = BY_EVENT.get((run.state, name))
    if transition is None and (run.state in FINISHED or (name in RUN_EVENTS and name not in ACCEPTED)):
        return Objection("illegal_transition", f"{name} is not possible for a run in {run.state}")
    guard = transition.guard if transition is not None else ACCEPTED.get(name)
    if guard is None:
        return RunJudgement(hear_run(run, moment.now_ms), is_only_heard=True)
    change = guard(run, event.payload, moment)
    if isinstance(change, Objection):
        return change
    if isinstance(run, FinishedRun):
        quota = _claim_of(event, arrival)
        limit_ms, repair = session.limits.attached_run_ms, arrival.clock_repair
        revived, facts = revive_run(run, moment.now_ms, limit_ms, repair, quota)
        return RunJudgement(revived, facts, opens=True, asks_quota=quota is not None)
    target = run.state if transition is None or transition.target is None else transition.target
    after, released = move_run(run, target, moment.now_ms, change)
    return RunJudgement(after, released, closes=target in FINISHED)
