"""`sessionary db migrate` over databases of this release, of others, and with views of others."""

import threading
from collections.abc import Mapping

import pytest

from sessionary.infra.clickhouse_client import ClickHouseClient, Row
from sessionary.schemas.codec import Decoder
from sessionary.schemas.events import RunStarted
from sessionary.schemas.settings import ClickHouseSettings
from sessionary.sinks.clickhouse import migrate
from sessionary.sinks.clickhouse.inserter import TableInserter
from sessionary.sinks.clickhouse.migrate import Migration, Schema, order_views, shipped_migrations, shipped_schema
from sessionary.sinks.core.rows.shared import RawRecord
from sessionary.sinks.core.sink_kinds import SINKS
from sessionary.sinks.errors import OperatorError
from sessionary.sinks.settings import SinkSettings
from tests.support.migrated_tables import make_tables
from tests.support.pipelines import run_sql
from tests.support.sink_records import NOW_US, agent_event
from tests.support.waiting import wait_until

V_A = "CREATE OR REPLACE VIEW {database}.v_a AS\nSELECT * FROM {database}.v_b;\n"
V_B = "CREATE OR REPLACE VIEW {database}.v_b AS\nSELECT tenant_id AS tenant FROM {database}.history;\n"
V_C = "CREATE OR REPLACE VIEW {database}.v_c AS\nSELECT 1 AS one;\nALTER TABLE {database}.v_c MODIFY COMMENT 'c';\n"
VIEWS = {"v_a": V_A, "v_b": V_B, "v_c": V_C}
ALL_MADE = ["v_b", "v_c", "v_a"]


class Database:
    """An empty database, and releases that migrate it."""

    def __init__(self, clickhouse: ClickHouseSettings, patch: pytest.MonkeyPatch) -> None:
        self.clickhouse, self._patch = clickhouse, patch
        self._tables = shipped_migrations()

    def release(self, views: Mapping[str, str], *later: Migration, release: str = "0.2.0") -> None:
        """Let the code be a release with these views, and migrations after the shipped ones."""
        migrations = [*self._tables, *later]
        schema = Schema(release, tuple(migrations), order_views(views, migrations[-1].checksum))
        self._patch.setattr(migrate, "shipped_schema", lambda: schema)
        self._patch.setattr(migrate, "shipped_migrations", lambda: migrations)

    def migrate(self) -> list[str]:
        """Run `db migrate`."""
        return migrate.apply_migrations(self.clickhouse)

    def run(self, *statements: str) -> None:
        """Run statements as an operator."""
        for statement in statements:
            run_sql(self.clickhouse, statement.replace("{database}", self.clickhouse.clickhouse_database))

    def ask(self, sql: str) -> list[Row]:
        """Return a query's rows."""
        return ClickHouseClient(self.clickhouse).fetch_rows(sql)

    def names(self) -> set[str]:
        """Return the names of all plain views."""
        found = self.ask("SELECT name FROM system.tables WHERE database = currentDatabase() AND engine = 'View'")
        return {row["name"] for row in found}

    def identities(self) -> dict[str, str]:
        """Return what changes whenever a table or view is created."""
        found = self.ask("SELECT name, toString(uuid) AS id FROM system.tables WHERE database = currentDatabase()")
        return {row["name"]: row["id"] for row in found}

    def content(self) -> list[list[Row]]:
        """Return all that `db migrate` can change."""
        objects = (
            "SELECT name, toString(uuid), create_table_query FROM system.tables WHERE database = currentDatabase()"
        )
        notes = [f"SELECT * FROM {table} FINAL ORDER BY ALL" for table in ("schema_migrations", "schema_views")]
        return [self.ask(query) for query in (f"{objects} ORDER BY name", *notes)]


@pytest.fixture
def database(clickhouse: ClickHouseSettings, monkeypatch: pytest.MonkeyPatch) -> Database:
    """A database that a release with three views has migrated; two of them use each other."""
    made = Database(clickhouse, monkeypatch)
    made.release(VIEWS)
    assert made.migrate() == ["0001_tables", *ALL_MADE]
    return made


def test_a_view_whose_file_changed_is_made_anew_with_those_that_use_it_and_no_other(database: Database) -> None:
    before = database.identities()
    database.release({**VIEWS, "v_b": V_B.replace("tenant_id AS tenant", "producer_seq AS number")})
    with pytest.raises(OperatorError, match=r"views of database .* differ: v_b, v_a; run: sessionary db migrate"):
        migrate.check_migrations(database.clickhouse)
    assert database.migrate() == ["v_b", "v_a"]
    after = database.identities()
    assert {name for name in before if before[name] != after[name]} == {"v_a", "v_b"}
    # The server keeps columns in a view: v_a has the new ones because it was made anew.
    columns = database.ask("DESCRIBE TABLE v_a")
    assert [(row["name"], row["type"]) for row in columns] == [("number", "Int64")]
    migrate.check_migrations(database.clickhouse)


def test_nothing_is_touched_if_no_file_changed(database: Database) -> None:
    before = database.content()
    assert database.migrate() == []
    assert database.content() == before


def test_views_that_were_changed_or_dropped_by_hand_are_made_anew(database: Database) -> None:
    database.run(V_C.partition(";")[0].replace("1 AS one", "2 AS two"), "DROP VIEW {database}.v_a")
    assert database.migrate() == ["v_c", "v_a"]
    assert database.ask("SELECT * FROM v_c") == [{"one": 1}]
    comment = database.ask("SELECT comment FROM system.tables WHERE database = currentDatabase() AND name = 'v_c'")
    assert comment == [{"comment": "c"}]


def test_a_migration_makes_all_views_anew(database: Database) -> None:
    """Columns of tables may have other types after it."""
    alter = "ALTER TABLE {database}.history ADD COLUMN IF NOT EXISTS more UInt8 COMMENT 'x';\n"
    database.release(VIEWS, Migration(2, "more", alter))
    assert database.migrate() == ["0002_more", *ALL_MADE]
    assert database.migrate() == []


def test_a_view_that_no_file_has_any_more_is_dropped_and_one_of_others_stays(database: Database) -> None:
    database.run("CREATE VIEW {database}.v_theirs AS SELECT * FROM {database}.v_c")
    theirs = database.identities()["v_theirs"]
    database.release({"v_b": V_B})
    with pytest.raises(OperatorError, match="differ: v_a, v_c"):
        migrate.check_migrations(database.clickhouse)
    assert database.migrate() == ["v_a dropped", "v_c dropped"]
    assert database.names() == {"v_b", "v_theirs"}
    assert database.identities()["v_theirs"] == theirs
    assert database.migrate() == []
    # Its name is free, and belongs to the one who takes it.
    database.run("CREATE VIEW {database}.v_a AS SELECT 3 AS three")
    assert database.migrate() == []
    assert database.ask("SELECT * FROM v_a") == [{"three": 3}]


def test_a_view_with_parameters_stands_in_a_database_of_its_own_for_each_pipeline(database: Database) -> None:
    """It leaves the database that had it before, and is made again if either one was dropped."""
    make = "CREATE OR REPLACE VIEW {database}@.v_b_between AS\nSELECT {n:UInt8} AS n FROM {database}.v_b;\n"
    database.release({**VIEWS, "v_b_between": make.replace("@", "")})
    database.migrate()
    database.release({**VIEWS, "between.v_b_between": make.replace("@", "_between")})
    assert database.migrate() == ["between.v_b_between", "v_b_between dropped"]
    between = database.clickhouse.between_database
    assert database.names() == {"v_a", "v_b", "v_c"}
    asked = f"SELECT count() AS rows FROM {between}.v_b_between(n = 1)"
    assert database.ask(asked) == [{"rows": 0}]
    assert database.migrate() == []
    migrate.check_migrations(database.clickhouse)
    database.run("DROP DATABASE {database}")
    assert database.migrate() == ["0001_tables", "v_b", "v_c", "between.v_b_between", "v_a"]
    assert database.ask(asked) == [{"rows": 0}]
    database.run(f"DROP DATABASE {between}")
    assert database.migrate() == ["between.v_b_between"]


@pytest.mark.parametrize("kind", ["VIEW {database}.v_new AS", "TABLE {database}.v_new ENGINE = Memory AS"])
def test_a_view_or_table_of_others_with_the_name_of_a_view_is_named_and_not_replaced(
    database: Database, kind: str
) -> None:
    database.run(f"CREATE {kind} SELECT 7 AS seven")
    before = database.content()
    new = V_C.replace("v_c", "v_new")
    database.release({**VIEWS, "v_b": f"{V_B}-- changed\nSELECT 1;\n", "v_new": new})
    with pytest.raises(OperatorError, match="sessionary did not make v_new of database"):
        database.migrate()
    assert database.content() == before
    assert database.ask("SELECT * FROM v_new") == [{"seven": 7}]
    database.run("RENAME TABLE {database}.v_new TO {database}.v_theirs")
    assert database.migrate() == ["v_b", "v_new", "v_a"]


def test_a_run_that_failed_midway_is_completed_by_the_next_one(database: Database) -> None:
    broken = V_C.replace("1 AS one", "no_such_column FROM {database}.history")
    changed = {**VIEWS, "v_b": V_B.replace("tenant_id", "session_id"), "v_d": V_C.replace("v_c", "v_d")}
    database.release({**changed, "v_c": broken})
    for _ in range(2):
        with pytest.raises(OperatorError, match="no_such_column"):
            database.migrate()
    assert database.ask("SELECT * FROM v_c") == [{"one": 1}], "it is as it was"
    database.release(changed)
    assert database.migrate() == ["v_b", "v_c", "v_d", "v_a"]
    assert database.migrate() == []


def test_tables_that_were_made_in_part_are_completed(
    clickhouse: ClickHouseSettings, monkeypatch: pytest.MonkeyPatch
) -> None:
    database = Database(clickhouse, monkeypatch)
    statements = shipped_migrations()[0].statements(clickhouse.clickhouse_database)
    for number in range(len(statements)):
        database.run(*statements[: number + 1])  # each runs several times
        with pytest.raises(OperatorError, match=r"lacks 0001_tables; run: sessionary db migrate"):
            migrate.check_migrations(clickhouse)
    database.release(VIEWS)
    assert database.migrate() == ["0001_tables", *ALL_MADE]


def test_each_statement_of_a_release_can_run_twice(clickhouse: ClickHouseSettings) -> None:
    make_tables(clickhouse)
    schema = shipped_schema()
    name = clickhouse.clickhouse_database
    parts = [migration.statements(name) for migration in schema.migrations]
    for statements in (*parts, *(view.statements(name) for view in schema.views)):
        for statement in statements:
            run_sql(clickhouse, statement)
    migrate.check_migrations(clickhouse)


@pytest.mark.parametrize("newer", [{**VIEWS, "v_c": V_C.replace("1 AS", "2 AS")}, {"v_a": V_A, "v_b": V_B}])
def test_an_older_release_refuses_a_database_whose_views_a_newer_one_made(
    database: Database, newer: dict[str, str]
) -> None:
    database.release(newer, release="0.3.0")
    database.migrate()
    before = database.content()
    database.release(VIEWS)
    with pytest.raises(OperatorError, match=r"release 0\.3\.0 has migrated database .*, and this is release 0\.2\.0"):
        database.migrate()
    assert database.content() == before
    migrate.check_migrations(database.clickhouse)  # an older release's sinks work with it


def test_an_older_release_refuses_a_database_with_a_migration_that_it_does_not_know(database: Database) -> None:
    alter = "ALTER TABLE {database}.history ADD COLUMN IF NOT EXISTS more UInt8 COMMENT 'x';\n"
    database.release(VIEWS, Migration(2, "more", alter), release="0.2.1")
    database.migrate()
    before = database.content()
    database.release(VIEWS)
    with pytest.raises(OperatorError, match=r"newer_database: release 0\.2\.1 has migrated"):
        database.migrate()
    assert database.content() == before
    migrate.check_migrations(database.clickhouse)


def test_a_release_that_changes_nothing_leaves_the_database_to_the_one_before(database: Database) -> None:
    database.release(VIEWS, release="0.3.0")
    assert database.migrate() == []
    database.release(VIEWS)
    assert database.migrate() == []


def test_a_database_of_before_0_2_0_is_refused_and_stays_as_it_is(clickhouse: ClickHouseSettings) -> None:
    """It has the 35 migrations of that time, of which the first one made tables, too."""
    name = clickhouse.clickhouse_database
    columns = "version UInt32, name String, checksum String, applied_at DateTime64(3, 'UTC') DEFAULT now64(3)"
    engine = "ENGINE = ReplacingMergeTree ORDER BY version"
    run_sql(clickhouse, f"CREATE TABLE {name}.schema_migrations ({columns}) {engine}")
    applied = "SELECT number + 1, if(number = 0, 'tables', 'x'), 'former' FROM numbers(35)"
    run_sql(clickhouse, f"INSERT INTO {name}.schema_migrations (version, name, checksum) {applied}")
    run_sql(clickhouse, f"CREATE VIEW {name}.v_sessions AS SELECT 1 AS one")
    sentence = f"older_form: the tables of database {name} are older than release 0.2.0"
    for refused in (migrate.apply_migrations, migrate.check_migrations):
        with pytest.raises(OperatorError, match=sentence):
            refused(clickhouse)
    tables = run_sql(clickhouse, f"SELECT name FROM system.tables WHERE database = '{name}' ORDER BY name")
    assert tables.split() == ["schema_migrations", "v_sessions"]
    assert run_sql(clickhouse, f"SELECT count() FROM {name}.schema_migrations") == "35\n"


class RunningSink:
    """Inserts blocks of one event of a run each, as the history sink does, until it is stopped."""

    def __init__(self, clickhouse: ClickHouseSettings) -> None:
        self._stop, self.written = threading.Event(), 0
        self._inserter = TableInserter(SinkSettings.model_validate(clickhouse.model_dump()), SINKS["history"].table)
        self._inserter.open()
        self._thread = threading.Thread(target=self._run)

    def __enter__(self) -> "RunningSink":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()
        self._inserter.close()

    def _run(self) -> None:
        while not self._stop.is_set():
            place = self.written
            event = agent_event(RunStarted("detached", "t"), "financial", session=1, seq=place + 1, run_id="r1")
            block = self._inserter.new_block()
            raw = RawRecord("e", 0, place, NOW_US // 1_000, b"k", event)
            assert not block.add_rows([SINKS["history"].build_row(raw, Decoder())])
            # A retry under the same token is known.
            for first_try in (True, False):
                self._inserter.insert_block(block, f"sink {place}", first_try=first_try)
            self.written += 1


def test_no_row_is_lost_while_tables_their_materialized_view_and_views_change_under_a_sink(database: Database) -> None:
    """A DROP and a CREATE of the materialized view would lose the rows between them."""
    name = database.clickhouse.clickhouse_database
    run_sql(database.clickhouse, f"SYSTEM STOP TTL MERGES {name}.run_events")
    run_sql(database.clickhouse, f"SYSTEM STOP TTL MERGES {name}.history")
    (made,) = [text for text in shipped_migrations()[0].statements("{database}") if "MATERIALIZED" in text]
    query = made.partition(" AS\n")[2].replace("topic_id\nFROM", "topic_id, 7 AS more\nFROM")
    added = "ALTER TABLE {database}.run_events ADD COLUMN IF NOT EXISTS more UInt8 COMMENT 'x';\n"
    modified = f"ALTER TABLE {{database}}.run_events_of_history MODIFY QUERY\n{query};\n"
    with RunningSink(database.clickhouse) as sink:
        wait_until(lambda: sink.written >= 3, 60, "rows before the migration")
        database.release({**VIEWS, "v_c": V_C.replace("1 AS", "2 AS")}, Migration(2, "more", added + modified))
        assert database.migrate() == ["0002_more", *ALL_MADE]
        enough = sink.written + 3
        wait_until(lambda: sink.written >= enough, 60, "rows after it")
    # A block that is repeated over the change of the query has another token below it, and so two
    # rows there until they merge. Views see one.
    for table in ("history", "run_events FINAL"):
        found = database.ask(f"SELECT count() AS n, uniqExact(source_offset) AS o FROM {table}")
        assert found == [{"n": sink.written, "o": sink.written}], table
    (more,) = database.ask("SELECT countIf(more = 0) AS before, countIf(more = 7) AS after FROM run_events")
    assert more["before"] >= 3
    assert more["after"] >= 3


def test_a_sink_is_not_ready_if_a_table_can_be_read_but_takes_no_rows(clickhouse: ClickHouseSettings) -> None:
    make_tables(clickhouse)
    table, database = SINKS["history"].table, clickhouse.clickhouse_database
    inserter = TableInserter(SinkSettings.model_validate(clickhouse.model_dump()), table)
    inserter.open()
    assert ClickHouseClient(clickhouse).fetch_rows(f"SELECT count() AS n FROM {table.name}") == [{"n": 0}]
    inserter.close()
    run_sql(clickhouse, f"RENAME TABLE {database}.{table.name} TO {database}.kept")
    run_sql(clickhouse, f"CREATE VIEW {database}.{table.name} AS SELECT * FROM {database}.kept")
    with pytest.raises(OperatorError):
        inserter.open()
