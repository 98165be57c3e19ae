"""The effects of an event on its run and its child, and of a transition on the open runs."""

from collections.abc import Mapping, Sequence
from typing import Any, Final

from sessionary.schemas.codec import Event
from sessionary.schemas.ids import SessionKey, run_key, split_child_key
from sessionary.schemas.limits import CHILDREN_MAX
from sessionary.schemas.records import QuotaVerdict, RunState, RunTombstone, SessionState
from sessionary.schemas.types import OpenRun, SessionQuota
from sessionary.stream_processors.core.family import ChildFamily, SessionArrival
from sessionary.stream_processors.core.judge import Arrival, Objection
from sessionary.stream_processors.core.model import Decision, RowLookup
from sessionary.stream_processors.core.run.changes import ClaimMoved, begin_limit_again, end_session, time_out_session
from sessionary.stream_processors.core.run.changes import receive_verdict as receive_run_verdict
from sessionary.stream_processors.core.run.judge import RunJudgement, is_of_detached_run, judge_run, makes_run_open
from sessionary.stream_processors.core.run.transitions import QUOTA_REQUESTED, RunRow
from sessionary.stream_processors.core.session.admission import SESSION_QUOTA, answer_verdict, receive_verdict
from sessionary.stream_processors.core.session.clocks import INACTIVITY
from sessionary.stream_processors.core.session.facts import (
    RunClosed,
    RunEventTaken,
    RunOpened,
    SessionFact,
    SnapshotTaken,
    Transitioned,
    WorkDone,
)
from sessionary.stream_processors.core.session.row_size import object_to_size

# Besides Active, where all work is possible.
_OUTLIVED_STATES: Final = frozenset({"Paused", "Timeout", "Error", "Terminated"})


NOTHING: Final = Decision(())


def find_named_rows(arrival: SessionArrival, rows: RowLookup, families: Mapping[type[Any], ChildFamily]) -> None:
    """Put the rows of the run, and of the child, that an event names into its arrival."""
    event = arrival.event
    assert event is not None
    run_id, family = event.envelope.run_id, families.get(type(event.payload))
    if run_id:
        session = arrival.session
        arrival.run_key = run_key(session.tenant_id, session.session_id, run_id)
        run = rows.get_row(arrival.run_key)
        arrival.run = None if type(run) is RunTombstone else run
    if family is None:
        return
    key = arrival.record.key or b""  # a fault if it is not the session's
    child_key = family.key_of(event, key, arrival.run_key, rows.get_row(key) if family.is_ring else None)
    if child_key is None:
        return
    arrival.family, arrival.child_key, arrival.child = family, child_key, rows.get_row(child_key)
    if arrival.child is None and (split := split_child_key(child_key)) is not None:
        arrival.siblings = rows.count_children(split[0])


def outlives_state(row: SessionState, event: Event, run: RunRow | None) -> bool:
    """Return whether an event of a detached run is possible although its session is not Active."""
    return row.state in _OUTLIVED_STATES and is_of_detached_run(event, run) and not makes_run_open(event, run)


def judge_children(
    row: SessionState, event: Event, arrival: SessionArrival, fact: SessionFact | Objection
) -> tuple[SessionFact | Objection, Decision]:
    """Judge an event against its run and its child, if the session has accepted it.

    `fact` is the outcome of the event for the session. Returns the fact, or an objection, and what
    the event decides besides.
    """
    if type(fact) not in (WorkDone, RunEventTaken, SnapshotTaken):
        return fact, NOTHING
    judgement = judge_run(row, event, arrival)
    if isinstance(judgement, Objection):
        return judgement, NOTHING
    facts: list[Any] = []
    writes: dict[bytes, Any] = {}
    run_id = event.envelope.run_id
    if judgement is not None and judgement.after is not None and run_id:
        facts += _session_facts(judgement, run_id)
        if judgement.opens and (objection := object_to_size(row, facts, arrival)):
            return objection, NOTHING
        facts += judgement.facts
        writes[arrival.run_key] = arrival.run = judgement.after
    if arrival.family is not None and arrival.child_key is not None:
        judged = arrival.family.judge(row, event, arrival)
        if isinstance(judged, Objection):
            return judged, NOTHING
        if arrival.siblings >= CHILDREN_MAX and not arrival.family.is_ring:
            parent = f"run {run_id}" if run_id else "session"
            detail = f"the {parent} has {arrival.siblings} children, which is the most"
            return Objection("too_many_children", detail), NOTHING
        if judged.facts and (objection := object_to_size(row, judged.facts, arrival)):
            return objection, NOTHING
        facts += judged.facts
        if judged.row is not None:
            writes[arrival.child_key] = judged.row
        if judged.run is not None:
            writes[arrival.run_key] = judged.run
    return fact, Decision(facts, writes=writes)


def _session_facts(judgement: RunJudgement, run_id: str) -> Sequence[SessionFact]:
    if judgement.opens:
        assert judgement.after is not None
        opened = OpenRun(run_id, judgement.after.mode == "detached")
        return (RunOpened(opened, judgement.asks_quota),)
    return (RunClosed(run_id),) if judgement.closes else ()


def with_quota_claim(row: SessionState, arrival: Arrival) -> SessionState:
    """Return a new session that waits for its tenant's quota, if the rules have quotas."""
    if not arrival.rules.session_quotas:
        return row
    assert arrival.event is not None
    claim = SessionQuota(arrival.record.offset, arrival.event.envelope.event_id, granted=False)
    return row._replace(reason_code=QUOTA_REQUESTED, quota=claim)


def decide_quota_verdict(row: object, arrival: SessionArrival, verdict: QuotaVerdict, rows: RowLookup) -> Decision:
    """Judge a verdict on the claim of a session, or of one of its runs.

    The run's row says whether its claim is open. A verdict that changes nothing is answered, also
    if there is no session any more: the quotas repeat one until they know.
    """
    if not isinstance(row, SessionState):
        return Decision(answer_verdict(arrival.session, verdict, None))
    if verdict.quota == SESSION_QUOTA:
        changed = receive_verdict(row, verdict, arrival.now_ms)
        return Decision(changed or answer_verdict(arrival.session, verdict, row.quota))
    key = run_key(*arrival.session, verdict.run_id)
    run = rows.get_row(key)
    after, facts = receive_run_verdict(run, verdict, arrival.now_ms)
    if facts:
        return Decision(facts, writes={key: after})
    claim = run.quota if isinstance(run, RunState) else None
    return Decision(answer_verdict(arrival.session, verdict, claim))


def begin_limits_again(row: SessionState, at_ms: int, rows: RowLookup, further: Decision) -> Decision:
    """Return `further`, and the limits of attached runs from `at_ms` on (ms of log time).

    A process has come to an answered session, of which nothing was heard before.
    """
    writes = dict(further.writes or {})
    for open_run in row.open_runs:
        if not open_run.detached:
            key = run_key(row.tenant_id, row.session_id, open_run.run_id)
            writes[key] = begin_limit_again(writes.get(key) or rows.get_row(key), at_ms)
    return Decision(further.facts, writes=writes)


def change_open_runs(row: SessionState, fact: Transitioned, rows: RowLookup) -> Decision:
    """Return the results of a transition for the session's attached runs; `row`: before or after.

    The quotas are notified of the runs' claims before the session's row changes.
    """
    target, session = fact.transition.target, SessionKey(row.tenant_id, row.session_id)
    is_after_pause = (fact.transition.source, target) == ("Paused", "Active")
    if not row.open_runs or not (is_after_pause or target in ("Timeout", "Terminated")):
        return NOTHING
    facts: list[Any] = []
    writes: dict[bytes, Any] = {}
    is_silent = fact.reason_code == INACTIVITY.reason_code
    for open_run in row.open_runs:
        if open_run.detached:
            continue
        key = run_key(*session, open_run.run_id)
        run = rows.get_row(key)
        if is_after_pause:
            writes[key] = begin_limit_again(run, fact.at_ms)
            continue
        if target == "Timeout":
            writes[key], changed = time_out_session(run, fact.at_ms, fact.reason_code, is_silent=is_silent)
        else:
            writes[key], changed = end_session(run, fact.at_ms, fact.reason_code)
        facts += changed
    claims = [each for each in facts if type(each) is ClaimMoved]
    return Decision([*claims, *(each for each in facts if type(each) is not ClaimMoved)], writes=writes)
