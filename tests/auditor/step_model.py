"""The oracle's model of a run's steps: what events and its limit make of a step."""

from typing import Any

from tests.auditor.decoding import Rejection, Row

LIMIT_MAX_MS = 10**13
STEP_TYPES = ("step_started", "step_succeeded", "step_failed", "step_skipped")


def is_recorded(kind: str, fields: Row) -> bool:
    """Tell whether an event is of a step whose attempts are counted; others are only reported."""
    return kind in STEP_TYPES and (kind == "step_skipped" or fields["attempt"] != 0)


def is_retryable(error: Any) -> bool:
    return error is not None and error["error_class"] == "retryable"


def next_step(step: Row | None, run: Row, kind: str, envelope: Row, fields: Row, now: int) -> Row:
    """Return the step after an event that its run allows; raises `Rejection`."""
    if kind == "step_started":
        return _started(step, run, envelope, fields, now)
    if kind == "step_skipped":
        return _skipped(step, run, fields, now)
    if step is None or step["state"] != "running":
        raise Rejection("illegal_transition")
    if fields["attempt"] != step["attempt"]:
        raise Rejection("invalid_value")
    if kind == "step_succeeded":
        if fields["output_json"] is None:
            raise Rejection("invalid_value")
        return _ended(step, "succeeded", now) | {"output_json": fields["output_json"]}
    if fields["error"]["error_class"] == "UNKNOWN":
        raise Rejection("missing_error_class")
    return _ended(step, "failed", now) | {"error": fields["error"]}


def expired_step(step: Row, now: int) -> Row:
    """Return a running step after its limit."""
    limit = f"{step['limit_ms'] / 1_000:g}s"
    reason = f"Step failed after {limit}: no end of {step['name']} was reported within its model limit"
    error = {"error_class": "retryable", "code": "model_limit", "message": reason}
    return _ended(step, "failed", now) | {"error": error}


def _ended(step: Row, state: str, now: int) -> Row:
    return step | {"kind": "StepState", "state": state, "entered_at": now}


def _started(step: Row | None, run: Row, envelope: Row, fields: Row, now: int) -> Row:
    if run["state"] not in ("started", "running"):
        raise Rejection("illegal_transition")
    if step is not None and step["state"] not in ("failed", "running"):
        raise Rejection("illegal_transition")
    if fields["attempt"] != (1 if step is None else step["attempt"] + 1):
        raise Rejection("invalid_value")
    limit = fields.get("limit_ms")
    if limit is not None and not 1 <= limit <= LIMIT_MAX_MS:
        raise Rejection("invalid_value")
    if step is not None and step["state"] == "failed" and envelope["actor"] is None and not is_retryable(step["error"]):
        raise Rejection("not_retryable")
    begun = {"step_id": envelope["step_id"], "attempt": fields["attempt"], "input_json": fields["input_json"]}
    begun |= {"state": "running"}
    if limit is not None:
        begun |= {"kind": "TimedStep", "limit_ms": limit, "due_at": now + limit}
    return _new_step(run, fields, now) | begun


def _skipped(step: Row | None, run: Row, fields: Row, now: int) -> Row:
    if step is None:
        return _new_step(run, fields, now) | {"state": "skipped"}
    if step["state"] not in ("succeeded", "skipped"):
        raise Rejection("illegal_transition")
    return step  # a resumed run says why it does not do it again


def _new_step(run: Row, fields: Row, now: int) -> Row:
    return {
        **{name: run[name] for name in ("tenant", "session", "run_id")},
        "kind": "StepState",
        "name": fields["name"],
        "step_id": None,
        "attempt": 0,
        "started_at": now,
        "entered_at": now,
        "error": None,
        "input_json": None,
        "output_json": None,
    }
