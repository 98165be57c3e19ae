"""What became of the record that a request waits for, as far as it is still known; pure."""

from typing import Any

from sessionary.schemas.records import SessionState
from sessionary.stream_processors.core.recent_outcomes import RecentOutcomes, RecordOutcome
from sessionary.stream_processors.core.session.effects import REFUSALS_KEPT


def verdict_document(
    recent: RecentOutcomes, row: SessionState, key: bytes, partition: int, offset: int
) -> dict[str, Any]:
    """Return the verdict on the session's record at `offset`, as `/openapi.json` describes it.

    `applied` is said only of an event that this worker applied, or of a repetition of one. An
    older record is `refused` if the session's row says so, else `not_kept`.
    """
    outcome, reason = _judge_outcome(recent.find(offset, key), row, offset)
    return {"partition": partition, "offset": offset, "outcome": outcome, "reason": reason}


def _judge_outcome(found: RecordOutcome | None, row: SessionState, offset: int) -> tuple[str, str | None]:
    if found is None:
        reason = next((refusal.reason for refusal in row.refusals if refusal.offset == offset), None)
        return ("not_kept", None) if reason is None else ("refused", reason)
    if found.refusal is not None:
        return "refused", found.refusal
    if found.duplicate_of is None:
        return "applied", None
    # The verdict on a repetition is that on the original. Every refusal that leaves a repetition
    # is in the row, until others push it out.
    reason = next((refusal.reason for refusal in row.refusals if refusal.event_id == found.duplicate_of), None)
    if reason is not None:
        return "refused", reason
    if not found.duplicate_of:
        return "not_kept", None
    return ("applied", None) if len(row.refusals) < REFUSALS_KEPT else ("not_kept", None)


__all__ = ["verdict_document"]
