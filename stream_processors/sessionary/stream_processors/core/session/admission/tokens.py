"""The tokens that a session's event used: which quotas of its tenant are told of them.

Each quota for which the tenant's runs or sessions ask: its claims wait while the tokens of a window
are used up. They are told in the transaction of the event, once and at once: so an account lags by
no more than what is under way, and a session's row keeps none of it.
"""

from collections.abc import Sequence

from sessionary.schemas.codec import Event
from sessionary.schemas.events import UsageRecorded
from sessionary.schemas.ids import SessionKey
from sessionary.schemas.records import QuotaNotice, SessionState
from sessionary.schemas.types import QuotaName, RuleSet
from sessionary.stream_processors.core.machine import Arrival
from sessionary.stream_processors.core.model import Place
from sessionary.stream_processors.core.run.claims import QUOTA
from sessionary.stream_processors.core.session.admission.claims import SESSION_QUOTA
from sessionary.stream_processors.core.session.facts import TokensUsed


def used_tokens(event: Event, rules: RuleSet) -> Sequence[TokensUsed]:
    """Return which tokens an event used that applies; nothing without any."""
    usage = event.payload
    if not isinstance(usage, UsageRecorded):
        return ()
    tokens = usage.tokens_in + usage.tokens_out
    return (TokensUsed(tokens, _asked_quotas(rules)),) if tokens else ()


def _asked_quotas(rules: RuleSet) -> Sequence[QuotaName]:
    of_runs: Sequence[QuotaName] = (QUOTA,) if rules.quotas else ()
    return (*of_runs, SESSION_QUOTA) if rules.session_quotas else of_runs


def report_tokens(
    session: SessionKey, row: SessionState, after: SessionState, fact: TokensUsed, arrival: Arrival, place: Place
) -> list[QuotaNotice]:
    """Tell each quota how many tokens were used, and by which record."""
    return [QuotaNotice(quota, "used", *session, "", place.offset, fact.tokens) for quota in fact.quotas]
