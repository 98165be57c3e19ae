"""Tests that need tables get copies of migrated ones: the two must not differ."""

import pytest

from sessionary.infra.clickhouse_client import ClickHouseClient, Row
from sessionary.schemas.settings import ClickHouseSettings
from sessionary.sinks.clickhouse import migrate
from sessionary.sinks.clickhouse.migrate import shipped_schema
from tests.golden.forms import differences, frozen_releases, read_forms, what_to_do
from tests.support.migrated_tables import make_tables
from tests.support.pipelines import drop_database, new_clickhouse
from tests.support.view_columns import read_columns

_QUESTIONS = (
    "SELECT name, engine, comment, create_table_query FROM system.tables "
    "WHERE database IN ('{db}', '{db}_between') ORDER BY name",
    "SELECT table, name, type, default_expression, comment, compression_codec, is_in_sorting_key "
    "FROM system.columns WHERE database = '{db}' ORDER BY table, position",
    "SELECT version, name, checksum FROM {db}.schema_migrations ORDER BY version",
    "SELECT name, checksum, definition, release, is_dropped FROM {db}.schema_views FINAL ORDER BY name",
    "SELECT table_name, days FROM {db}.retention_days ORDER BY table_name",
    "SELECT name FROM system.tables WHERE database = '{db}' AND total_rows > 0 ORDER BY name",
)


def answers(clickhouse: ClickHouseSettings, question: str) -> list[Row]:
    """Return the rows of a query, without the name of the database."""
    database = clickhouse.clickhouse_database
    rows = ClickHouseClient(clickhouse).fetch_rows(question.replace("{db}", database))
    return [
        {name: cell.replace(database, "") if isinstance(cell, str) else cell for name, cell in row.items()}
        for row in rows
    ]


def test_tables_that_are_made_for_a_test_are_those_of_the_migrations(clickhouse: ClickHouseSettings) -> None:
    others = [new_clickhouse(clickhouse.clickhouse_url) for _ in range(2)]
    try:
        migrate.apply_migrations(clickhouse)
        for made in others:  # of the two, one at least is a copy
            make_tables(made)
        for question in _QUESTIONS:
            migrated = answers(clickhouse, question)
            assert migrated or "retention_days" in question
            assert [answers(made, question) for made in others] == [migrated] * 2
        assert migrate.apply_migrations(others[1]) == []
        with pytest.raises(AssertionError, match="ALREADY_EXISTS"):
            make_tables(others[1])  # for new databases only
    finally:
        for made in others:
            drop_database(made)


def test_the_columns_of_tables_and_views_are_those_that_the_newest_release_has_frozen(
    clickhouse: ClickHouseSettings,
) -> None:
    make_tables(clickhouse)
    release = frozen_releases()[-1]
    frozen, now = read_forms(release, "columns"), read_columns(clickhouse)
    assert differences(frozen, now) == [], what_to_do(release, "columns")
    assert {name: list(columns) for name, columns in now.items()} == {
        name: list(columns) for name, columns in frozen.items()
    }, "in their order"
    assert len(frozen) > len(shipped_schema().views) > 60
