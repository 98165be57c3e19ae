"""The folders of the packages: no import circle, and a complete map."""

import ast
import re
from pathlib import Path

import pytest

from generation.modules import FOLDER as GENERATED
from tests.style import rules
from tests.style.project import PACKAGES, ROOT, Module, complaints, dotted_name, product_imports, product_modules

_SOURCES = [ROOT / package / "sessionary" / package for package in PACKAGES]
FOLDERS = sorted({path.parent for source in _SOURCES for path in source.rglob("*.py")} - {ROOT / GENERATED})
_CORE = re.compile(r"/(stream_processors|sinks)/core/")
_OUTSIDE_THE_CORE = re.compile(r"/stream_processors/(runtime|store)/")
_SESSION_ROWS = re.compile(r"\b(SessionState|Tombstone)\b")


def _matching(pattern: re.Pattern[str]) -> list[Module]:
    return [module for module in product_modules() if pattern.search(module.name)]


def _children(folder: Path) -> set[str]:
    """Return the modules and sub-packages of a package."""
    files = {path.stem for path in folder.glob("*.py")} - {"__init__"}
    return files | {path.parent.name for path in folder.glob("*/__init__.py")}


def _core_named(module: Module) -> list[str]:
    """Return what a module knows of the families of rows."""
    names = [name for _, name in rules.imported_names(module.tree)]
    found = [name for name in names if name.startswith("sessionary.stream_processors.core.session")]
    return found + _SESSION_ROWS.findall(module.text)


def test_modules_and_folders_import_without_a_circle() -> None:
    """An `__init__` may import what lies below it: it is left out."""
    packages = {dotted_name(folder / "__init__.py") for folder in FOLDERS}
    imports = {name: targets for name, targets in product_imports().items() if name not in packages}
    circles = [rules.circle_in(rules.folder_graph(imports, package)) for package in sorted(packages)]
    assert [circle for circle in circles if circle] == []


def test_a_package_names_each_of_its_modules_in_its_map() -> None:
    maps = {module.path.parent: module.tree for module in product_modules() if module.path.name == "__init__.py"}
    assert maps.keys() == set(FOLDERS)
    differing = {
        str(folder.relative_to(ROOT)): named ^ _children(folder)
        for folder, tree in maps.items()
        if (named := rules.mapped_names(ast.get_docstring(tree, clean=False) or "")) != _children(folder)
    }
    assert differing == {}


def test_every_module_of_a_core_is_pure() -> None:
    assert complaints(_matching(_CORE), lambda module: rules.impurities(module.tree)) == []


def test_runtime_and_store_know_no_family_of_rows() -> None:
    """A new family of rows must need no change there."""
    assert complaints(_matching(_OUTSIDE_THE_CORE), _core_named) == []


def test_the_rule_of_circles_can_fail() -> None:
    assert rules.circle_in({"a": {"b"}, "b": {"c"}, "c": {"a"}}) == ["a", "b", "c", "a"]
    assert rules.circle_in({"a": {"b", "c"}, "b": {"c"}}) == []
    imports = {"p.q.one": ["p.r.two"], "p.r.two": ["p.q.three"], "p.q.three": ["p.q.one", "x"]}
    assert rules.folder_graph(imports, "p") == {"q": {"r"}, "r": {"q"}}
    assert rules.folder_graph(imports, "p.q") == {"three": {"one"}}


def test_imports_are_found_in_functions_too() -> None:
    tree = ast.parse("import a.b\nfrom a import c\nfrom a.c import d\ndef f():\n    import e")
    assert list(rules.imported_modules(tree, {"a.b", "a.c", "e"})) == ["a.b", "a.c", "a.c", "e"]


def test_the_rule_of_maps_can_fail() -> None:
    docstring = "A package.\n\n    first    says one thing\n    second/  a sub-package\n"
    assert rules.mapped_names(docstring) == {"first", "second"}
    assert rules.mapped_names("A package without a map.") == set()


@pytest.mark.parametrize("pattern", [_CORE, _OUTSIDE_THE_CORE])
def test_the_patterns_select_modules(pattern: re.Pattern[str]) -> None:
    assert len(_matching(pattern)) > 10
