"""A real Prometheus that scrapes a local stack."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from sessionary.infra.local.ports import free_port
from tests.support.prometheus import STOP_S, PrometheusClient, start_server

SCRAPE_S: Final = 2


@contextmanager
def running_prometheus(folder: Path, *targets: Path) -> Iterator[PrometheusClient]:
    """Run Prometheus, which scrapes the targets of files for `file_sd_configs`.

    Its data and its log are in `folder`. Raises AssertionError as `start_server` does.
    """
    scrape = {
        "job_name": "sessionary",
        "scrape_interval": f"{SCRAPE_S}s",
        "file_sd_configs": [{"files": [str(path.resolve()) for path in targets]}],
    }
    config, port = folder / "prometheus.yml", free_port()
    config.write_text(json.dumps({"scrape_configs": [scrape]}))  # JSON is YAML too
    options = {"config.file": config, "storage.tsdb.path": folder / "series"}
    child = start_server("prometheus", options, folder / "prometheus.log", port)
    try:
        yield PrometheusClient(port)
    finally:
        child.stop(STOP_S)
