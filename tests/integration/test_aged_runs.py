"""What the views of runs say while rows grow old: a day, a month, a year and eight years."""

from typing import Any

import pytest

from sessionary.schemas.codec import encode_record
from sessionary.schemas.events import (
    ArtifactCompleted,
    ArtifactCreated,
    CheckpointSaved,
    MessageAppended,
    Payload,
    RunStarted,
    StepStarted,
    StepSucceeded,
    ToolCallStarted,
    ToolCallSucceeded,
)
from sessionary.schemas.settings import ClickHouseSettings
from tests.support.aged_rows import AgedRows
from tests.support.sink_records import DAY_US, agent_event, audit_record

AGES = (1, 31, 366, 2_922)  # days; runs are kept for 90, their calls for 30, artifacts as long as the law says
_SEVEN_YEARS = 2_557


@pytest.fixture
def rows(tables: ClickHouseSettings) -> AgedRows:
    return AgedRows(tables)


def insert_run(rows: AgedRows, number: int, age: float) -> None:
    """Insert what a run of that age leaves: an attached one whose connection was lost."""

    def call(key: str) -> ToolCallStarted:
        return ToolCallStarted(f"id-{key}", "send", key, '{"to":"a"}', 1, side_effect=True, queryable=False)

    payloads: tuple[Payload, ...] = (
        RunStarted("attached", "report", '"in"', '["a"]'),
        StepStarted("a", 1, '"in"'),
        StepSucceeded("a", 1, '"out"'),
        StepStarted("b", 1, '"in"'),
        CheckpointSaved("c1", "pages", "text", 7, "p7", 70, '{"page":7}', "draft_made"),
        ArtifactCreated("f1", "markdown", "file:///f1"),
        ArtifactCompleted("f1", 9, "ab" * 32),
        call("done"),
        ToolCallSucceeded("id-done", "send", "done", '"sent"', None, 1),
        call("lost"),
        MessageAppended("user", "hello"),
    )
    at, place = rows.at_us(age), 100 * number
    named: dict[str, Any] = {"session": number, "run_id": f"r{number}"}
    values = [agent_event(each, "financial", "personal", seq=seq, **named) for seq, each in enumerate(payloads, 1)]
    # A step of a run that was never begun.
    values.append(agent_event(StepStarted("z", 1), "financial", seq=50, session=number, run_id=f"orphan{number}"))
    rows.insert_rows("history", age, values, place)
    kept: dict[str, Any] = {
        "retention_class": "sox_audit",
        "retain_until": at + _SEVEN_YEARS * DAY_US,
        "personal_until": at + 30 * DAY_US,
        "at": at,
        "source_partition": 0,
        "transition": None,
        "run_id": f"r{number}",
        "reason": "text",
    }
    last = place + len(values)
    states = {"from_run_state": "started", "to_run_state": "paused", "reason_code": "connection_lost"}
    fired = {"due_at": at, "fired_at": at}
    calls = {"idem_key": "lost", "tool_name": "send", "from_call_state": "running", "to_call_state": "unknown"}
    steps = {"step_name": "b", "step_attempt": 1, "from_step_state": "running", "to_step_state": "failed"}
    records: tuple[tuple[str, dict[str, Any]], ...] = (
        ("run_paused", {"kind": "run", **states}),
        ("tool_call_unknown", {"kind": "tool_call", "reason_code": "tool_call_limit", **calls, **fired}),
        ("step_failed", {"kind": "step", "reason_code": "model_limit", **steps, **fired}),
    )
    for seq, (event_type, fields) in enumerate(records, 1):
        record = audit_record(number, seq, event_type=event_type, source_offset=last, source_n=seq, **kept, **fields)
        rows.insert_rows("audit", age, [encode_record(record)], last + seq)


# What is asked of a view, and the answer once retention has passed over one run of each age. What
# the audit trail has lasts for seven years; it is no run, step or call by itself.
KEPT_OF_RUNS = (
    ("SELECT count() AS n, countIf(payload_json != '') AS p FROM v_run_events", (23, 12)),
    (
        "SELECT countIf(mode != '') AS n, countIf(input IS NOT NULL) AS i, anyIf(status, mode != '') AS s FROM v_runs",
        (2, 1, "paused"),
    ),
    ("SELECT count() AS n, countIf(output != '') AS o, countIf(state = 'failed') AS f FROM v_steps", (6, 1, 2)),
    (
        "SELECT count() AS n, countIf(result != '') AS r, countIf(state = 'unknown') AS u FROM v_reserved_calls",
        (2, 1, 1),
    ),
    ("SELECT count() AS n, countIf(args != '') AS a FROM v_unresolved_calls", (1, 1)),
    ("SELECT count() AS n FROM v_orphan_steps", (2,)),
    (
        "SELECT countIf(mode != '') AS n, sum(steps_failed) AS f, sum(unresolved_calls) AS u FROM v_run_progress",
        (2, 2, 1),
    ),
    ("SELECT count() AS n FROM v_run_faults", (0,)),
    ("SELECT count() AS n, countIf(connection_lost) AS l FROM v_attached_runs", (2, 2)),
    ("SELECT count() AS n, countIf(checkpoint_operation = 'pages') AS c FROM v_lost_connections", (3, 2)),
    ("SELECT count() AS n, countIf(data != '') AS d, max(processed_count) AS p FROM v_checkpoints", (2, 1, 7)),
    ("SELECT count() AS n, countIf(uri != '') AS u, min(size_bytes) AS b FROM v_artifacts", (3, 1, 9)),
    ("SELECT count() AS n, countIf(role = 'user') AS r FROM v_messages", (3, 1)),
    ("SELECT count() AS n FROM v_long_steps", (2,)),
)


def test_every_view_of_runs_over_rows_of_a_day_a_month_a_year_and_eight_years(rows: AgedRows) -> None:
    for number, age in enumerate(AGES, 1):
        insert_run(rows, number, age)
    rows.let_retention_pass()
    assert [(sql, *rows.fetch_values(sql)) for sql, _ in KEPT_OF_RUNS] == list(KEPT_OF_RUNS)
    reported = rows.fetch_values(
        "SELECT event_type, count() AS n FROM v_causes WHERE cause = 'deadline' GROUP BY 1 ORDER BY 1"
    )
    assert reported == [("step_failed", 3), ("tool_call_unknown", 3)]
    # Of the run of a year ago nothing is left but its artifact, and it is no run of the view.
    known = rows.fetch_values("SELECT run_id FROM v_runs WHERE startsWith(run_id, 'r') ORDER BY 1")
    assert known == [("r1",), ("r2",)]
