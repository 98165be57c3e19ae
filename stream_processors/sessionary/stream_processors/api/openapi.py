"""The control API's OpenAPI document."""

from collections.abc import Mapping
from typing import Any, Final

from sessionary.schemas.limits import (
    AGENTS_MAX,
    CONVERSATION_TURNS_MAX,
    FINISHED_RUN_DAYS_MAX,
    MIGRATION_TTL_MS_DEFAULT,
    MIGRATION_TTL_MS_MAX,
    MIGRATION_TTL_MS_MIN,
    OPERATOR_HOLD_MS_MAX,
    OPERATOR_HOLD_MS_MIN,
    RESUME_MS_MAX,
)
from sessionary.stream_processors.api.openapi_parts import (
    CHANGED_SESSION,
    KNOWN_SESSION,
    LOG_POSITION,
    NO_OPERATOR,
    NO_READER,
    NUMBER,
    NUMBER_OR_NULL,
    OPEN_REQUESTS,
    PARTITION,
    PARTITION_RULES,
    PROBLEM,
    REASON,
    REBUILD_PLAN,
    SESSION,
    SESSION_ANSWERS,
    SESSION_CHANGES,
    SESSION_PARAMETERS,
    SESSION_POLL,
    TEXT,
    TEXT_OR_NULL,
    UNAUTHORIZED,
    VERDICT,
    WORKER_RULES,
    about,
    halt_operation,
    json_answer,
    object_schema,
    open_operation,
    problem_response,
    query_parameter,
    rebuild_operation,
)
from sessionary.stream_processors.api.openapi_runs import LIST_PATHS, LIST_SCHEMAS, RUN_PATHS, RUN_SCHEMAS
from sessionary.stream_processors.api.session_pages import LAST_DEFAULT

# The part of the OpenAPI document about agents.


_TEXTS: Final = {"type": "array", "items": TEXT}
_CONTEXT: Final = {"type": "object", "additionalProperties": TEXT_OR_NULL}
_HANDOVER: Final = {
    **object_schema(
        from_agent_id=about(TEXT, "the giver"),
        from_snapshot_id=about(TEXT, "the giver's snapshot"),
        sync_type=about(TEXT, "the reason, for programs: handoff …"),
        at_ms=about(NUMBER, "time of its acceptance, in ms of log time"),
    ),
    "type": ["object", "null"],
    "description": "the last hand-over that the agent received; null without one",
}
_AGENT: Final[dict[str, Any]] = {
    "agent_id": TEXT,
    "role": about(TEXT, "the agent's role, which decides its view: researcher, analyzer, writer …"),
    "service_id": about(TEXT, "the agent's service, a member of the session"),
    "current_task": about(TEXT_OR_NULL, "null without one"),
    "completed_tasks": about(_TEXTS, "in the order of their completion"),
    "shared_keys": about(_TEXTS, "keys of the agent's own shared results"),
    "snapshot_id": about(TEXT, "the last snapshot: each change of the tasks makes one"),
    "timestamp_ms": about(NUMBER, "time of the last snapshot, in ms of log time"),
    "registered_at_ms": about(NUMBER, "time of the registration, in ms of log time"),
    "handover": _HANDOVER,
}
AGENT_SCHEMAS: Final[dict[str, Any]] = {
    "Agents": object_schema(
        agents={"type": "array", "maxItems": AGENTS_MAX, "items": {"$ref": "#/components/schemas/Agent"}},
        **LOG_POSITION,
    ),
    "Agent": object_schema(**_AGENT),
    "AgentView": object_schema(
        agent_state=object_schema(
            **_AGENT,
            shared_context=about(_CONTEXT, "shared results of all agents at the snapshot: JSON texts by key"),
        ),
        visible_context=about(_CONTEXT, "results that the agent sees now: JSON texts by key"),
        results={"type": "array", "items": {"$ref": "#/components/schemas/SharedResult"}},
        dependencies=about(_TEXTS, "ids of the agents on which this one depends"),
        **LOG_POSITION,
    ),
    "SharedResult": object_schema(
        key=about(TEXT, "by default the author's id, `_` and the task"),
        agent_id=about(TEXT, "the author"),
        role=about(TEXT, "the author's role, which decides the views"),
        task=TEXT,
        number=about(NUMBER, "from 1, in the order of the session's shared results"),
        at_ms=about(NUMBER, "time of its acceptance, in ms of log time"),
        result_json=about(TEXT_OR_NULL, "the result, or reference and summary of a large one"),
        artifact_id=about(TEXT_OR_NULL, "the artifact that has the result"),
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
            "summary": "An agent, the shared results that it sees, and its dependencies",
            "parameters": [SESSION_PARAMETERS[0], _AGENT_ID, *SESSION_PARAMETERS[1:]],
            "responses": {
                "200": json_answer("the agent's view", "AgentView"),
                **SESSION_ANSWERS,
                "404": problem_response("the tenant has no such session, or the session no such agent"),
            },
        }
    },
}


# The part of the OpenAPI document about conversations.


CONVERSATION_SCHEMAS: Final[dict[str, Any]] = {
    "Conversation": object_schema(
        turns=about(NUMBER, "number of the conversation's turns"),
        messages={
            "type": "array",
            "maxItems": CONVERSATION_TURNS_MAX,
            "items": {"$ref": "#/components/schemas/Message"},
        },
        **LOG_POSITION,
    ),
    "Message": object_schema(
        turn=about(NUMBER, "from 1, in the order of the log"),
        role=about(TEXT, "role of the speaker, in the agent's words: user, assistant, tool …"),
        name=about(TEXT_OR_NULL, "name of the tool or of the speaker"),
        content=about(TEXT_OR_NULL, "the text; the JSON of reference and summary, if an artifact has it"),
        artifact_id=about(TEXT_OR_NULL, "the artifact that has the text"),
        run_id=about(TEXT_OR_NULL, "the run of the turn"),
        agent_id=about(TEXT, "the agent that sent the turn"),
        service_id=about(TEXT, "that agent's service"),
        at_ms=about(NUMBER, "time of its acceptance, in ms of log time"),
    ),
}
_LAST: Final = query_parameter(
    "last",
    {**NUMBER, "minimum": 0, "maximum": CONVERSATION_TURNS_MAX, "default": LAST_DEFAULT},
    "number of turns, from the end",
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


# The part of the OpenAPI document about states at a point.


_POINTS: Final = (
    query_parameter("offset", {**NUMBER, "minimum": 0}, "the state after the record at this offset of the partition"),
    query_parameter("time_ms", {**NUMBER, "minimum": 0}, "the state at this log time, in ms since the epoch"),
    query_parameter("event", TEXT, "the state after the event of this id"),
    query_parameter("snapshot", TEXT, "the state when the snapshot of this id was taken"),
    query_parameter("fold", {"type": "boolean", "default": True}, "false: 404 if only a fold of the log would tell it"),
)
_ROW: Final = {"type": ["object", "null"], "additionalProperties": True}
PAST_SCHEMAS: Final[dict[str, Any]] = {
    "PastState": object_schema(
        session_id=TEXT,
        tenant_id=TEXT,
        point=about({"type": "object", "additionalProperties": True}, "the point that was asked for"),
        source=about({**TEXT, "enum": ["row", "memory", "log"]}, "the source that served"),
        position=object_schema(
            partition=NUMBER,
            offset=about(NUMBER, "the last record that the state includes"),
            clock_ms=about(NUMBER, "the partition's log time there, in ms"),
        ),
        check=object_schema(
            verdict=about(
                {**TEXT, "enum": ["equal", "not_checkable"]},
                "how the state compares with the hashes in the audit trail",
            ),
            equal=about(NUMBER, "number of hashes that were compared and are equal"),
            offset=about(NUMBER_OR_NULL, "of the last equal hash; or from where on none can be compared"),
            hashed=about({**TEXT, "enum": ["row"]}, "what a hash covers: the session's row; children are folded only"),
        ),
        lost={
            "type": "array",
            "items": object_schema(
                what=about(TEXT, "gap: events that a client lost; gap_filled; or the decision that gave offsets up"),
                first=about(NUMBER, "the first number of the producer, or offset"),
                last=NUMBER,
                offset=about(NUMBER, "where that was found"),
            ),
            "description": "what the state lacks",
        },
        state=about(TEXT, "the session's state; Archived if only its tombstone was left"),
        snapshots=about(_TEXTS, "ids of the snapshots before it, the root first; of the source row the last one alone"),
        row_hash=about(TEXT_OR_NULL, "the row's hash, as the audit trail has it for transitions"),
        row=about(_ROW, "the session's row: the fields of the record `SessionState`, or `Tombstone`"),
        children={
            "type": "array",
            "items": {"type": "object", "additionalProperties": True},
            "description": "the rows of its runs, steps, calls, turns, agents and artifacts, each with its `kind`",
        },
    ),
}
PAST_PATHS: Final[dict[str, Any]] = {
    "/v1/sessions/{session_id}/at": {
        "get": {
            "summary": "The state of a session as the judge held it at one point of its history",
            "parameters": [SESSION_PARAMETERS[0], *_POINTS, *SESSION_PARAMETERS[1:]],
            "responses": {
                "200": json_answer("the state", "PastState"),
                **SESSION_ANSWERS,
                "400": problem_response("not exactly one point is named, or it is malformed"),
                "404": problem_response("the tenant has no such session, or the session no such point"),
                "410": problem_response("the records of the point, or its personal data, have expired"),
                "500": problem_response("the events do not lead to the state that the judge held; this pages"),
                "503": problem_response("the partition is not open, or Kafka does not answer; see Retry-After"),
            },
        }
    },
}


# The follower's page in the OpenAPI document.


_LAST_EVENT_ID: Final[dict[str, Any]] = {
    "name": "Last-Event-ID",
    "in": "header",
    "required": False,
    "schema": {**TEXT, "pattern": "^[0-9]+:[0-9]+$"},
    "description": "the id of the last message that was read; it takes precedence over `after`",
}
_MESSAGE: Final[dict[str, Any]] = {
    "type": "object",
    "description": "one message",
    "required": ["event", "data"],
    "properties": {
        "id": {**TEXT, "pattern": "^[0-9]+:[0-9]+$"},
        "event": {**TEXT, "enum": ["state", "end"]},
        "data": about(TEXT, "the JSON text of a `Session`, for a state"),
    },
}
_STREAM: Final = (
    "server-sent events, until the session is archived or the worker no longer has its partition. At once, and after "
    "each committed change of the session except signs of life: `id: <partition>:<offset>`, up to which "
    "the state includes the log; `event: state`; `data:` a `Session` without a verdict. Several changes that are "
    "committed together, or while the reader is slow, are one message. `event: end` reports that the session was "
    "archived; request a stream that ends without this event again, with `Last-Event-ID`. A comment follows every 5 s"
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


# The part of the OpenAPI document about the pages by which people step in.


_IDEMPOTENCY_KEY: Final = {
    "name": "Idempotency-Key",
    "in": "header",
    "description": "a request that is repeated with its key is judged once, and gets the same answer",
    "schema": {**TEXT, "minLength": 1, "maxLength": 256},
}
_TENANT: Final = {
    "name": "tenant",
    "in": "query",
    "description": "the session's tenant; needed if the token names none",
    "schema": TEXT,
}
_REASON_OR_NULL: Final = {**TEXT_OR_NULL, "minLength": 1, "description": "for people; the audit trail keeps it"}
_ACTIONS: Final = {
    "pause": ("Hold a session, with a snapshot of its state; only operators resume it", False),
    "resume": ("Resume a held session; its holder is not fenced", False),
    "cancel": ("Cancel a session", False),
    "approve": ("Answer a session's open question: yes", True),
    "deny": ("Answer a session's open question: no", True),
}


_HOLD_MS: Final = {
    **NUMBER_OR_NULL,
    "minimum": OPERATOR_HOLD_MS_MIN,
    "maximum": OPERATOR_HOLD_MS_MAX,
    "description": "the session ends after this time, unless it is resumed; default: `hold_ms` of its limits",
}


def _operation(action: str, summary: str, *, is_answer: bool) -> dict[str, Any]:
    fields: dict[str, Any] = {"reason": _REASON_OR_NULL}
    if action == "pause":
        fields["hold_ms"] = _HOLD_MS
    if is_answer:
        fields["question_id"] = about(TEXT_OR_NULL, "the answered question; 409 if another one is open")
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
                "409": problem_response("the event was rejected; see `reason`"),
                "410": problem_response("the session was archived"),
                "503": problem_response("there is no verdict yet; see Retry-After"),
            },
        }
    }


_SERVICE: Final = {**TEXT, "minLength": 1, "maxLength": 128, "description": "the service that becomes the owner"}
_TARGET: Final = {
    "to": _SERVICE,
    "ttl_ms": {
        **NUMBER,
        "minimum": MIGRATION_TTL_MS_MIN,
        "maximum": MIGRATION_TTL_MS_MAX,
        "description": f"the migration is aborted after this time; default {MIGRATION_TTL_MS_DEFAULT:,}",
    },
    "reason": _REASON_OR_NULL,
}
_CLAIM: Final = {"for": _SERVICE, "reason": _REASON_OR_NULL}


def _move(summary: str, fields: Mapping[str, Any], required: list[str], answer: str) -> dict[str, Any]:
    found = _operation("", summary, is_answer=False)
    body = {**object_schema(**fields), "required": [*required, "reason"]}
    found["post"]["requestBody"]["content"] = {"application/json": {"schema": body}}
    found["post"]["responses"]["200"] = json_answer("the event was applied", answer)
    return found


PEOPLE_PATHS: Final[dict[str, Any]] = {
    **{
        f"/v1/sessions/{{session_id}}/{action}": _operation(action, summary, is_answer=is_answer)
        for action, (summary, is_answer) in _ACTIONS.items()
    },
    "/v1/sessions/{session_id}/migrate": _move(
        "Offer a session to another service", _TARGET, ["to"], "JudgedMigration"
    ),
    "/v1/sessions/{session_id}/abort-migration": _move(
        "Call a migration off", {"reason": _REASON_OR_NULL}, [], "JudgedMigration"
    ),
    "/v1/sessions/{session_id}/ask-again": _move(
        "Send a session's open requests again; 409 if none is open", {"reason": _REASON_OR_NULL}, [], "AskedAgain"
    ),
    "/v1/sessions/{session_id}/claim": _move(
        "Make a service the owner of a session at once; its holder is fenced", _CLAIM, ["for"], "JudgedClaim"
    ),
}
_JUDGED: Final = object_schema(
    session_id={**TEXT, "format": "uuid"},
    tenant_id=TEXT,
    state=TEXT,
    epoch=NUMBER,
    version=NUMBER,
    reason_code=TEXT,
    snapshot_id=about(TEXT, "the head of the session's chain of snapshots"),
    event_id=about(TEXT, "id of the event that was sent for the caller"),
    verdict=VERDICT,
)
PEOPLE_SCHEMAS: Final[dict[str, Any]] = {
    "JudgedEvent": _JUDGED,
    "JudgedClaim": {
        **_JUDGED,
        "properties": {**_JUDGED["properties"], "owner_service": TEXT},
        "required": [*_JUDGED["required"], "owner_service"],
    },
    "AskedAgain": {
        **_JUDGED,
        "properties": {**_JUDGED["properties"], "requests": OPEN_REQUESTS},
        "required": [*_JUDGED["required"], "requests"],
    },
    "JudgedMigration": {
        **_JUDGED,
        "properties": {**_JUDGED["properties"], "migration_id": TEXT, "to": TEXT, "step": TEXT},
        "required": [*_JUDGED["required"], "migration_id", "to", "step"],
    },
}


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
        **PAST_PATHS,
        **AGENT_PATHS,
        **RUN_PATHS,
        **LIST_PATHS,
        **PEOPLE_PATHS,
        "/v1/sessions/poll": {
            "post": {
                "summary": "Those of many sessions of the caller's tenant that differ from a client's knowledge",
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
            "Continue in a log that lost folded records (`log_truncated`); needs the role operator",
            "the partition is not halted by `log_truncated`",
            reason=REASON,
        ),
        "/v1/partitions/{partition}/skip": halt_operation(
            "Skip the record that halts a partition; needs the role operator",
            "the partition is not halted, or not at this record; `detail` names the right offset",
            offset=about(NUMBER, "offset of the record that halts the partition"),
            to=about(NUMBER_OR_NULL, "skip all records up to this offset; by default only the halting one"),
            reason=REASON,
        ),
        "/v1/partitions/{partition}/repair-clock": halt_operation(
            "Set a wrong clock to the broker's time; needs the role operator",
            "the clock is not ahead, or the broker's clock and the worker's differ",
            reason=REASON,
        ),
        "/v1/partitions/{partition}/rebuild": rebuild_operation(),
        "/v1/rules": {
            "get": {
                "summary": "The rules in force in every partition; needs the role operator",
                "responses": {
                    "200": json_answer("all partitions, in order, and all workers of the group", "RulesList"),
                    "401": UNAUTHORIZED,
                    "403": NO_OPERATOR,
                },
            },
            "post": {
                "summary": "Activate newer rules everywhere, for good, or change a setting; needs the role operator",
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
                        "later rules are in force; or quotas are requested, and no worker of that role runs "
                        "(`no_quota_worker`). Nothing was changed"
                    ),
                    "503": problem_response(
                        "the worker may have lost its group, or Kafka does not answer whether a worker of quotas runs; "
                        "see Retry-After"
                    ),
                },
            },
        },
        "/healthz": open_operation(
            "Liveness of the worker", "application/json", _503="the worker is ending, or a part of it hangs"
        ),
        "/readyz": open_operation(
            "Readiness of the worker: it has started, is in its group, and keeps up with its logs",
            "application/json",
            _503="the worker is not ready; the body names the state of each partition",
        ),
        "/metrics": open_operation("Metrics in Prometheus' text format", "text/plain"),
        "/openapi.json": open_operation("This document", "application/json"),
    },
    "components": {
        "securitySchemes": {"bearer": {"type": "http", "scheme": "bearer"}},
        "schemas": {
            "Session": SESSION,
            **CONVERSATION_SCHEMAS,
            **PAST_SCHEMAS,
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
            "RebuildPlan": REBUILD_PLAN,
            "RulesActivation": {
                **object_schema(
                    version=about(NUMBER, "version of the rules to activate"),
                    finished_run_days=about(
                        NUMBER_OR_NULL,
                        "days for which a run under these rules can be read after its end, "
                        f"1 to {FINISHED_RUN_DAYS_MAX:,}; by default unchanged",
                    ),
                    quotas={
                        "type": ["boolean", "null"],
                        "description": "true if runs under these rules request slots of their tenant's quota; by "
                        "it is in force",
                    },
                    resume_ms={
                        "type": ["integer", "null"],
                        "minimum": 1,
                        "maximum": RESUME_MS_MAX,
                        "description": "ms for which a failed run may be resumed, as long as it can be read; "
                        "by default unchanged",
                    },
                    session_quotas={
                        "type": ["boolean", "null"],
                        "description": "true if sessions under these rules request slots of their tenant's quota; by "
                        "default unchanged",
                    },
                    token_quotas={
                        "type": ["boolean", "null"],
                        "description": "true if used tokens under these rules are reported to the quotas in use; by "
                        "default unchanged",
                    },
                ),
                "required": ["version"],
            },
            "RulesList": object_schema(
                partitions={"type": "array", "items": {"$ref": "#/components/schemas/PartitionRules"}},
                workers={"type": "array", "items": {"$ref": "#/components/schemas/WorkerRules"}},
                quota_workers=about(
                    NUMBER_OR_NULL,
                    "number of running workers of the role quotas; null if Kafka does not answer, and after an "
                    "activation that does not turn quotas on",
                ),
            ),
            "PartitionRules": PARTITION_RULES,
            "WorkerRules": WORKER_RULES,
            "Problem": PROBLEM,
        },
    },
}
