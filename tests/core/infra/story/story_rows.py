"""Rows of one session as ClickHouse gives them."""

import json
from datetime import UTC, datetime, timedelta
from typing import Any

from sessionary.infra.clickhouse_client import ClickHouseClient, Row
from sessionary.schemas.settings import ClickHouseSettings

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
    event_id: str | None = None,
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
        "event_id": event_id or f"event-{offset}",
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


class StoredRows(ClickHouseClient):
    """Rows of one session, asked for by offset, time and number; `v_sessions` has `found`."""

    def __init__(self, events: list[Row], outcomes: list[Row], found: Row | None = None) -> None:
        super().__init__(ClickHouseSettings())
        self.events, self.outcomes, self.found = events, outcomes, dict(found or {})

    def fetch_rows(self, sql: str, **parameters: Any) -> list[Row]:
        if "v_sessions" in sql:
            return [self.found] if self.found else []
        rows = self.outcomes if "FROM audit" in sql else self.events
        since = datetime.fromisoformat(parameters["since"]).replace(tzinfo=UTC)
        return [
            row
            for row in rows
            if row["source_offset"] >= parameters["from"] and datetime.fromisoformat(row["appended_at"]) >= since
        ][: parameters["limit"]]


USAGE = {
    "model": "large",
    "tokens_in": 1200,
    "tokens_out": 300,
    "model_cost_usd_nanos": 5_400_000,
    "tool_cost_usd_nanos": 100_000,
    "is_timeout_retry": False,
}
