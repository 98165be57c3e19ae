"""The migrations of figures over a filled database, while sinks of the former release write."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from sessionary.schemas.codec import Decoder
from sessionary.schemas.events import StateUpdated
from sessionary.schemas.settings import ClickHouseSettings
from sessionary.sinks.clickhouse import migrate
from sessionary.sinks.clickhouse.inserter import TableInserter
from sessionary.sinks.clickhouse.migrate import Migration, shipped_migrations
from sessionary.sinks.core.rows.figures import FIGURE_COLUMNS
from sessionary.sinks.core.rows.history import HISTORY_COLUMNS, history_row
from sessionary.sinks.core.rows.raw_record import RawRecord
from sessionary.sinks.core.rows.shared import TableRow
from sessionary.sinks.core.sink_kinds import SINKS, TableSpec
from sessionary.sinks.settings import SinkSettings
from tests.support import clickhouse_rows
from tests.support.aged_rows import AgedRows
from tests.support.pipelines import run_sql
from tests.support.sink_records import agent_event, usage
from tests.support.waiting import wait_until

FORMER = 12  # the last migration of before
_TOTALS = "SELECT sum(calls) AS n, sum(tokens_in) AS t, sum(model_cost_usd_micros) AS c FROM v_usage"
_STORED = "SELECT count() AS n, uniqExact(source_offset) AS o FROM history WHERE event_type = 'usage_recorded'"


def former_row(raw: RawRecord, decoder: Decoder) -> TableRow:
    return history_row(raw, decoder)[: -len(FIGURE_COLUMNS)]


FORMER_HISTORY = SINKS["history"]._replace(
    table=TableSpec("history", HISTORY_COLUMNS[: -len(FIGURE_COLUMNS)]), build_row=former_row
)


@contextmanager
def former_release() -> Iterator[None]:
    """Let the sinks know only the migrations and the columns of the former release."""
    former = [migration for migration in shipped_migrations() if migration.version <= FORMER]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(migrate, "shipped_migrations", lambda: former)
        patch.setattr(clickhouse_rows, "SINKS", {**SINKS, "history": FORMER_HISTORY})
        yield


@pytest.fixture
def filled(clickhouse: ClickHouseSettings) -> AgedRows:
    """A database of the former release; retention has not blanked a payload of its rows yet."""
    with former_release():
        migrate.apply_migrations(clickhouse)
        rows = AgedRows(clickhouse, migrated=False)
        for table in ("history", "rejected"):
            run_sql(clickhouse, f"SYSTEM STOP MERGES {clickhouse.clickhouse_database}.{table}")
        for offset, age in enumerate((1, 31, 360)):
            place = 200 * offset
            events = [usage("financial", "personal", session=offset, seq=n + 1) for n in range(100)]
            events.append(agent_event(StateUpdated(1, 2, "{}"), "financial", "personal", session=offset, seq=101))
            rows.insert_rows("history", age, events, place)
            rows.refuse_rows(age, place + 99)
    return rows


def let_merges_run(rows: AgedRows) -> None:
    """Wait for the mutations, and merge."""
    database = rows.clickhouse.clickhouse_database
    for table in ("history", "rejected"):
        run_sql(rows.clickhouse, f"SYSTEM START MERGES {database}.{table}")
    pending = "SELECT count() AS n FROM system.mutations WHERE database = currentDatabase() AND NOT is_done"
    wait_until(lambda: rows.fetch_values(pending) == [(0,)], 60, "the mutations")
    rows.let_retention_pass()


def test_rows_of_the_former_release_keep_their_figures_when_retention_passes(filled: AgedRows) -> None:
    migrate.apply_migrations(filled.clickhouse)
    assert filled.fetch_values(_TOTALS) == [(297, 29_700, 2_970)]
    let_merges_run(filled)
    assert filled.fetch_values("SELECT count() AS n FROM history WHERE payload_json LIKE '%tokens%'") == [(100,)]
    assert filled.fetch_values("SELECT count() AS n FROM rejected") == [(3,)]
    assert filled.fetch_values(_TOTALS) == [(297, 29_700, 2_970)]
    assert filled.fetch_values("SELECT countIf(model = 'm-large') AS n FROM v_usage_calls") == [(297,)]
    assert filled.fetch_values("SELECT sum(state_version) AS v, count(state_version) AS n FROM history") == [(6, 3)]


def test_a_migration_that_was_killed_after_any_statement_is_finished_by_the_next_one(filled: AgedRows) -> None:
    database = filled.clickhouse.clickhouse_database
    (figures,) = [migration for migration in shipped_migrations() if migration.version == FORMER + 1]
    done: list[str] = []
    for statement in figures.statements(database):
        run_sql(filled.clickhouse, statement)
        done.append(statement)
        if len(done) in (1, 2, 4):  # columns, their values, expiries
            for former in done:
                run_sql(filled.clickhouse, former)
            # Even if the payload has gone in between.
            let_merges_run(filled)
    applied = migrate.apply_migrations(filled.clickhouse)
    assert applied[0] == "0013_figures"
    assert filled.fetch_values("SELECT sum(tokens_in) AS t FROM history") == [(30_000,)]
    assert migrate.apply_migrations(filled.clickhouse) == []


class FormerSink:
    """Inserts blocks of one call each, as a history sink of the former release that runs on."""

    def __init__(self, rows: AgedRows) -> None:
        self._rows, self._stop, self.written = rows, threading.Event(), 0
        self._thread = threading.Thread(target=self._run)
        self._inserter = TableInserter(SinkSettings.model_validate(rows.clickhouse.model_dump()), FORMER_HISTORY.table)
        with former_release():
            self._inserter.open()

    def __enter__(self) -> "FormerSink":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()
        self._inserter.close()

    def _run(self) -> None:
        sink = FORMER_HISTORY
        while not self._stop.is_set():
            offset = 1_000 + self.written
            value = usage("financial", "personal", session=50, seq=offset)
            block = self._inserter.new_block()
            raw = RawRecord("e", 0, offset, self._rows.at_us(1) // 1_000, b"k", value)
            assert not block.add_rows([sink.build_row(raw, Decoder())])
            # A retry under the same token is known.
            for first_try in (True, False):
                self._inserter.insert_block(block, f"sink {offset}", first_try=first_try)
            self.written += 1


def test_sinks_of_the_former_release_write_on_while_the_tables_change(filled: AgedRows) -> None:
    with FormerSink(filled) as sink:
        wait_until(lambda: sink.written >= 3, 60, "rows before the migration")
        migrate.apply_migrations(filled.clickhouse)
        enough = sink.written + 3
        wait_until(lambda: sink.written >= enough, 60, "rows after it")
    let_merges_run(filled)
    assert filled.fetch_values(_STORED) == [(300 + sink.written,) * 2]
    of_sink = f"{_TOTALS}_by WHERE endsWith(session_id, '50')"
    assert filled.fetch_values(of_sink) == [(sink.written, 100 * sink.written, 10 * sink.written)]


def test_each_statement_of_the_migrations_can_run_twice(clickhouse: ClickHouseSettings) -> None:
    migrate.apply_migrations(clickhouse)
    late: list[Migration] = [migration for migration in shipped_migrations() if migration.version > FORMER]
    for migration in late:
        for statement in migration.statements(clickhouse.clickhouse_database):
            run_sql(clickhouse, statement)
    assert len(late) == len(shipped_migrations()) - FORMER
