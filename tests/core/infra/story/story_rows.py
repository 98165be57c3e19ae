"""Rows of one session as ClickHouse gives them."""

import json
from datetime import UTC, datetime, timedelta
from typing import Any

_FIRST = datetime(2026, 3, 1, 12, 0, tzinfo=UTC)


def iso_time(at_s: float) -> str:
    return (_FIRST + timedelta(seconds=at_s)).isoformat(timespec="microseconds")


def event_row(
    offset: int,
    event_type: str,
    payload: dict[str, Any] | None = None,
    *,
    at_s: float = 0.0,
    process: str = "p1",
    step: str | None = None,
) -> dict[str, Any]:
    """An event of the agent `agent-1`; of process `p1` unless another one is named."""
    return {
        "source_partition": 0,
        "source_offset": offset,
        "appended_at": iso_time(at_s),
        "occurred_at": iso_time(at_s),
        "event_type": event_type,
        "agent_id": "agent-1",
        "service_id": "billing",
        "producer_id": process,
        "step_id": step,
        "payload_json": "" if payload is None else json.dumps(payload),
    }


def outcome_row(offset: int, kind: str, event_type: str = "", *, at_s: float = 0.0, **fields: str) -> dict[str, Any]:
    """A row of the audit trail."""
    return {
        "source_partition": 0,
        "source_offset": offset,
        "appended_at": iso_time(at_s),
        "kind": kind,
        "event_type": event_type,
        "from_state": "",
        "to_state": "",
        "reason_code": "",
        "reason": "",
        "due_at": None,
        "fired_at": None,
        **fields,
    }


USAGE = {
    "model": "large",
    "tokens_in": 1200,
    "tokens_out": 300,
    "model_cost_usd_micros": 5400,
    "tool_cost_usd_micros": 100,
    "is_timeout_retry": False,
}

__all__ = ["USAGE", "event_row", "iso_time", "outcome_row"]
