"""The broker's jars: `jars.txt` lists them, jgo downloads them into the local Maven repository.

The list spares the resolution of some 90 POMs. The downloads take about 5 s the first time.
"""

from __future__ import annotations

import fcntl
import os
import tempfile
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor, as_completed
from importlib.resources import files
from pathlib import Path

from jgo.maven import Artifact, MavenContext

from sessionary.infra.local.errors import JarsUnavailable

_KAFKA = "org.apache.kafka:kafka_2.13:"
_DOWNLOADS_AT_ONCE = 8

JAR_COORDINATES = tuple((files(__package__) / "jars.txt").read_text("utf-8").split())
"""`group:artifact:version` of every jar of the broker's class path."""

KAFKA_VERSION = next(line.removeprefix(_KAFKA) for line in JAR_COORDINATES if line.startswith(_KAFKA))

Progress = Callable[[str], None]
"""Called with one line of text for people, without a line end."""


def kafka_jars(progress: Progress) -> list[Path]:
    """Return all jars of the broker's class path; download those that are not cached.

    Blocks. Only one process at a time downloads. Raises `JarsUnavailable`.
    """
    lock = Path(tempfile.gettempdir()) / f"sessionary-jars-{os.getuid()}.lock"
    try:
        with lock.open("a") as held:
            fcntl.flock(held, fcntl.LOCK_EX)
            context = MavenContext()
            artifacts = [_find_artifact(context, line) for line in JAR_COORDINATES]
            _download_missing([artifact for artifact in artifacts if not _is_cached(artifact)], progress)
            return [artifact.resolve() for artifact in artifacts]
    except Exception as error:  # jgo raises many kinds (HTTP, its own); all mean the same here
        raise JarsUnavailable(
            f"the jars of Kafka {KAFKA_VERSION} cannot be downloaded: {error}; check the network, then try again"
        ) from error


def _find_artifact(context: MavenContext, coordinate: str) -> Artifact:
    group, name, version = coordinate.split(":")
    return context.project(group, name).at_version(version).artifact()


def _is_cached(artifact: Artifact) -> bool:
    path = artifact.cached_path
    return path is not None and path.exists()


def _download_missing(missing: list[Artifact], progress: Progress) -> None:
    with ThreadPoolExecutor(_DOWNLOADS_AT_ONCE) as pool:
        downloads = {pool.submit(artifact.resolve): artifact for artifact in missing}
        for number, done in enumerate(as_completed(downloads), 1):
            done.result()
            progress(f"downloaded {number} of {len(missing)} jars: {downloads[done].filename}")
