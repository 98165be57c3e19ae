"""A real Prometheus: its tool, its servers and its answers."""

import json
import shutil
import subprocess
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final, NamedTuple

import pytest

from sessionary.infra.local.ports import LOOPBACK
from sessionary.infra.local.process import Child
from tests.support.waiting import wait_until

_PROMTOOL: Final = shutil.which("promtool")
needs_promtool = pytest.mark.skipif(_PROMTOOL is None, reason="promtool is missing: make monitoring installs it")
STOP_S: Final = 15.0
_START_S: Final = 180.0
_TOOL_S: Final = 300.0
_ANSWER_S: Final = 30.0
_RANGE_S: Final = 120.0


class Series(NamedTuple):
    """A line of a diagram: its labels, and its points as seconds since the epoch and value."""

    labels: dict[str, str]
    points: tuple[tuple[float, float], ...]


class PrometheusClient:
    """Asks Prometheus' HTTP API. Every method blocks."""

    def __init__(self, port: int) -> None:
        self._url = f"http://{LOOPBACK}:{port}/api/v1"

    def active_alerts(self) -> list[dict[str, Any]]:
        """Return the alerts that are pending or firing; empty without an answer."""
        found = self._ask("alerts")
        return list(found["alerts"]) if found else []

    def query_values(self, expression: str) -> list[float]:
        """Return the values of an expression now; empty without an answer."""
        found = self._ask(f"query?{urllib.parse.urlencode({'query': expression})}")
        return [float(series["value"][1]) for series in found["result"]] if found else []

    def query_range(self, expression: str, start_s: float, end_s: float, step_s: float) -> list[Series]:
        """Return the series of an expression. Raises `ValueError` if Prometheus refuses it."""
        asked = urllib.parse.urlencode({"query": expression, "start": start_s, "end": end_s, "step": step_s})
        try:
            with urllib.request.urlopen(f"{self._url}/query_range?{asked}", timeout=_RANGE_S) as answer:
                found: dict[str, Any] = json.load(answer)
        except urllib.error.HTTPError as error:
            with error:
                raise ValueError(f"{expression}: {error.read().decode()}") from None
        return [
            Series(one["metric"], tuple((float(at_s), float(value)) for at_s, value in one["values"]))
            for one in found["data"]["result"]
        ]

    def _ask(self, path: str) -> Any:
        try:
            with urllib.request.urlopen(f"{self._url}/{path}", timeout=_ANSWER_S) as answer:
                return json.loads(answer.read())["data"]
        except OSError:
            return None


def run_promtool(*arguments: str) -> tuple[int, str]:
    """Return promtool's exit code and all output."""
    assert _PROMTOOL is not None
    done = subprocess.run([_PROMTOOL, *arguments], capture_output=True, text=True, timeout=_TOOL_S, check=False)
    return done.returncode, done.stdout + done.stderr


def start_server(name: str, options: Mapping[str, object], log: Path, port: int) -> Child:
    """Start Prometheus or Alertmanager, and wait until it answers on a loopback port.

    Raises AssertionError if it ends, or does not answer in time; then it runs no longer.
    """
    address = f"{LOOPBACK}:{port}"
    settings = {**options, "web.listen-address": address}
    child = Child([name, *(f"--{option}={value}" for option, value in settings.items())], log)

    def is_ready() -> bool:
        if child.exit_code is not None:
            raise AssertionError(f"{name} ended with code {child.exit_code}; its log is {child.log}")
        try:
            with urllib.request.urlopen(f"http://{address}/-/ready", timeout=2) as answer:
                return bool(answer.status == 200)
        except OSError:
            return False

    try:
        wait_until(is_ready, _START_S, f"{name} to be ready", pause_s=0.2)
    except BaseException:
        child.stop(STOP_S)
        raise
    return child
