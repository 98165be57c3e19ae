"""What a build of the compiled core says and leaves, without a compiler."""

import os
import shutil
import sysconfig
from pathlib import Path

import pytest

import native.__main__ as program
from native import toolchain
from native.modules import (
    CODEC,
    CYTHON_MODULES,
    EVENT_COLUMNS,
    FAST_REPLACE,
    compiled_modules,
    plain_modules,
    rule_modules,
)
from native.tree import SHARED, find_extensions, find_stale_modules, place_extensions, remove_extensions
from sessionary.stream_processors.measures.core_build import core_build
from tests.style.project import ROOT

SUFFIX = sysconfig.get_config_var("EXT_SUFFIX")


def test_every_module_of_the_rules_is_compiled_but_maps() -> None:
    modules = compiled_modules(ROOT)
    assert len(modules) == len(set(modules))
    assert all((ROOT / module).is_file() for module in modules)
    core = Path("stream_processors/sessionary/stream_processors/core")
    left = {path.relative_to(ROOT) for path in (ROOT / core).rglob("*.py")} - set(modules)
    assert {path.name for path in left} == {"__init__.py"}
    assert set(modules) - set(rule_modules(ROOT)) - set(plain_modules(ROOT)) == {CODEC, EVENT_COLUMNS, FAST_REPLACE}
    machines = {path for path in plain_modules(ROOT) if path.is_relative_to(core)}
    assert {path.name for path in machines} == {"machine.py"}
    assert core / "machine.py" in rule_modules(ROOT)


@pytest.mark.parametrize(
    ("part", "told"),
    [
        ("gcc", "there is no C compiler"),
        ("headers", "Python.h"),
        ("setuptools", "there is no setuptools"),
        ("Cython", "there is no Cython"),
    ],
)
def test_what_is_missing_is_told_in_a_line(
    part: str, told: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(shutil, "which", lambda name: None if part == "gcc" else name)
    (tmp_path / "Python.h").touch()
    include = tmp_path / "none" if part == "headers" else tmp_path
    monkeypatch.setattr(sysconfig, "get_path", lambda name: str(include))
    monkeypatch.setattr(toolchain, "find_spec", lambda name: None if name == part else object())
    assert program.main([]) == 1
    line = capsys.readouterr().err
    assert told in line
    assert line.count("\n") == 1


def test_an_extension_lies_beside_its_module_and_is_stale_after_a_change(tmp_path: Path) -> None:
    built, tree = tmp_path / "built", tmp_path / "tree"
    for folder in (built / "sessionary/schemas", tree / "schemas/sessionary/schemas"):
        folder.mkdir(parents=True)
    (built / f"sessionary/schemas/ids{SUFFIX}").touch()
    (built / f"{SHARED}{SUFFIX}").touch()
    source = tree / "schemas/sessionary/schemas/ids.py"
    source.touch()
    os.utime(source, (1, 1))
    assert place_extensions(built, tree) == 1
    assert {path.relative_to(tree).as_posix() for path in find_extensions(tree)} == {
        f"schemas/{SHARED}{SUFFIX}",
        f"schemas/sessionary/schemas/ids{SUFFIX}",
    }
    assert find_stale_modules(tree) == []
    source.touch()
    later_s = source.stat().st_mtime + 10
    os.utime(source, (later_s, later_s))
    assert find_stale_modules(tree) == [source.relative_to(tree)]
    source.unlink()
    assert find_stale_modules(tree) == [source.relative_to(tree)]
    remove_extensions(tree)
    assert list(find_extensions(tree)) == []


def test_the_build_that_runs_is_told() -> None:
    in_place = {path.name.partition(".")[0] for path in find_extensions(ROOT)} >= {"overlay", "functions"}
    assert core_build() == ("native" if in_place else "python")


@pytest.mark.parametrize("module", CYTHON_MODULES)
def test_what_cython_compiles_is_stale_after_a_change_of_its_own_source(module: Path, tmp_path: Path) -> None:
    source = tmp_path / module
    source.parent.mkdir(parents=True)
    extension = source.with_name(source.stem + SUFFIX)
    newest_s = max((ROOT / path).stat().st_mtime for path in CYTHON_MODULES[module])
    for path in (source, extension):
        path.touch()
        os.utime(path, (newest_s, newest_s))
    assert find_stale_modules(tmp_path) == []
    for path in (source, extension):
        os.utime(path, (newest_s - 1, newest_s - 1))
    assert find_stale_modules(tmp_path) == [module]
