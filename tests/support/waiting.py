"""Waiting for a condition instead of for a while."""

import time
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")


def wait_until(condition: Callable[[], T], timeout_s: float, what: str, *, pause_s: float = 0.05) -> T:
    """Call `condition` until it returns something true, and return that.

    Raises AssertionError after `timeout_s`, which names `what` and the last value. `condition` is called at least
    twice, so that a machine that slept through the whole time is not blamed on the product.
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
