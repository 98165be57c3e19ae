"""What a build of the compiled core says and leaves, without a compiler."""

import os
import re
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path
from typing import NamedTuple

import pytest

import native.__main__ as program
from native import toolchain, wheels
from native.build import compile_for_wheel
from native.compile import keep_times, read_texts, remove_others
from native.interpreters import VERSIONS, Interpreter, find_interpreters, running_version
from native.modules import (
    CODEC,
    CYTHON_MODULES,
    EVENT_COLUMNS,
    FAST_REPLACE,
    PLAIN_MODULES,
    compiled_modules,
    rule_modules,
)
from native.tree import (
    SHARED,
    find_built,
    find_extensions,
    find_stale_modules,
    place_extensions,
    remove_extensions,
)
from sessionary.stream_processors.core_build import core_build
from tests.style.project import ROOT, pyproject

SUFFIX = sysconfig.get_config_var("EXT_SUFFIX")


def test_every_module_of_the_rules_is_compiled_but_maps() -> None:
    modules = compiled_modules(ROOT)
    assert len(modules) == len(set(modules))
    assert all((ROOT / module).is_file() for module in modules)
    core = Path("stream_processors/sessionary/stream_processors/core")
    left = {path.relative_to(ROOT) for path in (ROOT / core).rglob("*.py")} - set(modules)
    assert {path.name for path in left} == {"__init__.py"}
    assert set(modules) - set(rule_modules(ROOT)) - set(PLAIN_MODULES) == {CODEC, EVENT_COLUMNS, FAST_REPLACE}
    assert not [path for path in PLAIN_MODULES if path.is_relative_to(core)]


@pytest.mark.parametrize(
    ("part", "reported"),
    [
        ("gcc", "there is no C compiler"),
        ("headers", "Python.h"),
        ("setuptools", "there is no setuptools"),
        ("Cython", "there is no Cython"),
    ],
)
def test_what_is_missing_is_reported_in_a_line(
    part: str, reported: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(shutil, "which", lambda name: None if part == "gcc" else name)
    (tmp_path / "Python.h").touch()
    include = tmp_path / "none" if part == "headers" else tmp_path
    monkeypatch.setattr(sysconfig, "get_path", lambda name: str(include))
    monkeypatch.setattr(toolchain, "find_spec", lambda name: None if name == part else object())
    assert program.main([]) == 1
    line = capsys.readouterr().err
    assert reported in line
    assert line.count("\n") == 1


def _run_compiled_tests(environment: dict[str, str]) -> str:
    """Run the tests of the compiled core, of which none may pass or be skipped; return the text."""
    files = [f"tests/native/{name}.py" for name in ("test_native_core", "test_compiled_readers")]
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "no:xdist", *files],
        cwd=ROOT,
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 1, done.stdout[-5_000:] + done.stderr[-5_000:]
    assert re.search(r"\b(passed|skipped)\b", done.stdout.splitlines()[-1]) is None, done.stdout[-5_000:]
    return done.stdout


def test_without_a_compiler_the_tests_of_the_compiled_core_fail_and_none_is_skipped(tmp_path: Path) -> None:
    assert "there is no C compiler" in _run_compiled_tests({"PATH": str(tmp_path)})


_NO_HEADERS = """
import sysconfig
find = sysconfig.get_path
sysconfig.get_path = lambda name, *more: {folder!r} if name == "include" else find(name, *more)
"""


def test_without_headers_the_tests_of_the_compiled_core_fail_and_none_is_skipped(tmp_path: Path) -> None:
    none = tmp_path / "include"
    none.mkdir()
    # Each Python that starts with this path, also as a child, imports the file.
    (tmp_path / "sitecustomize.py").write_text(_NO_HEADERS.format(folder=str(none)))
    path = os.pathsep.join(filter(None, (str(tmp_path), os.environ.get("PYTHONPATH"))))
    assert f"{none} has no Python.h" in _run_compiled_tests({"PYTHONPATH": path})


def test_the_wheel_s_build_without_a_compiler_fails_with_a_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "which", lambda name: None)
    with pytest.raises(SystemExit, match=r"^NATIVE_WHEEL=1, but .* there is no C compiler .*") as raised:
        compile_for_wheel(ROOT)
    assert f"{raised.value}".count("\n") == 0


def test_what_was_built_lies_in_the_wheel_as_in_an_installation(tmp_path: Path) -> None:
    for name in (f"sessionary/schemas/ids{SUFFIX}", f"{SHARED}{SUFFIX}", "sessionary/schemas/ids.c"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch()
    found = {place.as_posix(): path for path, place in find_built(tmp_path)}
    assert found == {name: tmp_path / name for name in (f"{SHARED}{SUFFIX}", f"sessionary/schemas/ids{SUFFIX}")}


class Extension(NamedTuple):
    """What a build knows of an extension."""

    name: str


def test_what_was_built_of_a_module_that_is_gone_is_removed(tmp_path: Path) -> None:
    for name in ("sessionary/schemas/ids", "sessionary/schemas/gone", SHARED):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / f"{name}{SUFFIX}").touch()
    remove_others(tmp_path, [Extension("sessionary.schemas.ids"), Extension(SHARED)])
    assert {place.as_posix() for _, place in find_built(tmp_path)} == {
        f"{SHARED}{SUFFIX}",
        f"sessionary/schemas/ids{SUFFIX}",
    }


@pytest.mark.parametrize("changed", [[], ["b"], ["a", "b"]])
def test_a_file_that_is_written_again_with_the_same_text_keeps_its_time(changed: list[str], tmp_path: Path) -> None:
    files = {name: tmp_path / "deep" / f"{name}.c" for name in ("a", "b")}
    (tmp_path / "deep").mkdir()
    for path in files.values():
        path.write_text("same")
        os.utime(path, (1, 1))
    before = read_texts(tmp_path)
    for name, path in files.items():
        path.write_text("other" if name in changed else "same")
    keep_times(before)
    assert [name for name, path in files.items() if path.stat().st_mtime > 1] == changed


def test_the_running_interpreter_is_found_and_a_name_that_leads_nowhere_is_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    version = running_version()
    other = next(each for each in VERSIONS if each != version)
    shim = tmp_path / f"python{other}"
    shim.write_text("#!/bin/sh\nexit 127\n")
    shim.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setenv("PYENV_ROOT", str(tmp_path))
    assert find_interpreters() == [Interpreter(version, Path(sys.executable))]
    program = tmp_path / "versions" / f"{other}.1" / "bin" / f"python{other}"
    program.parent.mkdir(parents=True)
    program.write_text(f"#!/bin/sh\necho {other} True True cpython\n")
    program.chmod(0o755)
    assert Interpreter(other, program) in find_interpreters()


def test_a_version_that_is_asked_for_and_missing_is_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(wheels, "find_interpreters", lambda versions: [])
    monkeypatch.setattr(wheels, "build_wheel", lambda python, folder, is_native: Path(__file__))
    assert wheels.main(["--folder", str(tmp_path), "--python", "3.14"]) == 1
    assert wheels.main(["--folder", str(tmp_path)]) == 0
    assert "no CPython 3.14 with headers was found" in capsys.readouterr().err


def test_a_build_server_builds_for_the_same_versions_with_the_same_compilers() -> None:
    config = pyproject()
    server, hook = (
        config["tool"]["cibuildwheel"],
        config["tool"]["hatch"]["build"]["targets"]["wheel"]["hooks"]["custom"],
    )
    assert server["build"] == [f"cp{version.replace('.', '')}-*" for version in VERSIONS]
    assert server["environment"] == {"NATIVE_WHEEL": "1"}
    named = re.findall(r"Programming Language :: Python :: (3\.\d+)", "\n".join(config["project"]["classifiers"]))
    assert tuple(named) == VERSIONS
    known = {*config["project"]["dependencies"], *config["project"]["optional-dependencies"]["dev"]}
    assert set(hook["native-dependencies"]) - known == {"setuptools>=80"}


def test_a_wheel_that_cannot_be_built_is_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail(python: Path, folder: Path, *, is_native: bool) -> Path:
        raise RuntimeError("the reason")

    monkeypatch.setattr(wheels, "find_interpreters", lambda versions: [])
    monkeypatch.setattr(wheels, "build_wheel", fail)
    assert wheels.main(["--folder", str(tmp_path)]) == 1
    assert "the reason" in capsys.readouterr().err


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


def test_the_build_that_runs_is_reported() -> None:
    in_place = {path.name.partition(".")[0] for path in find_extensions(ROOT)} >= {"uncommitted_batch", "functions"}
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
