"""The folders of the packages: no import circle, and a complete map."""

import ast
import re
from pathlib import Path

import pytest

from generation.modules import FOLDER as GENERATED
from tests.style import rules
from tests.style.project import PACKAGES, ROOT, Module, product_modules

_SOURCES = [ROOT / package / "sessionary" / package for package in PACKAGES]
FOLDERS = sorted({path.parent for source in _SOURCES for path in source.rglob("*.py")} - {ROOT / GENERATED})
_CORE = re.compile(r"/(stream_processors|sinks)/core/")
_OUTSIDE_THE_CORE = re.compile(r"/stream_processors/(runtime|store)/")
_SESSION_ROWS = re.compile(r"\b(SessionState|Gravestone)\b")


def _folder_id(folder: Path) -> str:
    return folder.relative_to(ROOT).as_posix()


def _module_id(module: Module) -> str:
    return module.name


def _matching(pattern: re.Pattern[str]) -> list[Module]:
    return [module for module in product_modules() if pattern.search(module.name)]


def _dotted_name(path: Path) -> str:
    parts = path.relative_to(ROOT).with_suffix("").parts[1:]
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def _product_imports() -> dict[str, list[str]]:
    """Return the imports of each module of the product; `__init__` modules are left out."""
    known = {_dotted_name(module.path) for module in product_modules()}
    return {
        _dotted_name(module.path): list(rules.imported_modules(module.tree, known))
        for module in product_modules()
        if module.path.name != "__init__.py"
    }


def _children(folder: Path) -> set[str]:
    """Return the modules and sub-packages of a package."""
    files = {path.stem for path in folder.glob("*.py")} - {"__init__"}
    return files | {path.parent.name for path in folder.glob("*/__init__.py")}


@pytest.mark.parametrize("folder", FOLDERS, ids=_folder_id)
def test_modules_and_folders_import_without_a_circle(folder: Path) -> None:
    assert rules.circle_in(rules.folder_graph(_product_imports(), _dotted_name(folder / "__init__.py"))) == []


@pytest.mark.parametrize("folder", FOLDERS, ids=_folder_id)
def test_a_package_names_each_of_its_modules_in_its_map(folder: Path) -> None:
    init = ast.parse((folder / "__init__.py").read_text("utf-8"))
    assert rules.mapped_names(ast.get_docstring(init, clean=False) or "") == _children(folder)


@pytest.mark.parametrize("module", _matching(_CORE), ids=_module_id)
def test_every_module_of_a_core_is_pure(module: Module) -> None:
    assert rules.impurities(module.tree) == []


@pytest.mark.parametrize("module", _matching(_OUTSIDE_THE_CORE), ids=_module_id)
def test_runtime_and_store_know_no_family_of_rows(module: Module) -> None:
    """A new family of rows must need no change there."""
    names = [name for _, name in rules.imported_names(module.tree)]
    assert [name for name in names if name.startswith("sessionary.stream_processors.core.session")] == []
    assert not _SESSION_ROWS.search(module.text)


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
