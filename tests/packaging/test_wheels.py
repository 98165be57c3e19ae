"""The two wheels: the pure one, and that with the compiled core, do the same where they are
installed.
"""

import sys
import zipfile
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from native.interpreters import running_version
from native.modules import compiled_modules
from native.tree import SHARED
from native.wheels import build_wheel
from tests.packaging.wheel_rig import EVENTS, ask_wheel, write_log
from tests.style.project import ROOT
from tests.support.native_builds import build_lock

PYTHON = Path(sys.executable)


class Installed(NamedTuple):
    """A wheel, and what it says where it is installed."""

    wheel: Path
    said: dict[str, Any]


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Installed]:
    folder = tmp_path_factory.mktemp("wheels")
    log = write_log(folder)
    found: dict[str, Installed] = {}
    for build in ("python", "native"):
        with build_lock():
            wheel = build_wheel(PYTHON, folder / "dist", is_native=build == "native")
        found[build] = Installed(wheel, ask_wheel(PYTHON, wheel, build, log, folder / build))
    return found


def test_without_being_asked_for_the_compiled_core_a_build_is_pure(installed: dict[str, Installed]) -> None:
    wheel = installed["python"].wheel
    assert wheel.name.endswith("-py3-none-any.whl")
    with zipfile.ZipFile(wheel) as archive:
        assert [name for name in archive.namelist() if name.endswith((".so", ".pyd", ".c"))] == []
        assert "## Session, as `session`" in archive.read("sessionary/producers/verbs.md").decode()


def test_a_platform_wheel_has_the_pure_one_s_files_and_an_extension_of_each_compiled_module(
    installed: dict[str, Installed],
) -> None:
    version = running_version().replace(".", "")
    assert f"-cp{version}-cp{version}-" in installed["native"].wheel.name
    with zipfile.ZipFile(installed["python"].wheel) as pure, zipfile.ZipFile(installed["native"].wheel) as native:
        names = {name for name in native.namelist() if ".dist-info/" not in name}
        pure_names = {name for name in pure.namelist() if ".dist-info/" not in name}
        wheel_file = next(name for name in native.namelist() if name.endswith(".dist-info/WHEEL"))
        assert "Root-Is-Purelib: false" in native.read(wheel_file).decode()
    assert pure_names <= names
    added = {name.partition(".")[0] for name in names - pure_names}
    modules = {path.with_suffix("").relative_to(path.parts[0]).as_posix() for path in compiled_modules(ROOT)}
    assert added == {*modules, SHARED}
    assert len(names - pure_names) == len(added)


def test_each_wheel_runs_its_own_core(installed: dict[str, Installed]) -> None:
    for build, (_, said) in installed.items():
        assert said["core"] == build
        assert said["writers"] == ["builtin_function_or_method" if build == "native" else "function"]
        assert said["ids"] == (".so" if build == "native" else ".py")


def test_the_client_loads_the_core_dependencies_only(installed: dict[str, Installed]) -> None:
    roles = {"faust", "aiokafka", "clickhouse_connect", "chdb", "typer", "rich", "rocksdict", "prometheus_client"}
    for _, said in installed.values():
        assert {"fastavro", "pydantic", "sessionary"} <= set(said["loaded"])
        assert roles & set(said["loaded"]) == set()
        assert said["sent"] == 5 < said["events"]


def test_both_wheels_write_the_same_bytes(installed: dict[str, Installed]) -> None:
    facts = [{name: said[name] for name in ("digest", "records", "rows")} for _, said in installed.values()]
    assert facts[0] == facts[1]
    assert facts[0]["records"] > EVENTS / 10
