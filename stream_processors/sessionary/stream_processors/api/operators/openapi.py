"""What the OpenAPI document says of the pages by which people step in."""

from collections.abc import Mapping
from typing import Any, Final

from sessionary.schemas.limits import MIGRATION_TTL_MS_DEFAULT, MIGRATION_TTL_MS_MAX, MIGRATION_TTL_MS_MIN
from sessionary.stream_processors.api.openapi_parts import (
    NO_OPERATOR,
    NUMBER,
    SESSION_PARAMETERS,
    TEXT,
    TEXT_OR_NULL,
    UNAUTHORIZED,
    VERDICT,
    json_answer,
    object_schema,
    problem_response,
)

_IDEMPOTENCY_KEY: Final = {
    "name": "Idempotency-Key",
    "in": "header",
    "description": "a request that is repeated with its key is judged once, and has the same answer",
    "schema": {**TEXT, "minLength": 1, "maxLength": 256},
}
_TENANT: Final = {
    "name": "tenant",
    "in": "query",
    "description": "the session's tenant; needed if the token is of none",
    "schema": TEXT,
}
_REASON: Final = {**TEXT_OR_NULL, "minLength": 1, "description": "for people; the audit trail keeps it"}
_ACTIONS: Final = {
    "pause": ("Hold a session, with a snapshot of its committed state", False),
    "resume": ("Let a held session go on; its holder is not fenced off", False),
    "cancel": ("End a session that is called off", False),
    "approve": ("Answer the question that a session waits with: yes", True),
    "refuse": ("Answer the question that a session waits with: no", True),
}


def _operation(summary: str, *, is_answer: bool) -> dict[str, Any]:
    fields = {"reason": _REASON}
    if is_answer:
        fields["question_id"] = {**TEXT_OR_NULL, "description": "the question that is meant; 409 if another is open"}
    body = {**object_schema(**fields), "required": [] if is_answer else ["reason"]}
    return {
        "post": {
            "summary": f"{summary}; needs the role operator",
            "parameters": [SESSION_PARAMETERS[0], _TENANT, _IDEMPOTENCY_KEY],
            "requestBody": {"required": not is_answer, "content": {"application/json": {"schema": body}}},
            "responses": {
                "200": json_answer("the event was applied", "JudgedEvent"),
                "400": problem_response("the body is malformed, or no tenant is named"),
                "401": UNAUTHORIZED,
                "403": NO_OPERATOR,
                "404": problem_response("the tenant has no such session"),
                "409": problem_response("the event was refused; `reason` says why"),
                "410": problem_response("the session was archived"),
                "503": problem_response("there is no verdict yet; see Retry-After"),
            },
        }
    }


_SERVICE: Final = {**TEXT, "minLength": 1, "maxLength": 128, "description": "the service that is to own the session"}
_TARGET: Final = {
    "to": _SERVICE,
    "ttl_ms": {
        **NUMBER,
        "minimum": MIGRATION_TTL_MS_MIN,
        "maximum": MIGRATION_TTL_MS_MAX,
        "description": f"aborted after it; default {MIGRATION_TTL_MS_DEFAULT:,}",
    },
    "reason": _REASON,
}
_CLAIM: Final = {"for": _SERVICE, "reason": _REASON}


def _move(summary: str, fields: Mapping[str, Any], required: list[str], answer: str) -> dict[str, Any]:
    found = _operation(summary, is_answer=False)
    body = {**object_schema(**fields), "required": [*required, "reason"]}
    found["post"]["requestBody"]["content"] = {"application/json": {"schema": body}}
    found["post"]["responses"]["200"] = json_answer("the event was applied", answer)
    return found


PEOPLE_PATHS: Final[dict[str, Any]] = {
    **{
        f"/v1/sessions/{{session_id}}/{action}": _operation(summary, is_answer=is_answer)
        for action, (summary, is_answer) in _ACTIONS.items()
    },
    "/v1/sessions/{session_id}/migrate": _move(
        "Offer a session to another service", _TARGET, ["to"], "JudgedMigration"
    ),
    "/v1/sessions/{session_id}/abort-migration": _move(
        "Call a migration off", {"reason": _REASON}, [], "JudgedMigration"
    ),
    "/v1/sessions/{session_id}/claim": _move(
        "Let a service own a session at once; its holder is fenced off", _CLAIM, ["for"], "JudgedClaim"
    ),
}
_JUDGED: Final = object_schema(
    session_id={**TEXT, "format": "uuid"},
    tenant_id=TEXT,
    state=TEXT,
    epoch=NUMBER,
    version=NUMBER,
    reason_code=TEXT,
    snapshot_id={**TEXT, "description": "the head of its chain of snapshots"},
    event_id={**TEXT, "description": "of the event that was sent for the caller"},
    verdict=VERDICT,
)
PEOPLE_SCHEMAS: Final[dict[str, Any]] = {
    "JudgedEvent": _JUDGED,
    "JudgedClaim": {
        **_JUDGED,
        "properties": {**_JUDGED["properties"], "owner_service": TEXT},
        "required": [*_JUDGED["required"], "owner_service"],
    },
    "JudgedMigration": {
        **_JUDGED,
        "properties": {**_JUDGED["properties"], "migration_id": TEXT, "to": TEXT, "step": TEXT},
        "required": [*_JUDGED["required"], "migration_id", "to", "step"],
    },
}
