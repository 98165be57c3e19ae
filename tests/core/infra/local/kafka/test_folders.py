"""Folders with odd names: the stack keeps its data there, or refuses before it writes anything."""

import re
from pathlib import Path

import pytest

from sessionary.infra.local.clickhouse.engine import Engine
from sessionary.infra.local.errors import StartFailed
from sessionary.infra.local.kafka.cluster import LocalBroker, run_broker
from sessionary.infra.local.kafka.node import _property, check_folder, java_environment
from sessionary.infra.stack import Stack


def _as_java_reads(value: str) -> str:
    """Return what `java.util.Properties` makes of a value in a file, which it reads as Latin-1."""
    value.encode("latin-1")
    units = re.sub(
        r"\\(u[0-9a-f]{4}|.)", lambda found: chr(int(found[1][1:], 16)) if found[1][0] == "u" else found[1], value
    )
    return units.encode("utf-16-be", "surrogatepass").decode("utf-16-be")


@pytest.mark.parametrize(
    "name", ["with space", "übung-日本", "back\\slash", "per%20cent#hash=1", "emoji😀", "a:b", "\\u0041", 'it\'s "x"']
)
def test_a_folder_keeps_its_name_in_kafkas_properties(name: str, tmp_path: Path) -> None:
    check_folder(tmp_path / name)
    assert _as_java_reads(_property(f"{tmp_path / name}/log")) == f"{tmp_path / name}/log"


def test_java_gets_a_locale_for_names_that_are_not_ascii(tmp_path: Path) -> None:
    assert java_environment(tmp_path / "plain") is None
    assert (java_environment(tmp_path / "übung") or {})["LC_ALL"] == "C.UTF-8"


@pytest.mark.parametrize("name", ["a,b", "a?b", "new\nline", "tab\tx", "\udcff"])
def test_a_name_that_cannot_hold_the_data_is_refused_before_anything_is_written(name: str, tmp_path: Path) -> None:
    data = tmp_path / name / "data"
    for start in (lambda: Stack(data), lambda: run_broker(data), lambda: LocalBroker(data, None, tmp_path / "log")):
        with pytest.raises(StartFailed, match=r"name another folder by --data. Nothing was written"):
            start()
        assert list(tmp_path.iterdir()) == []


def test_a_link_to_such_a_folder_is_refused_too(tmp_path: Path) -> None:
    (tmp_path / "a,b").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "a,b")
    with pytest.raises(StartFailed, match="its name has ','"):
        Stack(tmp_path / "link")
    assert list((tmp_path / "a,b").iterdir()) == []


def test_the_engine_refuses_a_question_mark_before_anything_is_written(tmp_path: Path) -> None:
    with pytest.raises(StartFailed, match=r"its name has '\?'"):
        Engine(tmp_path / "a?b")
    assert list(tmp_path.iterdir()) == []
