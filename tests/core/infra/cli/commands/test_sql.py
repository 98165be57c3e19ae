"""Outward calls that hide in functions of users; the trees are ClickHouse's own."""

from collections.abc import Mapping

import pytest

from sessionary.infra.cli.commands.sql import find_outward_calls
from sessionary.infra.clickhouse_client import Row

_CALL = """\
SelectWithUnionQuery (children 1)
 ExpressionList (children 1)
  SelectQuery (children 1)
   ExpressionList (children 1)
    Function {name} (children 1)
     ExpressionList (children 1)
      Literal '/etc/hostname'
"""
_CREATE = """\
CreateSQLFunctionQuery {name} (children 2)
 Identifier {name}
 Function lambda (children 1)
  ExpressionList (children 2)
   Function tuple (children 1)
    ExpressionList (children 1)
     Identifier x
   Function {called} (children 1)
    ExpressionList (children 1)
     Identifier x
"""
_OUTFILE = """\
SelectWithUnionQuery (children 3)
 ExpressionList (children 1)
  SelectQuery (children 1)
   ExpressionList (children 1)
    Literal UInt64_1
 Literal '/tmp/reported.csv'
 Identifier CSV
"""


class _Server:
    """Answers with trees by statement; `users` are functions: name → (origin, body's function)."""

    def __init__(self, trees: Mapping[str, str], users: Mapping[str, tuple[str, str]]) -> None:
        self._trees, self._users = dict(trees), users
        for name, (_, called) in users.items():
            self._trees[f"CREATE FUNCTION {name}"] = _CREATE.format(name=name, called=called)

    def fetch_rows(self, sql: str, **_parameters: str | int | float | None) -> list[Row]:
        if sql.startswith("EXPLAIN AST "):
            return [{"explain": line} for line in self._trees[sql.removeprefix("EXPLAIN AST ")].splitlines()]
        if "table_functions" in sql:
            return [{"name": "url"}, {"name": "numbers"}]
        return [
            {"name": name, "origin": origin, "create_query": f"CREATE FUNCTION {name}"}
            for name, (origin, _) in self._users.items()
        ]


@pytest.mark.parametrize(
    ("users", "reasons"),
    [
        ({"f": ("SQLUserDefined", "file")}, ["file() reaches out of the database"]),
        ({"f": ("SQLUserDefined", "g"), "g": ("SQLUserDefined", "FILE")}, ["FILE() reaches out of the database"]),
        ({"f": ("SQLUserDefined", "upper")}, []),
        ({"f": ("SQLUserDefined", "f")}, []),
        ({"f": ("ExecutableUserDefined", "")}, ["f() runs a program"]),
        ({"f": ("SQLUserDefined", "g"), "g": ("ExecutableUserDefined", "")}, ["g() runs a program"]),
        ({}, []),
    ],
)
def test_the_bodies_of_functions_of_users_are_searched(users: dict[str, tuple[str, str]], reasons: list[str]) -> None:
    server = _Server({"SELECT f('/etc/hostname')": _CALL.format(name="f")}, users)
    assert find_outward_calls(server, "SELECT f('/etc/hostname')") == reasons


def test_a_file_to_be_written_is_found_beside_the_selects() -> None:
    assert find_outward_calls(_Server({"SELECT 1 INTO": _OUTFILE}, {}), "SELECT 1 INTO") == [
        "INTO OUTFILE writes a file"
    ]


def test_an_alias_hides_no_name() -> None:
    tree = _CALL.format(name="url (alias numbers)")
    assert find_outward_calls(_Server({"SELECT": tree}, {}), "SELECT") == ["url() reaches out of the database"]
