"""How a changelog is read, without a broker."""

from typing import Any

import pytest

from sessionary.stream_processors.runtime import changelog
from sessionary.stream_processors.runtime.changelog import PREFETCH_KIB, reader_of
from sessionary.stream_processors.runtime.worker_context import RECOVERIES_MAX
from sessionary.stream_processors.settings import ProcessorSettings


def test_all_recoveries_of_a_worker_prefetch_less_than_one_reader_by_default(monkeypatch: pytest.MonkeyPatch) -> None:
    configs: list[dict[str, Any]] = []
    monkeypatch.setattr(changelog, "Consumer", configs.append)
    reader_of(ProcessorSettings())
    assert configs[0]["queued.max.messages.kbytes"] == PREFETCH_KIB
    assert RECOVERIES_MAX * PREFETCH_KIB <= 65_536
