"""Commands beside brokers that keep their connections open and answer nothing."""

import json
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from docs.build.commands_page import leaf_commands
from sessionary.infra.environment import TENANTS
from sessionary.infra.local.ports import free_port
from sessionary.producers.settings import ProducerSettings
from sessionary.schemas.settings import ClickHouseSettings, KafkaSettings
from tests.support.migrated_tables import make_tables
from tests.support.mock_cluster import mock_cluster
from tests.support.pipelines import environment
from tests.support.processes import Processes
from tests.support.waiting import wait_until

COMMAND = str(Path(sys.executable).parent / "sessionary")
SAID_S_MAX = 5.0
# They end at once, with a line and code 3.
ENDING = (
    "lag",
    "topics apply",
    "demo load",
    "integrity repair --from 2026-01-01",
    "integrity dismiss audit_missing --reason lost --by ann",
    "rejected replay 0:1",
    "spool drain",
    "call resolve 0000 key --outcome failed --by ann",
    "session simulate s --tenant acme --replace 1=tests/golden/0.2.0/columns.json",
)
# They go on trying, and say so in their logs.
LASTING = {
    "serve processor": "no broker answers at",
    "serve quotas": "no broker answers at",
    "serve sink audit": "no broker answers yet",
    "serve lag-exporter": "no lag is known",
    "serve task-worker --module some_tasks --tenant acme --service billing": "no broker answers yet",
}
TASKS = """from sessionary.producers.tasks import task

@task("report")
def report(ctx, input):
    return {}
"""
REPORTING = ("doctor", "integrity check")  # they report also what is well
OWN_BROKER = ("demo", "up", "serve broker")
NO_KAFKA = {
    *("env", "sql", "serve clickhouse", "alerts render", "db migrate", "db rights", "artifact sweep"),
    # They look into the spool's folder.
    *("spool list", "spool verify"),
    # They ask ClickHouse, or the control API.
    *(
        f"session {verb}"
        for verb in ("list", "show", "timeline", "why", "follow", "at", "diff", "snapshots", "conversation")
    ),
    *(f"session {verb}" for verb in ("pause", "resume", "cancel", "ask-again", "claim", "move", "moves", "drain")),
    *("question list", "question approve", "question deny"),
    *("run list", "run show", "run resume", "run compare"),
    *("call unknown", "rejected list", "rejected show"),
    *(f"partition {verb}" for verb in ("list", "retry", "skip", "rebuild")),
    *(f"partition {verb}" for verb in ("accept-gap", "accept-truncation", "repair-clock")),
    *("rules list", "rules activate"),
}


@pytest.fixture(scope="module")
def silent(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    """Variables that name brokers which accept connections and then fall silent."""
    with mock_cluster() as cluster:
        for number in (1, 2, 3):
            cluster.silence_broker(number)
        variables = environment(
            KafkaSettings(bootstrap_servers=cluster.bootstrap_servers),
            api_tokens=json.dumps({f"token of {tenant}": tenant for tenant in TENANTS}),
            clickhouse_url=f"http://127.0.0.1:{free_port()}",
            control_url=f"http://127.0.0.1:{free_port()}",
            spool_dir=str(tmp_path_factory.mktemp("spool")),
        )
        ProducerSettings.from_env(variables).spool_folder.mkdir(parents=True)
        yield variables


def start_s() -> float:
    """Return how long a command takes to start here and now, in seconds."""
    began_s = time.monotonic()
    subprocess.run([COMMAND, "doctor", "--help"], capture_output=True, timeout=300, check=True)
    return time.monotonic() - began_s


def is_said_in_time(said_s: float, more_s: float = 0.0) -> bool:
    """Return whether a command that took so long said within 5 s that no broker answers.

    Of a slow machine, its start is not what is measured. The load changes, so a late command's
    start is measured after it, more than once.
    """
    late_s = said_s - SAID_S_MAX - more_s
    return late_s <= 0 or any(late_s < 6 * start_s() for _ in range(3))


def run_command(arguments: str, environ: Mapping[str, str]) -> "subprocess.CompletedProcess[str]":
    """Run a command to its end."""
    return subprocess.run(
        [COMMAND, *arguments.split()], env=environ, capture_output=True, text=True, timeout=300, check=False
    )


def test_every_command_that_asks_kafka_is_tested_here() -> None:
    lines, leaves = (*ENDING, *LASTING, *REPORTING, *OWN_BROKER), [*leaf_commands()]
    tested = {max((name for name in leaves if f"{line} ".startswith(f"{name} ")), key=len) for line in lines}
    assert sorted([*tested, *NO_KAFKA]) == sorted(leaves)


@pytest.mark.parametrize("arguments", ENDING)
def test_a_command_says_within_5_s_that_the_brokers_are_away(arguments: str, silent: dict[str, str]) -> None:
    began_s = time.monotonic()
    done = run_command(arguments, silent)
    said_s = time.monotonic() - began_s
    assert (done.returncode, done.stdout) == (3, ""), done.stderr
    assert "does not answer" in done.stderr
    assert len(done.stderr.splitlines()) == 1
    assert is_said_in_time(said_s)


@pytest.mark.parametrize("arguments", LASTING)
def test_a_role_says_within_5_s_that_the_brokers_are_away(
    arguments: str, silent: dict[str, str], processes: Processes, tmp_path: Path
) -> None:
    (tmp_path / "some_tasks.py").write_text(TASKS)
    environ = silent | {"SESSIONARY_METRICS_PORT": str(free_port()), "PYTHONPATH": str(tmp_path)}
    environ["SESSIONARY_API_PORT"] = "0"
    began_s = time.monotonic()
    role = processes.run([COMMAND, *arguments.split()], env=environ, name=arguments.split()[1])
    wait_until(lambda: LASTING[arguments] in role.log.read_text(), 180, "the role to say so")
    assert is_said_in_time(time.monotonic() - began_s)


def test_a_command_that_watches_says_so_again_and_again_until_ctrl_c(
    silent: dict[str, str], processes: Processes
) -> None:
    began_s = time.monotonic()
    watching = processes.run([COMMAND, "lag", "--watch"], env=silent, name="watch")

    def rows() -> list[dict[str, str]]:
        return [json.loads(line) for line in watching.log.read_text().splitlines() if line.endswith("}")]

    wait_until(rows, 180, "the first round")
    assert is_said_in_time(time.monotonic() - began_s)
    wait_until(lambda: len(rows()) > 1, 30, "the second round")
    assert {row["state"] for row in rows()} == {"broker_away"}
    assert all("does not answer" in row["detail"] for row in rows())
    watching.signal(signal.SIGINT)
    assert watching.wait(180)
    assert watching.exit_code == 0


def test_doctor_says_within_5_s_that_the_brokers_are_away(silent: dict[str, str]) -> None:
    began_s = time.monotonic()
    done = run_command("doctor --json", silent)
    said_s = time.monotonic() - began_s
    assert done.returncode == 1
    found = {check["check"]: check for check in map(json.loads, done.stdout.splitlines())}
    assert (found["broker"]["ok"], "does not answer" in found["broker"]["found"]) == (False, True)
    assert is_said_in_time(said_s)


def test_integrity_compares_what_clickhouse_has_although_the_brokers_are_away(
    silent: dict[str, str], clickhouse: ClickHouseSettings
) -> None:
    make_tables(clickhouse)
    began_s = time.monotonic()
    done = run_command("integrity check", silent | environment(clickhouse))
    said_s = time.monotonic() - began_s
    assert (done.returncode, done.stdout) == (3, "")
    first, last = done.stderr.splitlines()
    assert first.startswith("neither the ends of the tables nor the requests are compared: Kafka at ")
    assert "does not answer" in last
    assert is_said_in_time(said_s, 10.0)  # the engine plans its view
