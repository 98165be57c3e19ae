"""The control API's OpenAPI document."""

from typing import Any, Final

from sessionary.schemas.limits import FINISHED_RUN_DAYS_MAX, RESUME_MS_MAX
from sessionary.stream_processors.api.agents.openapi import AGENT_PATHS, AGENT_SCHEMAS
from sessionary.stream_processors.api.conversations.openapi import CONVERSATION_PATHS, CONVERSATION_SCHEMAS
from sessionary.stream_processors.api.following.openapi import FOLLOW_PATHS
from sessionary.stream_processors.api.lists.openapi import LIST_PATHS, LIST_SCHEMAS
from sessionary.stream_processors.api.openapi_parts import (
    CHANGED_SESSION,
    KNOWN_SESSION,
    NO_OPERATOR,
    NO_READER,
    NUMBER,
    NUMBER_OR_NULL,
    PARTITION,
    PARTITION_RULES,
    PROBLEM,
    REASON,
    SESSION,
    SESSION_ANSWERS,
    SESSION_CHANGES,
    SESSION_PARAMETERS,
    SESSION_POLL,
    UNAUTHORIZED,
    WORKER_RULES,
    halt_operation,
    json_answer,
    object_schema,
    open_operation,
    problem_response,
)
from sessionary.stream_processors.api.operators.openapi import PEOPLE_PATHS, PEOPLE_SCHEMAS
from sessionary.stream_processors.api.runs.openapi import RUN_PATHS, RUN_SCHEMAS

DOCUMENT: Final[dict[str, Any]] = {
    "openapi": "3.1.0",
    "info": {"title": "sessionary control API", "version": "1.0.0"},
    "security": [{"bearer": []}],
    "paths": {
        "/v1/sessions/{session_id}": {
            "get": {
                "summary": "The committed state of one session of the caller's tenant",
                "parameters": SESSION_PARAMETERS,
                "responses": {"200": json_answer("the session's committed state", "Session"), **SESSION_ANSWERS},
            }
        },
        **FOLLOW_PATHS,
        **CONVERSATION_PATHS,
        **AGENT_PATHS,
        **RUN_PATHS,
        **LIST_PATHS,
        **PEOPLE_PATHS,
        "/v1/sessions/poll": {
            "post": {
                "summary": "Which of many sessions of the caller's tenant differ from what a client knows of them",
                "requestBody": {
                    "required": True,
                    "content": {"application/json": {"schema": {"$ref": "#/components/schemas/SessionPoll"}}},
                },
                "responses": {
                    "200": json_answer("the sessions that differ, after at most 3 s", "SessionChanges"),
                    "400": problem_response("the body is malformed, or has more than 1,000 sessions"),
                    "401": UNAUTHORIZED,
                    "403": NO_READER,
                },
            }
        },
        "/v1/partitions": {
            "get": {
                "summary": "The state of every partition, as their owners see them; needs the role operator",
                "responses": {
                    "200": json_answer("all partitions, in order", "PartitionList"),
                    "401": UNAUTHORIZED,
                    "403": NO_OPERATOR,
                },
            }
        },
        "/v1/partitions/{partition}/retry": halt_operation(
            "Open a halted partition again, once its cause is removed; needs the role operator",
            "the partition is not halted",
        ),
        "/v1/partitions/{partition}/accept-gap": halt_operation(
            "Give up events that were deleted before they were read (`log_gap`); needs the role operator",
            "the partition is not halted by `log_gap`",
            reason=REASON,
        ),
        "/v1/partitions/{partition}/accept-truncation": halt_operation(
            "Go on in a log that lost records that were folded (`log_truncated`); needs the role operator",
            "the partition is not halted by `log_truncated`",
            reason=REASON,
        ),
        "/v1/partitions/{partition}/skip": halt_operation(
            "Never judge the record at which a partition is halted; needs the role operator",
            "the partition is not halted, or not at this record; `detail` names the right offset",
            offset={**NUMBER, "description": "of the record at which it is halted"},
            to={**NUMBER_OR_NULL, "description": "skip all records up to this offset; by default only that one"},
            reason=REASON,
        ),
        "/v1/partitions/{partition}/repair-clock": halt_operation(
            "Set a clock that leapt to the broker's time; needs the role operator",
            "the clock is not ahead, or the broker's clock and the worker's differ",
            reason=REASON,
        ),
        "/v1/rules": {
            "get": {
                "summary": "The rules that every partition is judged by; needs the role operator",
                "responses": {
                    "200": json_answer("all partitions, in order, and all workers of the group", "RulesList"),
                    "401": UNAUTHORIZED,
                    "403": NO_OPERATOR,
                },
            },
            "post": {
                "summary": "Let newer rules begin everywhere, for good, or change a setting; needs the role operator",
                "requestBody": {
                    "required": True,
                    "content": {"application/json": {"schema": {"$ref": "#/components/schemas/RulesActivation"}}},
                },
                "responses": {
                    "200": json_answer(
                        "partitions and workers after at most 5 s; the request may be repeated", "RulesList"
                    ),
                    "400": problem_response("the body is malformed"),
                    "401": UNAUTHORIZED,
                    "403": NO_OPERATOR,
                    "409": problem_response(
                        "a worker of the group does not know the rules, or does not answer; a partition is not open; "
                        "later rules are in force; or quotas are to begin, and no worker of that role runs "
                        "(`no_quota_worker`). Nothing was changed"
                    ),
                    "503": problem_response(
                        "the worker may have lost its group, or Kafka does not tell whether a worker of quotas runs; "
                        "see Retry-After"
                    ),
                },
            },
        },
        "/healthz": open_operation(
            "Whether the worker runs", "application/json", _503="the worker is ending, or a part of it hangs"
        ),
        "/readyz": open_operation(
            "Whether the worker has started, is in its group, and keeps up with its logs",
            "application/json",
            _503="it is not; the body names the state of each partition",
        ),
        "/metrics": open_operation("Metrics in Prometheus' text format", "text/plain"),
        "/openapi.json": open_operation("This document", "application/json"),
    },
    "components": {
        "securitySchemes": {"bearer": {"type": "http", "scheme": "bearer"}},
        "schemas": {
            "Session": SESSION,
            **CONVERSATION_SCHEMAS,
            **AGENT_SCHEMAS,
            **RUN_SCHEMAS,
            **LIST_SCHEMAS,
            **PEOPLE_SCHEMAS,
            "SessionPoll": SESSION_POLL,
            "KnownSession": KNOWN_SESSION,
            "SessionChanges": SESSION_CHANGES,
            "ChangedSession": CHANGED_SESSION,
            "PartitionList": object_schema(
                partitions={"type": "array", "items": {"$ref": "#/components/schemas/Partition"}}
            ),
            "Partition": PARTITION,
            "RulesActivation": {
                **object_schema(
                    version={**NUMBER, "description": "of the rules that are to begin"},
                    finished_run_days={
                        **NUMBER_OR_NULL,
                        "description": "days for which a run that begins by them can be read after its end, "
                        f"1 to {FINISHED_RUN_DAYS_MAX:,}; by default as it is in force",
                    },
                    quotas={
                        "type": ["boolean", "null"],
                        "description": "whether runs that begin by them ask for their tenant's quota; by default as "
                        "it is in force",
                    },
                    resume_ms={
                        "type": ["integer", "null"],
                        "minimum": 1,
                        "maximum": RESUME_MS_MAX,
                        "description": "ms for which a run may be resumed after it failed, as long as it can be read; "
                        "by default as it is in force",
                    },
                    session_quotas={
                        "type": ["boolean", "null"],
                        "description": "whether sessions that are created by them ask for their tenant's quota; by "
                        "default as it is in force",
                    },
                    token_quotas={
                        "type": ["boolean", "null"],
                        "description": "whether the quotas that are asked for hear of the tokens that are used by "
                        "them; by default as it is in force",
                    },
                ),
                "required": ["version"],
            },
            "RulesList": object_schema(
                partitions={"type": "array", "items": {"$ref": "#/components/schemas/PartitionRules"}},
                workers={"type": "array", "items": {"$ref": "#/components/schemas/WorkerRules"}},
                quota_workers={
                    **NUMBER_OR_NULL,
                    "description": "how many workers of the role quotas run; null if Kafka does not tell, and after an "
                    "activation that does not turn quotas on",
                },
            ),
            "PartitionRules": PARTITION_RULES,
            "WorkerRules": WORKER_RULES,
            "Problem": PROBLEM,
        },
    },
}
