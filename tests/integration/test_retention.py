"""What the real engine keeps, by the settings of retention."""

from collections.abc import Sequence

import pytest
from pydantic import ValidationError

from sessionary.schemas.codec import Decoder, encode_record
from sessionary.schemas.records import BatchAcknowledged, Tick
from sessionary.schemas.settings import ClickHouseSettings
from sessionary.schemas.types import DataClass
from sessionary.sinks.clickhouse import migrate
from sessionary.sinks.clickhouse.inserter import TableInserter
from sessionary.sinks.clickhouse.retention import apply_retention
from sessionary.sinks.core.rows.batches import acknowledgement_row
from sessionary.sinks.core.rows.raw_record import RawRecord
from sessionary.sinks.core.sink_kinds import SINKS
from sessionary.sinks.settings import RetentionSettings, SinkSettings
from tests.support.event_factory import EventFactory
from tests.support.pipelines import run_sql
from tests.support.sink_records import DAY_US, batch_record

_TICK = encode_record(Tick("p1"))


def event(event_type: str, *classes: DataClass) -> bytes:
    return EventFactory().event_bytes(event_type, {"data_classes": classes})


class Engine:
    """A migrated database, whose rows are as old as a test wants."""

    def __init__(self, clickhouse: ClickHouseSettings) -> None:
        migrate.apply_migrations(clickhouse)
        self.clickhouse = clickhouse
        self.now_ms = 1_000 * int(self.query("SELECT toUnixTimestamp(now())"))

    def query(self, sql: str) -> str:
        return run_sql(self.clickhouse, sql.replace("{db}", self.clickhouse.clickhouse_database)).strip()

    def settings(self, **days: int) -> RetentionSettings:
        return RetentionSettings.model_validate({**self.clickhouse.model_dump(), **days})

    def at_ms(self, age_days: int) -> int:
        return self.now_ms - age_days * DAY_US // 1_000

    def insert(self, records: Sequence[tuple[int, bytes]]) -> None:
        """Insert rows of history: age in days, and value. The offset is the place in the list."""
        history = SINKS["history"]
        inserter = TableInserter(SinkSettings.model_validate(self.clickhouse.model_dump()), history.table)
        inserter.open()
        block = inserter.new_block()
        rows = [
            history.build_row(RawRecord("e", 0, offset, self.at_ms(age), None, value), Decoder())
            for offset, (age, value) in enumerate(records)
        ]
        assert not block.add_rows(rows)
        inserter.insert_block(block, "t", first_try=True)
        inserter.close()

    def insert_batches(self, ages: Sequence[int]) -> None:
        """Insert a transaction and its acknowledgement of each age, numbered from 1."""
        batches = SINKS["batches"]
        assert batches.side is not None
        settings = SinkSettings.model_validate(self.clickhouse.model_dump())
        inserter = TableInserter(settings, batches.table, batches.side.table)
        inserter.open()
        values = [
            (
                batch_record(
                    0,
                    number,
                    started_at=1_000 * self.at_ms(age),
                    previous_acknowledged_at=None,
                    applied=0,
                    audited=0,
                    first_offset=number,
                    last_offset=number,
                ),
                BatchAcknowledged(0, number, 1_000 * self.at_ms(age), "p1"),
            )
            for number, age in enumerate(ages, 1)
        ]
        for table, index, build in (
            (batches.table.name, 0, batches.build_row),
            (batches.side.table.name, 1, acknowledgement_row),
        ):
            block = inserter.new_block(table)
            raws = [
                RawRecord("b", 0, offset, self.now_ms, None, encode_record(pair[index]))
                for offset, pair in enumerate(values)
            ]
            assert not block.add_rows([build(raw, Decoder()) for raw in raws])
            inserter.insert_block(block, f"t {table}", first_try=False, table=table)
        inserter.close()

    def kept_offsets(self) -> list[int]:
        self.query("OPTIMIZE TABLE {db}.history FINAL")
        return [int(line) for line in self.query("SELECT source_offset FROM {db}.history ORDER BY 1").split()]

    def kept_batches(self) -> tuple[str, str]:
        for table in ("batches", "batch_acknowledgements"):
            self.query(f"OPTIMIZE TABLE {{db}}.{table} FINAL")
        counts = (self.query(f"SELECT count() FROM {{db}}.{table}") for table in ("batches", "batch_acknowledgements"))
        batches, acknowledgements = counts
        return batches, acknowledgements


@pytest.fixture
def engine(clickhouse: ClickHouseSettings) -> Engine:
    return Engine(clickhouse)


ROWS = (
    (29, _TICK),
    (31, _TICK),  # 1
    (31, event("heartbeat")),  # 2
    (61, event("heartbeat")),  # 3
    (31, event("heartbeat", "personal")),  # 4
    (31, event("heartbeat", "financial")),  # 5: a law says how long
    (364, event("session_started")),  # 6
    (366, event("session_started")),  # 7
    (366, event("session_started", "financial")),  # 8
)


def test_ticks_and_heartbeats_are_kept_for_a_month_and_what_a_law_names_as_long_as_it_says(engine: Engine) -> None:
    engine.insert(ROWS)
    assert engine.kept_offsets() == [0, 5, 6, 8]
    assert apply_retention(engine.settings()) == [], "the migration makes what the defaults are"


def test_settings_change_what_is_kept_once_and_never_beyond_the_end_of_personal_data(engine: Engine) -> None:
    wanted = engine.settings(retention_idle_days=60, retention_history_days=730)
    lines: list[str] = []
    assert apply_retention(wanted, lines.append) == [
        "history is kept for 730 days, no longer for 365",
        "idle is kept for 60 days, no longer for 30",
    ]
    assert lines == [
        f"changing what is kept: ALTER TABLE {engine.clickhouse.clickhouse_database}.{table}"
        for table in ("history", "rejected")  # a refusal marks its row of history
    ]
    engine.insert(ROWS)
    assert engine.kept_offsets() == [0, 1, 2, 5, 6, 7, 8]
    assert apply_retention(wanted) == []
    # Rows that are stored already follow a shorter time.
    assert apply_retention(engine.settings(retention_history_days=90)) == [
        "history is kept for 90 days, no longer for 730",
        "idle is kept for 30 days, no longer for 60",
    ]
    assert engine.kept_offsets() == [0, 5, 8]


def test_transactions_that_retention_removed_are_not_missed(engine: Engine) -> None:
    engine.insert_batches([400, 100, 60, 20, 10])
    faults = "SELECT count() FROM {db}.v_integrity WHERE fault = 'batch_missing'"
    assert engine.query(faults) == "0"
    assert apply_retention(engine.settings(retention_batches_days=90)) == [
        "batches is kept for 90 days, no longer for 2557"
    ]
    assert engine.kept_batches() == ("3", "3")
    assert engine.query(faults) == "0"


def test_a_first_transaction_that_is_lost_is_missed_while_none_can_have_expired(engine: Engine) -> None:
    engine.insert_batches([100, 60, 20])
    engine.query("ALTER TABLE {db}.batches DELETE WHERE number = 1 SETTINGS mutations_sync = 2")
    assert engine.query("SELECT rows FROM {db}.v_integrity WHERE fault = 'batch_missing'") == "1"


def run_event(event_type: str, *classes: DataClass) -> bytes:
    return EventFactory().event_bytes(event_type, {"data_classes": classes, "run_id": "r1"})


RUN_ROWS = (
    (29, run_event("tool_call_started")),
    (31, run_event("tool_call_started")),  # 1
    (31, run_event("tool_call_started", "financial")),  # 2: a law keeps it in history alone
    (59, run_event("step_succeeded")),  # 3
    (61, run_event("step_succeeded")),  # 4
    (61, run_event("run_started", "financial")),  # 5
    (91, run_event("run_started")),  # 6
    (31, run_event("run_started", "personal")),  # 7
    (91, run_event("artifact_completed")),  # 8: hash and size stay as long as the event
    (366, run_event("artifact_completed")),  # 9
)


def kept_of_runs(engine: Engine) -> list[int]:
    engine.query("OPTIMIZE TABLE {db}.run_events FINAL")
    return [int(line) for line in engine.query("SELECT source_offset FROM {db}.run_events ORDER BY 1").split()]


def test_runs_and_steps_are_kept_by_the_setting_and_tool_calls_for_a_month(engine: Engine) -> None:
    engine.insert(RUN_ROWS)
    assert kept_of_runs(engine) == [0, 3, 4, 5, 8]
    assert apply_retention(engine.settings(retention_runs_days=60)) == ["runs is kept for 60 days, no longer for 90"]
    assert kept_of_runs(engine) == [0, 3, 8]
    assert engine.kept_offsets() == [0, 1, 2, 3, 4, 5, 6, 8], "history has them for longer"


@pytest.mark.parametrize("days", [29, 91])
def test_runs_are_kept_for_30_to_90_days(days: int) -> None:
    with pytest.raises(ValidationError, match="retention_runs_days"):
        RetentionSettings.model_validate({"retention_runs_days": days})


def test_every_table_has_an_end_of_its_rows(engine: Engine) -> None:
    endless = engine.query(
        "SELECT name FROM system.tables WHERE database = '{db}' AND engine LIKE '%MergeTree' "
        "AND create_table_query NOT LIKE '%ORDER BY%TTL%' ORDER BY name"
    )
    # A row of these is a migration, or a setting that was changed.
    assert endless.split() == ["retention_days", "schema_migrations"]
