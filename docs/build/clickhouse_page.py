"""The drawn parts of `docs/clickhouse.md`: tables, views, columns, and what the questions answer.

Tables, views and columns have the sentences of their comments in the real engine. The answers are
those to the questions over the rows of `sample_rows`.
"""

import hashlib
import re
import tempfile
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from docs.build.marked_text import replace_marked
from sessionary.infra.clickhouse_client import ClickHouseClient, Row
from sessionary.infra.local.clickhouse.endpoint import LocalClickHouse
from sessionary.schemas.codec import encode_record
from sessionary.schemas.events import (
    ArtifactCompleted,
    ArtifactCreated,
    CheckpointSaved,
    Heartbeat,
    Payload,
    RunStarted,
    SessionActivity,
    StepFailed,
    StepStarted,
    ToolCallStarted,
    ToolCallSucceeded,
    UsageRecorded,
)
from sessionary.schemas.records import RejectedEvent
from sessionary.schemas.settings import ClickHouseSettings
from sessionary.schemas.types import ErrorInfo
from tests.support.clickhouse_rows import insert_records
from tests.support.migrated_tables import make_tables
from tests.support.pipelines import new_clickhouse, run_sql
from tests.support.sink_records import DAY_US, NOW_US, agent_event, audit_record, batch_record

PAGE = Path(__file__).parents[2] / "docs" / "clickhouse.md"
_S = 1_000_000
_TYPE_CHARACTERS = 60
_BETWEEN = "sessionary_between."  # as the page names it


def draw_page(text: str, clickhouse: ClickHouseSettings) -> str:
    """Return the page with its drawn parts as the database says. The database must be empty."""
    make_tables(clickhouse)
    # Runs are kept for months, and the page's rows have a fixed time.
    run_sql(clickhouse, f"SYSTEM STOP TTL MERGES {clickhouse.clickhouse_database}.run_events")
    sample_rows(clickhouse)
    source = ClickHouseClient(clickhouse)
    objects = source.fetch_rows(
        "SELECT name, comment, engine = 'View' AS is_view FROM system.tables WHERE database = currentDatabase() "
        "AND engine != 'MaterializedView' ORDER BY name"
    )
    tables, views = ([row for row in objects if bool(row["is_view"]) is is_view] for is_view in (False, True))
    between = source.fetch_rows(
        "SELECT name, comment FROM system.tables WHERE database = {between:String} ORDER BY name",
        between=source.between,
    )

    def ask(sql: str) -> list[Row]:
        return source.fetch_rows(sql.replace(_BETWEEN, f"{source.between}."))

    for mark, drawn in (
        ("tables", _object_lines("table", tables)),
        ("views", _object_lines("view", views)),
        ("between", _object_lines("view", between)),
        ("columns", _column_lines(source, objects)),
    ):
        text = replace_marked(text, mark, "\n".join(["", *drawn, ""]))
    return re.sub(
        r"```sql\n(.*?)```\n\n```text\n.*?```",
        lambda match: f"```sql\n{match[1]}```\n\n```text\n{answer_text(ask(match[1]))}\n```",
        text,
        flags=re.DOTALL,
    )


def _object_lines(kind: str, rows: Sequence[Row]) -> list[str]:
    return [f"| {kind} | holds |", "|---|---|", *(f"| `{row['name']}` | {row['comment']} |" for row in rows)]


def _column_lines(source: ClickHouseClient, objects: Sequence[Row]) -> list[str]:
    lines: list[str] = []
    for row in sorted(objects, key=lambda row: (row["is_view"], row["name"])):
        columns = source.fetch_rows(
            "SELECT name, type, comment FROM system.columns WHERE database = currentDatabase() "
            "AND table = {name:String} ORDER BY position",
            name=row["name"],
        )
        lines += ["", f"### `{row['name']}`", "", "| column | type | meaning |", "|---|---|---|"]
        lines += [f"| `{column['name']}` | `{column['type']}` | {column['comment']} |" for column in columns]
    return lines[1:]


def answer_text(rows: Sequence[Row]) -> str:
    """Return rows as text in columns."""
    if not rows:
        return "no rows"
    cells = [list(rows[0]), *([_cell_text(value) for value in row.values()] for row in rows)]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    return "\n".join(
        "  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip() for line in cells
    )


def _cell_text(value: object) -> str:
    text = "" if value is None else str(value)
    return text if len(text) <= _TYPE_CHARACTERS else f"{text[:_TYPE_CHARACTERS]}…"


def sample_rows(clickhouse: ClickHouseSettings) -> None:
    """Insert what two sessions leave: the first one times out, the second one is closed."""

    def transition(number: int, seq: int, name: str | None, after_s: float, **fields: Any) -> bytes:
        kept = {"retain_until": NOW_US + 2_557 * DAY_US, "retention_class": "sox_audit", "source_partition": 0}
        at = NOW_US + round(after_s * _S)
        return encode_record(audit_record(number, seq, transition=name, at=at, batch_number=number, **(kept | fields)))

    due = NOW_US + 66 * _S
    ended = {"from_state": "Active", "owner_service": "search"}
    lines = [
        transition(1, 1, "T01", 0, from_state="UNKNOWN", to_state="Idle", event_type="session_created"),
        transition(1, 2, "T02", 1, reason="session_started"),
        transition(
            1,
            3,
            "T06",
            66.5,
            from_state="Active",
            to_state="Timeout",
            due_at=due,
            fired_at=due + _S // 2,
            reason_code="inactive",
            reason="Agent timeout after 60s: nothing was heard",
            cleanup_id="c1",
            context_bytes=4_096,
        ),
        transition(2, 1, "T01", 0, from_state="UNKNOWN", to_state="Idle", owner_service="search"),
        transition(2, 2, "T02", 1, owner_service="search"),
        transition(
            2, 3, "T13", 5, to_state="Terminated", reason_code="closed", reason="closed", cleanup_id="c2", **ended
        ),
        transition(2, 4, None, 6, kind="release", cleanup_id="c2", **ended),
    ]
    insert_records(clickhouse, "audit", lines, NOW_US)
    tool = ("t1", "web_search", "k1")

    def call(model: str, cost: int, *, retry: bool = False) -> UsageRecorded:
        return UsageRecorded(model, 1_200, 300, cost, 0, is_timeout_retry=retry)

    payloads: tuple[tuple[int, Payload, dict[str, Any]], ...] = (
        (1, SessionActivity("llm", "planning the search"), {}),
        (1, call("m-large", 9_000_000), {}),
        (1, ToolCallStarted(*tool, "{}", 1, side_effect=False, queryable=False), {}),
        (1, ToolCallSucceeded(*tool, None, None, 1, 820), {}),
        (1, call("m-small", 1_000_000, retry=True), {}),
        (2, call("m-small", 500_000), {"service_id": "search", "agent_id": "agent-2"}),
        (2, call("m-large", 7_000_000), {"service_id": "search", "epoch": 1}),
    )
    events = [
        agent_event(payload, "financial", session=session, seq=seq, occurred_at=NOW_US + seq * _S, **fields)
        for seq, (session, payload, fields) in enumerate(payloads, 1)
    ]
    insert_records(clickhouse, "history", events, NOW_US)
    rejection = RejectedEvent(
        *("stale_epoch", "epoch 1 is over, the session is at 2", True, "acme", None, "event-2-7", "usage_recorded"),
        *("search", "t", 0, len(events) - 1, NOW_US),
    )
    insert_records(clickhouse, "rejected", [encode_record(rejection)], NOW_US)
    batches = [
        batch_record(0, 1, first_offset=0, last_offset=4, started_at=NOW_US, applied=5, audited=3),
        batch_record(0, 2, first_offset=5, last_offset=6, started_at=NOW_US + _S, applied=1, rejected=1, audited=4),
        batch_record(0, 3, first_offset=7, last_offset=6, started_at=NOW_US + 70 * _S, applied=0, audited=0),
    ]
    insert_records(clickhouse, "batches", [encode_record(record) for record in batches], NOW_US)
    _sample_run(clickhouse, first_offset=len(events))


def _sample_run(clickhouse: ClickHouseSettings, first_offset: int) -> None:
    """Insert what a third session leaves: a run that waits for people, and a lost one."""
    error = ErrorInfo("retryable", "http_503", "the store is busy")
    payloads: tuple[tuple[Payload, dict[str, Any]], ...] = (
        (RunStarted("detached", "pdf_report", '{"file":"a.pdf"}', '["parse","send"]'), {"actor": "ann"}),
        (StepStarted("parse", 1, '{"pages":200}'), {}),
        (StepFailed("parse", 1, error), {}),
        (StepStarted("parse", 2, '{"pages":200}'), {"causation_id": "event-3-3"}),
        (CheckpointSaved("c1", "parse", "pages", 70, "page-70", None, None), {}),
        (ArtifactCreated("f1", "pdf_text", "s3://artifacts/streams/f1"), {}),
        (ArtifactCompleted("f1", 20_480, hashlib.sha256(b"f1").hexdigest()), {}),
        (RunStarted("attached", "chat"), {"run_id": "r2"}),
        (CheckpointSaved("c2", "answer", "sources", 3, "source-3", None, None), {"run_id": "r2"}),
        (ToolCallStarted("t7", "send", "order-7", '{"to":"a"}', 1, side_effect=True, queryable=False), {}),
        *((Heartbeat(10, elapsed_s), {"run_id": "r2"}) for elapsed_s in (5.0, 10.0)),
    )
    after_s = (*range(10), 12, 17)  # r2 begins after 7 s
    for number, (payload, fields) in enumerate(payloads):
        event = agent_event(payload, "financial", session=3, seq=number + 1, **{"run_id": "r1", **fields})
        at = NOW_US + after_s[number] * _S
        insert_records(clickhouse, "history", [event], at, f"run {number}", first_offset + number)
    at, last = NOW_US + 65 * _S, first_offset + len(payloads) - 1
    decided: dict[str, Any] = {
        "at": at,
        "transition": None,
        "run_id": "r1",
        "retain_until": at + 2_557 * DAY_US,
        "batch_number": 4,
        "from_state": "Active",
        "source_partition": 0,
        "source_offset": last + 1,
    }
    unknown = audit_record(
        *(3, 1),
        kind="tool_call",
        event_type="tool_call_unknown",
        tool_name="send",
        idem_key="order-7",
        from_call_state="running",
        to_call_state="unknown",
        reason_code="tool_call_limit",
        reason="Tool call unknown after 60s: no outcome of send was reported within its limit",
        **(decided | {"due_at": at, "fired_at": at}),
    )
    paused = audit_record(
        *(3, 2),
        kind="run",
        event_type="run_paused",
        from_run_state="running",
        to_run_state="paused",
        reason_code="call_unresolved",
        reason="Run paused: the outcome of send is unknown",
        source_n=1,
        **decided,
    )
    lost = audit_record(
        *(3, 3),
        kind="run",
        event_type="run_paused",
        from_run_state="started",
        to_run_state="paused",
        reason_code="connection_lost",
        reason="Run paused: its session timed out",
        source_n=2,
        **(decided | {"run_id": "r2"}),
    )
    insert_records(clickhouse, "audit", [encode_record(record) for record in (unknown, paused, lost)], at, "run", 100)
    counts = {"applied": len(payloads), "audited": 3}
    batch = batch_record(0, 4, first_offset=first_offset, last_offset=last, started_at=at, **counts)
    insert_records(clickhouse, "batches", [encode_record(batch)], at, "run", 100)


def write() -> Iterable[Path]:
    """Bring the page up to date, with an engine of its own. Returns its path."""
    with tempfile.TemporaryDirectory() as folder:
        server = LocalClickHouse(Path(folder), None, Path(folder) / "clickhouse.log")
        server.start()
        try:
            server.wait_ready()
            PAGE.write_text(draw_page(PAGE.read_text("utf-8"), new_clickhouse(server.url)), "utf-8")
        finally:
            server.stop()
    return (PAGE,)
