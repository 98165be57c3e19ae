"""Begins no test too late (`--begin-within MINUTES`): a build server ends a long run by force.

A slow machine then leaves out the last files. Each such test is skipped, and the reason says so.
"""

import time

import pytest

OPTION = "--begin-within"


class LateTests:
    """Plugin: skips each test that would begin too late."""

    def __init__(self, minutes: float) -> None:
        self._minutes = minutes
        self._until_s = time.monotonic() + minutes * 60

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_setup(self) -> None:
        """Skip the test if its time is over, before anything is set up for it."""
        if time.monotonic() > self._until_s:
            pytest.skip(f"no test begins after {self._minutes:g} minutes here ({OPTION}): the machine is too slow")


__all__ = ["OPTION", "LateTests"]
