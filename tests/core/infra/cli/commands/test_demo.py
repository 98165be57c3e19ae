"""`sessionary load` refuses a broken file and a stack without tokens."""

import json
from pathlib import Path

import pytest

from sessionary.infra.cli.app import run


def test_a_broken_file_is_refused_with_its_line(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "runs.ndjson"
    path.write_text("nonsense\n")
    assert run(["load", str(path)]) == 5
    assert "line 1" in capfd.readouterr().err


def test_a_stack_without_tokens_is_a_matter_of_settings(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "runs.ndjson"
    path.write_text(json.dumps({"run": "a", "task": "a", "duration_s": 1, "start_offset_s": 0, "events": []}))
    assert run(["load", str(path)]) == 2
    assert "SESSIONARY_API_TOKENS" in capfd.readouterr().err
