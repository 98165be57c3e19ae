"""Marks of tests: `make test` needs no C compiler."""

import ast

import pytest

from tests.style import rules
from tests.style.project import Module, all_modules

COMPILED = "native_path"  # the fixture that compiles a copy of the core


def _tests_of_the_compiled_core() -> list[Module]:
    named = [module for module in all_modules() if module.package == "tests" and COMPILED in module.text]
    return [module for module in named if module.path.name.startswith("test_") and "/style/" not in module.name]


def test_every_test_that_needs_the_compiled_core_is_marked_long() -> None:
    modules = _tests_of_the_compiled_core()
    assert modules != []
    found = [f"{module.name}: {fault}" for module in modules for fault in rules.short_tests_with(module.tree, COMPILED)]
    assert found == []


SHORT = "def test_it(native_path, tmp_path): ..."
BY_A_FIXTURE = "@pytest.fixture\ndef fold(native_path): ...\ndef test_it(fold): ..."
BY_A_MARK = "@pytest.mark.usefixtures('native_path')\ndef test_it(): ..."


@pytest.mark.parametrize("source", [SHORT, BY_A_FIXTURE, BY_A_MARK])
def test_the_rule_of_long_tests_can_fail(source: str) -> None:
    (found,) = rules.short_tests_with(ast.parse(source), COMPILED)
    assert found.endswith("test_it is not marked long")
    for mark in ("pytest.mark.long", "[pytest.mark.long, pytest.mark.timeout(60)]"):
        assert rules.short_tests_with(ast.parse(f"pytestmark = {mark}\n{source}"), COMPILED) == []
    marked = source.replace("def test_it", "@pytest.mark.long\ndef test_it")
    assert rules.short_tests_with(ast.parse(marked), COMPILED) == []
    assert rules.short_tests_with(ast.parse(source), "other") == []
