"""Changes of a run: its row afterwards, and the notices to its session and the quotas.

The claim of a run to a slot of its tenant's quota:

    begins, or is resumed after a failure  ─▶ requested ─▶ waits as queued
    verdict of the quotas, if that claim is open ─▶ admitted (taken), or turned away (released)
    ends in any way ─▶ released

A verdict may come twice, late, or for an older claim of the same run: the offset of the event that
asked identifies the claim. So each claim is released exactly once, in the transaction that ends it.

Functions return a run's row after a change, and facts for its session's row. Times are ms of log
time. A finished run is a row of another class.
"""

from collections.abc import Sequence
from typing import Any, Final, NamedTuple

from sessionary.schemas.fast_replace import make_replacer
from sessionary.schemas.ids import SessionKey
from sessionary.schemas.records import (
    AuditRecord,
    FinishedRun,
    QuotaNotice,
    QuotaVerdict,
    RunState,
    SessionState,
    TaskRequest,
)
from sessionary.schemas.types import ErrorInfo, QuotaStep, Rejection, RunQuota, RunStateName
from sessionary.stream_processors.core.judge import Arrival
from sessionary.stream_processors.core.model import OutputCause
from sessionary.stream_processors.core.run.transitions import (
    AT_WORK,
    FINISHED,
    QUOTA_EXCEEDED,
    QUOTA_GRANTED,
    QUOTA_REQUESTED,
    STATES_ADMITTED,
    RunChange,
    RunRow,
)
from sessionary.stream_processors.core.trail import at_due_time, next_number, session_record

QUOTA: Final = "concurrent_runs"
ANSWERS: Final = frozenset({"approved", "denied", "expired"})
"""The reason codes with which an answer to its question makes a session Active."""
REJECTIONS_KEPT: Final = 16
_WAITS = "Run queued: it waits for its tenant's quota"
_ADMITTED = "Run admitted by its tenant's quota"
_PAUSED_BY_SILENCE: Final = "connection_lost"
_PAUSED_BY_TIMEOUT: Final = "session_timed_out"
_PAUSED_BY_CALL: Final = "call_unresolved"
_RELEASED_BY_CALL: Final = "call_resolved"
_FAILED_BY_END: Final = "session_ended"
_replace_heard: Final = make_replacer(RunState, "run_seq", "last_event_at")


class ClaimMoved(NamedTuple):
    """The quotas are notified of the claim that a run has, or had."""

    step: QuotaStep
    claim: RunQuota
    tenant_id: str
    session_id: str
    run_id: str

    def apply(self, row: Any) -> Any:
        """Return the session as it is."""
        return row

    def report(self, session: SessionKey, row: Any, after: Any, arrival: Any, cause: OutputCause) -> list[QuotaNotice]:
        """Notify the quotas."""
        return [QuotaNotice(QUOTA, self.step, self.tenant_id, self.session_id, self.run_id, self.claim.offset)]


class RunChanged(NamedTuple):
    """A run changed without an event: by its clock, by its session, its calls, or its quota.

    `due_ms` is set if its clock did it. `checkpoint_id` is of its last checkpoint. `from_state` is
    None if the run begins.
    """

    run_id: str
    at_ms: int
    from_state: RunStateName | None
    to_state: RunStateName
    reason_code: str
    reason: str
    due_ms: int | None = None
    checkpoint_id: str | None = None

    def apply(self, row: SessionState) -> SessionState:
        """Return the session with one more record's number, and without a finished run."""
        numbered = next_number(row)
        return close_run(numbered, self.run_id) if self.to_state in FINISHED else numbered

    def report(
        self, session: SessionKey, row: SessionState, after: SessionState, arrival: Arrival | None, cause: OutputCause
    ) -> list[AuditRecord]:
        """Report the change; what its clock did occurred when it was due."""
        record = session_record(session, after, arrival, cause, "run")._replace(
            event_type="run_resumed" if self.to_state == "running" else f"run_{self.to_state}",
            reason_code=self.reason_code,
            reason=self.reason,
            run_id=self.run_id,
            from_run_state=self.from_state,
            to_run_state=self.to_state,
            checkpoint_id=self.checkpoint_id,
        )
        if arrival is None or arrival.event is None:
            record = record._replace(user_id=after.user_id)
        if self.due_ms is not None:
            record = at_due_time(record, self.due_ms, self.at_ms)
        return [record]


class RunRejected(NamedTuple):
    """A run is over its tenant's quota; `rejection` is of the event that asked."""

    run_id: str
    at_ms: int
    reason: str
    rejection: Rejection

    def apply(self, row: SessionState) -> SessionState:
        """Return the session without the run among its open ones; it keeps the rejection."""
        return keep_rejection(close_run(next_number(row), self.run_id), self.rejection)

    def report(
        self, session: SessionKey, row: SessionState, after: SessionState, arrival: Arrival | None, cause: OutputCause
    ) -> list[AuditRecord]:
        """Report the rejection; it also rejects the event that asked."""
        record = session_record(session, after, arrival, cause, "run")
        record = record._replace(run_id=self.run_id, from_run_state="queued", to_run_state="rejected")
        record = record._replace(event_type="run_rejected", reason_code=QUOTA_EXCEEDED, reason=self.reason)
        return [record._replace(user_id=after.user_id)]


class TaskAdmitted(NamedTuple):
    """A task may be carried out: its tenant's quota admits it."""

    run: RunState
    at_ms: int

    def apply(self, row: SessionState) -> SessionState:
        """Return the session as it is."""
        return row

    def report(
        self, session: SessionKey, row: SessionState, after: SessionState, arrival: Arrival | None, cause: OutputCause
    ) -> list[TaskRequest]:
        """Ask for the work."""
        run = self.run
        return [task_request(after, run.run_id, run.user_id, run.task_type, run.input_json, self.at_ms)]


RunFact = ClaimMoved | RunChanged | RunRejected | TaskAdmitted
# A run's row after a change (None: it has none any more), and the facts for its session.
Change = tuple[RunRow | None, Sequence[RunFact]]


def task_request(
    session: SessionState, run_id: str, user_id: str | None, task_type: str, input_json: str | None, at_ms: int
) -> TaskRequest:
    """Return the request for the work of a detached run."""
    return TaskRequest(
        tenant_id=session.tenant_id,
        session_id=session.session_id,
        run_id=run_id,
        service_id=session.owner_service,
        user_id=user_id,
        epoch=session.epoch,
        task_type=task_type,
        input_json=input_json,
        data_classes=session.data_classes,
        requested_at=at_ms * 1000,
    )


def close_run(row: SessionState, run_id: str) -> SessionState:
    """Return a session without a run among its open ones."""
    return row._replace(open_runs=tuple(run for run in row.open_runs if run.run_id != run_id))


def keep_rejection(row: SessionState, rejection: Rejection) -> SessionState:
    """Return a session that keeps the rejection of an earlier event.

    Rejections stay in the log's order, so that the oldest go first.
    """
    rejections = sorted((*row.rejections, rejection), key=lambda each: each.offset)
    return row._replace(rejections=tuple(rejections[-REJECTIONS_KEPT:]))


def hear_run(row: RunRow, at_ms: int) -> RunRow:
    """Return a run after an event that brings nothing for it."""
    if isinstance(row, FinishedRun):
        return row._replace(run_seq=row.run_seq + 1, last_event_at=at_ms)
    heard: RunState = _replace_heard(row, row.run_seq + 1, at_ms)
    return heard


def move_run(row: RunState, target: RunStateName, at_ms: int, change: RunChange) -> tuple[RunRow, Sequence[RunFact]]:
    """Return a run after an event; `target` may be the state that it has."""
    brought = {name: value for name, value in change._asdict().items() if value is not None}
    if target == row.state:
        brought.pop("reason_code", None)
    else:
        brought.update(state=target, entered_at=at_ms)
        if target == "started" and row.mode == "attached":
            brought["due_at"] = at_ms + row.attached_run_ms
    after = row._replace(run_seq=row.run_seq + 1, last_event_at=at_ms, **brought)
    return (_finish_run(after), released_claim(row)) if target in FINISHED else (after, ())


def begin_run(row: RunState) -> Sequence[RunFact]:
    """Return the facts of a new run for the session and the quotas."""
    if row.quota is None:
        return ()
    queued = RunChanged(row.run_id, row.created_at, None, "queued", QUOTA_REQUESTED, _WAITS)
    return _claim_moved(row, "requested", row.quota), _with_checkpoint(row, queued)


def revive_run(
    row: FinishedRun, at_ms: int, attached_run_ms: int, clock_repair: int, quota: RunQuota | None
) -> tuple[RunState, Sequence[RunFact]]:
    """Return a failed run that is resumed. With a claim to a quota, it waits for that first."""
    revived = {
        **row._asdict(),
        "state": "running" if quota is None else "queued",
        "run_seq": row.run_seq + 1,
        "entered_at": at_ms,
        "last_event_at": at_ms,
        "reason_code": "resumed" if quota is None else QUOTA_REQUESTED,
        "error": None if quota is None else row.error,  # it is failed again if it is turned away
        "resumes": row.resumes + 1,
        "due_at": at_ms + attached_run_ms if row.mode == "attached" and quota is None else None,
        "attached_run_ms": attached_run_ms,
        "clock_repair": clock_repair,
        "quota": quota,
    }
    if quota is None:
        return RunState(**revived), ()
    queued = RunChanged(row.run_id, at_ms, row.state, "queued", QUOTA_REQUESTED, _WAITS)
    return RunState(**revived), (_claim_moved(row, "requested", quota), _with_checkpoint(row, queued))


def give_up_run(row: RunState, at_ms: int, error: ErrorInfo, due_ms: int | None = None) -> Change:
    """Return a run that fails without an event; `due_ms` is set if its clock did it."""
    failed = row._replace(state="failed", entered_at=at_ms, reason_code=error.code, error=error)
    changed = RunChanged(row.run_id, at_ms, row.state, "failed", error.code, error.message, due_ms)
    return _finish_run(failed), (*released_claim(row), _with_checkpoint(row, changed))


def time_out_session(row: Any, at_ms: int, reason_code: str, *, is_silent: bool) -> Change:
    """Return an attached run whose session timed out: it is paused.

    `is_silent`: nothing was heard of its agent, so the connection to it is lost.
    """
    if not isinstance(row, RunState) or row.mode != "attached" or row.state not in AT_WORK:
        return row, ()
    code = _PAUSED_BY_SILENCE if is_silent else _PAUSED_BY_TIMEOUT
    return _pause_run(row, at_ms, code, f"The session timed out: {reason_code}")


def awaits_process(session: SessionState) -> bool:
    """Return whether an answer has made a session Active, and nothing was heard of it since.

    The limits of its runs wait as in a pause, and its clock of inactivity as long as one may last.
    """
    is_unheard = session.last_event_at <= session.entered_at and session.reason_code in ANSWERS
    return is_unheard and session.state == "Active"


def begin_limit_again(row: Any, at_ms: int) -> Any:
    """Return a run whose limit, if any, begins at `at_ms`: its session was paused until then."""
    if not isinstance(row, RunState) or row.due_at is None:
        return row
    return row._replace(due_at=at_ms + row.attached_run_ms)


def end_session(row: Any, at_ms: int, reason_code: str) -> Change:
    """Return an attached run whose session was terminated: it fails."""
    if not isinstance(row, RunState) or row.mode != "attached":
        return row, ()
    return give_up_run(row, at_ms, ErrorInfo("retryable", _FAILED_BY_END, f"The session ended: {reason_code}"))


def leave_call_unresolved(row: Any, tool_name: str, at_ms: int) -> Change:
    """Return a run one of whose calls with a side effect has an unknown outcome: it waits."""
    if not isinstance(row, (RunState, FinishedRun)):
        return row, ()
    counted = row._replace(unresolved_calls=row.unresolved_calls + 1)
    if not isinstance(counted, RunState) or counted.state not in AT_WORK:
        return counted, ()
    return _pause_run(counted, at_ms, _PAUSED_BY_CALL, f"Run paused: the outcome of {tool_name} is unknown")


def settle_call(row: RunRow, at_ms: int, *, is_active: bool) -> tuple[RunRow, Sequence[RunFact]]:
    """Return a run after an unknown outcome became known: the run continues after the last one.

    An attached run continues only if its session is Active.
    """
    counted = row._replace(unresolved_calls=max(0, row.unresolved_calls - 1))
    if counted.unresolved_calls or not (is_active or row.mode == "detached"):
        return counted, ()
    if not isinstance(counted, RunState) or (counted.state, counted.reason_code) != ("paused", _PAUSED_BY_CALL):
        return counted, ()
    reason = "Run resumed: the outcome of all its calls is known"
    changed = RunChanged(row.run_id, at_ms, row.state, "running", _RELEASED_BY_CALL, reason)
    after = counted._replace(state="running", entered_at=at_ms, reason_code=_RELEASED_BY_CALL)
    return after, (_with_checkpoint(row, changed),)


def receive_verdict(row: Any, verdict: QuotaVerdict, at_ms: int) -> Change:
    """Return a run after a verdict; unchanged, unless the verdict is on its open claim."""
    claim = row.quota if isinstance(row, RunState) else None
    if claim is None or claim.granted or (verdict.quota, verdict.offset) != (QUOTA, claim.offset):
        return row, ()
    if not verdict.granted:
        reason = f"Run rejected: {describe_limit(verdict, row.tenant_id)}"
        rejected = RunRejected(row.run_id, at_ms, reason, Rejection(claim.offset, QUOTA_EXCEEDED, claim.event_id))
        return _turn_away_run(row, at_ms), (_claim_moved(row, "released", claim), rejected)
    target = STATES_ADMITTED.get(claim.event_type, "queued")
    changed = RunChanged(row.run_id, at_ms, "queued", target, QUOTA_GRANTED, _ADMITTED)
    facts = (_claim_moved(row, "taken", claim), _with_checkpoint(row, changed))
    if claim.event_type == "run_queued" and row.mode == "detached":
        return _admit_run(row, claim, target, at_ms), (*facts, TaskAdmitted(row, at_ms))
    return _admit_run(row, claim, target, at_ms), facts


def describe_limit(verdict: QuotaVerdict, tenant_id: str) -> str:
    """Return which limit caused a rejection."""
    if verdict.token_limit is not None:
        return f"tenant {tenant_id} has used its {verdict.token_limit} tokens of this window"
    return f"the limit of {verdict.quota} of tenant {tenant_id} is {verdict.limit}"


def released_claim(row: RunState) -> Sequence[ClaimMoved]:
    """Return the release of the claim of a run that ends; none if the run has no claim."""
    return () if row.quota is None else (_claim_moved(row, "released", row.quota),)


def _claim_moved(row: RunRow, step: QuotaStep, claim: RunQuota) -> ClaimMoved:
    return ClaimMoved(step, claim, row.tenant_id, row.session_id, row.run_id)


def _with_checkpoint(row: RunRow, changed: RunChanged) -> RunChanged:
    checkpoint = row.checkpoint
    return changed if checkpoint is None else changed._replace(checkpoint_id=checkpoint.checkpoint_id)


def _pause_run(row: RunState, at_ms: int, code: str, reason: str) -> Change:
    changed = RunChanged(row.run_id, at_ms, row.state, "paused", code, reason)
    paused = row._replace(state="paused", entered_at=at_ms, reason_code=code)
    return paused, (_with_checkpoint(row, changed),)


def _finish_run(row: RunState) -> FinishedRun:
    values = row._asdict()
    return FinishedRun(**{name: values[name] for name in FinishedRun._fields})


def _admit_run(row: RunState, claim: RunQuota, target: RunStateName, at_ms: int) -> RunState:
    after = row._replace(
        state=target,
        entered_at=at_ms,
        last_event_at=at_ms,
        reason_code=QUOTA_GRANTED,
        error=None,
        quota=claim._replace(granted=True),
    )
    if row.mode == "attached" and target in AT_WORK:
        return after._replace(due_at=at_ms + row.attached_run_ms)
    return after


def _turn_away_run(row: RunState, at_ms: int) -> FinishedRun | None:
    """Return a resumed run as failed; a new one has no row any more."""
    if not row.resumes or row.error is None:
        return None
    return _finish_run(row._replace(state="failed", entered_at=at_ms, reason_code=QUOTA_EXCEEDED))
