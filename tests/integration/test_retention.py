"""What the real engine keeps, by the settings of retention."""

from collections.abc import Sequence

import pytest
from pydantic import ValidationError

from sessionary.schemas.codec import encode_record
from sessionary.schemas.records import BatchAcknowledged, Tick
from sessionary.schemas.settings import ClickHouseSettings
from sessionary.schemas.types import DataClass
from sessionary.sinks.clickhouse.migrate import apply_retention
from sessionary.sinks.settings import RetentionSettings
from tests.support.aged_rows import AgedRows
from tests.support.clickhouse_rows import insert_block
from tests.support.event_factory import EventFactory
from tests.support.migrated_tables import make_tables
from tests.support.pipelines import run_sql
from tests.support.sink_records import batch_record

_TICK = encode_record(Tick("p1"))


def event(event_type: str, *classes: DataClass) -> bytes:
    return EventFactory().event_bytes(event_type, {"data_classes": classes})


class Engine(AgedRows):
    """Aged rows, and what settings of retention leave of them."""

    def query(self, sql: str) -> str:
        return run_sql(self.clickhouse, sql.replace("{db}", self.clickhouse.clickhouse_database)).strip()

    def settings(self, **days: int) -> RetentionSettings:
        return RetentionSettings.model_validate({**self.clickhouse.model_dump(), **days})

    def insert(self, records: Sequence[tuple[int, bytes]]) -> None:
        """Insert rows of history: age in days, and value. The offset is the place in the list."""
        rows = [(self.at_us(age), offset, value) for offset, (age, value) in enumerate(records)]
        insert_block(self.clickhouse, "history", rows, "t")

    def insert_batches(self, ages: Sequence[int]) -> None:
        """Insert a transaction and its acknowledgement of each age, numbered from 1."""
        batches = [
            batch_record(
                0,
                number,
                started_at=self.at_us(age),
                previous_acknowledged_at=None,
                applied=0,
                audited=0,
                first_offset=number,
                last_offset=number,
            )
            for number, age in enumerate(ages, 1)
        ]
        reported = [BatchAcknowledged(0, batch.number, batch.started_at, "p1") for batch in batches]
        for in_side, values in ((False, map(encode_record, batches)), (True, map(encode_record, reported))):
            rows = [(self.now_us, offset, value) for offset, value in enumerate(values)]
            insert_block(self.clickhouse, "batches", rows, f"t {in_side}", in_side=in_side)

    def kept_offsets(self) -> list[int]:
        self.let_retention_pass()
        return [int(line) for line in self.query("SELECT source_offset FROM {db}.history ORDER BY 1").split()]

    def kept_batches(self) -> tuple[str, str]:
        self.let_retention_pass()
        counts = (self.query(f"SELECT count() FROM {{db}}.{table}") for table in ("batches", "batch_acknowledgements"))
        batches, acknowledgements = counts
        return batches, acknowledgements


@pytest.fixture
def engine(clickhouse: ClickHouseSettings) -> Engine:
    make_tables(clickhouse)
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
        for table in ("history", "rejected")  # a rejection marks its row of history
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
    # A row of these is a setting that was changed, a migration, or a view.
    assert endless.split() == ["retention_days", "schema_migrations", "schema_views"]
