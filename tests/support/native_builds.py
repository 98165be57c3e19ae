"""Builds of the compiled core, of which one at a time may use `build/native`."""

import fcntl
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.style.project import ROOT

_LOCK = ROOT / "build" / "native" / "lock"


@contextmanager
def build_lock() -> Iterator[None]:
    """Wait until no other process builds, and let none begin meanwhile."""
    _LOCK.parent.mkdir(parents=True, exist_ok=True)
    with _LOCK.open("a") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        yield


def folder_of_run(config: pytest.Config, factory: pytest.TempPathFactory) -> Path:
    """Return the temporary folder that all workers of this run share."""
    own = factory.getbasetemp()
    return own.parent if hasattr(config, "workerinput") else own
