"""The part of the OpenAPI document that is about agents."""

from typing import Any, Final

from sessionary.schemas.limits import AGENTS_MAX
from sessionary.stream_processors.api.openapi_parts import (
    LOG_PLACE,
    NUMBER,
    SESSION_ANSWERS,
    SESSION_PARAMETERS,
    TEXT,
    TEXT_OR_NULL,
    json_answer,
    object_schema,
    problem_response,
)

_TEXTS: Final = {"type": "array", "items": TEXT}
_CONTEXT: Final = {"type": "object", "additionalProperties": TEXT_OR_NULL}
_HANDOVER: Final = {
    **object_schema(
        from_agent_id={**TEXT, "description": "the giver"},
        from_snapshot_id={**TEXT, "description": "the giver's snapshot"},
        sync_type={**TEXT, "description": "why, for programs: handoff …"},
        at_ms={**NUMBER, "description": "when it was accepted, in ms of log time"},
    ),
    "type": ["object", "null"],
    "description": "the last hand-over that it got; null if there was none",
}
_AGENT: Final[dict[str, Any]] = {
    "agent_id": TEXT,
    "role": {**TEXT, "description": "what it does, and so what it sees: researcher, analyzer, writer …"},
    "service_id": {**TEXT, "description": "its service, which is a member of the session by that"},
    "current_task": {**TEXT_OR_NULL, "description": "null if it has none"},
    "completed_tasks": {**_TEXTS, "description": "in the order of their completion"},
    "shared_keys": {**_TEXTS, "description": "the keys of what it shares itself"},
    "snapshot_id": {**TEXT, "description": "the last snapshot: each change of the tasks makes one"},
    "timestamp_ms": {**NUMBER, "description": "when that was made, in ms of log time"},
    "registered_at_ms": {**NUMBER, "description": "when it was registered, in ms of log time"},
    "handover": _HANDOVER,
}
AGENT_SCHEMAS: Final[dict[str, Any]] = {
    "Agents": object_schema(
        agents={"type": "array", "maxItems": AGENTS_MAX, "items": {"$ref": "#/components/schemas/Agent"}},
        **LOG_PLACE,
    ),
    "Agent": object_schema(**_AGENT),
    "AgentView": object_schema(
        agent_state=object_schema(
            **_AGENT,
            shared_context={
                **_CONTEXT,
                "description": "what all agents had shared when the snapshot was made: JSON texts by key",
            },
        ),
        visible_context={**_CONTEXT, "description": "what it sees now: JSON texts by key"},
        results={"type": "array", "items": {"$ref": "#/components/schemas/SharedResult"}},
        dependencies={**_TEXTS, "description": "ids of the agents that it depends on"},
        **LOG_PLACE,
    ),
    "SharedResult": object_schema(
        key={**TEXT, "description": "by default the author's id, `_` and the task"},
        agent_id={**TEXT, "description": "the author"},
        role={**TEXT, "description": "the author's role, by which it is seen"},
        task=TEXT,
        number={**NUMBER, "description": "from 1, in the order in which the session's agents shared"},
        at_ms={**NUMBER, "description": "when it was accepted, in ms of log time"},
        result_json={**TEXT_OR_NULL, "description": "the result; of a large one, its reference and summary"},
        artifact_id={**TEXT_OR_NULL, "description": "the artifact that has the result"},
    ),
}
_AGENT_ID: Final = {"name": "agent_id", "in": "path", "required": True, "schema": {**TEXT, "minLength": 1}}
AGENT_PATHS: Final[dict[str, Any]] = {
    "/v1/sessions/{session_id}/agents": {
        "get": {
            "summary": "The agents of a session, in the order of their registration, without results",
            "parameters": SESSION_PARAMETERS,
            "responses": {"200": json_answer("the agents", "Agents"), **SESSION_ANSWERS},
        }
    },
    "/v1/sessions/{session_id}/agents/{agent_id}": {
        "get": {
            "summary": "An agent, what it sees of the others, and on whom it depends",
            "parameters": [SESSION_PARAMETERS[0], _AGENT_ID, *SESSION_PARAMETERS[1:]],
            "responses": {
                "200": json_answer("what the agent sees", "AgentView"),
                **SESSION_ANSWERS,
                "404": problem_response("the tenant has no such session, or the session no such agent"),
            },
        }
    },
}
