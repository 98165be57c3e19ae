"""A session told as a trace: what was asked, called, answered, failed and tried again; pure."""

import json
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final, NamedTuple

from sessionary.infra.story.event_text import REMOVED, Payload, one_line
from sessionary.infra.story.story import Row, time_us

# Rejections that leave an event's number free: a later delivery is judged anew.
UNJUDGED: Final = frozenset(
    {
        "unknown_session",
        "wrong_partition",
        "late_filler",
        "producer_conflict",
        "too_many_producers",
        "session_archived",
    }
)
_TEXT_MAX: Final = 200  # characters of a value
_STATES: Final[Mapping[str, str]] = {
    "session_timed_out": "timed out",
    "session_errored": "session failed",
    "session_paused": "paused",
    "session_resumed": "resumed",
    "session_recovered": "recovered",
}


class TraceStep(NamedTuple):
    """One step of a trace.

    Attributes:
        number: From 1.
        at_us: Log time, µs since the epoch.
        place: Partition and offset of its record.
        what: `user query`, `tool call`, `retry`, `result`, `success` (a result after retries),
            `error`, `outcome unknown`, `step`, `resource`, another role's `message`, or a change of
            the session's state.
        name: The tool, the step, or the role of a message; empty without one.
        text: Arguments, result, error or message for people, on one line.
        tries: Number of the try of a tool call, or of the attempt at a step; None without one.
        records: How many records a result has, if it is a list or has one.
        error_code: The code of an error.
    """

    number: int
    at_us: int
    place: tuple[int, int]
    what: str
    name: str
    text: str
    tries: int | None = None
    records: int | None = None
    error_code: str | None = None


class _Told(NamedTuple):
    what: str
    name: str
    text: str
    tries: int | None = None
    records: int | None = None
    error_code: str | None = None


def make_trace(events: Iterable[Row], outcomes: Iterable[Row]) -> list[TraceStep]:
    """Return the steps of a session in the order of its log; rejected events are left out.

    Of an event that was delivered twice the first judged delivery counts.

    Args:
        events: Rows of `history`, in the log's order.
        outcomes: Rows of `audit`, in the log's order.
    """
    judged = list(outcomes)
    told = [
        (time_us(row["appended_at"]), _place(row), step)
        for row in _judged_once(events, judged)
        if (step := _tell_event(row)) is not None
    ]
    told += [
        (time_us(row["appended_at"]), _place(row), step) for row in judged if (step := _tell_deadline(row)) is not None
    ]
    told.sort(key=lambda each: each[:2])
    return [TraceStep(number, at_us, place, *step) for number, (at_us, place, step) in enumerate(told, 1)]


def _judged_once(events: Iterable[Row], judged: Iterable[Row]) -> Iterator[Row]:
    rejections = {_place(row): row["reason_code"] for row in judged if row["kind"] == "rejection"}
    known: set[tuple[str, str]] = set()
    for row in events:
        event, rejection = (row["producer_id"], row["event_id"]), rejections.get(_place(row))
        if rejection is None and event not in known:
            yield row
        if rejection not in UNJUDGED:
            known.add(event)


def _tell_event(row: Row) -> _Told | None:
    event_type = f"{row['event_type']}"
    payload: Payload | None = json.loads(row["payload_json"]) if row["payload_json"] else None
    if payload is None:
        what = _PLAIN.get(event_type)
        return None if what is None else _Told(what, "", REMOVED)
    tell = _TELLERS.get(event_type)
    if tell is not None:
        told: _Told | None = tell(payload)
        return told
    what = _STATES.get(event_type)
    return None if what is None else _Told(what, "", _details(payload), None, None, _error(payload).get("code"))


def _tell_deadline(row: Row) -> _Told | None:
    """Return what a clock did, which no event tells."""
    if row["fired_at"] is None:
        return None
    what = _PLAIN.get(row["event_type"])
    return None if what is None else _Told(what, "", one_line(f"{row['reason']}"), None, None, row["reason_code"])


def _message(payload: Payload) -> _Told:
    role = f"{payload.get('role')}"
    content = payload.get("content")
    text = _shorten(f"{content}") if content is not None else f"artifact {payload.get('artifact_id')}"
    return _Told("user query" if role == "user" else "message", role, text)


def _call(payload: Payload) -> _Told:
    tries, arguments = payload.get("try_number", 1), _shorten(f"{payload.get('args_json')}")
    if tries == 1:
        return _Told("tool call", payload["tool_name"], arguments, tries)
    reason = payload.get("reason")
    text = f"try {tries}: {reason}; {arguments}" if reason else f"try {tries}: {arguments}"
    return _Told("retry", payload["tool_name"], one_line(text), tries)


def _result(payload: Payload) -> _Told:
    tries, result = payload.get("try_number", 1), payload.get("result_json")
    text, count = _result_text(result)
    return _Told("result" if tries == 1 else "success", payload["tool_name"], text, tries, count)


def _failure(payload: Payload) -> _Told:
    error = _error(payload)
    code = f"{error.get('code')}"
    text = _error_text({**error, "code": code.removeprefix("http_")})
    return _Told("error", payload["tool_name"], text, payload.get("try_number"), None, code)


def _unknown(payload: Payload) -> _Told:
    return _Told("outcome unknown", payload["tool_name"], "", payload.get("try_number"))


def _resolution(payload: Payload) -> _Told:
    text = f"{payload.get('outcome')}, as {payload.get('resolved_by')} found"
    return _Told("resolved", payload["tool_name"], _shorten(text))


def _step(payload: Payload) -> _Told:
    attempt, given = payload.get("attempt"), _shorten(payload.get("input_json") or "")
    reason = payload.get("reason")
    text = f"attempt {attempt}: {reason}; {given}" if reason else given
    return _Told("step", payload["name"], one_line(text), attempt or None)


def _step_failure(payload: Payload) -> _Told:
    error = _error(payload)
    return _Told("error", payload["name"], _error_text(error), payload.get("attempt") or None, None, error.get("code"))


def _resource(payload: Payload) -> _Told | None:
    uri = payload.get("uri")
    return None if uri is None else _Told("resource", f"{payload.get('kind')}", _shorten(f"{uri}"))


def _decision(payload: Payload) -> _Told:
    return _Told("decision", "", _details(payload))


def _result_text(result: str | None) -> tuple[str, int | None]:
    """Return a result for people, and how many records it has."""
    try:
        value: Any = None if result is None else json.loads(result)
    except ValueError:  # an agent's own event may hold any text
        return _shorten(f"{result}"), None
    if isinstance(value, dict) and value.keys() == {"artifact_ref", "summary"}:  # too large for an event
        return _shorten(f"{value['summary']}; {value['artifact_ref']}"), None
    named = [(name, item) for name, item in value.items() if isinstance(item, list)] if isinstance(value, dict) else []
    if isinstance(value, list):
        name, items = "records", value
    elif len(named) == 1:
        name, items = named[0]
    else:
        return _shorten(result or "null"), None
    return _shorten(f"{len(items):,} {name}: {result}"), len(items)


def _error(payload: Payload) -> Mapping[str, Any]:
    return payload.get("error") or {}


def _error_text(error: Mapping[str, Any]) -> str:
    return _shorten(f"{error.get('message')} ({error.get('code')}), {error.get('error_class')}")


def _details(payload: Payload) -> str:
    if error := _error(payload):
        return _error_text(error)
    texts = (f"{name} {value}" for name, value in payload.items() if isinstance(value, str | int | float) and value)
    return _shorten(", ".join(texts))


def _shorten(text: str) -> str:
    line = one_line(text)
    return line if len(line) <= _TEXT_MAX else f"{line[: _TEXT_MAX - 1]}…"


def _place(row: Row) -> tuple[int, int]:
    return row["source_partition"], row["source_offset"]


_TELLERS: Final = {
    "message_appended": _message,
    "tool_call_started": _call,
    "tool_call_succeeded": _result,
    "tool_call_failed": _failure,
    "tool_call_unknown": _unknown,
    "tool_call_resolved": _resolution,
    "step_started": _step,
    "step_failed": _step_failure,
    "session_activity": _resource,
    "llm_decision": _decision,
}
# What remains to tell of an event whose content has gone, or that a clock stands for.
_PLAIN: Final[Mapping[str, str]] = {
    **_STATES,
    "message_appended": "message",
    "tool_call_started": "tool call",
    "tool_call_succeeded": "result",
    "tool_call_failed": "error",
    "tool_call_unknown": "outcome unknown",
    "tool_call_resolved": "resolved",
    "step_started": "step",
    "step_failed": "error",
    "llm_decision": "decision",
}
