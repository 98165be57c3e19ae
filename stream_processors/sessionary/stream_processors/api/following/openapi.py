"""The follower's page in the OpenAPI document."""

from typing import Any, Final

from sessionary.stream_processors.api.openapi_parts import SESSION_ANSWERS, SESSION_PARAMETERS, TEXT, problem_response

_LAST_EVENT_ID: Final[dict[str, Any]] = {
    "name": "Last-Event-ID",
    "in": "header",
    "required": False,
    "schema": {**TEXT, "pattern": "^[0-9]+:[0-9]+$"},
    "description": "the id of the last message that was read; it goes before `after`",
}
_MESSAGE: Final[dict[str, Any]] = {
    "type": "object",
    "description": "one message",
    "required": ["event", "data"],
    "properties": {
        "id": {**TEXT, "pattern": "^[0-9]+:[0-9]+$"},
        "event": {**TEXT, "enum": ["state", "end"]},
        "data": {**TEXT, "description": "of a state, the JSON text of a `Session`"},
    },
}
_STREAM: Final = (
    "server-sent events, until the session is archived or the worker no longer has its partition. At once, and after "
    "each committed change of the session that is not only a sign of life: `id: <partition>:<offset>`, up to which "
    "the state includes the log; `event: state`; `data:` a `Session` without a verdict. Several changes that are "
    "committed together, or while the reader is slow, are one message. `event: end` says that the session was "
    "archived; a stream that ends without it is to be asked for again, with `Last-Event-ID`. A comment comes every 5 s"
)
FOLLOW_PATHS: Final[dict[str, Any]] = {
    "/v1/sessions/{session_id}/follow": {
        "get": {
            "summary": "The committed state of one session of the caller's tenant, and each change of it",
            "parameters": [*SESSION_PARAMETERS, _LAST_EVENT_ID],
            "responses": {
                "200": {"description": _STREAM, "content": {"text/event-stream": {"schema": _MESSAGE}}},
                **SESSION_ANSWERS,
                "503": problem_response(
                    "the partition is not open, `after` is not folded in time, or the worker has too many followers; "
                    "see Retry-After"
                ),
            },
        }
    },
}
