"""Lengths of functions, import direction, purity, exports and error trees of all modules."""

import ast

import pytest

from tests.style import rules
from tests.style.project import all_modules, complaints, module_named, product_modules, pyproject

# Pure modules outside of the cores, which test_rooms.py checks as folders: no clock, no randomness,
# no I/O, no logging. The value has a module's exceptions.
PURE: dict[str, frozenset[str]] = {
    "schemas/errors.py": frozenset(),
    "schemas/fast_replace.py": frozenset(),
    "schemas/enums.py": frozenset(),
    "schemas/headers.py": frozenset(),
    "schemas/limits.py": frozenset(),
    "schemas/ids.py": frozenset({"secrets", "uuid"}),  # a new session id is random
    "schemas/records/outputs.py": frozenset(),
    "schemas/records/rows.py": frozenset(),
    "schemas/retention.py": frozenset(),
    "schemas/topics.py": frozenset(),
    "schemas/types.py": frozenset(),
    "schemas/codec/codegen.py": frozenset(),
    "schemas/codec/compiled_helpers.py": frozenset(),
    "schemas/codec/formats.py": frozenset(),
    "schemas/codec/framing.py": frozenset(),
    "schemas/codec/mapping.py": frozenset(),
    "schemas/events/run.py": frozenset(),
    "schemas/events/session.py": frozenset(),
    "stream_processors/access.py": frozenset(),
    "stream_processors/api/tokens.py": frozenset(),
    "infra/alerts/tables.py": frozenset(),
    "infra/alerts/render.py": frozenset(),
    "infra/lag/lag_tracker.py": frozenset(),
    "infra/local/clickhouse/sql.py": frozenset(),
    "infra/local/schedule.py": frozenset(),
    "infra/story/comparison.py": frozenset(),
    "infra/demo/plan.py": frozenset({"random"}),  # seeded
}


def test_no_function_is_longer_than_the_limit() -> None:
    assert complaints(all_modules(), lambda module: rules.long_functions(module.tree)) == []


def test_imports_point_one_way() -> None:
    assert complaints(product_modules(), lambda module: rules.wrong_directions(module.tree, module.package)) == []


def test_only_the_table_of_transitions_names_one() -> None:
    names = ("core/session/transitions.py", "core/session/migration.py")
    tables = [module for name in names if (module := module_named(f"stream_processors/{name}")) is not None]
    assert all(len(rules.transition_ids(table.tree)) >= least for table, least in zip(tables, (14, 4), strict=True))
    others = [module for module in product_modules() if module.package == "stream_processors" and module not in tables]
    assert len(others) > 40
    assert complaints(others, lambda module: rules.transition_ids(module.tree)) == []


def test_pure_modules_use_no_clock_no_randomness_no_io_and_no_log() -> None:
    modules = {name: module_named(name) for name in PURE}
    assert [name for name, module in modules.items() if module is None] == [], "rename them or remove them"
    found = {name: rules.impurities(module.tree, PURE[name]) for name, module in modules.items() if module}
    assert {name: faults for name, faults in found.items() if faults} == {}


def test_one_module_alone_runs_text() -> None:
    builder = module_named("schemas/codec/codegen.py")
    assert builder is not None
    assert len(rules.text_runners(builder.tree)) == 1
    others = [module for module in product_modules() if module != builder]
    assert complaints(others, lambda module: rules.text_runners(module.tree)) == []


def test_exports_are_sorted_and_defined() -> None:
    assert complaints(all_modules(), lambda module: rules.wrong_exports(module.tree)) == []


def test_the_drawn_tree_of_errors_is_the_tree_of_errors() -> None:
    drawn = [module for module in product_modules() if module.path.stem in ("errors",)]
    assert len(drawn) >= 4
    assert complaints(drawn, lambda module: rules.wrong_error_tree(module.tree)) == []


def test_namespace_folders_hold_no_init() -> None:
    folders = [module.name for module in product_modules() if module.name.endswith("/sessionary/__init__.py")]
    assert folders == []


def test_the_linter_checks_docstrings_reasons_line_lengths_and_print() -> None:
    lint = pyproject()["tool"]["ruff"]["lint"]
    assert {"D1", "BLE", "T20", "DTZ", "W"} <= set(lint["select"])
    assert lint["pycodestyle"]["max-doc-length"] == 100
    mypy = pyproject()["tool"]["mypy"]
    assert mypy["strict"] is True
    assert "tests" in mypy["files"]


LONG = "def f() -> int:\n" + "    x = 1\n" * 70 + "    return x\n"
TREE = '''"""Errors.

    Base
    ├── Left(reason)   one
    │   └── Leaf       two
    └── Right          three
"""
'''
CLASSES = "class Base(Exception): ...\nclass Left(Base): ...\nclass Leaf(Left): ...\nclass Right(Base): ...\n"


def test_the_rule_of_long_functions_can_fail() -> None:
    assert rules.long_functions(ast.parse(LONG)) == ["line 1: f has 72 lines, more than 70"]
    assert rules.long_functions(ast.parse(LONG.replace("x = 1\n", "x = 1\n", 1).replace("    x = 1\n", "", 2))) == []


@pytest.mark.parametrize(
    ("package", "source"),
    [
        ("schemas", "from sessionary.producers import client"),
        ("producers", "def f():\n    import sessionary.sinks.core.rows"),
        ("producers", "from sessionary.stream_processors.store import rows"),
        ("sinks", "from sessionary.infra import topics"),
        ("sinks", "from . import rows"),
        ("infra", "from tests.support import wait_until"),
    ],
)
def test_the_rule_of_direction_can_fail(package: str, source: str) -> None:
    assert len(rules.wrong_directions(ast.parse(source), package)) == 1
    assert rules.wrong_directions(ast.parse("from sessionary.schemas import ids"), package) == []


def test_the_client_may_ask_the_pure_rules_of_the_judge() -> None:
    asks = ast.parse("from sessionary.stream_processors.core.session import transitions")
    assert rules.wrong_directions(asks, "producers") == []
    assert len(rules.wrong_directions(asks, "sinks")) == 1


@pytest.mark.parametrize(
    "source",
    [
        "import time",
        "from datetime import datetime\nx = datetime.now()",
        "import uuid\nx = uuid.uuid4()",
        "def f():\n    from logging import getLogger",
        "x = open('file')",
        "from pathlib import Path",
        "import confluent_kafka",
    ],
)
def test_the_rule_of_purity_can_fail(source: str) -> None:
    assert len(rules.impurities(ast.parse(source))) == 1
    assert rules.impurities(ast.parse("import heapq\nfrom io import BytesIO\nx = clock.now_ms")) == []


@pytest.mark.parametrize(
    "source", ["exec('x = 1')", "def f():\n    return eval('1')", "run = compile", "import builtins\nbuiltins.exec('')"]
)
def test_the_rule_of_text_that_runs_can_fail(source: str) -> None:
    assert len(rules.text_runners(ast.parse(source))) == 1
    assert rules.text_runners(ast.parse("import re\npattern = re.compile('x')\nself.compile()")) == []


def test_the_rule_of_transitions_can_fail() -> None:
    found = rules.transition_ids(ast.parse("if row.id in ('T01', 'T15'):\n    pass"))
    assert found == ["line 1: 'T01' names a transition", "line 1: 'T15' names a transition"]
    assert rules.transition_ids(ast.parse("x = 'T1'\ny = 'after T01'")) == []


@pytest.mark.parametrize("names", ["['b', 'a']", "['a', 'a']", "['a', 'C', 'b']", "['a', 'gone']"])
def test_the_rule_of_exports_can_fail(names: str) -> None:
    assert rules.wrong_exports(ast.parse(f"a = b = C = 1\n__all__ = {names}")) != []
    assert rules.wrong_exports(ast.parse("A = Bc = d = 1\n__all__ = ['A', 'Bc', 'd']")) == []


@pytest.mark.parametrize(
    "source",
    [
        CLASSES,
        TREE + CLASSES.replace("Leaf(Left)", "Leaf(Right)"),
        TREE + CLASSES + "class More(Base): ...\n",
        TREE + CLASSES.replace("class Right(Base): ...\n", ""),
    ],
)
def test_the_rule_of_error_trees_can_fail(source: str) -> None:
    assert rules.wrong_error_tree(ast.parse(source)) != []
    assert rules.wrong_error_tree(ast.parse(TREE + CLASSES)) == []


def test_what_a_test_patches_in_a_module_exists() -> None:
    known = {module.dotted: rules.top_names(module.tree) for module in all_modules()}
    assert complaints(all_modules(), lambda module: rules.missing_patched_names(module.tree, known)) == []


def test_a_patched_name_that_is_gone_is_found() -> None:
    known = {"a.b": {"KNOWN_S"}}
    for name, found in (("KNOWN_S", 0), ("GONE_S", 1)):
        test = ast.parse(f"from a import b as c\nmonkeypatch.setattr(c, {name!r}, 1)")
        assert len(list(rules.missing_patched_names(test, known))) == found
