"""Shapes: chains of classes, privates, and sizes of modules."""

import ast

import pytest

from tests.style import rules
from tests.style.project import Module, complaints, product_imports, product_modules
from tests.style.small_modules import SMALL_MODULES

SMALL_MODULES_MAX = 20
# What has no public name in a library.
OF_LIBRARIES = {
    "schemas.telemetry.role_logs": "a traceback has one place for an error's text",
    "schemas.telemetry.role_traces": "OpenTelemetry's set-up from the environment has no other name",
    "stream_processors.api.pages": "Faust makes the runner of its pages, and lets no one choose it",
    "stream_processors.runtime.faust_transport": "aiokafka has no hook on its member of the group",
    "stream_processors.streams.stream_transport": "Faust seeks to what was committed, and to nothing else",
}


def short_name(module: Module) -> str:
    return module.dotted.removeprefix("sessionary.")


def found_small_modules() -> dict[str, str]:
    lines = {
        module.dotted: module.text.count("\n") for module in product_modules() if module.path.name != "__init__.py"
    }
    return rules.small_modules(lines, product_imports())


def test_no_chain_of_own_classes_is_long() -> None:
    trees = {module.dotted: module.tree for module in product_modules()}
    assert rules.long_chains(rules.bases_of(trees)) == {}


def test_privates_are_used_in_their_module_only() -> None:
    found = {short_name(module): rules.foreign_privates(module.tree) for module in product_modules()}
    assert {name: uses for name, uses in found.items() if uses and name not in OF_LIBRARIES} == {}
    assert {name for name in OF_LIBRARIES if not found.get(name)} == set(), (
        "not needed any more: take it out of its list"
    )


def test_a_long_module_says_why_it_is_one() -> None:
    assert complaints(product_modules(), lambda module: rules.long_modules(module.text, module.tree)) == []


def test_small_modules_with_one_importer_are_few_and_have_a_reason() -> None:
    found = found_small_modules()
    listed = SMALL_MODULES.keys()
    unlisted = {name: importer for name, importer in found.items() if name not in listed}
    assert unlisted == {}, "move each into its importer, or say in SMALL_MODULES why it stands apart"
    assert listed - found.keys() == set(), "not small any more, or gone: take it out of its list"
    assert len(SMALL_MODULES) <= SMALL_MODULES_MAX
    assert [name for name, reason in SMALL_MODULES.items() if len(reason.split()) < 3] == []


CHAIN = """
class A: ...
class B(A): ...
class C(B): ...
class D(C[int]): ...
class Own(Exception): ...
class E1(Own): ...
class E2(E1): ...
class E3(E2): ...
"""


def test_the_rule_of_chains_can_fail() -> None:
    one = {"p.a": ast.parse(CHAIN)}
    assert rules.long_chains(rules.bases_of(one)) == {"D": 4}
    by_name = ast.parse("from p import a\nclass E(a.C): ...")
    renamed = ast.parse("from p.b import E as D\nclass F(D): ...\nclass G(list): ...")
    two = one | {"p.b": by_name, "p.c": renamed}
    assert rules.long_chains(rules.bases_of(two)) == {"D": 4, "E": 4, "F": 5}


@pytest.mark.parametrize(
    ("source", "fault"),
    [
        ("other._x", "line 1: other._x"),
        ("def f(a):\n    a.b._x = 1", "line 2: a.b._x"),
        ("class A:\n    def f(self):\n        self._b._x()", "line 3: self._b._x"),
        ("from p import _x", "line 1: imports _x"),
    ],
)
def test_the_rule_of_privates_can_fail(source: str, fault: str) -> None:
    assert rules.foreign_privates(ast.parse(source)) == [fault]


@pytest.mark.parametrize(
    "source",
    [
        "class A:\n    def f(self, other):\n        self._x = other._x",
        "class A:\n    _x: int\ndef f(a):\n    return a._x",
        "class A:\n    def f(self):\n        super()._x()",
        "row._replace(a=1)\nKafkaError._STATE\nos._exit(0)\na.__class__",
    ],
)
def test_own_privates_may_be_used(source: str) -> None:
    assert rules.foreign_privates(ast.parse(source)) == []


def test_the_rule_of_long_modules_can_fail() -> None:
    code = "x = 1\n" * 601
    reasoned = f'"""Rows.\n\nOne module, because all\nof it changes at a time.\n"""\n{code}'
    assert rules.long_modules(code[6:], ast.parse("")) == []
    (found,) = rules.long_modules(code, ast.parse(code))
    assert found.startswith("601 lines")
    assert rules.long_modules(reasoned, ast.parse(reasoned)) == []


def test_the_rule_of_small_modules_can_fail() -> None:
    lines = {"a": 59, "b": 60, "c": 3, "d": 3}
    imports = {"x": ["a", "b", "c"], "y": ["c"], "a": ["a"]}
    assert rules.small_modules(lines, imports) == {"a": "x"}
