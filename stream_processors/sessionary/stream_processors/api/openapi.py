"""The control API's OpenAPI document."""

from typing import Any, Final

from sessionary.schemas.types import SessionLimits, Snapshot

PROBLEM_TYPE_PREFIX: Final = "urn:sessionary:problems/"

_TEXT: Final[dict[str, Any]] = {"type": "string"}
_NUMBER: Final[dict[str, Any]] = {"type": "integer"}
_TEXT_OR_NULL: Final[dict[str, Any]] = {"type": ["string", "null"]}
_NUMBER_OR_NULL: Final[dict[str, Any]] = {"type": ["integer", "null"]}


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


_REFUSALS: Final = {
    "type": "array",
    "description": "the last refused events, at most 16",
    "items": _object_schema(offset=_NUMBER, reason=_TEXT, event_id=_TEXT),
}
_VERDICT: Final = {
    "oneOf": [
        _object_schema(
            partition=_NUMBER,
            offset=_NUMBER,
            outcome={"type": "string", "enum": ["applied", "refused", "not_kept"]},
            reason=_TEXT_OR_NULL,
        ),
        {"type": "null"},
    ],
}
_SESSION: Final = _object_schema(
    session_id={**_TEXT, "format": "uuid"},
    tenant_id=_TEXT,
    state=_TEXT,
    phase=_TEXT_OR_NULL,
    reason_code={**_TEXT, "description": "why it is in its state"},
    epoch=_NUMBER,
    version=_NUMBER,
    owner_service=_TEXT,
    agent_id={**_TEXT, "description": "the agent that created the session, or took it over last"},
    holder={
        **_TEXT_OR_NULL,
        "description": "producer id of the client that created the session, or took it over last; null by rules 1",
    },
    state_json={**_TEXT, "description": "the session's content: JSON text"},
    state_schema_version=_NUMBER,
    snapshot={"oneOf": [_snapshot_schema(), {"type": "null"}]},
    limits=_object_schema(**dict.fromkeys(SessionLimits._fields, _NUMBER)),
    data_classes={"type": "array", "description": "classes of the data that it handles", "items": _TEXT},
    deadline_ms={**_NUMBER, "description": "when the next clock fires, in ms of log time since the epoch"},
    refusals=_REFUSALS,
    verdict={
        **_VERDICT,
        "description": "what became of the record at `after`; null without `after`. The session's last "
        "events and refusals have a verdict; what is no longer known, or is another session's record, is `not_kept`",
    },
    position=_object_schema(partition=_NUMBER, next_offset=_NUMBER),
    rules={**_NUMBER, "description": "version of the rules by which its events are judged"},
)
_AFTER: Final = {**_TEXT_OR_NULL, "pattern": "^[0-9]+:[0-9]+$"}
_KNOWN_SESSION: Final = {
    **_object_schema(
        session_id={**_TEXT, "format": "uuid"},
        state={**_TEXT, "description": "the session's state as far as the client knows"},
        epoch={**_NUMBER, "default": 1},
        holder={**_TEXT_OR_NULL, "description": "the client's producer id, if it holds the session"},
        refused_after={**_NUMBER, "default": -1, "description": "offset up to which it knows the refused events"},
        after={
            **_AFTER,
            "description": "<partition>:<offset> of an event, to tell its verdict if the session does not exist",
        },
    ),
    "required": ["session_id", "state"],
}
_CHANGED_SESSION: Final = _object_schema(
    session_id={**_TEXT, "format": "uuid"},
    state={**_TEXT_OR_NULL, "description": "null if the tenant has no such session"},
    epoch={**_NUMBER_OR_NULL, "description": "null if it does not exist, or is archived"},
    holder={**_TEXT_OR_NULL, "description": "as in `Session`"},
    reason_code={**_TEXT_OR_NULL, "description": "why it is in its state; null if that is not known"},
    refusals={**_REFUSALS, "description": "the last refused events after `refused_after`, at most 16"},
    verdict={
        **_VERDICT,
        "description": "on the event at `after`, if the session does not exist or is archived; "
        "null if it is not judged yet",
    },
)
_SESSION_POLL: Final = {
    **_object_schema(
        tenant={
            **_TEXT_OR_NULL,
            "description": "the tenant that the client means; another one than the token's is 403",
        },
        sessions={"type": "array", "maxItems": 1_000, "items": {"$ref": "#/components/schemas/KnownSession"}},
    ),
    "required": ["sessions"],
}
_SESSION_CHANGES: Final = _object_schema(
    tenant={**_TEXT, "description": "the token's"},
    positions={
        "type": "object",
        "description": "by partition, the next offset to be judged; a partition that does not answer is left out",
        "additionalProperties": _NUMBER,
    },
    sessions={
        "type": "array",
        "description": "only the sessions that differ from what the client knows",
        "items": {"$ref": "#/components/schemas/ChangedSession"},
    },
)
_PARTITION_STATE: Final = {
    "type": "string",
    "enum": ["open", "opening", "halted", "unreachable", "unassigned"],
    "description": "unreachable: its owner does not answer; unassigned: no worker owns it",
}
_PARTITION: Final = _object_schema(
    partition=_NUMBER,
    state=_PARTITION_STATE,
    instance={**_TEXT_OR_NULL, "description": "the owner's name"},
    url={**_TEXT_OR_NULL, "description": "the URL of the owner's API"},
    reason={**_TEXT_OR_NULL, "description": "why it is halted"},
    detail={**_TEXT_OR_NULL, "description": "what happened where, if it is not open"},
    halted_at_ms={**_NUMBER_OR_NULL, "description": "when it was halted, in ms since the epoch"},
    next_offset={**_NUMBER_OR_NULL, "description": "the next record of the log to be folded"},
    batch_number={**_NUMBER_OR_NULL, "description": "the number of its last transaction"},
    live_rows={**_NUMBER_OR_NULL, "description": "rows with a deadline that will fire"},
    clock_ms={**_NUMBER_OR_NULL, "description": "its log clock, in ms since the epoch; null if it is not open"},
)
_PARTITION_RULES: Final = _object_schema(
    partition=_NUMBER,
    state=_PARTITION_STATE,
    instance={**_TEXT_OR_NULL, "description": "the owner's name"},
    rules={**_NUMBER_OR_NULL, "description": "the version of the rules in force; null if it is not known"},
    announced={**_NUMBER_OR_NULL, "description": "the version that is to begin"},
    principal={**_TEXT_OR_NULL, "description": "who activated the announced rules"},
    detail={**_TEXT_OR_NULL, "description": "why it is not open"},
)
_WORKER_RULES: Final = _object_schema(
    instance={**_TEXT_OR_NULL, "description": "the worker's name"},
    url={**_TEXT_OR_NULL, "description": "the URL of its API"},
    newest={**_NUMBER_OR_NULL, "description": "the newest rules that it knows; null if it does not say"},
    detail={**_TEXT_OR_NULL, "description": "why it does not say"},
    release={**_TEXT_OR_NULL, "description": "the release of sessionary that it runs"},
    time_ms={**_NUMBER_OR_NULL, "description": "its clock, in ms since the epoch"},
    state_dir={**_TEXT_OR_NULL, "description": "its folder for RocksDB; null if it has none of its own"},
    state_free_bytes={**_NUMBER_OR_NULL, "description": "free bytes on the disk of that folder"},
)
_PROBLEM: Final = _object_schema(
    type={**_TEXT, "format": "uri"}, title=_TEXT, status=_NUMBER, detail=_TEXT, reason=_TEXT
)


def _problem_response(description: str) -> dict[str, Any]:
    schema = {"$ref": "#/components/schemas/Problem"}
    return {"description": description, "content": {"application/problem+json": {"schema": schema}}}


def _json_answer(description: str, schema: str) -> dict[str, Any]:
    content = {"application/json": {"schema": {"$ref": f"#/components/schemas/{schema}"}}}
    return {"description": description, "content": content}


def _query_parameter(name: str, schema: dict[str, Any], description: str) -> dict[str, Any]:
    return {"name": name, "in": "query", "required": False, "schema": schema, "description": description}


def _open_operation(summary: str, media_type: str, **more: str) -> dict[str, Any]:
    content = {media_type: {"schema": {"type": "string" if media_type.startswith("text/") else "object"}}}
    responses: dict[str, Any] = {"200": {"description": "OK", "content": content}}
    responses.update((f"{code[1:]}", {"description": text}) for code, text in more.items())
    return {"get": {"summary": summary, "security": [], "responses": responses}}


_UNAUTHORIZED: Final = _problem_response("no bearer token, or an unknown one")
_NO_OPERATOR: Final = _problem_response("the token's caller does not have the role operator")

_NO_READER: Final = _problem_response("the token's caller does not have the role reader, or is of another tenant")

_REASON: Final = {
    **_TEXT,
    "minLength": 1,
    "maxLength": 1_000,
    "description": "why; the audit trail keeps it, with the caller's principal",
}


def _halt_operation(summary: str, conflict: str, **body: Any) -> dict[str, Any]:
    """Return the operation of a way out of a halt; `body` are the fields of the request's body."""
    operation: dict[str, Any] = {
        "summary": summary,
        "parameters": [{"name": "partition", "in": "path", "required": True, "schema": _NUMBER}],
        "responses": {
            "200": _json_answer("the partition after at most 5 s: open, opening, or halted again", "Partition"),
            "400": _problem_response(
                "the partition is not a whole number" + (", or the body is malformed" * bool(body))
            ),
            "401": _UNAUTHORIZED,
            "403": _NO_OPERATOR,
            "404": _problem_response("there is no such partition"),
            "409": _problem_response(conflict),
            "503": _problem_response("the partition's owner does not answer; see Retry-After"),
        },
    }
    if body:
        schema = {**_object_schema(**body), "required": [name for name in body if name != "to"]}
        operation["requestBody"] = {"required": True, "content": {"application/json": {"schema": schema}}}
    return {"post": operation}


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
                    _query_parameter("tenant", _TEXT, "the tenant that the client means; default: the token's"),
                ],
                "responses": {
                    "200": _json_answer("the session's committed state", "Session"),
                    "400": _problem_response(
                        "the session id, `after` or `wait_ms` is malformed; or `after` names another partition"
                    ),
                    "401": _UNAUTHORIZED,
                    "403": _NO_READER,
                    "404": _problem_response("the tenant has no such session"),
                    "410": _problem_response("the session was archived"),
                    "503": _problem_response(
                        "the partition is not open, or `after` is not folded in time; see Retry-After"
                    ),
                },
            }
        },
        "/v1/sessions/poll": {
            "post": {
                "summary": "Which of many sessions of the caller's tenant differ from what a client knows of them",
                "requestBody": {
                    "required": True,
                    "content": {"application/json": {"schema": {"$ref": "#/components/schemas/SessionPoll"}}},
                },
                "responses": {
                    "200": _json_answer("the sessions that differ, after at most 3 s", "SessionChanges"),
                    "400": _problem_response("the body is malformed, or has more than 1,000 sessions"),
                    "401": _UNAUTHORIZED,
                    "403": _NO_READER,
                },
            }
        },
        "/v1/partitions": {
            "get": {
                "summary": "The state of every partition, as their owners see them; needs the role operator",
                "responses": {
                    "200": _json_answer("all partitions, in order", "PartitionList"),
                    "401": _UNAUTHORIZED,
                    "403": _NO_OPERATOR,
                },
            }
        },
        "/v1/partitions/{partition}/retry": _halt_operation(
            "Open a halted partition again, once its cause is removed; needs the role operator",
            "the partition is not halted",
        ),
        "/v1/partitions/{partition}/accept-gap": _halt_operation(
            "Give up events that were deleted before they were read (`log_gap`); needs the role operator",
            "the partition is not halted by `log_gap`",
            reason=_REASON,
        ),
        "/v1/partitions/{partition}/accept-truncation": _halt_operation(
            "Go on in a log that lost records that were folded (`log_truncated`); needs the role operator",
            "the partition is not halted by `log_truncated`",
            reason=_REASON,
        ),
        "/v1/partitions/{partition}/skip": _halt_operation(
            "Never judge the record at which a partition is halted; needs the role operator",
            "the partition is not halted, or not at this record; `detail` names the right offset",
            offset={**_NUMBER, "description": "of the record at which it is halted"},
            to={**_NUMBER_OR_NULL, "description": "skip all records up to this offset; by default only that one"},
            reason=_REASON,
        ),
        "/v1/partitions/{partition}/repair-clock": _halt_operation(
            "Set a clock that leapt to the broker's time; needs the role operator",
            "the clock is not ahead, the partition is judged by rules 1, or the broker's clock and the worker's differ",
            reason=_REASON,
        ),
        "/v1/rules": {
            "get": {
                "summary": "The rules that every partition is judged by; needs the role operator",
                "responses": {
                    "200": _json_answer("all partitions, in order, and all workers of the group", "RulesList"),
                    "401": _UNAUTHORIZED,
                    "403": _NO_OPERATOR,
                },
            },
            "post": {
                "summary": "Let newer rules begin in all partitions, for good; needs the role operator",
                "requestBody": {
                    "required": True,
                    "content": {"application/json": {"schema": {"$ref": "#/components/schemas/RulesActivation"}}},
                },
                "responses": {
                    "200": _json_answer(
                        "partitions and workers after at most 5 s; the request may be repeated", "RulesList"
                    ),
                    "400": _problem_response("the body is malformed"),
                    "401": _UNAUTHORIZED,
                    "403": _NO_OPERATOR,
                    "409": _problem_response(
                        "a worker of the group does not know the rules, or does not answer; a partition is not open; "
                        "or later rules are in force. Nothing was changed"
                    ),
                    "503": _problem_response("the worker may have lost its group; see Retry-After"),
                },
            },
        },
        "/healthz": _open_operation(
            "Whether the worker runs", "application/json", _503="the worker is ending, or a part of it hangs"
        ),
        "/readyz": _open_operation(
            "Whether the worker has started, is in its group, and keeps up with its logs",
            "application/json",
            _503="it is not; the body names the state of each partition",
        ),
        "/metrics": _open_operation("Metrics in Prometheus' text format", "text/plain"),
        "/openapi.json": _open_operation("This document", "application/json"),
    },
    "components": {
        "securitySchemes": {"bearer": {"type": "http", "scheme": "bearer"}},
        "schemas": {
            "Session": _SESSION,
            "SessionPoll": _SESSION_POLL,
            "KnownSession": _KNOWN_SESSION,
            "SessionChanges": _SESSION_CHANGES,
            "ChangedSession": _CHANGED_SESSION,
            "PartitionList": _object_schema(
                partitions={"type": "array", "items": {"$ref": "#/components/schemas/Partition"}}
            ),
            "Partition": _PARTITION,
            "RulesActivation": _object_schema(version={**_NUMBER, "description": "of the rules that are to begin"}),
            "RulesList": _object_schema(
                partitions={"type": "array", "items": {"$ref": "#/components/schemas/PartitionRules"}},
                workers={"type": "array", "items": {"$ref": "#/components/schemas/WorkerRules"}},
            ),
            "PartitionRules": _PARTITION_RULES,
            "WorkerRules": _WORKER_RULES,
            "Problem": _PROBLEM,
        },
    },
}

__all__ = ["DOCUMENT", "PROBLEM_TYPE_PREFIX"]
