"""The oracle's model of a reserved tool call: what events and its limit make of it."""

from tests.auditor.decoding import Rejection, Row
from tests.auditor.step_model import is_retryable

CALL_TYPES = ("tool_call_started", "tool_call_succeeded", "tool_call_failed", "tool_call_resolved")
LIMIT_MAX_MS = 10**13
_ENDED = {"kind": "EndedToolCall", "error": None, "resolved_by": None, "result_json": None, "artifact_id": None}


def is_reserved(kind: str, fields: Row) -> bool:
    """Return True if an event is of a call that has a row."""
    return kind in CALL_TYPES and fields["idem_key"] not in ("", fields["tool_call_id"])


def note_tool(row: Row, kind: str, fields: Row) -> None:
    """Keep in a session's row the last tool and the last result, of calls without a row too."""
    if kind == "tool_call_started":
        row["last_tool"] = fields["tool_name"][:256]
    elif kind == "tool_call_succeeded":
        row["last_result"] = (fields["result_json"] or "null")[:256]
    elif kind == "tool_call_failed":
        row["last_result"] = f"failed: {fields['error']['code']}: {fields['error']['message']}"[:256]


def next_call(call: Row | None, row: Row, run: Row | None, kind: str, envelope: Row, fields: Row, now: int) -> Row:
    """Return the call after an event of it; raises `Rejection`.

    `row` is its session, `run` its run or None.
    """
    if kind == "tool_call_started":
        return _reserved(call, row, run, envelope, fields, now)
    if call is None:
        raise Rejection("unknown_call")
    if call["state"] not in (("unknown",) if kind == "tool_call_resolved" else ("running", "unknown")):
        raise Rejection("illegal_transition")
    if fields["tool_name"] != call["tool_name"]:
        raise Rejection("invalid_value")
    if kind == "tool_call_resolved":
        return _resolved(call, fields, now)
    if fields["try_number"] != call["try_number"]:
        raise Rejection("invalid_value")
    if kind == "tool_call_succeeded":
        brought = {name: fields[name] for name in ("result_json", "artifact_id")}
        return _ended(call, "succeeded", now) | brought
    if fields["error"]["error_class"] == "UNKNOWN":
        raise Rejection("missing_error_class")
    return _ended(call, "failed", now) | {"error": fields["error"]}


def unknown_call(call: Row, now: int) -> Row:
    """Return a running call after its limit."""
    return _ended(call, "unknown", now)


def _reserved(call: Row | None, row: Row, run: Row | None, envelope: Row, fields: Row, now: int) -> Row:
    if run is not None and run["state"] not in ("started", "running"):
        raise Rejection("illegal_transition")
    limit, number = fields.get("limit_ms"), 1
    if limit is not None and not 1 <= limit <= LIMIT_MAX_MS:
        raise Rejection("invalid_value")
    if call is not None:
        if call["state"] in ("running", "succeeded"):
            raise Rejection("call_in_progress" if call["state"] == "running" else "call_succeeded")
        if fields["tool_name"] != call["tool_name"]:
            raise Rejection("invalid_value")
        number = call["try_number"] + 1
    if fields["try_number"] != number:
        raise Rejection("invalid_value")
    if call is not None and call["state"] == "failed" and envelope["actor"] is None and not is_retryable(call["error"]):
        raise Rejection("not_retryable")
    if call is not None and call["state"] == "unknown" and (call["side_effect"] or fields["side_effect"]):
        raise Rejection("call_unresolved")
    limit = row["limits"]["tool_ms"] if limit is None else limit
    return {
        **{name: row[name] for name in ("tenant", "session")},
        **{name: fields[name] for name in ("tool_name", "idem_key", "try_number", "side_effect", "queryable")},
        "kind": "ToolCallState",
        "state": "running",
        "run_id": None if run is None else run["run_id"],
        "step_id": envelope["step_id"],
        "started_at": now,
        "due_at": now + limit,
        "limit_ms": limit,
        "reservation": envelope["event_id"],
    }


def _ended(call: Row, state: str, now: int) -> Row:
    kept = {name: value for name, value in call.items() if name not in ("due_at", "limit_ms", "reservation")}
    return kept | _ENDED | {"state": state, "entered_at": now}


def _resolved(call: Row, fields: Row, now: int) -> Row:
    outcome, person = fields["outcome"], fields["resolved_by"]
    if outcome == "UNKNOWN":
        raise Rejection("invalid_value")
    ended = _ended(call, outcome, now) | {"resolved_by": person}
    if outcome == "succeeded":
        return ended | {"result_json": fields["result_json"]}
    message = f"{person} found that the call had no effect"
    return ended | {"error": {"error_class": "retryable", "code": "resolved_failed", "message": message}}
