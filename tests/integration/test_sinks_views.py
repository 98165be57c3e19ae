"""Each view's figures, from rows made by hand: no Kafka, the real engine."""

import json
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any

from sessionary.schemas.codec import Decoder, encode_record
from sessionary.schemas.records import AuditRecord, BatchAcknowledged, BatchRecord, RulesActivation
from sessionary.schemas.retention import retention_of
from sessionary.schemas.settings import ClickHouseSettings
from sessionary.schemas.types import DataClass, RuleSet
from sessionary.sinks.clickhouse.inserter import TableInserter
from sessionary.sinks.core.rows.shared import RawRecord
from sessionary.sinks.core.sink_kinds import SINKS
from sessionary.sinks.settings import SinkSettings
from tests.integration.sink_rig import query_numbers
from tests.support.pipelines import run_sql
from tests.support.sink_records import DAY_US, NOW_US, audit_record, batch_record, session_id

_SECOND_US = 1_000_000


def insert(
    clickhouse: ClickHouseSettings,
    records: Sequence[AuditRecord | BatchRecord] | Sequence[BatchAcknowledged],
    token: str = "t",
) -> None:
    """Write records as a sink does; one call, one block."""
    kind = SINKS["audit" if isinstance(records[0], AuditRecord) else "batches"]
    sink = kind.side if isinstance(records[0], BatchAcknowledged) and kind.side is not None else kind
    inserter = TableInserter(SinkSettings.model_validate(clickhouse.model_dump()), sink.table)
    inserter.open()
    rows = [
        sink.build_row(RawRecord(f"t.{kind.topic}", 0, offset, NOW_US // 1_000, b"k", encode_record(record)), Decoder())
        for offset, record in enumerate(records)
    ]
    block = inserter.new_block()
    assert not block.add_rows(rows)
    inserter.insert_block(block, token, first_try=True)
    inserter.close()


def selected(clickhouse: ClickHouseSettings, sql: str) -> list[dict[str, object]]:
    text = run_sql(
        clickhouse,
        sql.replace("{db}", clickhouse.clickhouse_database)
        + " FORMAT JSONEachRow SETTINGS output_format_json_quote_64bit_integers=0",
    )
    return [json.loads(line) for line in text.splitlines()]


def at(seconds: float) -> int:
    return NOW_US + round(seconds * _SECOND_US)


def timed_out(number: int, *, late_s: float = 0.5) -> list[AuditRecord]:
    """Return a session's life: created, started, timed out at its 61st second."""
    due = at(61)
    request = f"c{number}"
    return [
        audit_record(
            number, 1, transition="T01", event_type="session_created", from_state="UNKNOWN", to_state="Idle", at=at(0)
        ),
        audit_record(number, 2, at=at(1)),
        audit_record(
            number,
            3,
            transition="T06",
            event_type="session_timed_out",
            from_state="Active",
            to_state="Timeout",
            reason_code="inactive",
            reason="no activity for 60s",
            cleanup_id=request,
            cleanup_actions=["memory_cleanup", "mark_closed"],
            compliance_tags=["gdpr_retention"],
            context_bytes=1_000 * number,
            at=due + round(late_s * _SECOND_US),
            occurred_at=due,
            due_at=due,
            fired_at=due + round(late_s * _SECOND_US),
            batch_number=2,
        ),
    ]


def released(number: int, after_s: float, **fields: Any) -> AuditRecord:
    plain = audit_record(
        number, 4, kind="release", transition=None, event_type="resources_released", cleanup_id=f"c{number}"
    )
    fields = {"actions_done": ["memory_cleanup", "mark_closed"], "bytes_released": 7, **fields}
    return plain._replace(appended_at=at(61.5 + after_s), from_state="Timeout", to_state="Timeout")._replace(**fields)


def test_sessions_names_and_the_seeds_json(tables: ClickHouseSettings) -> None:
    ended = audit_record(
        2, 3, transition="T13", from_state="Active", to_state="Terminated", reason="closed", at=at(5), epoch=2
    )
    rejected = audit_record(
        2, 4, kind="rejection", transition=None, from_state="Terminated", to_state="Terminated", at=at(6)
    )
    unknown_session = audit_record(9, 0, kind="rejection", transition=None)
    insert(tables, [*timed_out(1), *timed_out(2)[:2], ended, rejected, unknown_session])
    found = selected(
        tables,
        "SELECT session_id, first_state, state, service_id, epoch, transitions, timeouts, rejections, duration_s, "
        "events "
        "FROM {db}.v_sessions ORDER BY session_id",
    )
    common = {"first_state": "Idle", "service_id": "billing", "transitions": 3, "events": 0}
    assert found == [
        {
            "session_id": session_id(1),
            "state": "Timeout",
            "epoch": 1,
            "timeouts": 1,
            "rejections": 0,
            "duration_s": 61.5,
        }
        | common,
        {
            "session_id": session_id(2),
            "state": "Terminated",
            "epoch": 1,
            "timeouts": 0,
            "rejections": 1,
            "duration_s": 5,
        }
        | common,
    ]
    names = "SELECT state, governance_state, process_state, activity_state FROM {db}.v_state_names ORDER BY state"
    assert [tuple(row.values()) for row in selected(tables, names)] == [
        ("Terminated", "Terminated", "Closed", "Idle"),
        ("Timeout", "Timeout", "Paused", "Paused"),
    ]
    rendered = selected(
        tables, f"SELECT json FROM {{db}}.v_audit_json WHERE session_id = '{session_id(1)}' AND audit_seq = 3"
    )
    assert json.loads(str(rendered[0]["json"])) == {
        "session_id": session_id(1),
        "state_transition": {
            "from": "Active",
            "to": "Timeout",
            "timestamp": "2026-11-21T00:01:01.000000Z",
            "reason": "no activity for 60s",
            "cleanup_actions": ["memory_cleanup", "mark_closed"],
        },
        "compliance_tags": ["gdpr_retention"],
    }
    assert query_numbers(tables, "SELECT count() FROM {db}.v_transitions") == [6]


def test_events_that_a_replay_brought_are_no_longer_missing(tables: ClickHouseSettings) -> None:
    lines = [
        *timed_out(1),
        audit_record(1, 4, kind="gap", transition=None, gap_first=5, gap_last=9),
        audit_record(1, 5, kind="gap", transition=None, gap_first=11, gap_last=11),
        audit_record(1, 6, kind="gap_filled", transition=None, gap_first=7, gap_last=7),
        audit_record(1, 7, kind="gap_filled", transition=None, gap_first=11, gap_last=11),
        *timed_out(2),
    ]
    insert(tables, lines)
    found = selected(tables, "SELECT gaps, missing_events FROM {db}.v_sessions ORDER BY session_id")
    assert found == [{"gaps": 2, "missing_events": 4}, {"gaps": 0, "missing_events": 0}]


def test_timeouts_cleanups_and_key_figures(tables: ClickHouseSettings) -> None:
    lives = [timed_out(number) for number in range(1, 6)]
    archive = audit_record(
        1, 5, transition="T14", from_state="Terminated", to_state="Archived", due_at=at(1), fired_at=at(1)
    )
    releases = [
        released(1, 1.0),
        released(2, 3.0),
        released(3, 2.0, host_lost=True, actions_done=[]),
        released(4, 1.0, actions_failed=["mark_closed"]),
    ]
    insert(tables, [record for life in lives for record in life] + releases + [archive])
    assert selected(
        tables,
        "SELECT lateness_s, reason, toUnixTimestamp64Micro(due_at) AS due FROM {db}.v_timeouts WHERE session_id = "
        f"'{session_id(1)}'",
    ) == [{"lateness_s": 0.5, "reason": "no activity for 60s", "due": at(61)}]
    assert query_numbers(tables, "SELECT count() FROM {db}.v_timeouts") == [5]
    cleanups = selected(
        tables, "SELECT latency_s, released, host_lost, confirmed FROM {db}.v_cleanups ORDER BY cleanup_id"
    )
    assert [tuple(row.values()) for row in cleanups] == [
        (1, True, False, True),
        (3, True, False, True),
        (2, True, True, False),
        (1, True, False, False),
        (None, False, False, False),
    ]
    assert selected(tables, "SELECT cleanup_id, context_bytes FROM {db}.v_uncleaned") == [
        {"cleanup_id": "c5", "context_bytes": 5_000}
    ]
    figures = selected(
        tables,
        "SELECT timed_out, reclaimed, host_lost, unreclaimed, reclaim_rate, cleanup_latency_avg_s, "
        "cleanup_latency_p95_s, audit_bytes = total_bytes AS only_audit, audit_io_share FROM {db}.v_kpi",
    )
    assert [tuple(row.values()) for row in figures] == [(5, 2, 1, 2, 0.5, 2, 3, 1, 1)]


def test_without_rows_key_figures_are_null_not_0(tables: ClickHouseSettings) -> None:
    assert selected(tables, "SELECT reclaim_rate, cleanup_latency_avg_s, audit_io_share FROM {db}.v_kpi") == [
        {"reclaim_rate": None, "cleanup_latency_avg_s": None, "audit_io_share": None}
    ]


def test_the_share_of_audit_bytes(tables: ClickHouseSettings) -> None:
    insert(tables, timed_out(1))
    insert(tables, [batch_record(1, 1), batch_record(1, 2)])
    share, expected = query_numbers(
        tables,
        "SELECT (SELECT audit_io_share FROM {db}.v_kpi), (SELECT sum(value_size) FROM {db}.audit) / "
        "((SELECT sum(value_size) FROM {db}.audit) + (SELECT sum(value_size) FROM {db}.batches))",
    )
    assert share == expected
    assert 0.5 < share < 1


def test_latencies_come_from_the_following_batch_of_the_same_partition(tables: ClickHouseSettings) -> None:
    started = at(62)
    insert(tables, [record._replace(source_partition=1) for record in timed_out(1)])
    insert(
        tables,
        [
            batch_record(1, 1, started_at=at(1), audited=2),
            batch_record(1, 2, started_at=started, previous_acknowledged_at=at(1.03)),
            batch_record(1, 3, started_at=at(70), previous_acknowledged_at=started + 25_000, audited=0),
            batch_record(2, 2, previous_acknowledged_at=at(500)),  # another partition's numbers mean nothing here
        ],
    )
    latencies = selected(
        tables, "SELECT audit_seq, timer, latency_ms FROM {db}.v_transition_latency ORDER BY audit_seq"
    )
    assert [tuple(row.values()) for row in latencies] == [(1, 0, 1_030), (2, 0, 30), (3, 1, 1_025)]
    writes = selected(tables, "SELECT number, latency_ms FROM {db}.v_audit_write_latency ORDER BY number")
    assert [tuple(row.values()) for row in writes] == [(1, 30), (2, 25)]


def test_the_last_batch_before_a_pause_has_its_latency_by_a_record_of_its_own(tables: ClickHouseSettings) -> None:
    insert(tables, [record._replace(source_partition=1) for record in timed_out(1)])
    insert(tables, [batch_record(1, 1, started_at=at(1)), batch_record(1, 2, started_at=at(62))])
    transitions = "SELECT audit_seq, latency_ms FROM {db}.v_transition_latency ORDER BY audit_seq"
    writes = "SELECT number, latency_ms FROM {db}.v_audit_write_latency ORDER BY number"
    assert [row["number"] for row in selected(tables, writes)] == [1]
    reported = BatchAcknowledged(1, 2, at(62.025), "p1")
    insert(tables, [reported, reported, reported._replace(partition=2)], "a")
    insert(tables, [reported], "b")
    # The next batch, of an owner that knows the acknowledgement too, doubles nothing.
    insert(tables, [batch_record(1, 3, started_at=at(70), previous_acknowledged_at=at(62.025), audited=0)], "c")
    assert [tuple(row.values()) for row in selected(tables, transitions)][2:] == [(3, 1_025)]
    assert [tuple(row.values()) for row in selected(tables, writes)][1:] == [(2, 25)]


def test_integrity_is_silent_over_sound_rows_and_names_each_fault(tables: ClickHouseSettings) -> None:
    insert(tables, [*timed_out(1), released(1, 1.0), *timed_out(2)], "a")
    insert(
        tables,
        [
            batch_record(1, 1, audited=3, applied=0),
            batch_record(1, 2, audited=1, applied=0),
            batch_record(1, 3, audited=0, applied=0),
            batch_record(2, 1, audited=2, applied=0),
        ],
    )
    assert selected(tables, "SELECT * FROM {db}.v_integrity") == []
    insert(tables, [timed_out(3)[0], timed_out(3)[2]], "c")  # 2 lacks, and so does the way from Idle to Active
    insert(tables, timed_out(4)[1:], "d")  # the beginning lacks
    insert(tables, [timed_out(2)[1]._replace(source_offset=77)], "e")  # 2 twice, from two records
    insert(tables, [batch_record(2, 2), batch_record(2, 4), batch_record(1, 3, first_offset=5)], "f")
    found = selected(
        tables,
        "SELECT fault, session_id, partition, rows FROM {db}.v_integrity ORDER BY fault, session_id, partition",
    )
    assert [tuple(row.values()) for row in found] == [
        ("audit_doubled", session_id(2), None, 1),
        ("audit_missing", session_id(3), None, 1),
        ("audit_missing", session_id(4), None, 1),
        ("batch_doubled", "", 1, 1),
        ("batch_missing", "", 2, 1),
        ("chain_broken", session_id(2), None, 1),
        ("chain_broken", session_id(3), None, 1),
    ]


def test_rows_and_personal_columns_go_when_the_classes_of_their_data_say_so(tables: ClickHouseSettings) -> None:
    """R-000-29 to R-000-31: back-dated rows and a forced merge."""
    today = round(query_numbers(tables, "SELECT toUnixTimestamp(now())")[0]) * _SECOND_US

    def aged(number: int, data_classes: Sequence[DataClass], *, days_over: int) -> AuditRecord:
        """Return a record that should have gone so many days ago, give or take one."""
        period_us = retention_of(data_classes, today).retain_until - today
        kept = retention_of(data_classes, appended := today - period_us - days_over * DAY_US)
        return audit_record(number, 1, at=appended, user_id="ann", reason="her card is broken", **kept._asdict())

    insert(
        tables,
        [
            aged(1, ["personal"], days_over=2),
            aged(2, ["personal"], days_over=-2),
            aged(3, ["medical"], days_over=2),
            aged(4, ["medical"], days_over=-2),
            aged(5, ["medical", "personal"], days_over=-2),
            aged(6, ["financial"], days_over=2),
            aged(7, ["financial"], days_over=-2),
            aged(8, ["financial", "personal"], days_over=-2),
        ],
    )
    run_sql(tables, f"OPTIMIZE TABLE {tables.clickhouse_database}.audit FINAL")
    rows = selected(tables, "SELECT session_id, retention_class, user_id, reason FROM {db}.audit ORDER BY session_id")
    known, blanked = ("ann", "her card is broken"), (None, "")
    assert [tuple(row.values()) for row in rows] == [
        (session_id(2), "gdpr_retention", *known),
        (session_id(4), "hipaa_privacy", *known),
        (session_id(5), "hipaa_privacy", *blanked),
        (session_id(7), "sox_audit", *known),
        (session_id(8), "sox_audit", *blanked),
    ]


def test_rows_that_fit_no_column_are_found_and_the_others_are_written(tables: ClickHouseSettings) -> None:
    inserter = TableInserter(SinkSettings.model_validate(tables.model_dump()), SINKS["batches"].table)
    inserter.open()
    rows = [
        SINKS["batches"].build_row(RawRecord("t", 0, n, 0, b"k", encode_record(batch_record(1, n + 1))), Decoder())
        for n in range(50)
    ]
    for bad in (0, 17, 49):
        rows[bad] = (-1, *rows[bad][1:])
    block = inserter.new_block()
    assert [value.row_index for value in block.add_rows(rows)] == [0, 17, 49]
    inserter.insert_block(block, "t", first_try=True)
    inserter.insert_block(block, "t", first_try=False)
    assert query_numbers(tables, "SELECT count(), uniqExact(number) FROM {db}.batches") == [47, 47]
    inserter.close()


def test_each_partition_s_rules_are_listed_from_the_offset_at_which_they_begin(
    tables: ClickHouseSettings,
) -> None:
    insert(
        tables,
        [
            batch_record(0, 1),
            batch_record(0, 2, first_offset=20, last_offset=20, applied=0, audited=1),  # announces; has no record
            batch_record(0, 3, first_offset=21, last_offset=29, rules=2),
            batch_record(0, 4, rules=2),
            batch_record(1, 1),
        ],
    )
    decided = audit_record(
        0,
        0,
        tenant_id="",
        session_id="",
        kind="decision",
        transition=None,
        event_type="rules_announced",
        reason_code="rules_announced",
        reason="rules 2 begin, after rules 1",
        actor="ops",
        source_partition=0,
        source_offset=20,
    )
    insert(tables, [decided], "decisions")
    activation = encode_record(RulesActivation(*RuleSet(2, 1, 30, 1, 1), "mallory", "w1"))
    for offset in (19, 21):  # the first one is a client's: rules had not been announced
        _insert_history(tables, RawRecord("t.events", 0, offset, NOW_US // 1_000 + offset, None, activation))
    at = datetime.fromtimestamp((NOW_US // 1_000 + 21) / 1_000, UTC).strftime("%Y-%m-%d %H:%M:%S.%f")[:-3]
    assert selected(tables, "SELECT * EXCEPT time FROM {db}.v_rules ORDER BY partition, version") == [
        {"partition": 0, "from_offset": 10, "version": 1, "principal": "", "at": None},
        {"partition": 0, "from_offset": 21, "version": 2, "principal": "ops", "at": at},
        {"partition": 1, "from_offset": 10, "version": 1, "principal": "", "at": None},
    ]
    assert selected(tables, "SELECT * FROM {db}.v_integrity WHERE fault != 'history_rows_missing'") == []
    assert selected(tables, "SELECT * FROM {db}.v_sessions") == []


def _insert_history(clickhouse: ClickHouseSettings, raw: RawRecord) -> None:
    inserter = TableInserter(SinkSettings.model_validate(clickhouse.model_dump()), SINKS["history"].table)
    inserter.open()
    block = inserter.new_block()
    assert not block.add_rows([SINKS["history"].build_row(raw, Decoder())])
    inserter.insert_block(block, f"history {raw.offset}", first_try=True)
    inserter.close()
