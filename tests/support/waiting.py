"""Waits for a condition instead of a fixed time."""

import time
from collections.abc import Callable
from typing import Final, TypeVar

T = TypeVar("T")

# On a machine with many times more processes than cores, what takes a second takes a minute. A wait
# that succeeds costs nothing, so no wait is shorter.
PATIENCE_S: Final = 120.0
# A condition that reads a whole topic, asked without a break, takes a core from what it waits for
# and from the tests beside it.
_PAUSE_TO_CALL: Final = 2.0
_PAUSE_S_MAX: Final = 2.0


def wait_until(
    condition: Callable[[], T | None], timeout_s: float, what: str, *, pause_s: float = 0.05, exact: bool = False
) -> T:
    """Call `condition` until it returns a true value, and return that.

    Raises AssertionError with `what` and the last value after `timeout_s`, but not before
    `PATIENCE_S`. `exact`: the time itself is what the test is about, so it holds as it is.
    Otherwise a call that takes long is followed by a longer pause than `pause_s`, 2 s at most.
    `condition` is called at least twice, so that a machine that stalled for the whole time does not
    fail the test.
    """
    timeout_s = timeout_s if exact else max(timeout_s, PATIENCE_S)
    deadline = time.monotonic() + timeout_s
    while True:
        called = time.monotonic()
        late = called >= deadline
        value = condition()
        if value:
            return value
        if late:
            raise AssertionError(f"not within {timeout_s:g} s: {what} (last: {value!r})")
        took_s = 0.0 if exact else time.monotonic() - called
        time.sleep(max(pause_s, min(_PAUSE_S_MAX, _PAUSE_TO_CALL * took_s)))
