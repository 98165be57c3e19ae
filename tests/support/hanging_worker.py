"""A worker with a part that hangs while a file exists.

`python -m tests.support.hanging_worker loop|fetching|seek FILE`. The event loop or the fetching
hang once the file exists, and the worker ends 5 s later. With `seek`, Faust's seek after a new
assignment takes longer than a request may take, as if the broker went away in this moment, and goes
on for as long as the file exists.
"""

import asyncio
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from sessionary.stream_processors import process
from sessionary.stream_processors.process import run_processor
from sessionary.stream_processors.runtime.faust_transport import MemberConsumer, MemberTransport
from sessionary.stream_processors.runtime.fetcher import Fetcher
from sessionary.stream_processors.runtime.ticker import Ticker
from sessionary.stream_processors.settings import ProcessorSettings


def hang_if_exists(file: Path, call: Callable[..., Any]) -> Callable[..., Any]:
    def hang_or_call(*args: Any) -> Any:
        if file.exists():
            time.sleep(3_600)
        return call(*args)

    return hang_or_call


class LateConsumer(MemberConsumer):
    """A consumer whose seeks take long. `held` is the file that makes them take longer."""

    held: Path

    async def perform_seek(self) -> None:
        await asyncio.sleep(self.app.conf.broker_request_timeout + 2.0)
        while self.held.exists():
            await asyncio.sleep(0.1)
        await super().perform_seek()


if __name__ == "__main__":
    part, file = sys.argv[1], Path(sys.argv[2])
    if part == "loop":
        Ticker.send_due_ticks = hang_if_exists(file, Ticker.send_due_ticks)  # type: ignore[method-assign]
    elif part == "seek":
        LateConsumer.held, MemberTransport.Consumer = file, LateConsumer
    else:
        Fetcher._run_once = hang_if_exists(file, Fetcher._run_once)  # type: ignore[method-assign]
    process.HUNG_S = 5.0  # type: ignore[misc]
    run_processor(ProcessorSettings.from_env())
