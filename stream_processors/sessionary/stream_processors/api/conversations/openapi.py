"""The part of the OpenAPI document that is about conversations."""

from typing import Any, Final

from sessionary.schemas.limits import CONVERSATION_TURNS_MAX
from sessionary.stream_processors.api.conversations.message_pages import LAST_DEFAULT
from sessionary.stream_processors.api.openapi_parts import (
    LOG_PLACE,
    NUMBER,
    SESSION_ANSWERS,
    SESSION_PARAMETERS,
    TEXT,
    TEXT_OR_NULL,
    json_answer,
    object_schema,
    query_parameter,
)

CONVERSATION_SCHEMAS: Final[dict[str, Any]] = {
    "Conversation": object_schema(
        turns={**NUMBER, "description": "how many turns the conversation has had"},
        messages={
            "type": "array",
            "maxItems": CONVERSATION_TURNS_MAX,
            "items": {"$ref": "#/components/schemas/Message"},
        },
        **LOG_PLACE,
    ),
    "Message": object_schema(
        turn={**NUMBER, "description": "from 1, in the order of the log"},
        role={**TEXT, "description": "who speaks, in the agent's words: user, assistant, tool …"},
        name={**TEXT_OR_NULL, "description": "of the tool, or of who speaks"},
        content={**TEXT_OR_NULL, "description": "the text; the JSON of reference and summary, if an artifact has it"},
        artifact_id={**TEXT_OR_NULL, "description": "the artifact that has the text"},
        run_id={**TEXT_OR_NULL, "description": "the run in which it was said"},
        agent_id={**TEXT, "description": "the agent that sent it"},
        service_id={**TEXT, "description": "that agent's service"},
        at_ms={**NUMBER, "description": "when it was accepted, in ms of log time"},
    ),
}
_LAST: Final = query_parameter(
    "last",
    {**NUMBER, "minimum": 0, "maximum": CONVERSATION_TURNS_MAX, "default": LAST_DEFAULT},
    "how many turns, from the end",
)
CONVERSATION_PATHS: Final[dict[str, Any]] = {
    "/v1/sessions/{session_id}/conversation": {
        "get": {
            "summary": f"The last turns of a session's conversation, in order; the last {CONVERSATION_TURNS_MAX} "
            "are kept",
            "parameters": [SESSION_PARAMETERS[0], _LAST, *SESSION_PARAMETERS[1:]],
            "responses": {"200": json_answer("the last turns", "Conversation"), **SESSION_ANSWERS},
        }
    },
}
