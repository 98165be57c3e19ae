"""The compiled core passes tests, also in real processes, and writes the Python's bytes."""

import json
import os
import pickle
import random
import re
import shutil
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

from benchmarks.workload.events import Workload, agent_runs
from native.tree import copy_sources
from tests.chaos.one_minute import RUN_S_MAX, run_chaos
from tests.chaos.schedule import PROCESSORS
from tests.native.conftest import join_rooms, run_program
from tests.style.project import ROOT
from tests.support.levels import OPTION, SHORT
from tests.support.processes import Processes

OF_MAKE_TEST = f"{OPTION}={SHORT}"
TESTED = (
    *("tests/core/stream_processors", "tests/core/schemas", "tests/core/sinks", "tests/simulation"),
    # Nothing is compiled there, and what is compiled is not called otherwise than by the rest.
    *("--ignore=tests/core/stream_processors/api", "--ignore=tests/core/stream_processors/self_metrics"),
)
# What makes, checks and keeps events. The rest of the client does what it does with them.
TESTED_OF_CLIENT = ("delivery", "verdicts", "session", "test_client.py")
EVENTS, SESSIONS = 20_000, 500
SEED = 3  # the logs of a run go by it, and other tests run chaos too
KINDS = ("kill processor", "kill sink")  # of what runs the compiled core
INTEGRATION = (
    *("test_pipeline.py", "test_sinks_flow.py"),
    "test_processor_road.py::test_events_become_audit_records_exactly_once",  # the worker names its core too
)
TESTS_S_MAX = 1_200.0

Raw = tuple[bytes | None, bytes | None, tuple[tuple[str, bytes], ...]]


def _fold(log: Path, path: str) -> dict[str, Any]:
    program = str(Path(__file__).with_name("fold_log.py"))
    done = run_program(
        [sys.executable, program, str(log)],
        {"PYTHONPATH": os.pathsep.join((path, str(ROOT)))},
    )
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def _damaged(records: list[Raw], rng: random.Random) -> list[Raw]:
    """Return the records with some of them repeated, cut, changed or under another's key."""
    damaged: list[Raw] = []
    for key, value, headers in records:
        damaged.append((key, value, headers))
        match rng.randrange(40):
            case 0:
                damaged.append((key, value, headers))
            case 1 if value:
                damaged.append((key, value[: rng.randrange(len(value))], headers))
            case 2 if value:
                place = rng.randrange(10, len(value))
                damaged.append((key, value[:place] + rng.randbytes(1) + value[place + 1 :], headers))
            case 3:
                damaged.append((rng.choice(damaged)[0], value, headers))
            case _:
                pass
    return damaged


def test_both_builds_write_the_same_bytes(native_path: str, tmp_path: Path) -> None:
    copy_sources(ROOT, tmp_path / "python")  # the checkout itself may be compiled
    python_path = join_rooms(tmp_path / "python")
    workload = Workload(agent_runs(), concurrent=SESSIONS)
    records: list[Raw] = [(event.key, event.value, ()) for event in workload.event_stream(EVENTS)]
    log = tmp_path / "log"
    log.write_bytes(pickle.dumps(_damaged(records, random.Random(2))))
    native, python = _fold(log, native_path), _fold(log, python_path)
    assert (native.pop("core"), python.pop("core")) == ("native", "python")
    assert (native.pop("reader"), python.pop("reader")) == ("builtin_function_or_method", "function")
    assert (native.pop("writer"), python.pop("writer")) == ("builtin_function_or_method", "function")
    assert native == python
    assert native["records"] > EVENTS / 10
    assert native["rows"] > EVENTS / 10
    assert native["rejected"] > EVENTS / 100


def _pass_tests(native_path: str, *chosen: str) -> tuple[int, str]:
    """Run tests with the compiled copy; return their number and the output."""
    options = ["-rs", "-p", "no:cacheprovider", "-p", "no:xdist"]
    program = [sys.executable, "-m", "pytest", *options, "--timeout=600", *chosen]
    done = run_program(program, {"PYTHONPATH": native_path})
    assert done.returncode == 0, done.stdout[-20_000:] + done.stderr[-2_000:]
    assert "core: native" in done.stdout.splitlines()
    found = re.search(r"^=+ (\d+) passed", done.stdout, re.M)
    assert found is not None, done.stdout[-2_000:]
    return int(found[1]), done.stdout


def test_the_compiled_core_folds_the_recorded_log_to_the_same_bytes(native_path: str) -> None:
    passed, _ = _pass_tests(native_path, "tests/recorded")
    assert passed > 10


def test_the_compiled_core_passes_the_core_s_tests(native_path: str) -> None:
    passed, output = _pass_tests(native_path, OF_MAKE_TEST, *TESTED)
    assert passed > 1_000
    assert "has no encoder" not in output
    assert "tests marked interpreted were left out" in output


def test_every_schedule_of_the_simulation_holds_with_the_compiled_core(native_path: str) -> None:
    name = "test_every_schedule_holds_and_together_they_meet_everything"
    passed, _ = _pass_tests(native_path, f"tests/simulation/test_simulation.py::{name}")
    assert passed == 1


def test_the_client_passes_its_tests_with_the_compiled_core(native_path: str) -> None:
    passed, _ = _pass_tests(native_path, OF_MAKE_TEST, *(f"tests/core/producers/{name}" for name in TESTED_OF_CLIENT))
    assert passed > 600


def cores_reported(logs: Iterable[Path]) -> list[str]:
    """Return which core each worker reported in its log as often as it became ready."""
    lines = [line for log in logs for line in log.read_text("utf-8").splitlines() if "processor is ready" in line]
    return [json.loads(line)["core"] for line in lines]


@pytest.mark.timeout(RUN_S_MAX + 600)  # and a build
def test_a_minute_of_chaos_loses_and_doubles_nothing(native_path: str, processes: Processes, tmp_path: Path) -> None:
    only = [word for kind in KINDS for word in ("--only", kind)]
    result = run_chaos(processes, tmp_path, SEED, "--keep-logs", *only, env={"PYTHONPATH": native_path})
    assert {fault["kind"] for fault in result["outcomes"]} == set(KINDS)
    assert result["events"] > 1_000
    folder = ROOT / "build" / "chaos" / f"{SEED}-on-1"
    for name in PROCESSORS:
        assert set(cores_reported([folder / f"{name}.log"])) == {"native"}
    shutil.rmtree(folder)


@pytest.mark.timeout(TESTS_S_MAX + 600)  # and a build
def test_workers_and_sinks_with_the_compiled_core_pass_tests_of_the_integration(
    native_path: str, processes: Processes
) -> None:
    options = ["-q", "-rs", OF_MAKE_TEST, "-p", "no:cacheprovider", "-p", "no:xdist"]
    program = [sys.executable, "-m", "pytest", *options, *(f"tests/integration/{name}" for name in INTEGRATION)]
    child = processes.run(program, env={"PYTHONPATH": native_path}, name="tests")
    assert child.wait(TESTS_S_MAX)
    output = child.log.read_text("utf-8")
    assert child.exit_code == 0, output[-20_000:]
    found = re.search(r"^(\d+) passed", output, re.M)
    assert found is not None, output[-2_000:]
    assert int(found[1]) >= len(INTEGRATION)
    reported = cores_reported((ROOT / "build" / "logs" / f"run-{child.pid}").glob("*.log"))
    assert len(reported) >= len(INTEGRATION) - 1  # one of them has sinks alone
    assert set(reported) == {"native"}
