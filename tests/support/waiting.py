"""Waits for a condition instead of a fixed time."""

import time
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")


def wait_until(condition: Callable[[], T | None], timeout_s: float, what: str, *, pause_s: float = 0.05) -> T:
    """Call `condition` until it returns a true value, and return that.

    Raises AssertionError with `what` and the last value after `timeout_s`. `condition` is called at
    least twice, so that a machine that stalled for the whole time does not fail the test.
    """
    deadline = time.monotonic() + timeout_s
    while True:
        late = time.monotonic() >= deadline
        value = condition()
        if value:
            return value
        if late:
            raise AssertionError(f"not within {timeout_s:g} s: {what} (last: {value!r})")
        time.sleep(pause_s)
