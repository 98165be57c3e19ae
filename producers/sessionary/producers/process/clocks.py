"""A clock for spans that a machine may sleep through."""

import sys
import time


def awake_and_asleep_s() -> float:
    """Return seconds on a clock that also counts while the machine sleeps, as the broker's does.

    Only differences count. macOS counts sleep in `CLOCK_MONOTONIC`, Windows in `time.monotonic`.
    """
    if sys.platform == "linux":
        return time.clock_gettime(time.CLOCK_BOOTTIME)
    if sys.platform == "darwin":
        return time.clock_gettime(time.CLOCK_MONOTONIC)
    return time.monotonic()
