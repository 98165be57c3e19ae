"""A worker whose event loop or fetching hangs once a file exists, and that ends 5 s later.

`python -m tests.support.hanging_worker loop|fetching FILE`
"""

import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from sessionary.stream_processors.measures import hang_watch
from sessionary.stream_processors.process import run_processor
from sessionary.stream_processors.runtime.fetching.fetcher import Fetcher
from sessionary.stream_processors.runtime.ticker import Ticker
from sessionary.stream_processors.settings import ProcessorSettings


def hang_if_exists(file: Path, call: Callable[..., Any]) -> Callable[..., Any]:
    def hang_or_call(*args: Any) -> Any:
        if file.exists():
            time.sleep(3_600)
        return call(*args)

    return hang_or_call


if __name__ == "__main__":
    part, file = sys.argv[1], Path(sys.argv[2])
    if part == "loop":
        Ticker.send_due_ticks = hang_if_exists(file, Ticker.send_due_ticks)  # type: ignore[method-assign]
    else:
        Fetcher._run_once = hang_if_exists(file, Fetcher._run_once)  # type: ignore[method-assign]
    hang_watch.HUNG_S = 5.0  # type: ignore[misc]
    run_processor(ProcessorSettings.from_env())
