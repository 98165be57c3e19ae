"""The broker's jars. jgo, a Maven resolver in Python, downloads them into its cache.

The first resolution takes about 20 s, later ones 0.2 s.
"""

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
# Two resolutions, because log4j's parent POM manages kafka-clients to 3.8.0: a joint resolution (by
# "+") would give the broker that version. Kafka has no slf4j binding of its own; without one the
# broker's log stays empty.
_KAFKA = f"org.apache.kafka:kafka_2.13:{KAFKA_VERSION}"
_LOGGING = "org.apache.logging.log4j:log4j-slf4j-impl:2.24.3"

Progress = Callable[[str], None]
"""Called with one line of text for people, without a line end."""


class _Downloads(logging.Handler):
    """A log handler that turns jgo's debug lines about jars into progress lines."""

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
    """Return all jars of the broker's class path; download those that are not cached.

    Blocks. Only one process at a time resolves. Raises `JarsUnavailable`.
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
    except Exception as error:  # jgo raises many kinds (HTTP, XML, its own); all mean the same here
        raise JarsUnavailable(
            f"the jars of {_KAFKA} cannot be downloaded: {error}; check the network, then try again"
        ) from error
    finally:
        log.setLevel(level)
        log.propagate = True
        log.removeHandler(downloads)
    if not any(jar.name == f"kafka-clients-{KAFKA_VERSION}.jar" for jar in kafka):
        raise JarsUnavailable(f"the resolver returned another version of kafka-clients than {KAFKA_VERSION}")
    known = {_artifact_name(jar) for jar in kafka}
    return kafka + [jar for jar in extra if _artifact_name(jar) not in known]
