"""The JSON document of a session: what its page answers, and what its followers are told."""

from typing import Any

from sessionary.schemas.records import SessionState
from sessionary.stream_processors.api.session_questions import AskedOwner, log_document
from sessionary.stream_processors.core.session.clocks import waits_for_quota


def session_document(row: SessionState, asked: AskedOwner) -> dict[str, Any]:
    """Return the JSON document of a session, as `/openapi.json` describes it.

    It holds the committed state, its epoch and version, owner, content, limits, data classes and
    next deadline (ms of log time since the epoch), the last refused events, the last migration,
    whether it waits for its tenant's quota, and `log_document`.
    """
    return {
        "session_id": row.session_id,
        "tenant_id": row.tenant_id,
        "state": row.state,
        "phase": row.phase,
        "reason_code": row.reason_code,
        "epoch": row.epoch,
        "version": row.version,
        "owner_service": row.owner_service,
        "agent_id": row.agent_id,
        "holder": row.holder or None,
        "holder_epoch": row.holder_epoch,
        "question": None if row.question is None else row.question._asdict(),
        "answer": None if row.answer is None else row.answer._asdict(),
        "state_json": row.state_json,
        "state_schema_version": row.state_schema_version,
        "snapshot": row.snapshot._asdict(),
        "limits": row.limits._asdict(),
        "data_classes": list(row.data_classes),
        "deadline_ms": asked.owner.state.deadline_ms(row),
        "agents": [agent._asdict() for agent in row.agents],
        "refusals": [refusal._asdict() for refusal in row.refusals],
        "migration": _migration_document(row),
        "awaits_quota": waits_for_quota(row),
        **log_document(asked),
    }


def _migration_document(row: SessionState) -> dict[str, Any] | None:
    migration = row.migration
    if migration is None:
        return None
    document = migration._asdict()
    document["offered_at_ms"] = document.pop("offered_at")
    return {**document, "reason_code": migration.reason_code or None}
