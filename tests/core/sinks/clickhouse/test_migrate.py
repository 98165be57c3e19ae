import re
from collections.abc import Callable
from graphlib import CycleError

import pytest

from sessionary.sinks.clickhouse.migrate import (
    MadeView,
    Migration,
    Schema,
    View,
    newer_release,
    order_views,
    pending_migrations,
    plan_views,
    shipped_schema,
)
from sessionary.sinks.errors import OperatorError

ONE, TWO = Migration(1, "tables", "SELECT 1;\n"), Migration(2, "b", "SELECT 2;\n")
TEXTS = {"v_a": "SELECT * FROM {database}.v_c -- {database}.v_b", "v_b": "SELECT 1", "v_c": "FROM {database}.v_b"}


def made(view: View, release: str = "0.2.0", *, is_dropped: bool = False) -> MadeView:
    return MadeView(view.checksum, f"definition of {view.name}", release, is_dropped)


def definitions(*views: View) -> dict[str, str]:
    return {view.name: f"definition of {view.name}" for view in views}


def test_the_files_of_a_release_have_a_number_each_and_split_into_statements() -> None:
    schema = shipped_schema()
    numbers = [migration.version for migration in schema.migrations]
    assert numbers == list(range(1, len(numbers) + 1))
    parts = [part.statements("db_x") for part in schema.migrations]
    for statements in (*parts, *(view.statements("db_x") for view in schema.views)):
        assert statements
        for statement in statements:
            assert "{database}" not in statement
            assert re.sub(r"^\s*--.*$", "", statement, flags=re.MULTILINE).strip(), "a comment line ends with ';'"


def test_a_file_of_a_view_makes_the_view_that_it_is_named_after_and_comments_it() -> None:
    views = shipped_schema().views
    assert len(views) > 60
    for view in views:
        make, comment = view.statements("db_x")
        place = f"db_x_{view.name}" if view.name.startswith("between.") else f"db_x.{view.name}"
        assert re.search(rf"^CREATE OR REPLACE VIEW {place} AS$", make, re.MULTILINE)
        assert comment.startswith(f"ALTER TABLE {place}\n    MODIFY COMMENT '")


def test_a_view_with_parameters_is_in_the_database_of_these_alone() -> None:
    views = shipped_schema().views
    assert {view.name for view in views if re.search(r"\{\w+:\w+", view.sql)} == {
        view.name for view in views if view.name.startswith("between.")
    }


def test_each_view_comes_after_those_that_it_uses_and_always_at_the_same_place() -> None:
    assert [view.name for view in order_views(TEXTS, "t")] == ["v_b", "v_c", "v_a"]
    assert order_views(dict(reversed(TEXTS.items())), "t") == order_views(TEXTS, "t")
    names = [view.name for view in shipped_schema().views]
    for view in shipped_schema().views:
        used = set(re.findall(r"\{database\}[._]((?:between\.)?v_\w+)", re.sub("--.*", "", view.sql))) - {view.name}
        assert used <= set(names[: names.index(view.name)])


def test_a_view_comes_after_the_one_with_parameters_that_it_uses() -> None:
    texts = {"v_a": "FROM {database}_between.v_a_between()", "between.v_a_between": "SELECT 1"}
    assert [view.name for view in order_views(texts, "t")] == ["between.v_a_between", "v_a"]
    changed = order_views({**texts, "between.v_a_between": "SELECT 2"}, "t")
    assert changed[1].checksum != order_views(texts, "t")[1].checksum


def test_views_that_use_each_other_are_an_error_that_names_them() -> None:
    with pytest.raises(CycleError, match=r"'v_\w', 'v_\w', 'v_\w'"):
        order_views({**TEXTS, "v_b": "SELECT * FROM {database}.v_c"}, "t")


def test_a_view_differs_if_its_text_a_view_that_it_uses_or_a_table_does() -> None:
    def changed(texts: dict[str, str], tables: str = "t") -> set[str]:
        before = {view.name: view.checksum for view in order_views(TEXTS, "t")}
        return {view.name for view in order_views({**TEXTS, **texts}, tables) if view.checksum != before[view.name]}

    assert changed({}) == set()
    assert changed({"v_a": "SELECT 2"}) == {"v_a"}
    assert changed({"v_c": "SELECT 2"}) == {"v_c", "v_a"}
    assert changed({"v_b": "SELECT 2"}) == {"v_a", "v_b", "v_c"}
    assert changed({}, tables="u") == {"v_a", "v_b", "v_c"}


def test_migrations_that_were_not_applied_are_pending_and_a_newer_one_is_none() -> None:
    assert pending_migrations("db", [], [ONE, TWO]) == [ONE, TWO]
    assert pending_migrations("db", [(1, ONE.checksum)], [ONE, TWO]) == [TWO]
    assert pending_migrations("db", [(1, ONE.checksum), (2, TWO.checksum), (3, "x")], [ONE, TWO]) == []


def test_tables_of_an_older_form_and_a_changed_migration_are_refused() -> None:
    # Before release 0.2.0 there were 35 numbered migrations.
    former = [
        (1, "212c9dc05d87db599d2595d6f0a0225f8f4353a661c9bf9c6a6f8daf086cf6d1"),
        *((n, "x") for n in range(2, 36)),
    ]
    with pytest.raises(OperatorError, match=r"database db are older than release 0\.2\.0") as refusal:
        pending_migrations("db", former, [ONE])
    assert refusal.value.reason == "older_form"
    with pytest.raises(OperatorError, match="0002_b") as refusal:
        pending_migrations("db", [(1, ONE.checksum), (2, "other")], [ONE, TWO])
    assert refusal.value.reason == "migration_changed"


@pytest.mark.parametrize(
    ("release", "newer"),
    [
        ("0.2.0", None),
        ("0.1.9", None),
        ("0.2.0rc1", None),
        ("", None),
        ("0.2.1", "release 0.2.1"),
        ("0.10.0", "release 0.10.0"),
        ("1.0", "release 1.0"),
    ],
)
def test_a_release_that_made_a_view_later_is_newer(release: str, newer: str | None) -> None:
    (view,) = order_views({"v_a": "SELECT 1"}, "t")
    schema = Schema("0.2.0", (ONE, TWO), (view,))
    for is_dropped in (False, True):
        assert newer_release([(1, "x")], {"v_a": made(view, release, is_dropped=is_dropped)}, schema) == newer


def test_a_release_with_a_later_migration_is_newer() -> None:
    schema = Schema("0.2.0", (ONE,), ())
    assert newer_release([(1, "x")], {}, schema) is None
    assert newer_release([(1, "x"), (2, "y")], {}, schema) == "a newer release"


def test_a_view_is_made_if_it_is_missing_or_differs_and_else_left() -> None:
    views = order_views(TEXTS, "t")
    ours = {view.name: made(view) for view in views}
    assert plan_views("db", views, {}, {}) == (views, ())
    assert plan_views("db", views, ours, definitions(*views)) == ((), ())
    changes: list[Callable[[View], tuple[dict[str, MadeView], dict[str, str]]]] = [
        lambda view: ({view.name: made(view)._replace(checksum="older file")}, {}),
        lambda view: ({view.name: made(view)._replace(checksum="", definition="")}, {}),
        lambda view: ({}, {view.name: "altered by hand"}),
    ]
    for change in changes:
        for view in views:
            other, altered = change(view)
            assert plan_views("db", views, ours | other, definitions(*views) | altered) == ((view,), ())
    found = definitions(*views)
    del found["v_c"]  # dropped by hand
    assert [view.name for view in plan_views("db", views, ours, found).make] == ["v_c"]


def test_a_view_of_ours_that_has_no_file_is_dropped_and_a_foreign_one_is_not() -> None:
    views = order_views(TEXTS, "t")
    (former, dropped) = order_views({"v_former": "SELECT 1", "v_gone": "SELECT 2"}, "t")
    ours = {view.name: made(view) for view in (*views, former)} | {dropped.name: made(dropped, is_dropped=True)}
    found = definitions(*views, former, dropped) | {"v_theirs": "x", "history": "y"}
    assert plan_views("db", views, ours, found) == ((), ("v_former",))


def test_a_foreign_view_with_the_name_of_one_of_ours_is_never_replaced() -> None:
    views = order_views(TEXTS, "t")
    with pytest.raises(OperatorError, match="did not make v_a of database db: rename it") as refusal:
        plan_views("db", views, {}, {"v_a": "x"})
    assert refusal.value.reason == "foreign_view"
    gone = {"v_a": made(views[-1], is_dropped=True)}
    with pytest.raises(OperatorError, match="did not make v_a"):
        plan_views("db", views, gone, {"v_a": "x"})
