"""Figures stay what they were while rows grow old, and count each call once."""

import json
from typing import Any

import pytest

from sessionary.schemas.codec import encode_event, encode_record
from sessionary.schemas.events import (
    EVENT_TYPES,
    MessageAppended,
    SessionActivity,
    SessionCreated,
    StateUpdated,
    ToolCallFailed,
    ToolCallStarted,
    ToolCallSucceeded,
    UsageRecorded,
)
from sessionary.schemas.records import BatchAcknowledged, Tick
from sessionary.schemas.settings import ClickHouseSettings
from sessionary.schemas.types import DataClass, ErrorInfo
from sessionary.sinks.clickhouse.migrate import apply_retention
from sessionary.sinks.core.rows.history import FIGURE_COLUMNS
from sessionary.sinks.settings import RetentionSettings
from tests.integration.test_aged_runs import KEPT_OF_RUNS
from tests.support.aged_rows import AgedRows
from tests.support.pipelines import run_sql
from tests.support.sink_records import DAY_US, agent_event, audit_record, batch_record, usage
from tests.support.values import example_event

AGES = (1, 31, 366, 2_922)  # days; the last one is eight years
SEVEN_YEARS = 2_557
# Of whom a session descends, which stays known.
_LINEAGE = ("parent_session_id", "restored_from_snapshot_id")
# Of the tries of tool calls, which the table makes as it does the lineage.
_TRIES = ("try_number", "is_cancelled")
_USAGE = "SELECT calls, tokens_in, model_cost_usd_nanos + tool_cost_usd_nanos AS cost FROM v_usage"


@pytest.fixture
def rows(tables: ClickHouseSettings) -> AgedRows:
    return AgedRows(tables)


@pytest.mark.parametrize(
    ("classes", "kept"),
    [(("financial", "personal"), 3), (("medical", "personal"), 3), (("personal",), 1), ((), 2)],
)
def test_usage_is_counted_for_as_long_as_the_law_keeps_its_row(rows: AgedRows, classes: Any, kept: int) -> None:
    for offset, age in enumerate(AGES):
        rows.insert_rows("history", age, [usage(*classes, session=offset)], offset)
    rows.let_retention_pass()
    assert rows.fetch_values(_USAGE) == [(kept, 100 * kept, 12 * kept)]
    by_model = (
        "SELECT model, count() AS n, sum(tokens_in) AS t, countIf(user_id = 'u1') AS u FROM v_usage_by GROUP BY 1"
    )
    known = 1 if "personal" in classes else kept
    assert rows.fetch_values(by_model) == [("m-large", kept, 100 * kept, known)]
    # The payload itself is personal data, and is gone.
    assert rows.fetch_values("SELECT count() AS n FROM history WHERE payload_json != ''") == [(known,)]


def test_sinks_write_the_figures_that_the_table_would_make_of_payloads(rows: AgedRows) -> None:
    events = [encode_event(example_event(payload)) for payload in EVENT_TYPES]
    events += [
        agent_event(UsageRecorded(model, tokens, -1, 2, 3, is_timeout_retry=True))
        for model, tokens in ((None, 0), ("", 1 << 40), ("é" * 1_000, -5), ("é" * 1_001, 7), ('\0\n"', 1))
    ]
    events += [agent_event(StateUpdated(4, 5, json.dumps({"x": text}))) for text in ("", "é" * 2_000, "\0\\")]
    rows.insert_rows("history", 1, [*events, b"junk", encode_record(Tick("i"))])
    database = rows.clickhouse.clickhouse_database
    columns = rows.fetch_values(
        f"SELECT name, default_expression FROM system.columns WHERE database = '{database}' AND table = 'history' "
        "AND default_expression LIKE '%payload_json%'"
    )
    # The text of a session's id is no figure: the table makes it, and forgets it.
    assert [name for name, _ in columns] == [*FIGURE_COLUMNS, "external_id", *_LINEAGE, *_TRIES]
    for name, made in columns[: len(FIGURE_COLUMNS)]:
        differing = f"countIf(NOT isNotDistinctFrom({name}, ({made}))) AS differing"
        reported = rows.fetch_values(
            f"SELECT {differing}, uniqExact(ifNull(toString({name}), '')) > 1 AS reported FROM history"
        )
        assert reported == [(0, 1)], name


@pytest.mark.parametrize(("age", "kept"), [(1, "thread-42"), (31, None)])
def test_the_text_of_a_sessions_id_expires_as_personal_data_does(rows: AgedRows, age: int, kept: str | None) -> None:
    created = example_event(SessionCreated).payload
    assert isinstance(created, SessionCreated)
    rows.insert_rows("history", age, [agent_event(created._replace(external_id="thread-42"), "personal", "financial")])
    rows.insert_rows("audit", age, [encode_record(audit_record(1, 1))])
    rows.let_retention_pass()
    assert rows.fetch_values("SELECT external_id FROM history") == [(kept,)]
    assert rows.fetch_values("SELECT external_id FROM v_sessions") == [(kept,)]


@pytest.mark.parametrize("age", [1, 31])
def test_retries_and_cancelled_tries_are_counted_as_such_however_old_they_are(rows: AgedRows, age: int) -> None:
    tries: list[Any] = [
        ToolCallStarted("id", "send", "k", "{}", n, side_effect=True, queryable=False) for n in (1, 2, 3)
    ]
    for number, code in ((1, "cancelled"), (2, "unavailable")):
        tries.append(ToolCallFailed("id", "send", "k", ErrorInfo("retryable", code, "text"), number))
    values = [agent_event(each, "financial", "personal", seq=seq) for seq, each in enumerate(tries, 1)]
    rows.insert_rows("history", age, values)
    rows.let_retention_pass()
    assert rows.fetch_values("SELECT countIf(payload_json != '') AS n FROM history") == [(5 if age == 1 else 0,)]
    assert rows.fetch_values("SELECT calls, retries, failures FROM v_calls_per_minute") == [(3, 2, 1)]


def test_rejected_usage_is_never_billed_however_old_it_is(rows: AgedRows) -> None:
    for offset, age in enumerate(AGES[:3]):
        place = 10 * offset
        rows.insert_rows("history", age, [usage("financial", session=n) for n in (place, place + 1)], place)
        rows.reject_rows(age, place + 1)
    assert rows.fetch_values(_USAGE) == [(3, 300, 36)]
    rows.let_retention_pass()
    assert rows.fetch_values(_USAGE) == [(3, 300, 36)]
    assert rows.fetch_values("SELECT countIf(is_rejected) AS n, count() AS m FROM v_activity") == [(3, 6)]
    # The rest of a rejection goes: personal data after 30 days, all but the mark after 365.
    assert rows.fetch_values("SELECT count() AS n, countIf(detail != '') AS d FROM v_rejected") == [(2, 1)]
    marks = "SELECT session_id, event_id, tenant_id, service_id, key, value, headers, reason FROM rejected"
    assert rows.fetch_rows(f"{marks} WHERE source_offset = 21") == [
        {
            **dict.fromkeys(("session_id", "event_id", "tenant_id", "service_id", "key", "value")),
            "headers": {},
            "reason": "stale_epoch",
        }
    ]


def test_a_rejection_marks_the_record_at_its_place_not_one_of_a_topic_that_was_made_again(rows: AgedRows) -> None:
    rows.insert_rows("history", 40, [usage("financial")], 7)
    rows.reject_rows(40, 7)
    rows.insert_rows("history", 2, [usage("financial", seq=2)], 7)
    assert rows.fetch_values(_USAGE) == [(1, 100, 12)]


def test_marks_are_kept_for_as_long_as_settings_keep_the_history(rows: AgedRows, tables: ClickHouseSettings) -> None:
    settings = RetentionSettings.model_validate({**tables.model_dump(), "retention_history_days": 18_262})
    apply_retention(settings)
    for offset, age in enumerate((1, 4_000)):
        rows.insert_rows("history", age, [usage()], offset)
        rows.reject_rows(age, offset)
    rows.insert_rows("history", 1, [usage(seq=2)], 5)
    rows.let_retention_pass()
    assert rows.fetch_values("SELECT count() AS n FROM history") == [(3,)], "50 years fit the columns' type"
    assert rows.fetch_values(_USAGE) == [(1, 100, 12)]


def test_numbers_below_zero_that_older_rules_accepted_count_as_zero(rows: AgedRows) -> None:
    rows.insert_rows("history", 1, [usage(seq=1), usage(seq=2, tokens=-5)])
    assert rows.fetch_values(_USAGE) == [(2, 100, 24)]
    assert rows.fetch_values("SELECT tokens_in FROM v_usage_calls ORDER BY 1") == [(0,), (100,)]


def test_usage_is_reported_by_day_model_session_user_and_agent_and_of_a_time(rows: AgedRows) -> None:
    large, small = (UsageRecorded(model, 100, 10, 10, 2, is_timeout_retry=False) for model in ("large", "small"))
    values = [
        agent_event(large, session=1, seq=1),
        agent_event(large, session=1, seq=1),  # delivered twice
        agent_event(large, session=1, seq=2),
        agent_event(small, session=1, seq=3, user_id="u2"),
        agent_event(small, session=2, seq=1, agent_id="agent-2"),
    ]
    rows.insert_rows("history", 3, values, 0)
    rows.insert_rows("history", 1, [agent_event(large, session=1, seq=9)], 9)
    found = rows.fetch_values(
        # Not today(): midnight may pass meanwhile.
        f"SELECT dateDiff('day', day, toDate({rows.now_us // 1_000_000}, 'UTC')) AS ago, model, "
        "right(session_id, 1) AS s, user_id, agent_id, calls, tokens_in FROM v_usage_by ORDER BY ALL"
    )
    assert found == [
        (1, "large", "1", "u1", "agent-1", 1, 100),
        (3, "large", "1", "u1", "agent-1", 2, 200),
        (3, "small", "1", "u2", "agent-1", 1, 100),
        (3, "small", "2", "u1", "agent-2", 1, 100),
    ]
    between = "(from = now('UTC') - INTERVAL 2 DAY, to = now('UTC'))"
    database = rows.clickhouse.between_database
    assert rows.fetch_values(f"SELECT calls, tokens_in FROM {database}.v_usage_between{between}") == [(1, 100)]
    assert rows.fetch_values(f"SELECT model, calls FROM {database}.v_usage_by_between{between}") == [("large", 1)]


def test_activity_is_unpacked_with_its_durations(rows: AgedRows) -> None:
    tool = ("c1", "search", "k")
    began = rows.at_us(1)
    failed = ToolCallFailed("c2", "fetch", "k", ErrorInfo("retryable", "http_500", "it broke"), 2, None)
    values = [
        agent_event(SessionActivity("llm", "thinking"), seq=1, occurred_at=began),
        agent_event(
            ToolCallStarted(*tool, "{}", 1, side_effect=False, queryable=False), seq=2, occurred_at=began + 1_000_000
        ),
        agent_event(ToolCallSucceeded(*tool, None, None, 1, 1_500), seq=3, occurred_at=began + 9_000_000),
        agent_event(
            ToolCallStarted("c2", "fetch", "k", "{}", 2, side_effect=False, queryable=False),
            seq=4,
            occurred_at=began + 10_000_000,
        ),
        agent_event(failed, seq=5, occurred_at=began + 12_250_000),
        agent_event(MessageAppended("user", "hello"), seq=6, occurred_at=began),
        usage(seq=7),
    ]
    rows.insert_rows("history", 1, values)
    found = rows.fetch_values(
        "SELECT event_type, kind, name, text, error_code, try_number, tool_call_id, duration_s, tokens_in "
        "FROM v_activity ORDER BY producer_seq"
    )
    assert found == [
        ("session_activity", "llm", "", "thinking", "", 0, None, None, 0),
        ("tool_call_started", "", "search", "", "", 1, "c1", None, 0),
        ("tool_call_succeeded", "", "search", "", "", 1, "c1", 1.5, 0),
        ("tool_call_started", "", "fetch", "", "", 2, "c2", None, 0),
        ("tool_call_failed", "", "fetch", "it broke", "http_500", 2, "c2", 2.25, 0),
        ("message_appended", "", "user", "hello", "", 0, None, None, 0),
        ("usage_recorded", "", "", "", "", 0, None, None, 100),
    ]


def test_timeouts_are_those_of_sessions_and_deadlines_those_of_every_clock(rows: AgedRows) -> None:
    at = rows.at_us(1)

    def fired(seq: int, transition: str, code: str, to_state: str) -> bytes:
        return encode_record(
            audit_record(
                1, seq, transition=transition, reason_code=code, to_state=to_state, at=at, due_at=at, fired_at=at
            )
        )

    lines = [
        fired(1, "T03", "connection_failed", "Terminated"),
        fired(2, "T06", "inactive", "Timeout"),
        fired(3, "T06", "max_duration", "Timeout"),
        fired(4, "T08", "timeout_cleanup", "Terminated"),
        fired(5, "T09", "timeout_cleanup", "Terminated"),
        fired(6, "T12", "recovery_failed", "Terminated"),
        fired(7, "T14", "archived", "Archived"),
    ]
    rows.insert_rows("audit", 1, lines)
    assert rows.fetch_values("SELECT clock FROM v_timeouts ORDER BY audit_seq") == [("inactivity",), ("max_duration",)]
    clocks = ["initialisation", "inactivity", "max_duration", "grace", "hold", "recovery"]
    assert rows.fetch_values("SELECT clock FROM v_deadlines ORDER BY audit_seq") == [(clock,) for clock in clocks]


def test_free_text_of_an_agent_goes_with_personal_data_and_stays_without(rows: AgedRows) -> None:
    for number, personal in ((1, True), (2, False)):
        at = rows.at_us(31)
        line = audit_record(number, 1, at=at, reason="KeyError: 'bob'", reason_code="recovery_failed")
        line = line._replace(
            retention_class="sox_audit",
            retain_until=at + SEVEN_YEARS * DAY_US,
            personal_until=at + 30 * DAY_US if personal else None,
        )
        rows.insert_rows("audit", 31, [encode_record(line)], number)
    rows.let_retention_pass()
    found = rows.fetch_values("SELECT reason, reason_code FROM v_transitions ORDER BY session_id")
    assert found == [("", "recovery_failed"), ("KeyError: 'bob'", "recovery_failed")]


def _aged_pipeline(rows: AgedRows) -> None:
    """Insert what a session of each age leaves, with financial and personal data."""
    for n, age in enumerate(AGES, 1):
        at = rows.at_us(age)
        kept = {
            "retention_class": "sox_audit",
            "retain_until": at + SEVEN_YEARS * DAY_US,
            "personal_until": at + 30 * DAY_US,
            "at": at,
            "batch_number": n,
            "source_partition": 0,
        }
        timeout = audit_record(
            n,
            2,
            transition="T06",
            from_state="Active",
            to_state="Timeout",
            reason_code="inactive",
            cleanup_id=f"c{n}",
            due_at=at,
            fired_at=at,
            reason="text",
            **kept,
        )
        released = audit_record(n, 3, kind="release", transition=None, cleanup_id=f"c{n}", **kept)
        lines = [encode_record(record) for record in (audit_record(n, 1, **kept), timeout, released)]
        rows.insert_rows("audit", age, lines, 10 * n)
        classes: tuple[DataClass, ...] = ("financial", "personal")
        state = json.dumps({"text": "x" * 90})
        values = [usage(*classes, session=n), agent_event(StateUpdated(1, 2, state), *classes, session=n, seq=2)]
        rows.insert_rows("history", age, [*values, usage(*classes, session=n, seq=3)], 10 * n)
        rows.reject_rows(age, 10 * n + 2)
        batch = batch_record(0, n, started_at=at, previous_acknowledged_at=None, applied=2, rejected=1, audited=3)
        reported = BatchAcknowledged(0, n, at + 25_000, "p1")
        rows.insert_rows("batches", age, [encode_record(batch)], n)
        run_sql(
            rows.clickhouse,
            f"INSERT INTO {rows.clickhouse.clickhouse_database}.batch_acknowledgements "
            "(partition, number, acknowledged_at, instance) VALUES "
            f"(0, {n}, fromUnixTimestamp64Micro({reported.acknowledged_at}), 'p1')",
        )


# What is asked of a view, and the answer once retention has passed over one session of each age.
# Those of runs, which are kept for another time, are asked in `test_aged_runs`.
KEPT = (
    ("SELECT count() AS n, sum(timeouts) AS t, sum(events) AS e FROM v_sessions", (3, 3, 9)),
    ("SELECT sum(calls) AS n, sum(tokens_in) AS t FROM v_sessions", (3, 300)),
    ("SELECT count() AS n FROM v_tool_calls", (0,)),
    ("SELECT count() AS n, uniqExact(state) AS s FROM v_state_names", (3, 1)),
    ("SELECT count() AS n, countIf(reason = 'text') AS r FROM v_transitions", (6, 1)),
    ("SELECT count() AS n, countIf(reason = 'text') AS r FROM v_timeouts", (3, 1)),
    ("SELECT count() AS n FROM v_deadlines", (3,)),
    ("SELECT count() AS n, countIf(confirmed) AS c FROM v_cleanups", (3, 3)),
    ("SELECT count() AS n FROM v_uncleaned", (0,)),
    ("SELECT count() AS n, countIf(value_bytes > 0) AS v FROM v_rejected", (2, 1)),
    ("SELECT count() AS n FROM v_rules", (1,)),
    ("SELECT sum(calls) AS n, sum(tokens_in) AS t FROM v_usage", (3, 300)),
    ("SELECT sum(calls) AS n, sum(tokens_in) AS t FROM v_usage_by", (3, 300)),
    ("SELECT count() AS n, countIf(model = 'm-large') AS m FROM v_usage_calls", (3, 3)),
    ("SELECT count() AS n, countIf(is_rejected) AS r, sum(tokens_in) AS t FROM v_activity", (9, 3, 600)),
    ("SELECT count() AS n FROM v_acknowledgements", (3,)),
    ("SELECT count() AS n FROM v_waiting_runs", (0,)),
    ("SELECT count() AS n FROM v_waiting_sessions", (0,)),
    ("SELECT count() AS n FROM v_migrations", (0,)),
    ("SELECT count() AS n FROM v_migration_calls", (0,)),
    ("SELECT count() AS n, sum(events) AS e FROM v_foreign_writers", (1, 2)),
    ("SELECT count() AS n, countIf(until IS NULL) AS u FROM v_session_owners", (3, 3)),
    ("SELECT count() AS n FROM v_pauses", (0,)),
    ("SELECT count() AS n FROM v_waits_for_people", (0,)),
    ("SELECT count() AS n FROM v_agents", (0,)),
    ("SELECT count() AS n FROM v_agent_events", (0,)),
    ("SELECT count() AS n FROM v_agent_tasks", (0,)),
    ("SELECT count() AS n FROM v_agent_views", (0,)),
    ("SELECT count() AS n FROM v_handovers", (0,)),
    ("SELECT count() AS n, max(latency_ms) AS ms FROM v_transition_latency", (6, 25)),
    ("SELECT count() AS n, max(latency_ms) AS ms FROM v_audit_write_latency", (3, 25)),
    ("SELECT timed_out, reclaimed, reclaim_rate FROM v_kpi", (3, 3, 1)),
    ("SELECT count() AS n, min(bytes) AS b FROM v_stored_bytes WHERE layer = 'state'", (3, 102)),
    ("SELECT count() AS n FROM v_audit_json", (6,)),
    ("SELECT countIf(fault != 'batch_missing') AS n FROM v_integrity", (0,)),
    ("SELECT calls, tokens_in FROM v_usage_by_tenant", (3, 300)),
    ("SELECT count() AS n FROM v_calls_per_minute", (0,)),
    ("SELECT count() AS n FROM v_causes", (6,)),
    ("SELECT count() AS n FROM v_decisions", (0,)),
    ("SELECT count() AS n FROM v_undecided_calls", (0,)),
    ("SELECT count() AS n FROM v_transactions", (0,)),
    ("SELECT count() AS n FROM v_lineage", (0,)),
    ("SELECT count() AS n FROM v_resource_accesses", (0,)),
    ("SELECT count() AS n FROM v_snapshots", (0,)),
    ("SELECT count() AS n FROM v_prompt_runs", (0,)),
    ("SELECT count() AS n FROM v_interruptions", (0,)),
)


def test_every_view_over_rows_of_a_day_a_month_a_year_and_eight_years(rows: AgedRows) -> None:
    _aged_pipeline(rows)
    rows.let_retention_pass()
    assert [(sql, *rows.fetch_values(sql)) for sql, _ in KEPT] == list(KEPT)
    views = rows.fetch_values("SELECT name FROM system.tables WHERE database = currentDatabase() AND engine = 'View'")
    asked = {sql.partition(" FROM ")[2].partition(" ")[0] for sql, _ in (*KEPT, *KEPT_OF_RUNS)}
    assert {name for (name,) in views} == asked
