"""What a worker tells of its parts."""

import asyncio
from pathlib import Path

import pytest

from sessionary.stream_processors.settings import ProcessorSettings
from sessionary.stream_processors.worker import Processor


def test_a_worker_that_ends_by_a_failure_has_no_part_that_must_make_turns(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def fail() -> None:
        raise RuntimeError("a part has failed")

    async def run() -> None:
        processor = Processor(ProcessorSettings(bootstrap_servers="127.0.0.1:1", api_port=0), str(tmp_path))
        assert len(processor.read_turns()) == 3
        monkeypatch.setattr(processor.app, "start", fail)
        with pytest.raises(RuntimeError, match="a part has failed"):
            await processor.run()
        assert processor.read_turns() == {}

    asyncio.run(run())
