"""What became of the record that a request waits for, as far as it is still known; pure.

The session's row knows its last refusals and each producer's last events. So every worker gives
these answers, whichever worker judged the record. What a row does not know (a repetition, a
heartbeat, older events, a refusal without a session), the worker that judged the record still knows
for a while.
"""

from typing import Any

from sessionary.schemas.records import SessionState
from sessionary.stream_processors.core.model import RecentOutcomes, RecordOutcome
from sessionary.stream_processors.core.sequencing import last_offsets
from sessionary.stream_processors.core.session.effects import REFUSALS_KEPT

_Judgement = tuple[str, str | None]  # outcome, and the reason of a refusal
_APPLIED: _Judgement = ("applied", None)
_NOT_KEPT: _Judgement = ("not_kept", None)


def verdict_document(
    recent: RecentOutcomes, row: SessionState | None, key: bytes, partition: int, offset: int
) -> dict[str, Any]:
    """Return the verdict on the session's record at `offset`, as `/openapi.json` describes it.

    Without a row there is no such session, or it is archived. `applied` is said only of an event
    that was applied, or of a repetition of one. What neither the row nor this worker knows is
    `not_kept`.
    """
    found = None if row is None else _row_judgement(row, offset)
    outcome, reason = found or _recent_judgement(recent.find(offset, key), row)
    return {"partition": partition, "offset": offset, "outcome": outcome, "reason": reason}


def _row_judgement(row: SessionState, offset: int) -> _Judgement | None:
    refusals = row.refusals
    for refusal in refusals:
        if refusal.offset == offset:
            return "refused", refusal.reason
    # What was judged by its number is applied or in `refusals`, until others push it out.
    is_refusal_kept = len(refusals) < REFUSALS_KEPT or refusals[0].offset < offset
    if is_refusal_kept and any(offset in last_offsets(ledger) for ledger in row.producers):
        return _APPLIED
    return None


def _recent_judgement(found: RecordOutcome | None, row: SessionState | None) -> _Judgement:
    if found is None:
        return _NOT_KEPT
    if found.refusal is not None:
        return "refused", found.refusal
    if found.duplicate_of is None:
        return _APPLIED
    if not found.duplicate_of or row is None:
        return _NOT_KEPT
    # The verdict on a repetition is that on the original. Every refusal that leaves a repetition
    # is in the row, until others push it out.
    reason = next((refusal.reason for refusal in row.refusals if refusal.event_id == found.duplicate_of), None)
    if reason is not None:
        return "refused", reason
    return _APPLIED if len(row.refusals) < REFUSALS_KEPT else _NOT_KEPT
