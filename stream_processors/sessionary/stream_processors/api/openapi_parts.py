"""The parts of the control API's OpenAPI document: schemas, answers, parameters."""

from typing import Any, Final

from sessionary.schemas.limits import TRANSACTIONS_MAX
from sessionary.schemas.types import SessionLimits, Snapshot

PROBLEM_TYPE_PREFIX: Final = "urn:sessionary:problems/"

TEXT: Final[dict[str, Any]] = {"type": "string"}
NUMBER: Final[dict[str, Any]] = {"type": "integer"}
TEXT_OR_NULL: Final[dict[str, Any]] = {"type": ["string", "null"]}
NUMBER_OR_NULL: Final[dict[str, Any]] = {"type": ["integer", "null"]}


def about(schema: dict[str, Any], description: str) -> dict[str, Any]:
    """Return a schema with a description of its value."""
    return {**schema, "description": description}


def object_schema(**properties: Any) -> dict[str, Any]:
    """Return the schema of an object that has all of these properties, and no other."""
    return {"type": "object", "required": list(properties), "properties": properties, "additionalProperties": False}


def _snapshot_schema() -> dict[str, Any]:
    optional, numbers = ("parent_snapshot_id", "context", "conversation_id"), ("schema_version", "content_bytes")
    tool = object_schema(
        **dict.fromkeys(("tool_call_id", "tool_name", "parameters_json"), TEXT),
        **dict.fromkeys(("status", "data_json"), TEXT_OR_NULL),
        execution_time_ms=NUMBER_OR_NULL,
    )
    message = object_schema(role=TEXT, content_hash=TEXT, tokens=NUMBER_OR_NULL)
    resource = object_schema(uri=TEXT, accessed_at=NUMBER, operation=TEXT)
    others: dict[str, Any] = {
        "turn": NUMBER_OR_NULL,
        "messages": {"type": "array", "items": message},
        "total_tokens": NUMBER_OR_NULL,
        "tool": {"oneOf": [tool, {"type": "null"}]},
        "resources": {"type": "array", "items": resource},
        "metadata": {"type": "object", "additionalProperties": TEXT},
    }
    texts = {name: TEXT_OR_NULL if name in optional else TEXT for name in Snapshot._fields if name != "body"}
    return object_schema(**{**texts, **dict.fromkeys(numbers, NUMBER), **others})


OPEN_REQUESTS: Final[dict[str, Any]] = {
    "type": "array",
    "items": object_schema(
        topic={**TEXT, "enum": ["cleanup", "tasks", "migrations", "quotas"]},
        id=about(TEXT, "of the clean-up, run or migration; of a session's own claim: the session"),
        service_id=about(TEXT_OR_NULL, "the service that is asked; null: the quotas"),
        what=about(TEXT, "reason of the clean-up, type of the task, step, or quota"),
    ),
}
_REJECTIONS: Final = {
    "type": "array",
    "description": "the last rejected events, at most 16",
    "items": object_schema(offset=NUMBER, reason=TEXT, event_id=TEXT),
}
VERDICT: Final[dict[str, Any]] = {
    "oneOf": [
        object_schema(
            partition=NUMBER,
            offset=NUMBER,
            outcome={"type": "string", "enum": ["applied", "rejected", "not_kept"]},
            reason=TEXT_OR_NULL,
        ),
        {"type": "null"},
    ],
}
_MIGRATION: Final = object_schema(
    migration_id=TEXT,
    target_service=about(TEXT, "the service that becomes the owner"),
    step={**TEXT, "enum": ["offered", "prepared", "completed", "aborted"]},
    offered_at_ms=about(NUMBER, "time of the offer, in ms of log time since the epoch"),
    ttl_ms=about(NUMBER, "the migration is aborted after so many ms"),
    from_state=about(TEXT, "the session's state before it was prepared"),
    mismatches=about(NUMBER, "number of times that the target accepted another state than the session's"),
    reason_code=about(TEXT_OR_NULL, "reason of the abort; else null"),
)
HOLD: Final = {
    "oneOf": [object_schema(by=TEXT, until_ms=NUMBER), {"type": "null"}],
    "description": "the operator who holds the session, and until when: then it ends; null without one",
}
SESSION: Final = object_schema(
    session_id={**TEXT, "format": "uuid"},
    tenant_id=TEXT,
    external_id=about(TEXT_OR_NULL, "the text that was given as the session's id; null for a UUID"),
    user_id=TEXT_OR_NULL,
    state=TEXT,
    phase=TEXT_OR_NULL,
    reason_code=about(TEXT, "reason of its state"),
    epoch=NUMBER,
    version=NUMBER,
    owner_service=TEXT,
    agent_id=about(TEXT, "the agent that created the session, or was the last to take it over"),
    holder=about(TEXT_OR_NULL, "producer id of the client that created the session, or was the last to take it over"),
    holder_epoch=about(NUMBER, "the last epoch that a client's event caused; the holder may continue from it"),
    question={
        "oneOf": [object_schema(question_id=TEXT, text=TEXT, answer_ms=NUMBER), {"type": "null"}],
        "description": "the open question, which may be answered for `answer_ms` from the pause on",
    },
    answers={
        "type": "array",
        "items": object_schema(
            question_id=TEXT, approved={"type": "boolean"}, reason_code=TEXT, by=TEXT, text=TEXT_OR_NULL
        ),
        "description": "the answers to the last 16 questions, the newest last: approved, denied or expired",
    },
    is_answer_new=about({"type": "boolean"}, "the last answer made the session Active, and no work was done since"),
    hold=HOLD,
    state_json=about(TEXT, "the session's content: JSON text"),
    state_schema_version=NUMBER,
    snapshot={"oneOf": [_snapshot_schema(), {"type": "null"}]},
    limits=object_schema(**dict.fromkeys(SessionLimits._fields, NUMBER)),
    data_classes={"type": "array", "description": "classes of the session's data", "items": TEXT},
    deadline_ms=about(NUMBER, "time at which the next clock fires, in ms of log time since the epoch"),
    agents={
        "type": "array",
        "description": "the session's agents, whose services are its members",
        "items": object_schema(agent_id=TEXT, role=TEXT, service_id=TEXT, snapshot_id=TEXT),
    },
    rejections=_REJECTIONS,
    migration={"oneOf": [_MIGRATION, {"type": "null"}], "description": "the last migration; null without one"},
    awaits_quota={"type": "boolean", "description": "true while the session waits for its tenant's quota"},
    exchanges=about(NUMBER, "number of turns, that is exchanges with the user, that have ended"),
    transactions={
        "type": "array",
        "maxItems": TRANSACTIONS_MAX,
        "description": "open transactions on the content, oldest first",
        "items": object_schema(transaction_id=TEXT, started_ms=NUMBER, agent_id=TEXT),
    },
    last_tool=about(TEXT_OR_NULL, "the tool that was called last; null without a call"),
    last_result=about(
        TEXT_OR_NULL,
        "result of the tool call that ended last, as JSON, or `failed: ` with its error's code and message; the first "
        "256 characters",
    ),
    verdict=about(
        VERDICT,
        "the verdict on the record at `after`; null without `after`. The session's last "
        "events and rejections have a verdict; an unknown record, or another session's, is `not_kept`",
    ),
    position=object_schema(partition=NUMBER, next_offset=NUMBER),
    rules=about(NUMBER, "version of the rules that judge the session's events"),
    quotas={"type": "boolean", "description": "true if the session's runs request slots of their tenant's quota"},
)
_AFTER: Final = {**TEXT_OR_NULL, "pattern": "^[0-9]+:[0-9]+$"}
KNOWN_SESSION: Final = {
    **object_schema(
        session_id=about({**TEXT, "minLength": 1, "maxLength": 256}, "its id: a UUID, or the text that was given"),
        state=about(TEXT, "the session's state as the client knows it"),
        epoch={**NUMBER, "default": 1},
        holder=about(TEXT_OR_NULL, "the client's producer id, if it holds the session"),
        producer_id=about(TEXT_OR_NULL, "the client's producer id in this session"),
        last_seq={**NUMBER, "default": 0, "description": "the last number that the client has used under this id"},
        agents=about(NUMBER_OR_NULL, "number of the session's agents that the client knows; null: not given"),
        rejected_after={
            **NUMBER,
            "default": -1,
            "description": "offset up to which the client knows the rejected events",
        },
        after=about(_AFTER, "<partition>:<offset> of an event, for its verdict if the session does not exist"),
    ),
    "required": ["session_id", "state"],
}
CHANGED_SESSION: Final = object_schema(
    session_id={**TEXT, "format": "uuid"},
    state=about(TEXT_OR_NULL, "null if the tenant has no such session"),
    epoch=about(NUMBER_OR_NULL, "null if the session does not exist, or is archived"),
    holder=about(TEXT_OR_NULL, "as in `Session`"),
    holder_epoch=about(NUMBER_OR_NULL, "as in `Session`; null if the session does not exist, or is archived"),
    snapshot_id=about(TEXT_OR_NULL, "last snapshot; null if the session does not exist, or is archived"),
    reason_code=about(TEXT_OR_NULL, "reason of its state; null if unknown"),
    rejections=about(_REJECTIONS, "the last rejected events after `rejected_after`, at most 16"),
    verdict=about(
        VERDICT, "verdict on the event at `after`, if the session does not exist or is archived; null if not judged yet"
    ),
    owner_service=about(TEXT_OR_NULL, "as in `Session`; null if the session does not exist, or is archived"),
    producer_seq=about(
        NUMBER,
        "the last judged number under `producer_id`, 0 without one; a number above `last_seq` is "
        "that of another process with this id",
    ),
    agents=about(NUMBER, "number of the session's agents"),
)
SESSION_POLL: Final = {
    **object_schema(
        tenant=about(TEXT_OR_NULL, "the client's tenant; another one than the token's is 403"),
        sessions={"type": "array", "maxItems": 1_000, "items": {"$ref": "#/components/schemas/KnownSession"}},
    ),
    "required": ["sessions"],
}
SESSION_CHANGES: Final = object_schema(
    tenant=about(TEXT, "the token's"),
    positions={
        "type": "object",
        "description": "by partition, the next offset to be judged; a partition that does not answer is left out",
        "additionalProperties": NUMBER,
    },
    sessions={
        "type": "array",
        "description": "only the sessions that differ from the client's knowledge",
        "items": {"$ref": "#/components/schemas/ChangedSession"},
    },
)
_PARTITION_STATE: Final = {
    "type": "string",
    "enum": ["open", "opening", "halted", "unreachable", "unassigned"],
    "description": "unreachable: its owner does not answer; unassigned: no worker owns it",
}
_PARTITION_DECISION: Final = object_schema(
    event_type={"type": "string", "description": "event_type of the decision's audit record"},
    at_offset=about(NUMBER, "the partition's offset, which is the source_offset of the audit record"),
    first_offset=about(NUMBER_OR_NULL, "the first offset that the decision covers, if any"),
    last_offset=about(NUMBER_OR_NULL, "the last offset that the decision covers, if any"),
    clock_ms=about(NUMBER, "the partition's clock after the decision, in ms since the epoch"),
    principal={"type": "string", "description": "principal that decided"},
)
PARTITION: Final = object_schema(
    partition=NUMBER,
    state=_PARTITION_STATE,
    instance=about(TEXT_OR_NULL, "the owner's name"),
    url=about(TEXT_OR_NULL, "the URL of the owner's API"),
    reason=about(TEXT_OR_NULL, "reason of the halt"),
    detail=about(TEXT_OR_NULL, "the cause and its place, if the partition is not open"),
    halted_at_ms=about(NUMBER_OR_NULL, "time of the halt, in ms since the epoch"),
    next_offset=about(NUMBER_OR_NULL, "the next record of the log to be folded"),
    batch_number=about(NUMBER_OR_NULL, "number of the partition's last transaction"),
    live_rows=about(NUMBER_OR_NULL, "rows with a deadline that will fire"),
    clock_ms=about(NUMBER_OR_NULL, "the partition's log clock, in ms since the epoch; null if it is not open"),
    decisions={
        "type": ["array", "null"],
        "description": "the last eight decisions about the partition, oldest first; null if unknown",
        "items": _PARTITION_DECISION,
    },
)
PARTITION_RULES: Final = object_schema(
    partition=NUMBER,
    state=_PARTITION_STATE,
    instance=about(TEXT_OR_NULL, "the owner's name"),
    rules=about(NUMBER_OR_NULL, "version of the rules in force; null if unknown"),
    finished_run_days=about(
        NUMBER_OR_NULL, "days for which a run that begins now can be read after its end; null if unknown"
    ),
    quotas={
        "type": ["boolean", "null"],
        "description": "true if runs that begin now request slots of their tenant's quota; null if unknown",
    },
    resume_ms=about(NUMBER_OR_NULL, "ms for which a failed run may be resumed; null if unknown"),
    session_quotas={
        "type": ["boolean", "null"],
        "description": "true if sessions that are created now request slots of their tenant's quota; null if unknown",
    },
    token_quotas={
        "type": ["boolean", "null"],
        "description": "true if used tokens are reported to the quotas; null if unknown",
    },
    announced=about(NUMBER_OR_NULL, "the announced version"),
    principal=about(TEXT_OR_NULL, "principal that activated the announced rules"),
    detail=about(TEXT_OR_NULL, "reason for which the partition is not open"),
)
WORKER_RULES: Final = object_schema(
    instance=about(TEXT_OR_NULL, "the worker's name"),
    url=about(TEXT_OR_NULL, "URL of the worker's API"),
    newest=about(NUMBER_OR_NULL, "the newest rules that the worker knows; null without an answer"),
    detail=about(TEXT_OR_NULL, "reason of a missing answer"),
    release=about(TEXT_OR_NULL, "the worker's release of sessionary"),
    core=about(TEXT_OR_NULL, "build of the worker's rules: `native` (compiled) or `python`"),
    time_ms=about(NUMBER_OR_NULL, "the worker's clock, in ms since the epoch"),
    state_dir=about(TEXT_OR_NULL, "the worker's folder for RocksDB; null without a separate one"),
    state_free_bytes=about(NUMBER_OR_NULL, "free bytes on the disk of that folder"),
    settings={
        "type": ["object", "null"],
        "description": "what must be the same in all workers, by variable; tokens and signing keys by a fingerprint",
    },
)
PROBLEM: Final = object_schema(type={**TEXT, "format": "uri"}, title=TEXT, status=NUMBER, detail=TEXT, reason=TEXT)


def problem_response(description: str) -> dict[str, Any]:
    """Return an answer with a problem document."""
    schema = {"$ref": "#/components/schemas/Problem"}
    return {"description": description, "content": {"application/problem+json": {"schema": schema}}}


def json_answer(description: str, schema: str) -> dict[str, Any]:
    """Return an answer with a document of a schema of the components."""
    content = {"application/json": {"schema": {"$ref": f"#/components/schemas/{schema}"}}}
    return {"description": description, "content": content}


def query_parameter(name: str, schema: dict[str, Any], description: str) -> dict[str, Any]:
    """Return an optional parameter of a query."""
    return {"name": name, "in": "query", "required": False, "schema": schema, "description": description}


def open_operation(summary: str, media_type: str, **more: str) -> dict[str, Any]:
    """Return a page that needs no token; `more`: other answers, as `_503`."""
    content = {media_type: {"schema": {"type": "string" if media_type.startswith("text/") else "object"}}}
    responses: dict[str, Any] = {"200": {"description": "OK", "content": content}}
    responses.update((f"{code[1:]}", {"description": text}) for code, text in more.items())
    return {"get": {"summary": summary, "security": [], "responses": responses}}


LOG_POSITION: Final = {
    "verdict": about(VERDICT, "as in `Session`"),
    "position": object_schema(partition=NUMBER, next_offset=NUMBER),
    "rules": about(NUMBER, "as in `Session`"),
    "quotas": {"type": "boolean", "description": "as in `Session`"},
}
SESSION_PARAMETERS: Final = [
    {
        "name": "session_id",
        "in": "path",
        "required": True,
        "schema": {**TEXT, "minLength": 1, "maxLength": 256},
        "description": "the session's id: a UUID, or the text that was given, percent-encoded; that names the first "
        "session of the text. The texts `poll`, `.` and `..` are named by their UUID",
    },
    query_parameter(
        "after",
        {**TEXT, "pattern": "^([0-9]+:[0-9]+|end)$"},
        "<partition>:<offset> of an event, from its delivery report: wait until it is folded; `end`: wait until all "
        "that the session's partition has now is folded",
    ),
    query_parameter(
        "wait_ms",
        {**NUMBER, "minimum": 0, "maximum": 10_000, "default": 5_000},
        "longest wait for the fold, in ms",
    ),
    query_parameter("tenant", TEXT, "the client's tenant; default: the token's"),
]
UNAUTHORIZED: Final = problem_response("no bearer token, or an unknown one")
NO_OPERATOR: Final = problem_response("the token's caller does not have the role operator")

NO_READER: Final = problem_response("the token's caller does not have the role reader, or is of another tenant")

SESSION_ANSWERS: Final = {
    "400": problem_response("the session id, `after` or `wait_ms` is malformed; or `after` names another partition"),
    "401": UNAUTHORIZED,
    "403": NO_READER,
    "404": problem_response("the tenant has no such session"),
    "410": problem_response("the session was archived"),
    "503": problem_response("the partition is not open, or `after` is not folded in time; see Retry-After"),
}
REASON: Final = {
    **TEXT,
    "minLength": 1,
    "maxLength": 1_000,
    "description": "the reason; the audit trail keeps it, with the caller's principal",
}


def halt_operation(summary: str, conflict: str, **body: Any) -> dict[str, Any]:
    """Return the operation of a way out of a halt; `body` are the fields of the request's body."""
    operation: dict[str, Any] = {
        "summary": summary,
        "parameters": [{"name": "partition", "in": "path", "required": True, "schema": NUMBER}],
        "responses": {
            "200": json_answer("the partition after at most 5 s: open, opening, or halted again", "Partition"),
            "400": problem_response(
                "the partition is not a whole number" + (", or the body is malformed" * bool(body))
            ),
            "401": UNAUTHORIZED,
            "403": NO_OPERATOR,
            "404": problem_response("there is no such partition"),
            "409": problem_response(conflict),
            "503": problem_response("the partition's owner does not answer; see Retry-After"),
        },
    }
    if body:
        schema = {**object_schema(**body), "required": [name for name in body if name != "to"]}
        operation["requestBody"] = {"required": True, "content": {"application/json": {"schema": schema}}}
    return {"post": operation}


REBUILD_PLAN: Final = object_schema(
    partition=NUMBER,
    mode=about(TEXT, "refold, accept_rows or accept_topics"),
    rows_found=about(NUMBER, "rows that the changelog has"),
    rows_added=NUMBER,
    rows_changed=NUMBER,
    rows_removed=NUMBER,
    former_offset=about(NUMBER, "offset of the changelog's last position"),
    next_offset=about(NUMBER, "offset of the first event that is judged afterwards"),
    batch_number=about(NUMBER, "the partition's last batch that is known"),
    judged_again=about(
        NUMBER,
        "audit records that a torn transaction left of events from next_offset on; their events are judged again, "
        "and leave the same records",
    ),
)


def rebuild_operation() -> dict[str, Any]:
    """Return the operation that rebuilds the rows of a halted partition."""
    operation = halt_operation(
        "Rebuild the rows of a changelog that cannot be trusted; needs the role operator",
        "a rebuild does not end the partition's halt; a dry run shows that the rows cannot be rebuilt so",
        mode={
            **about(TEXT, "fold the log again (default), take the rows as they are, or take the topics for copies"),
            "enum": ["refold", "accept_rows", "accept_topics"],
        },
        dry_run={"type": "boolean", "description": "true: change nothing, and answer what would change"},
        reason=REASON,
    )
    post = operation["post"]
    post["requestBody"]["content"]["application/json"]["schema"]["required"] = ["reason"]
    answer = json_answer("the partition after at most 5 s, or what would change, within 10 minutes", "Partition")
    answer["content"]["application/json"]["schema"] = {
        "oneOf": [{"$ref": f"#/components/schemas/{name}"} for name in ("Partition", "RebuildPlan")]
    }
    post["responses"]["200"] = answer
    return operation
