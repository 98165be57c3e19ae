"""A session's row tells what became of the session, not only what the audit trail has of it."""

from collections.abc import Sequence
from typing import Any

import pytest

from sessionary.schemas.codec import encode_record
from sessionary.schemas.events import (
    EVENT_TYPES,
    Heartbeat,
    MessageAppended,
    Payload,
    ResourcesReleased,
    SessionActivity,
    StateUpdated,
    ToolCallFailed,
    ToolCallStarted,
    ToolCallSucceeded,
)
from sessionary.schemas.records import RejectedEvent
from sessionary.schemas.settings import ClickHouseSettings
from sessionary.schemas.types import ErrorInfo
from tests.support.aged_rows import AgedRows
from tests.support.clickhouse_rows import insert_block
from tests.support.sink_records import DAY_US, agent_event, audit_record, session_id

AGES = (1, 31, 366, 2_922)  # days; the last one is eight years
_LIVES: tuple[tuple[int, dict[str, Any]], ...] = (
    (0, {"transition": "T01", "from_state": "UNKNOWN", "to_state": "Idle"}),
    (1, {}),
)
_FIRED = {"version": 3, "due_at": 1, "fired_at": 2}
_ENDS: tuple[tuple[int, dict[str, Any]], ...] = (
    (74, {"transition": "T06", "from_state": "Active", "to_state": "Timeout", **_FIRED}),
    (374, {"transition": "T08", "from_state": "Timeout", "to_state": "Terminated", **_FIRED}),
    (435, {"transition": "T14", "from_state": "Terminated", "to_state": "Archived", **_FIRED}),
)
# It works until its 12th second and lives until its 14th; what is rejected does not count.
_EVENTS: tuple[tuple[float, Payload, bool], ...] = (
    (5, StateUpdated(1, 2, "{}"), False),
    (6, StateUpdated(2, 3, "{}"), False),
    (7, StateUpdated(3, 9, "{}"), True),
    (12, SessionActivity("llm", "reading"), False),
    (14, Heartbeat(1), False),
    (30, SessionActivity("llm", "of a former owner"), True),
)
_CLEANUP = (375, ResourcesReleased("c", (), None, host_lost=False), False)
_FIGURES = (
    "version, round(dateDiff('millisecond', opened_at, last_at) / 1e3) AS active_s, round(duration_s) AS lived_s, "
    "round(dateDiff('millisecond', opened_at, time) / 1e3) AS reported_s"
)


@pytest.fixture
def rows(tables: ClickHouseSettings) -> AgedRows:
    return AgedRows(tables)


def rejection_of(event_type: str, session: int, seq: int, at: int, offset: int) -> RejectedEvent:
    return RejectedEvent(
        *("stale_epoch", "", True, "acme", session_id(session), f"event-{session}-{seq}", event_type),
        *("billing", "t", 0, offset, at // 1_000 * 1_000),
    )


def insert_lives(rows: AgedRows, ages: Sequence[float], classes: Sequence[Any] = (), *, to_end: bool = False) -> None:
    """Insert the records of one session per age; all have the same life."""
    kept_days, retention = (2_557, "sox_audit") if "financial" in classes else (365, "default")
    audit, history, rejected = [], [], []
    for number, age in enumerate(ages, 1):
        began = rows.at_us(age)
        for seq, (after_s, fields) in enumerate(_LIVES + (_ENDS if to_end else ()), 1):
            at = began + after_s * 1_000_000
            kept = {"retention_class": retention, "retain_until": at + kept_days * DAY_US}
            audit.append((at, 100 * number + seq, encode_record(audit_record(number, seq, at=at, **kept, **fields))))
        for seq, (event_s, payload, is_rejected) in enumerate((*_EVENTS, _CLEANUP) if to_end else _EVENTS, 1):
            at, offset = began + round(event_s * 1_000_000), 100 * number + seq
            history.append((at, offset, agent_event(payload, *classes, session=number, seq=seq)))
            if is_rejected:
                rejected.append((at, offset, encode_record(rejection_of("state_updated", number, seq, at, offset))))
    insert_block(rows.clickhouse, "audit", audit, "lives")
    insert_block(rows.clickhouse, "history", history, "lives")
    insert_block(rows.clickhouse, "rejected", rejected, "lives")


def test_the_last_activity_the_version_and_the_duration_of_a_session_are_true(rows: AgedRows) -> None:
    insert_lives(rows, [1])
    assert rows.fetch_values(f"SELECT {_FIGURES} FROM v_sessions") == [(3, 14, 14, 30)]


def test_a_session_tells_its_turns_and_the_results_of_its_tools_on_two_services(rows: AgedRows) -> None:
    insert_lives(rows, [1])
    turn = MessageAppended("user", "hello")
    sent: list[tuple[Payload, dict[str, Any]]] = [
        (turn, {}),
        (turn, {"event_id": "event-1-21"}),  # the one before, delivered twice
        (MessageAppended("assistant", "hi"), {}),
        (ToolCallSucceeded("id-1", "search", "k1", "[]", None, 1), {}),
        (ToolCallSucceeded("id-2", "book", "k2", "7", None, 1), {"service_id": "shop", "agent_id": "agent-2"}),
        (MessageAppended("assistant", "booked"), {}),
        (MessageAppended("assistant", "rejected"), {}),
    ]
    at = [rows.at_us(1) + (20 + n) * 1_000_000 for n in range(len(sent))]
    events = [(at[n], 121 + n, agent_event(event, seq=21 + n, **fields)) for n, (event, fields) in enumerate(sent)]
    insert_block(rows.clickhouse, "history", events, "talk")
    rejection = encode_record(rejection_of("message_appended", 1, 27, at[-1], 127))
    insert_block(rows.clickhouse, "rejected", [(at[-1], 127, rejection)], "talk")
    asked = "SELECT turns, tool_results, services, agents FROM v_sessions"
    assert rows.fetch_values(asked) == [(3, 2, ["billing", "shop"], ["agent-1", "agent-2"])]


def test_a_rejected_call_that_is_delivered_again_is_not_the_last_one(rows: AgedRows) -> None:
    insert_lives(rows, [1])
    call = ToolCallStarted("id-1", "search", "k1", "{}", 1, side_effect=False, queryable=False)
    forged = ToolCallStarted("id-2", "forged", "k2", "{}", 1, side_effect=False, queryable=False)
    failure = ToolCallFailed("id-2", "forged", "k2", ErrorInfo("fatal", "no", "no"), 1)
    sent: list[tuple[Payload, int]] = [
        (call, 21),
        (ToolCallSucceeded("id-1", "search", "k1", "[]", None, 1), 22),
        (forged, 23),
        (failure, 24),
        (forged, 23),
        (failure, 24),
    ]
    at = [rows.at_us(1) + (20 + n) * 1_000_000 for n in range(len(sent))]
    events = [(at[n], 121 + n, agent_event(event, seq=seq)) for n, (event, seq) in enumerate(sent)]
    insert_block(rows.clickhouse, "history", events, "calls")
    rejections = [
        (at[n], 121 + n, encode_record(rejection_of(EVENT_TYPES[type(event)], 1, seq, at[n], 121 + n)))
        for n, (event, seq) in enumerate(sent[2:4], 2)
    ]
    insert_block(rows.clickhouse, "rejected", rejections, "calls")
    assert rows.fetch_values("SELECT last_tool, last_result FROM v_sessions") == [("search", "[]")]


def test_an_accepted_call_that_another_process_delivers_again_is_not_the_last_one(rows: AgedRows) -> None:
    insert_lives(rows, [1])
    first = ToolCallStarted("id-1", "search", "k1", "{}", 1, side_effect=False, queryable=False)
    second = ToolCallStarted("id-2", "book", "k2", "{}", 1, side_effect=False, queryable=False)
    found, booked = (ToolCallSucceeded("id-1", "search", "k1", "[]", None, 1), 22), (second, 23)
    failed = (ToolCallFailed("id-2", "book", "k2", ErrorInfo("fatal", "full", "no seat"), 1), 24)
    sent: list[tuple[Payload, int]] = [(first, 21), found, booked, failed, (first, 21), found, failed]
    at = [rows.at_us(1) + (20 + n) * 1_000_000 for n in range(len(sent))]
    events = [(at[n], 121 + n, agent_event(event, seq=seq)) for n, (event, seq) in enumerate(sent)]
    insert_block(rows.clickhouse, "history", events, "calls")
    asked = "SELECT last_tool, last_result FROM v_sessions"
    assert rows.fetch_values(asked) == [("book", "failed: full: no seat")]


def test_an_archived_session_was_active_when_its_agent_was(rows: AgedRows) -> None:
    insert_lives(rows, [1], to_end=True)
    assert rows.fetch_values(f"SELECT {_FIGURES}, state FROM v_sessions") == [(3, 14, 374, 435, "Archived")]
    # Of a time without an event, the first record is all that is known.
    later = f"(from = toDateTime({rows.at_us(1) // 1_000_000 + 60}, 'UTC'), to = now('UTC'))"
    database = rows.clickhouse.between_database
    assert rows.fetch_values(f"SELECT {_FIGURES}, state FROM {database}.v_sessions_between{later}") == [
        (3, 0, 300, 361, "Archived")
    ]


@pytest.mark.parametrize(
    ("classes", "active_s"),
    [(("financial", "personal"), [14, 14, 14]), (("personal",), [14]), ((), [12, 14])],
    ids=["law", "personal", "none"],
)
def test_sessions_tell_the_same_for_as_long_as_their_rows_are_kept(
    rows: AgedRows, classes: Any, active_s: list[int]
) -> None:
    insert_lives(rows, AGES, classes)
    rows.let_retention_pass()
    found = rows.fetch_values(
        f"SELECT version, active_s FROM (SELECT {_FIGURES}, events FROM v_sessions) WHERE events > 0"
    )
    # Heartbeats without a class of data are kept for 30 days: later, work is the last sign of life.
    assert sorted(found) == [(3, seconds) for seconds in active_s]
