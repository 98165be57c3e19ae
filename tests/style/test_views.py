"""A migration that creates a view anew keeps its columns, or says which ones it leaves out."""

import pytest

from sessionary.sinks.clickhouse.migrate import Migration, shipped_migrations
from tests.support.view_columns import lost_columns, view_forms

_FIRST = Migration(1, "a", "CREATE OR REPLACE VIEW {database}.v_a AS\nSELECT x, sum(y) AS z FROM {database}.t;\n")
_SECOND = Migration(2, "b", "CREATE OR REPLACE VIEW {database}.v_a AS\nSELECT x, 1 AS z, 2 AS w FROM {database}.t;\n")


def views_of(sql: str) -> dict[str, tuple[str, ...]]:
    return {form.view: form.columns for form in view_forms([Migration(1, "a", sql)])}


def test_a_view_loses_no_column_unless_its_migration_says_so() -> None:
    migrations = shipped_migrations()
    views = [form.view for form in view_forms(migrations)]
    assert len(views) > len(set(views)) > 30
    assert lost_columns(migrations) == []


def test_a_view_that_begins_from_an_older_form_is_found() -> None:
    older = Migration(3, "c", _FIRST.sql)
    assert lost_columns([_FIRST, _SECOND]) == []
    assert lost_columns([_FIRST, _SECOND, older]) == [("0003_c", "v_a", "w")]
    assert lost_columns([_FIRST, _SECOND, Migration(3, "c", f"-- v_a leaves out: w\n{_FIRST.sql}")]) == []
    other = Migration(3, "c", f"-- v_b leaves out: w\n-- v_a leaves out: z\n{_FIRST.sql}")
    assert lost_columns([_FIRST, _SECOND, other]) == [("0003_c", "v_a", "w")]


def test_columns_are_read_from_the_outermost_query() -> None:
    begin = "-- a comment; with its sign\nCREATE OR REPLACE VIEW {database}."
    inner = "(SELECT a, b FROM {database}.t) AS q"
    sql = (
        f"{begin}v_a AS\nWITH d AS (SELECT k FROM x), 1 AS n\n"
        f"SELECT q.a AS a, f(q.b, ',') AS `try`, {{late_s:UInt32}} AS late, t.c\n"
        f"FROM {inner}\nUNION ALL\nSELECT 1, 2;\n"
        f"{begin}v_b AS\nSELECT * FROM {{database}}.v_a WHERE late > 1;\n"
        f"{begin}v_c AS\nSELECT (SELECT 1) AS one, [a, b][1] AS two;\n"
    )
    columns = ("a", "try", "late", "c")
    assert views_of(sql) == {"v_a": columns, "v_b": columns, "v_c": ("one", "two")}


@pytest.mark.parametrize("query", ["SELECT f(x) FROM t", "SELECT * FROM (SELECT 1 AS a)", "SELECT t.* FROM t"])
def test_a_view_whose_columns_have_no_names_is_refused(query: str) -> None:
    with pytest.raises(ValueError, match=r"no view|without a name"):
        views_of(f"CREATE OR REPLACE VIEW {{database}}.v_a AS {query};\n")
