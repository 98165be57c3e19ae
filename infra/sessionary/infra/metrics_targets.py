"""The metrics addresses of the local stack's parts, and the file that lists them for Prometheus.

<data>/prometheus.json has the form of Prometheus' file-based service discovery:

    scrape_configs:
      - job_name: sessionary
        file_sd_configs: [{files: [<data>/prometheus.json]}]

Each target's labels replace the job's name: `job` is `sessionary-<role>`, `instance` the part.
"""

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import NamedTuple

from sessionary.infra.local.ports import LOOPBACK, free_ports
from sessionary.schemas.settings import ENV_PREFIX

TARGETS_FILE = "prometheus.json"


class MetricsTarget(NamedTuple):
    """A part that serves metrics on a loopback port: its role, its name and the port."""

    role: str
    part: str
    port: int


def choose_metrics_ports(known: Mapping[str, str], parts: Iterable[str], first: int | None) -> dict[str, int]:
    """Return a port for each part.

    The parts take `first` and the ports that follow it, in order. None: each takes its port of
    `known`, the folder's variables, else a free one. Raises `OSError` if there are no free ports.
    """
    names = list(parts)
    if first is not None:
        return {name: first + place for place, name in enumerate(names)}
    recorded, spare = recorded_ports(known, names), iter(free_ports(len(names)))
    return {name: recorded[name] if name in recorded else next(spare) for name in names}


def recorded_ports(known: Mapping[str, str], parts: Iterable[str]) -> dict[str, int]:
    """Return the recorded ports of these parts in a folder; `known`: its variables."""
    found = {name: known.get(_variable_of(name), "") for name in parts}
    return {name: int(port) for name, port in found.items() if port.isdecimal()}


def metrics_variables(ports: Mapping[str, int]) -> dict[str, str]:
    """Return the variables that record the ports of a folder's parts."""
    return {_variable_of(name): str(port) for name, port in ports.items()}


def _variable_of(part: str) -> str:
    return f"{ENV_PREFIX}METRICS_PORT_{part.upper().replace('-', '_')}"


def write_targets(data: Path, targets: Iterable[MetricsTarget]) -> None:
    """Write `prometheus.json`; Prometheus never reads half of it."""
    groups = [
        {
            "targets": [f"{LOOPBACK}:{target.port}"],
            "labels": {"job": f"sessionary-{target.role}", "instance": target.part},
        }
        for target in targets
    ]
    draft = data / f"{TARGETS_FILE}.new"
    draft.write_text(json.dumps(groups, indent=1) + "\n")
    draft.replace(data / TARGETS_FILE)
