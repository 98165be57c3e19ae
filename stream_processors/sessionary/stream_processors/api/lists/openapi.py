"""The part of the OpenAPI document that is about lists over all partitions."""

from collections.abc import Sequence
from typing import Any, Final

from sessionary.stream_processors.api.lists.list_pages import (
    LIMIT_DEFAULT,
    LIMIT_MAX,
    RUN_MODES,
    RUN_STATES,
    SESSION_STATES,
)
from sessionary.stream_processors.api.lists.list_part import CURSOR_CHARACTERS_MAX
from sessionary.stream_processors.api.lists.scan import ROWS_MAX
from sessionary.stream_processors.api.openapi_parts import (
    NO_READER,
    NUMBER,
    TEXT,
    TEXT_OR_NULL,
    UNAUTHORIZED,
    json_answer,
    object_schema,
    problem_response,
    query_parameter,
)
from sessionary.stream_processors.api.runs.openapi import RUN_HEAD

_SESSION_HEAD: Final = object_schema(
    session_id={**TEXT, "format": "uuid"},
    user_id=TEXT_OR_NULL,
    state=TEXT,
    phase=TEXT_OR_NULL,
    reason_code={**TEXT, "description": "why it is in its state"},
    epoch=NUMBER,
    version=NUMBER,
    agent_id=TEXT,
    owner_service=TEXT,
    open_runs={**NUMBER, "description": "how many of its runs are not finished"},
    created_ms={**NUMBER, "description": "log time in ms since the epoch; so are all times here"},
    entered_ms={**NUMBER, "description": "when it entered its state"},
    last_event_ms=NUMBER,
    deadline_ms={**NUMBER, "description": "when the next clock fires"},
)
_WAITING_HEAD: Final = object_schema(
    tenant_id=TEXT,
    session_id={**TEXT, "format": "uuid"},
    user_id=TEXT_OR_NULL,
    agent_id=TEXT,
    owner_service=TEXT,
    question_id={**TEXT, "description": "to name it in an answer"},
    question={**TEXT, "description": "for people"},
    asked_ms={**NUMBER, "description": "since when it waits; log time in ms since the epoch, as the next"},
    deadline_ms={**NUMBER, "description": "when it is refused if there is no answer"},
)
_PLACE: Final[dict[str, Any]] = {
    "next_cursor": {
        **TEXT_OR_NULL,
        "description": "ask again with `cursor` set to it; null: there are no more rows. An answer may have fewer rows "
        f"than `limit` although there are more: a partition reads at most {ROWS_MAX:,} rows for one answer",
    },
    "missing_partitions": {
        "type": "array",
        "description": "partitions that did not answer; their rows are missing. Ask again from the beginning later",
        "items": NUMBER,
    },
    "positions": {
        "type": "object",
        "description": "by partition that answered, the next offset to be judged; rows may be newer",
        "additionalProperties": NUMBER,
    },
}
LIST_SCHEMAS: Final[dict[str, Any]] = {
    "RunList": object_schema(runs={"type": "array", "items": {"$ref": "#/components/schemas/RunHead"}}, **_PLACE),
    "RunHead": RUN_HEAD,
    "SessionList": object_schema(
        sessions={"type": "array", "items": {"$ref": "#/components/schemas/SessionHead"}}, **_PLACE
    ),
    "SessionHead": _SESSION_HEAD,
    "WaitingList": object_schema(
        waiting={"type": "array", "items": {"$ref": "#/components/schemas/WaitingHead"}}, **_PLACE
    ),
    "WaitingHead": _WAITING_HEAD,
}


def _list_page(summary: str, schema: str, *filters: dict[str, Any]) -> dict[str, Any]:
    limit = {**NUMBER, "minimum": 1, "maximum": LIMIT_MAX, "default": LIMIT_DEFAULT}
    cursor = {**TEXT, "maxLength": CURSOR_CHARACTERS_MAX}
    parameters = [
        query_parameter("user_id", TEXT, "only those of this user"),
        *filters,
        query_parameter("limit", limit, "how many rows the answer has at most"),
        query_parameter("cursor", cursor, "`next_cursor` of the answer before"),
        query_parameter("tenant", TEXT, "the tenant that the client means; default: the token's"),
    ]
    responses = {
        "200": json_answer("the rows of all partitions that answer, after at most 3 s", schema),
        "400": problem_response("a parameter is malformed"),
        "401": UNAUTHORIZED,
        "403": NO_READER,
    }
    return {"get": {"summary": summary, "parameters": parameters, "responses": responses}}


def _filter(name: str, choices: Sequence[str], meaning: str) -> dict[str, Any]:
    return query_parameter(name, {**TEXT, "enum": [*choices]}, meaning)


def _waiting_page() -> dict[str, Any]:
    summary = "The questions that wait for a person: of the caller's tenant, or of all for an operator of none"
    page = _list_page(summary, "WaitingList")
    page["get"]["parameters"] = page["get"]["parameters"][1:]  # it asks for no user
    return page


LIST_PATHS: Final[dict[str, Any]] = {
    "/v1/runs": _list_page(
        "The open and finished runs of the caller's tenant, in the order of session and run ids",
        "RunList",
        _filter("state", RUN_STATES, "only those in this state"),
        _filter("mode", RUN_MODES, "only attached or only detached ones"),
    ),
    "/v1/sessions": _list_page(
        "The sessions of the caller's tenant that are not archived, in the order of their ids",
        "SessionList",
        _filter("state", SESSION_STATES, "only those in this state"),
    ),
    "/v1/waiting": _waiting_page(),
}
