"""What the tests of owners without a broker share."""

import gc
from collections.abc import Iterator

import pytest

from sessionary.stream_processors.runtime import assignment, partition_owner
from sessionary.stream_processors.runtime.log_probe import LogProbe
from tests.core.stream_processors.runtime.owner_doubles import FakeRecovery, FakeWriter


@pytest.fixture
def recovery(monkeypatch: pytest.MonkeyPatch) -> FakeRecovery:
    """Let partitions open without a broker; `gate` of the recovery lets one end."""
    recovery = FakeRecovery()
    monkeypatch.setattr(partition_owner, "TransactionWriter", FakeWriter)
    monkeypatch.setattr(partition_owner, "recover", recovery.recover)
    monkeypatch.setattr(partition_owner, "probe_log", lambda settings, partition, offset: LogProbe(0, 0))
    return recovery


@pytest.fixture
def no_collection(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Collect no cycles: a worker nearly never does. Failed owners are replaced at once."""
    monkeypatch.setattr(assignment, "_BACK_OFF_S_MAX", 0.0)
    gc.collect()
    gc.disable()
    yield
    gc.enable()
