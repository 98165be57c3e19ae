"""What commands say of themselves."""

import sys
from pathlib import Path

import pytest

from sessionary.infra.cli.output import command_name


def test_a_command_that_is_not_on_the_path_is_named_as_it_was_called(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    called = tmp_path / ".venv" / "bin" / "sessionary"
    called.parent.mkdir(parents=True)
    called.touch(mode=0o755)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", [str(called)])
    monkeypatch.setenv("PATH", str(tmp_path))
    assert command_name() == ".venv/bin/sessionary"
    monkeypatch.setenv("PATH", str(called.parent))
    assert command_name() == "sessionary"
    monkeypatch.setenv("PATH", "")
    monkeypatch.setattr(sys, "argv", ["__main__.py"])
    assert command_name() == "sessionary"
