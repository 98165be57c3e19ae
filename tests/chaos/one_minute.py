"""Runs minutes of chaos in a process of its own, as tests do."""

import json
import shlex
import signal
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from tests.support.processes import Processes

# Beside other tests, whose brokers and engines want the same two cores; a run alone has 60 s.
_GO_ON_S = 180.0
# Start, rounds of sixty seconds, and settling; the machine may be busy with other tests.
RUN_S_MAX = 1_200.0


def run_chaos(
    processes: Processes,
    folder: Path,
    seed: int,
    *options: str,
    minutes: int = 1,
    env: Mapping[str, str] | None = None,
) -> dict[str, Any]:
    """Run chaos, and return its result, which must be good. Logs go by the seed."""
    found = folder / "result.json"
    argv = [sys.executable, "-m", "tests.chaos", "--minutes", str(minutes), "--seed", str(seed), "--json", str(found)]
    child = processes.run([*argv, "--go-on-s", str(_GO_ON_S), *options], env=env, name=f"chaos-{seed}")
    if not child.wait(limit_s := RUN_S_MAX + 60 * minutes):
        child.signal(signal.SIGTERM)
        pytest.fail(f"chaos run not finished within {limit_s:g} s")
    result: dict[str, Any] = json.loads(found.read_text()) if found.exists() else {}
    repeat = shlex.join(["--go-on-s", str(_GO_ON_S), *options])
    assert result.get("differences") == [], (
        f"repeat: make chaos MINUTES={minutes} SEED={seed} ARGS={shlex.quote(repeat)}"
    )
    assert child.exit_code == 0
    return result
