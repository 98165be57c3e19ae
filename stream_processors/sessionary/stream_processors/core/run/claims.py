"""The claim of a run to a slot of its tenant's quota: what moves it, and who is told.

    begins, or is resumed after a failure  ─▶ requested ─▶ waits as queued
    verdict of the quotas, if that claim is open ─▶ admitted (taken), or turned away (released)
    ends in any way ─▶ released

A verdict may come twice, late, or for an older claim of the same run: the offset of the event that
asked tells them apart. So each claim is released exactly once, in the transaction that ends it.
"""

from collections.abc import Sequence
from typing import Final

from sessionary.schemas.ids import SessionKey, quota_key
from sessionary.schemas.records import FinishedRun, QuotaNotice, QuotaVerdict, RunGravestone, RunState, SessionState
from sessionary.schemas.types import Refusal
from sessionary.stream_processors.core.machine import ForRow
from sessionary.stream_processors.core.model import Emitted
from sessionary.stream_processors.core.run.facts import (
    ClaimDecided,
    ClaimMoved,
    RunAdmitted,
    RunBegun,
    RunChanged,
    RunFact,
    RunMoved,
    RunRejected,
    RunRevived,
    RunTurnedAway,
    TaskAdmitted,
)
from sessionary.stream_processors.core.run.transitions import (
    FINISHED,
    QUOTA_EXCEEDED,
    QUOTA_GRANTED,
    QUOTA_REQUESTED,
    STATES_ADMITTED,
    RunRow,
)

QUOTA: Final = "concurrent_runs"
_WAITS = "Run queued: it waits for its tenant's quota"
_ADMITTED = "Run admitted by its tenant's quota"


def with_claim(row: RunRow | RunGravestone | None, fact: RunFact) -> Sequence[RunFact | ForRow]:
    """Return a fact of an event, and what it means for the claim of its run."""
    if isinstance(fact, RunBegun):
        return (fact,) if fact.row.quota is None else (fact, *_request(fact.row, fact.row.created_at))
    if isinstance(fact, RunRevived):
        if fact.quota is None or not isinstance(row, FinishedRun):
            return (fact,)
        told = RunChanged(row.run_id, fact.at_ms, row.state, "queued", QUOTA_REQUESTED, _WAITS)
        return fact, ClaimMoved("requested", fact.quota), tell_session(row, told)
    if isinstance(fact, RunMoved) and fact.target in FINISHED and isinstance(row, RunState):
        return fact, *released_claim(row)
    return (fact,)


def _request(row: RunState, at_ms: int) -> Sequence[RunFact | ForRow]:
    assert row.quota is not None
    told = RunChanged(row.run_id, at_ms, None, "queued", QUOTA_REQUESTED, _WAITS)
    return ClaimMoved("requested", row.quota), tell_session(row, told)


def released_claim(row: RunState) -> Sequence[ClaimMoved]:
    """Return the release of the claim that a run has, which ends; none if it has none."""
    return () if row.quota is None else (ClaimMoved("released", row.quota),)


def receive_verdict(row: RunState, fact: ClaimDecided) -> Sequence[RunFact | ForRow]:
    """Return what a verdict comes to; nothing unless it is on the claim that stands open."""
    claim, verdict, at_ms = row.quota, fact.verdict, fact.at_ms
    if claim is None or claim.granted or (verdict.quota, verdict.offset) != (QUOTA, claim.offset):
        return ()
    if not verdict.granted:
        reason = f"Run rejected: {tell_limit(verdict, row.tenant_id)}"
        refusal = Refusal(claim.offset, QUOTA_EXCEEDED, claim.event_id)
        rejected = RunRejected(row.run_id, at_ms, reason, refusal)
        return ClaimMoved("released", claim), RunTurnedAway(at_ms), tell_session(row, rejected)
    target = STATES_ADMITTED.get(claim.event_type, "queued")
    told = RunChanged(row.run_id, at_ms, "queued", target, QUOTA_GRANTED, _ADMITTED)
    facts = (ClaimMoved("taken", claim), RunAdmitted(at_ms), tell_session(row, told))
    if claim.event_type == "run_queued" and row.mode == "detached":
        return *facts, tell_session(row, TaskAdmitted(row, at_ms))
    return facts


def tell_limit(verdict: QuotaVerdict, tenant_id: str) -> str:
    """Return which limit a rejection is because of."""
    if verdict.token_limit is not None:
        return f"tenant {tenant_id} has used its {verdict.token_limit} tokens of this window"
    return f"the limit of {verdict.quota} of tenant {tenant_id} is {verdict.limit}"


def claim_notice(row: RunState | FinishedRun, fact: ClaimMoved) -> Emitted:
    """Return what the quotas are told of a run's claim."""
    tenant_id = row.tenant_id
    notice = QuotaNotice(QUOTA, fact.step, tenant_id, row.session_id, row.run_id, fact.claim.offset)
    return Emitted("quotas", quota_key(tenant_id, QUOTA), notice)


def tell_session(row: RunState | FinishedRun, fact: RunChanged | RunRejected | TaskAdmitted) -> ForRow:
    """Return a fact about a run for its session; one about a change names the last checkpoint."""
    if isinstance(fact, RunChanged) and row.checkpoint is not None:
        fact = fact._replace(checkpoint_id=row.checkpoint.checkpoint_id)
    return ForRow(SessionKey(row.tenant_id, row.session_id).encoded(), SessionState, fact)
