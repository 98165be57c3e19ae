"""The quotas of a session's tenant: its claim to a slot, and the tokens that its events use.

    created ─▶ requested ─▶ waits in Idle: it cannot start
    verdict of the quotas, if that claim is open ─▶ admitted (taken), or ended by T03 (released)
    ends in any way ─▶ released

A session holds its slot as long as it is live: while it is Active or may become so again. In
Terminated it never works again, and waits only to be archived. Its detached runs may outlive it,
but these have a separate quota. So the transition to Terminated releases the claim.

Each quota for which the tenant's runs or sessions ask is notified of the tokens that an event used:
its claims wait while the tokens of a window are used up. The notice is written once, in the
transaction of the event. So an account lags only by the transactions under way, and a session's row
keeps no tokens.
"""

from collections.abc import Sequence
from typing import Any, Final, NamedTuple

from sessionary.schemas.codec import Event
from sessionary.schemas.events import UsageRecorded
from sessionary.schemas.ids import SessionKey
from sessionary.schemas.records import AuditRecord, QuotaNotice, QuotaVerdict, SessionState
from sessionary.schemas.types import QuotaName, QuotaStep, Rejection, RuleSet, RunQuota, SessionQuota
from sessionary.stream_processors.core.judge import Arrival
from sessionary.stream_processors.core.model import OutputCause
from sessionary.stream_processors.core.run.changes import QUOTA, describe_limit
from sessionary.stream_processors.core.run.transitions import QUOTA_EXCEEDED, QUOTA_GRANTED
from sessionary.stream_processors.core.session.clocks import waits_for_quota
from sessionary.stream_processors.core.session.facts import (
    ClaimRejected,
    SessionAdmitted,
    SessionFact,
    TokensUsed,
    Transitioned,
)
from sessionary.stream_processors.core.session.migration import facts_of_change
from sessionary.stream_processors.core.session.transitions import TRANSITIONS
from sessionary.stream_processors.core.trail import session_record

SESSION_QUOTA: Final = "live_sessions"
ADMITTED_TYPE: Final = "session_admitted"
WAITS: Final = "Session created: it waits for its tenant's quota"
_ADMITTED = "Session admitted by its tenant's quota"
(_FAILED_START,) = (each for each in TRANSITIONS if (each.source, each.target) == ("Idle", "Terminated"))


def receive_verdict(row: SessionState, verdict: QuotaVerdict, at_ms: int) -> Sequence[SessionFact]:
    """Return the facts of a verdict; none unless the verdict is on the open claim."""
    claim = row.quota
    if claim is None or not waits_for_quota(row) or verdict.offset != claim.offset:
        return ()
    if verdict.granted:
        return (SessionAdmitted(at_ms),)
    reason = f"Session rejected: {describe_limit(verdict, row.tenant_id)}"
    ended = Transitioned(_FAILED_START, at_ms, QUOTA_EXCEEDED, reason)
    rejected = ClaimRejected(Rejection(claim.offset, QUOTA_EXCEEDED, claim.event_id))
    return rejected, ended, *facts_of_change(row, ended, at_ms)


class ClaimAnswered(NamedTuple):
    """The quotas are told again whether a claim that they asked about holds its slot.

    A verdict that is repeated on a claim asks for it. So a notice that was lost keeps no slot.
    """

    notice: QuotaNotice

    def apply(self, row: Any) -> Any:
        """Return the session as it is; None if there is none any more."""
        return row

    def report(self, session: SessionKey, row: Any, after: Any, arrival: Any, cause: OutputCause) -> list[QuotaNotice]:
        """Notify the quotas."""
        return [self.notice]


def answer_verdict(
    session: SessionKey, verdict: QuotaVerdict, claim: SessionQuota | RunQuota | None
) -> Sequence[ClaimAnswered]:
    """Return the answer to a verdict that changes nothing; `claim`: what the row has, if any.

    No answer to a verdict on a claim that still waits: another verdict will follow.
    """
    if verdict.quota == "UNKNOWN":
        return ()
    step: QuotaStep = "released"
    if claim is not None and claim.offset == verdict.offset:
        if not claim.granted:
            return ()
        step = "taken"
    return (ClaimAnswered(QuotaNotice(verdict.quota, step, *session, verdict.run_id, verdict.offset)),)


def claim_notices(row: SessionState | None, after: SessionState) -> Sequence[QuotaNotice]:
    """Return the notices to the quotas on a session's claim; none if the fact did not move it."""
    before, now = None if row is None else row.quota, after.quota
    if before is now:
        return ()
    step: QuotaStep = "released" if now is None else "requested" if before is None else "taken"
    claim = before if now is None else now
    assert isinstance(claim, SessionQuota)
    return (QuotaNotice(SESSION_QUOTA, step, after.tenant_id, after.session_id, "", claim.offset),)


def report_admission(
    session: SessionKey,
    row: SessionState,
    after: SessionState,
    fact: SessionAdmitted,
    arrival: Arrival | None,
    cause: OutputCause,
) -> list[AuditRecord | QuotaNotice]:
    """Report that a session may start; the quotas are notified that it took its slot."""
    record = session_record(session, after, arrival, cause, "quota")
    reported = record._replace(event_type=ADMITTED_TYPE, reason_code=QUOTA_GRANTED, reason=_ADMITTED)
    return [reported._replace(user_id=after.user_id), *claim_notices(row, after)]


def used_tokens(event: Event, rules: RuleSet) -> Sequence[TokensUsed]:
    """Return the tokens that an applied event used; nothing without any."""
    usage = event.payload
    if not isinstance(usage, UsageRecorded):
        return ()
    tokens = usage.tokens_in + usage.tokens_out
    return (TokensUsed(tokens, _asked_quotas(rules)),) if tokens else ()


def _asked_quotas(rules: RuleSet) -> Sequence[QuotaName]:
    of_runs: Sequence[QuotaName] = (QUOTA,) if rules.quotas else ()
    return (*of_runs, SESSION_QUOTA) if rules.session_quotas else of_runs


def report_tokens(
    session: SessionKey, row: SessionState, after: SessionState, fact: TokensUsed, arrival: Arrival, cause: OutputCause
) -> list[QuotaNotice]:
    """Notify each quota how many tokens were used, and by which record."""
    return [QuotaNotice(quota, "used", *session, "", cause.offset, fact.tokens) for quota in fact.quotas]
