"""The control API's OpenAPI document."""

from typing import Any, Final

from sessionary.schemas.types import SessionLimits, Snapshot

PROBLEM_TYPE_PREFIX: Final = "urn:sessionary:problems/"

_TEXT: Final[dict[str, Any]] = {"type": "string"}
_NUMBER: Final[dict[str, Any]] = {"type": "integer"}
_TEXT_OR_NULL: Final[dict[str, Any]] = {"type": ["string", "null"]}


def _object_schema(**properties: Any) -> dict[str, Any]:
    return {"type": "object", "required": list(properties), "properties": properties, "additionalProperties": False}


def _snapshot_schema() -> dict[str, Any]:
    optional, numbers = ("parent_snapshot_id", "context"), ("schema_version",)
    return _object_schema(
        **{
            name: _TEXT_OR_NULL if name in optional else _NUMBER if name in numbers else _TEXT
            for name in Snapshot._fields
        }
    )


_SESSION: Final = _object_schema(
    session_id={**_TEXT, "format": "uuid"},
    tenant_id=_TEXT,
    state=_TEXT,
    phase=_TEXT_OR_NULL,
    epoch=_NUMBER,
    version=_NUMBER,
    owner_service=_TEXT,
    state_json={**_TEXT, "description": "the session's content: JSON text"},
    state_schema_version=_NUMBER,
    snapshot={"oneOf": [_snapshot_schema(), {"type": "null"}]},
    limits=_object_schema(**dict.fromkeys(SessionLimits._fields, _NUMBER)),
    deadline_ms={**_NUMBER, "description": "when the next clock fires, in ms of log time since the epoch"},
    refusals={
        "type": "array",
        "description": "the last refused events, at most 16",
        "items": _object_schema(offset=_NUMBER, reason=_TEXT, event_id=_TEXT),
    },
    verdict={
        "description": "what became of the record at `after`; null without `after`",
        "oneOf": [
            _object_schema(
                partition=_NUMBER,
                offset=_NUMBER,
                outcome={"type": "string", "enum": ["applied", "refused"]},
                reason=_TEXT_OR_NULL,
            ),
            {"type": "null"},
        ],
    },
    position=_object_schema(partition=_NUMBER, next_offset=_NUMBER),
)
_PROBLEM: Final = _object_schema(
    type={**_TEXT, "format": "uri"}, title=_TEXT, status=_NUMBER, detail=_TEXT, reason=_TEXT
)


def _problem_response(description: str) -> dict[str, Any]:
    schema = {"$ref": "#/components/schemas/Problem"}
    return {"description": description, "content": {"application/problem+json": {"schema": schema}}}


def _query_parameter(name: str, schema: dict[str, Any], description: str) -> dict[str, Any]:
    return {"name": name, "in": "query", "required": False, "schema": schema, "description": description}


def _open_operation(summary: str, media_type: str, **more: str) -> dict[str, Any]:
    content = {media_type: {"schema": {"type": "string" if media_type.startswith("text/") else "object"}}}
    responses: dict[str, Any] = {"200": {"description": "OK", "content": content}}
    responses.update((f"{code[1:]}", {"description": text}) for code, text in more.items())
    return {"get": {"summary": summary, "security": [], "responses": responses}}


DOCUMENT: Final[dict[str, Any]] = {
    "openapi": "3.1.0",
    "info": {"title": "sessionary control API", "version": "1.0.0"},
    "security": [{"bearer": []}],
    "paths": {
        "/v1/sessions/{session_id}": {
            "get": {
                "summary": "The committed state of one session of the caller's tenant",
                "parameters": [
                    {"name": "session_id", "in": "path", "required": True, "schema": {**_TEXT, "format": "uuid"}},
                    _query_parameter(
                        "after",
                        {**_TEXT, "pattern": "^[0-9]+:[0-9]+$"},
                        "<partition>:<offset> of an event, from its delivery report: wait until it is folded",
                    ),
                    _query_parameter(
                        "wait_ms",
                        {**_NUMBER, "minimum": 0, "maximum": 10_000, "default": 5_000},
                        "how long to wait for that, in ms",
                    ),
                ],
                "responses": {
                    "200": {
                        "description": "the session's committed state",
                        "content": {"application/json": {"schema": {"$ref": "#/components/schemas/Session"}}},
                    },
                    "400": _problem_response(
                        "the session id, `after` or `wait_ms` is malformed; or `after` names another partition"
                    ),
                    "401": _problem_response("no bearer token, or an unknown one"),
                    "404": _problem_response("the tenant has no such session"),
                    "410": _problem_response("the session was archived"),
                    "503": _problem_response(
                        "the partition is not open, or `after` is not folded in time; see Retry-After"
                    ),
                },
            }
        },
        "/healthz": _open_operation("Whether the worker runs", "application/json", _503="the worker is ending"),
        "/readyz": _open_operation(
            "Whether all owned partitions are open and keep up with their log",
            "application/json",
            _503="some are not; the body names the state of each",
        ),
        "/metrics": _open_operation("Metrics in Prometheus' text format", "text/plain"),
        "/openapi.json": _open_operation("This document", "application/json"),
    },
    "components": {
        "securitySchemes": {"bearer": {"type": "http", "scheme": "bearer"}},
        "schemas": {"Session": _SESSION, "Problem": _PROBLEM},
    },
}

__all__ = ["DOCUMENT", "PROBLEM_TYPE_PREFIX"]
