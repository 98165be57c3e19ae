"""A real Prometheus that scrapes a stack of `sessionary up`, and its answers."""

import json
import shutil
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final, NamedTuple

from sessionary.infra.local.ports import LOOPBACK, free_port
from sessionary.infra.local.process import Child
from tests.support.waiting import wait_until

SCRAPE_S: Final = 2
_READY_S: Final = 60.0
_STOP_S: Final = 10.0


class Series(NamedTuple):
    """A line of a diagram: its labels, and its points as seconds since the epoch and value."""

    labels: dict[str, str]
    points: tuple[tuple[float, float], ...]


class PrometheusClient:
    """Asks Prometheus' HTTP API. Every method blocks."""

    def __init__(self, url: str) -> None:
        self.url = url

    def is_ready(self) -> bool:
        """Return whether it answers."""
        try:
            with urllib.request.urlopen(f"{self.url}/-/ready", timeout=5):
                return True
        except OSError:
            return False

    def query_range(self, expression: str, start_s: float, end_s: float, step_s: float) -> list[Series]:
        """Return the series of an expression. Raises `ValueError` if Prometheus refuses it."""
        asked = urllib.parse.urlencode({"query": expression, "start": start_s, "end": end_s, "step": step_s})
        try:
            with urllib.request.urlopen(f"{self.url}/api/v1/query_range?{asked}", timeout=60) as answer:
                found: dict[str, Any] = json.load(answer)
        except urllib.error.HTTPError as error:
            with error:
                raise ValueError(f"{expression}: {error.read().decode()}") from None
        return [
            Series(one["metric"], tuple((float(at_s), float(value)) for at_s, value in one["values"]))
            for one in found["data"]["result"]
        ]


@contextmanager
def running_prometheus(targets: Path, folder: Path) -> Iterator[PrometheusClient]:
    """Run Prometheus, which scrapes the targets of a file for `file_sd_configs`.

    Its data and its log are in `folder`. Raises `FileNotFoundError` if it is not installed.
    """
    program = shutil.which("prometheus")
    if program is None:
        raise FileNotFoundError("prometheus is missing: apt-get install prometheus")
    scrape = {
        "job_name": "sessionary",
        "scrape_interval": f"{SCRAPE_S}s",
        "file_sd_configs": [{"files": [str(targets.resolve())]}],
    }
    config, address = folder / "prometheus.yml", f"{LOOPBACK}:{free_port()}"
    config.write_text(json.dumps({"scrape_configs": [scrape]}))  # JSON is YAML too
    options = {"config.file": config, "storage.tsdb.path": folder / "series", "web.listen-address": address}
    argv = [program, *(f"--{name}={value}" for name, value in options.items())]
    child = Child(argv, folder / "prometheus.log")
    try:
        client = PrometheusClient(f"http://{address}")
        wait_until(client.is_ready, _READY_S, "Prometheus to be ready", pause_s=0.2)
        yield client
    finally:
        child.stop(_STOP_S)


__all__ = ["SCRAPE_S", "PrometheusClient", "Series", "running_prometheus"]
