"""The part of the OpenAPI document about runs, their steps and calls, and lists."""

from collections.abc import Sequence
from typing import Any, Final, get_args

from sessionary.schemas.types import ArtifactStateName, CheckpointKind, ErrorInfo, StepStateName, ToolCallStateName
from sessionary.stream_processors.api.lists import (
    CURSOR_CHARACTERS_MAX,
    LIMIT_DEFAULT,
    LIMIT_MAX,
    ROWS_MAX,
    RUN_MODES,
    RUN_STATES,
    SESSION_STATES,
)
from sessionary.stream_processors.api.openapi_parts import (
    HOLD,
    LOG_POSITION,
    NO_READER,
    NUMBER,
    NUMBER_OR_NULL,
    OPEN_REQUESTS,
    SESSION_ANSWERS,
    SESSION_PARAMETERS,
    TEXT,
    TEXT_OR_NULL,
    UNAUTHORIZED,
    about,
    json_answer,
    object_schema,
    problem_response,
    query_parameter,
)
from sessionary.stream_processors.api.runs import RUN_CONTENTS


def _known(names: Any) -> list[str]:
    return [name for name in get_args(names) if name != "UNKNOWN"]


_SESSION_ID: Final = {**TEXT, "format": "uuid"}
_BOOLEAN: Final = {"type": "boolean"}
_ERROR_OR_NULL: Final = {"oneOf": [object_schema(**dict.fromkeys(ErrorInfo._fields, TEXT)), {"type": "null"}]}
_CHECKPOINT_OR_NULL: Final = {
    "oneOf": [
        object_schema(
            checkpoint_id=TEXT,
            operation=TEXT,
            kind={"type": ["string", "null"], "enum": [*_known(CheckpointKind), None]},
            stage=TEXT_OR_NULL,
            processed_count=NUMBER_OR_NULL,
            last_item_id=TEXT_OR_NULL,
            bytes_written=NUMBER_OR_NULL,
            at_ms=about(NUMBER, "log time of the checkpoint, in ms"),
        ),
        {"type": "null"},
    ],
    "description": "the last checkpoint of the run; null without one",
}
_RUN: Final = object_schema(
    run_id=TEXT,
    session_id={**TEXT, "format": "uuid"},
    mode={**TEXT, "enum": ["attached", "detached"]},
    task_type=TEXT,
    state={**TEXT, "enum": ["queued", "started", "running", "paused", "completed", "failed", "cancelled"]},
    reason_code=about(TEXT, "reason of its state"),
    run_seq=about(NUMBER, "number of applied events of the run"),
    progress={"type": ["number", "null"], "minimum": 0, "maximum": 1},
    resumes=about(NUMBER, "number of times that the run was resumed after a failure"),
    agent_id=about(TEXT, "the agent that began the run"),
    input_json=TEXT_OR_NULL,
    plan_json=TEXT_OR_NULL,
    result_json=TEXT_OR_NULL,
    artifact_id=about(TEXT_OR_NULL, "the artifact that holds the result"),
    error=_ERROR_OR_NULL,
    created_ms=about(NUMBER, "log time in ms since the epoch, like all times of this object"),
    entered_ms=about(NUMBER, "time at which the present state was entered"),
    last_event_ms=about(NUMBER, "time at which the last event was applied"),
    unresolved_calls=about(
        NUMBER, "number of tool calls with a side effect and an unknown outcome, which hold the run paused"
    ),
    checkpoint=_CHECKPOINT_OR_NULL,
    deadline_ms=about(NUMBER_OR_NULL, "time at which the run's clock fires; null if it is finished"),
    holder=about(TEXT_OR_NULL, "producer id of the worker that has the open task; null without one"),
)
RUN_HEAD: Final = object_schema(
    user_id=TEXT_OR_NULL,
    **{name: schema for name, schema in _RUN["properties"].items() if name not in RUN_CONTENTS},
)
_STEP_HEAD: Final = object_schema(
    run_id=TEXT,
    session_id=_SESSION_ID,
    name=about(TEXT, "unique in its run"),
    step_id=about(TEXT_OR_NULL, "step id of the last attempt's events"),
    state={**TEXT, "enum": _known(StepStateName)},
    attempt=about(NUMBER, "number of the last attempt; 0 if the step was skipped before any"),
    started_ms=about(NUMBER, "beginning of the last attempt, in ms of log time"),
    entered_ms=about(NUMBER, "time at which the present state was entered"),
    error=_ERROR_OR_NULL,
    deadline_ms=about(NUMBER_OR_NULL, "deadline of the attempt; null unless it runs with a limit"),
    limit_ms=about(NUMBER_OR_NULL, "time limit of the attempt; null unless it runs with a limit"),
)
_STEP: Final = object_schema(**_STEP_HEAD["properties"], input_json=TEXT_OR_NULL, output_json=TEXT_OR_NULL)
_CALL_HEAD: Final = object_schema(
    run_id=about(TEXT_OR_NULL, "null if the call belongs to the session"),
    session_id=_SESSION_ID,
    step_id=about(TEXT_OR_NULL, "the attempt of a step that reserved it"),
    tool_name=TEXT,
    idem_key=about(TEXT, "unique in its run, or in its session"),
    state={**TEXT, "enum": _known(ToolCallStateName)},
    try_number=about(NUMBER, "number of the last try, from 1"),
    side_effect=_BOOLEAN,
    queryable=about(_BOOLEAN, "true if the tool can be asked for the outcome"),
    started_ms=about(NUMBER, "time at which the last try was granted, in ms of log time"),
    entered_ms=about(NUMBER, "time at which the present state was entered"),
    deadline_ms=about(NUMBER_OR_NULL, "time at which the outcome becomes unknown; null unless the call runs"),
    limit_ms=about(NUMBER_OR_NULL, "time limit of a try; null unless the call runs"),
    reservation=about(TEXT_OR_NULL, "id of the event to which the try was granted; null unless the call runs"),
    error=_ERROR_OR_NULL,
    resolved_by=about(TEXT_OR_NULL, "principal that resolved an unknown outcome"),
    artifact_id=about(TEXT_OR_NULL, "the artifact that holds the result"),
)
_CALL: Final = object_schema(**_CALL_HEAD["properties"], result_json=TEXT_OR_NULL)
_ARTIFACT: Final = object_schema(
    run_id=about(TEXT_OR_NULL, "null if the artifact belongs to the session"),
    session_id=_SESSION_ID,
    step_id=about(TEXT_OR_NULL, "the attempt of a step that created it"),
    artifact_id=about(TEXT, "unique in its run, or in its session"),
    artifact_type=TEXT,
    uri=about(TEXT, "address of the body"),
    state={**TEXT, "enum": _known(ArtifactStateName)},
    size_bytes=about(NUMBER, "size of the present chunks, or of the complete body"),
    sha256=about(TEXT_OR_NULL, "SHA-256 of the complete body, as hex; null before it is complete"),
    file_name=about(TEXT_OR_NULL, "name under which people know the content; null if none was given"),
    media_type=about(TEXT_OR_NULL, "media type of the content; null if none was given"),
    created_ms=about(NUMBER, "time of the creation, in ms of log time"),
    entered_ms=about(NUMBER, "time at which the present state was entered"),
)

_SAVED_CHECKPOINT: Final = object_schema(
    operation=TEXT,
    checkpoint_id=TEXT,
    at_ms=about(NUMBER, "log time of the checkpoint, in ms since the epoch"),
    kind=about(TEXT_OR_NULL, "the usual point that was reached, for example plan_made; null for others"),
    stage=TEXT_OR_NULL,
    processed_count=about(NUMBER_OR_NULL, "items done"),
    last_item_id=TEXT_OR_NULL,
    bytes_written=NUMBER_OR_NULL,
    data_json=about(TEXT_OR_NULL, "the data as JSON; null unless the request names the operation"),
)


def _list_of(schema: str) -> dict[str, Any]:
    return {"type": "array", "items": {"$ref": f"#/components/schemas/{schema}"}}


RUN_SCHEMAS: Final[dict[str, Any]] = {
    "Run": object_schema(**_RUN["properties"], **LOG_POSITION),
    "Task": object_schema(
        **_RUN["properties"], **LOG_POSITION, version=about(TEXT, "changes with each change of the task")
    ),
    "OpenRuns": object_schema(runs={**_list_of("OpenRun"), "maxItems": 64}, **LOG_POSITION),
    "OpenRun": _RUN,
    "StepList": object_schema(steps=_list_of("StepHead"), **LOG_POSITION),
    "StepHead": _STEP_HEAD,
    "Step": object_schema(**_STEP["properties"], **LOG_POSITION),
    "ToolCallList": object_schema(tool_calls=_list_of("ToolCallHead"), **LOG_POSITION),
    "ToolCallHead": _CALL_HEAD,
    "ToolCall": object_schema(**_CALL["properties"], **LOG_POSITION),
    "Execution": object_schema(
        runs={**_list_of("RunInExecution"), "maxItems": 64}, tool_calls=_list_of("ToolCallHead"), **LOG_POSITION
    ),
    "RunInExecution": object_schema(
        **{name: schema for name, schema in _RUN["properties"].items() if name not in RUN_CONTENTS},
        steps=_list_of("StepHead"),
        tool_calls=_list_of("ToolCallHead"),
    ),
    "ArtifactList": object_schema(artifacts=_list_of("Artifact"), **LOG_POSITION),
    "Artifact": _ARTIFACT,
    "CheckpointList": object_schema(checkpoints=_list_of("SavedCheckpoint"), **LOG_POSITION),
    "SavedCheckpoint": _SAVED_CHECKPOINT,
}


_GONE: Final = problem_response(
    "the finished run is no longer kept (30 days, a setting of the rules); 14 days later the answer is 404"
)


def _page(summary: str, names: tuple[str, ...], answer: dict[str, Any], unknown: str) -> dict[str, Any]:
    """Return a page about a run, or about a part of it or of a session.

    `names`: parameters of the path besides the session; `unknown`: when there is a 404. Finished
    runs outlive their session, so the pages of a run answer 410 for the run, not for the session.
    """
    parameters = [{"name": name, "in": "path", "required": True, "schema": TEXT} for name in names]
    gone = {"410": _GONE} if "run_id" in names else {}
    responses = {"200": answer, **SESSION_ANSWERS, **gone, "404": problem_response(unknown)}
    return {"get": {"summary": summary, "parameters": [*SESSION_PARAMETERS, *parameters], "responses": responses}}


def _checkpoints_page(what: str, names: tuple[str, ...], unknown: str) -> dict[str, Any]:
    page = _page(
        f"The checkpoints with data of a {what}: the last 16 of each operation",
        names,
        json_answer("the checkpoints; those of a named operation with their data", "CheckpointList"),
        unknown,
    )
    page["get"]["parameters"].append(query_parameter("operation", TEXT, "only this operation, with the data"))
    return page


_TASK_PAGE: Final = {
    "summary": "The committed state of one task, by its id alone; a finished task is kept for 30 days, a setting",
    "parameters": [
        {"name": "task_id", "in": "path", "required": True, "schema": TEXT},
        query_parameter("seen", TEXT, "a task's version: wait up to `wait_ms` while the task has it"),
        *SESSION_PARAMETERS[1:],
    ],
    "responses": {
        **SESSION_ANSWERS,
        "410": _GONE,
        "200": json_answer("the task's committed state", "Task"),
        "404": problem_response("the tenant has no such task"),
    },
}
_SESSION_PATH: Final = "/v1/sessions/{session_id}"
_RUN_PATH: Final = f"{_SESSION_PATH}/runs/{{run_id}}"
_NO_RUN: Final = "the tenant's session has no such run"
_NO_SESSION: Final = "the tenant has no such session"
RUN_PATHS: Final[dict[str, Any]] = {
    "/v1/tasks/{task_id}": {"get": _TASK_PAGE},
    f"{_SESSION_PATH}/runs": _page(
        "The open runs of a session of the caller's tenant, in the order in which they began",
        (),
        json_answer("the open runs", "OpenRuns"),
        _NO_SESSION,
    ),
    _RUN_PATH: _page(
        "The committed state of one run of a session; a finished run is kept for 30 days, a setting",
        ("run_id",),
        json_answer("the run's committed state", "Run"),
        _NO_RUN,
    ),
    f"{_RUN_PATH}/steps": _page(
        "The steps of a run, in the order in which their last attempts began",
        ("run_id",),
        json_answer("the steps, without input and output", "StepList"),
        _NO_RUN,
    ),
    f"{_RUN_PATH}/steps/{{name}}": _page(
        "The last attempt of one step of a run, with its input and output",
        ("run_id", "name"),
        json_answer("the step", "Step"),
        f"{_NO_RUN}, or the run no such step",
    ),
    f"{_RUN_PATH}/tool-calls": _page(
        "The reserved tool calls of a run, in the order in which their last tries were granted",
        ("run_id",),
        json_answer("the calls, without their results", "ToolCallList"),
        _NO_RUN,
    ),
    f"{_RUN_PATH}/tool-calls/{{idem_key}}": _page(
        "One reserved tool call of a run, with its result",
        ("run_id", "idem_key"),
        json_answer("the call", "ToolCall"),
        f"{_NO_RUN}, or the run no such call",
    ),
    f"{_SESSION_PATH}/tool-calls": _page(
        "The reserved tool calls of a session outside of its runs",
        (),
        json_answer("the calls, without their results", "ToolCallList"),
        _NO_SESSION,
    ),
    f"{_SESSION_PATH}/tool-calls/{{idem_key}}": _page(
        "One reserved tool call of a session outside of its runs, with its result",
        ("idem_key",),
        json_answer("the call", "ToolCall"),
        f"{_NO_SESSION}, or the session no such call",
    ),
    f"{_SESSION_PATH}/execution": _page(
        "The present work of a session: open runs with their steps and tool calls, and calls outside of runs",
        (),
        json_answer("the runs and calls, in the order in which they began, without contents", "Execution"),
        _NO_SESSION,
    ),
    f"{_RUN_PATH}/checkpoints": _checkpoints_page("run", ("run_id",), _NO_RUN),
    f"{_SESSION_PATH}/checkpoints": _checkpoints_page("session outside of its runs", (), _NO_SESSION),
    f"{_RUN_PATH}/artifacts": _page(
        "The artifacts of a run, in the order in which they were created",
        ("run_id",),
        json_answer("the artifacts, without their bodies", "ArtifactList"),
        _NO_RUN,
    ),
    f"{_SESSION_PATH}/artifacts": _page(
        "The artifacts of a session outside of its runs, in the order in which they were created",
        (),
        json_answer("the artifacts, without their bodies", "ArtifactList"),
        _NO_SESSION,
    ),
}


# The part of the OpenAPI document about lists over all partitions.


_SESSION_HEAD: Final = object_schema(
    session_id={**TEXT, "format": "uuid"},
    external_id=about(TEXT_OR_NULL, "the text that was given as the session's id; null for a UUID"),
    user_id=TEXT_OR_NULL,
    state=TEXT,
    phase=TEXT_OR_NULL,
    reason_code=about(TEXT, "reason of its state"),
    epoch=NUMBER,
    version=NUMBER,
    agent_id=TEXT,
    owner_service=TEXT,
    open_runs=about(NUMBER, "number of unfinished runs"),
    created_ms=about(NUMBER, "log time in ms since the epoch, like all times of this object"),
    entered_ms=about(NUMBER, "time at which the present state was entered"),
    last_event_ms=NUMBER,
    deadline_ms=about(NUMBER, "time at which the next clock fires"),
)
_WAITING_HEAD: Final = object_schema(
    tenant_id=TEXT,
    session_id={**TEXT, "format": "uuid"},
    user_id=TEXT_OR_NULL,
    agent_id=TEXT,
    owner_service=TEXT,
    question_id=about(TEXT, "id of the question, for an answer"),
    question=about(TEXT, "for people"),
    asked_ms=about(NUMBER, "last pause; log time in ms since the epoch, like the next field"),
    deadline_ms=about(NUMBER, "time at which the question is denied without an answer, or the hold ends"),
    hold=HOLD,
)
_OPEN_HEAD: Final = object_schema(
    tenant_id=TEXT, session_id={**TEXT, "format": "uuid"}, owner_service=TEXT, state=TEXT, requests=OPEN_REQUESTS
)
_PLACE: Final[dict[str, Any]] = {
    "next_cursor": about(
        TEXT_OR_NULL,
        "the value of `cursor` for the next rows; null: there are no more. An answer may have fewer rows "
        f"than `limit` although there are more: a partition reads at most {ROWS_MAX:,} rows for one answer",
    ),
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
    "OpenList": object_schema(
        open_requests={"type": "array", "items": {"$ref": "#/components/schemas/OpenHead"}}, **_PLACE
    ),
    "OpenHead": _OPEN_HEAD,
}


def _list_page(summary: str, schema: str, *filters: dict[str, Any]) -> dict[str, Any]:
    limit = {**NUMBER, "minimum": 1, "maximum": LIMIT_MAX, "default": LIMIT_DEFAULT}
    cursor = {**TEXT, "maxLength": CURSOR_CHARACTERS_MAX}
    parameters = [
        query_parameter("user_id", TEXT, "only rows of this user"),
        *filters,
        query_parameter("limit", limit, "largest number of rows in the answer"),
        query_parameter("cursor", cursor, "`next_cursor` of the former answer"),
        query_parameter("tenant", TEXT, "the client's tenant; default: the token's"),
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


def _operators_page(what: str, schema: str, *filters: dict[str, Any]) -> dict[str, Any]:
    summary = f"{what}: of the caller's tenant, or of all for an operator without one"
    page = _list_page(summary, schema, *filters)
    page["get"]["parameters"] = page["get"]["parameters"][1:]  # it asks for no user
    return page


LIST_PATHS: Final[dict[str, Any]] = {
    "/v1/runs": _list_page(
        "The open and finished runs of the caller's tenant, in the order of session and run ids",
        "RunList",
        _filter("state", RUN_STATES, "only rows in this state"),
        _filter("mode", RUN_MODES, "only attached or only detached runs"),
    ),
    "/v1/sessions": _list_page(
        "The sessions of the caller's tenant that are not archived, in the order of their ids",
        "SessionList",
        _filter("state", SESSION_STATES, "only rows in this state"),
        query_parameter("external_id", TEXT, "only sessions whose id was given as this text"),
    ),
    "/v1/waiting": _operators_page("The questions that wait for a person", "WaitingList"),
    "/v1/open-requests": _operators_page(
        "The sessions with open requests",
        "OpenList",
        query_parameter("session_id", TEXT, "only this session: its id, or the text given as its id"),
    ),
}
