"""The document for analysts is drawn from the engine's comments, and each question runs."""

from docs.build.clickhouse_page import PAGE, draw_page
from sessionary.schemas.settings import ClickHouseSettings
from tests.support.pipelines import run_sql


def test_the_document_says_what_is_there_and_what_its_questions_answer(clickhouse: ClickHouseSettings) -> None:
    text = PAGE.read_text("utf-8")
    assert draw_page(text, clickhouse) == text, "make docs redraws it"
    assert text.count("```sql\n") == text.count("```text\n") > 10, "each question has its answer"


def test_every_column_of_every_table_and_view_has_a_comment(tables: ClickHouseSettings) -> None:
    without = f"database = '{tables.clickhouse_database}' AND comment = ''"
    # A materialized view has the columns of the table that it fills.
    plain = f"table NOT IN (SELECT name FROM system.tables WHERE {without} AND engine = 'MaterializedView')"
    assert run_sql(tables, f"SELECT table, name FROM system.columns WHERE {without} AND {plain}") == ""
    assert run_sql(tables, f"SELECT name FROM system.tables WHERE {without} AND engine != 'MaterializedView'") == ""


def test_views_name_their_time_alike_and_those_of_a_time_have_the_columns_of_the_others(
    tables: ClickHouseSettings,
) -> None:
    database = tables.clickhouse_database

    def columns(query: str) -> list[str]:
        return [line.partition("\t")[0] for line in run_sql(tables, f"DESCRIBE ({query})").splitlines()]

    def views(database: str) -> list[str]:
        named = f"database = '{database}' AND engine = 'View'"
        return run_sql(tables, f"SELECT name FROM system.tables WHERE {named} ORDER BY name").split()

    plain = {view: columns(f"SELECT * FROM {database}.{view}") for view in views(database)}
    without_time = {view for view, names in plain.items() if names[0] != "time"}
    assert without_time == {"v_integrity", "v_kpi", "v_run_faults", "v_stored_bytes", "v_usage", "v_usage_by_tenant"}
    times = "from = '2026-01-01 00:00:00', to = '2026-02-01 00:00:00'"
    between = tables.between_database
    assert len(views(between)) > 10
    for view in views(between):
        if view not in ("v_integrity_between", "v_kpi_between"):
            assert columns(f"SELECT * FROM {between}.{view}({times})") == plain[view.removesuffix("_between")]


def test_what_a_tool_lists_in_the_database_it_can_read(tables: ClickHouseSettings) -> None:
    """A tool for analysts lists tables and views, and asks each for a row."""
    database = tables.clickhouse_database
    tables_of = f"SELECT table_name FROM information_schema.tables WHERE table_schema = '{database}'"
    listed = run_sql(tables, tables_of).split()
    assert len(listed) > 60
    for name in listed:
        run_sql(tables, f"SELECT * FROM {database}.{name} LIMIT 1")
