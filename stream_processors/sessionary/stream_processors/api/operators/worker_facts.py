"""What a worker tells of itself: release, build of the rules, clock, and the room on its disk."""

import time
from importlib.metadata import PackageNotFoundError, version
from typing import Any, Final

from sessionary.stream_processors.measures.core_build import core_build
from sessionary.stream_processors.settings import ProcessorSettings
from sessionary.stream_processors.store.full_disk import free_bytes


def _installed_release() -> str | None:
    try:
        return version("sessionary")
    except PackageNotFoundError:  # it runs from a folder of sources
        return None


# As it was when the process started: an upgrade of the package does not change what runs.
_RELEASE: Final = _installed_release()


def worker_facts(settings: ProcessorSettings) -> dict[str, Any]:
    """Return release, build of the rules, clock (ms since the epoch), state folder and free bytes.

    The last two are null if rows are kept in memory, or in a temporary folder. Asks the operating
    system for the disk, which takes microseconds.
    """
    folder = settings.state_dir if settings.store == "rocksdb" else None
    return {
        "release": _RELEASE,
        "core": core_build(),
        "time_ms": time.time_ns() // 1_000_000,
        "state_dir": None if folder is None else str(folder),
        "state_free_bytes": free_bytes(folder),
    }
