"""The broker's jars, resolved by jgo (a Maven resolver in Python) into its own cache: about 20 s once, then 0.2 s."""

from __future__ import annotations

import fcntl
import logging
import os
import tempfile
from collections.abc import Callable
from pathlib import Path

import jgo

from sessionary.infra.local.errors import JarsUnavailable

__all__ = ["KAFKA_VERSION", "Progress", "kafka_jars"]

KAFKA_VERSION = "4.1.2"
# Two resolutions, not one joined by "+": log4j's parent POM manages kafka-clients to 3.8.0, and a joint resolution
# would give the broker that. Kafka brings no slf4j binding of its own; without one the broker's log stays empty.
_KAFKA = f"org.apache.kafka:kafka_2.13:{KAFKA_VERSION}"
_LOGGING = "org.apache.logging.log4j:log4j-slf4j-impl:2.24.3"

Progress = Callable[[str], None]
"""Takes one line for a human, without a line end."""


class _Downloads(logging.Handler):
    """Turns jgo's debug lines about jars into progress lines."""

    def __init__(self, progress: Progress) -> None:
        super().__init__(logging.DEBUG)
        self._progress = progress

    def emit(self, record: logging.LogRecord) -> None:
        text = record.getMessage()
        if text.startswith("Trying ") and text.endswith(".jar"):
            self._progress(f"downloading {text.rpartition('/')[2]}")


def _resolve_jars(endpoint: str) -> list[Path]:
    return [Path(jar) for jar in jgo.build(endpoint).all_jars]


def _artifact_name(jar: Path) -> str:
    return jar.stem.rpartition("-")[0]


def kafka_jars(progress: Progress) -> list[Path]:
    """All jars of the broker's class path, downloaded if they are not cached.

    Blocks; one process at a time resolves. Raises JarsUnavailable.
    """
    log = logging.getLogger("jgo")
    level, downloads = log.level, _Downloads(progress)
    lock = Path(tempfile.gettempdir()) / f"sessionary-jars-{os.getuid()}.lock"
    log.addHandler(downloads)
    log.setLevel(logging.DEBUG)
    log.propagate = False
    try:
        with lock.open("a") as held:
            fcntl.flock(held, fcntl.LOCK_EX)
            kafka, extra = _resolve_jars(_KAFKA), _resolve_jars(_LOGGING)
    except Exception as error:  # jgo raises many kinds (HTTP, XML, its own): all mean the same here
        raise JarsUnavailable(f"cannot resolve {_KAFKA}: {error}") from error
    finally:
        log.setLevel(level)
        log.propagate = True
        log.removeHandler(downloads)
    if not any(jar.name == f"kafka-clients-{KAFKA_VERSION}.jar" for jar in kafka):
        raise JarsUnavailable(f"the resolver gave another version of kafka-clients than {KAFKA_VERSION}")
    known = {_artifact_name(jar) for jar in kafka}
    return kafka + [jar for jar in extra if _artifact_name(jar) not in known]
