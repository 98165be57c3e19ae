"""`sessionary env`: what it prints sets the variables of a stack in a shell, as they are."""

import fcntl
import json
import shutil
import subprocess
from pathlib import Path

import pytest

from sessionary.infra import topics
from sessionary.infra.cli.app import run
from sessionary.infra.cli.commands.admin import ShellName, shell_lines
from sessionary.infra.cli.commands.up import _print_addresses
from sessionary.infra.environment import DEFAULT_DATA, LOCK_FILE, write_environment
from sessionary.schemas.signatures import parse_signing_keys

TOKENS = '{"token-a": "acme", "token-g": "globex", "op": {"principal": "on-call", "roles": ["operator"]}}'
STACK = {
    "SESSIONARY_BOOTSTRAP_SERVERS": "127.0.0.1:1",
    "SESSIONARY_CLICKHOUSE_PASSWORD": "it's $HOME `id` \\' \\ \"x\"",
    "SESSIONARY_API_TOKENS": TOKENS,
}


@pytest.fixture
def served(tmp_path: Path) -> Path:
    """The folder of a stack, where commands look for one by default."""
    data = tmp_path / DEFAULT_DATA
    data.mkdir()
    write_environment(data, STACK)
    return data


@pytest.mark.parametrize("shell", [name.value for name in ShellName])
def test_a_shell_gets_the_variables_as_they_are(
    shell: str, served: Path, capfd: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    if shutil.which(shell) is None:
        pytest.skip(f"{shell} is not installed")
    assert run(["env", "--shell", shell]) == 0
    (tmp_path / "variables").write_text(capfd.readouterr().out)
    script = ". ./variables; env -0" if shell != "fish" else "source variables; env -0"
    done = subprocess.run([shell, "-c", script], capture_output=True, text=True, check=True)
    found = dict(line.split("=", 1) for line in done.stdout.split("\0") if line.startswith("SESSIONARY_"))
    expected = STACK | {"SESSIONARY_API_TOKEN": "token-a"}
    assert {name: found[name] for name in expected} == expected


def test_fish_escapes_what_its_single_quotes_read() -> None:
    assert shell_lines({"A": "it's \\ $x"}, ShellName.FISH) == ["set -gx A 'it\\'s \\\\ $x';"]


def test_eval_of_its_output_as_the_documents_say_keeps_every_line(
    served: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    assert run(["env"]) == 0
    lines = capfd.readouterr().out
    script = 'eval "$1"; printf %s "$SESSIONARY_CLICKHOUSE_PASSWORD|$SESSIONARY_API_TOKEN"'
    done = subprocess.run(["sh", "-c", script, "sh", lines], capture_output=True, text=True, check=True)
    assert done.stdout == f"{STACK['SESSIONARY_CLICKHOUSE_PASSWORD']}|token-a"


def test_a_program_gets_an_object_with_the_token_of_the_tenant(served: Path, capfd: pytest.CaptureFixture[str]) -> None:
    assert run(["env", "--json", "--tenant", "globex", "--data", str(served)]) == 0
    assert json.loads(capfd.readouterr().out) == STACK | {"SESSIONARY_API_TOKEN": "token-g"}
    assert run(["env", "--tenant", "unknown"]) == 2
    assert "it has acme, globex" in capfd.readouterr().err


def test_a_program_that_starts_a_stack_is_given_the_token_too(served: Path, capfd: pytest.CaptureFixture[str]) -> None:
    _print_addresses(served, STACK, as_json=True)
    assert json.loads(capfd.readouterr().out) == STACK | {"SESSIONARY_API_TOKEN": "token-a"}


def test_a_stack_that_does_not_run_is_reported_beside_its_variables(
    served: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    assert run(["env"]) == 0
    assert "is not running; start it: sessionary up" in capfd.readouterr().err
    with (served / LOCK_FILE).open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        assert run(["env"]) == 0
        assert capfd.readouterr().err == ""


def test_a_folder_without_a_stack_prints_no_line_for_a_shell(capfd: pytest.CaptureFixture[str]) -> None:
    assert run(["env"]) == 2
    out, err = capfd.readouterr()
    assert (out, len(err.splitlines())) == ("", 1)
    assert "start one: sessionary up --data .sessionary" in err


def test_topics_apply_makes_the_signing_keys_that_are_missing_and_says_what_to_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "keys.json"
    monkeypatch.setenv("SESSIONARY_BOOTSTRAP_SERVERS", "127.0.0.1:1")
    monkeypatch.setenv("SESSIONARY_SIGNING_KEYS_FILE", str(path))
    monkeypatch.setattr(topics, "apply_topics", lambda *_: topics.AppliedTopics((), 1, 1))
    assert run(["topics", "apply"]) == 0
    said = " ".join(capfd.readouterr().err.split())
    assert "keys.json was made, with a new signing key: copy it to the host of every processor" in said
    (secret,) = parse_signing_keys(path.read_bytes()).values()
    assert secret not in said
    made = path.read_bytes()
    assert run(["topics", "apply"]) == 0
    assert "was made" not in capfd.readouterr().err
    assert path.read_bytes() == made
