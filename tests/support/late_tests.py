"""Begins no test too late (`--begin-within MINUTES`): a build server ends a long run by force.

A slow machine then leaves out the last files. Each such test is skipped, and the reason says so.
These are not always the same: `--first-file NUMBER` turns the order of the integration's files.
"""

import time
from itertools import groupby

import pytest

OPTION = "--begin-within"
FIRST_FILE_OPTION = "--first-file"
_TURNED = "tests/integration/"


class LateTests:
    """Plugin: skips each test that would begin too late."""

    def __init__(self, minutes: float, first_file: int = 0) -> None:
        self._minutes = minutes
        self._until_s = time.monotonic() + minutes * 60
        self._first_file = first_file

    @pytest.hookimpl(trylast=True)  # after the folders have their order
    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        """Let another file of the integration be the first one."""
        places = [place for place, item in enumerate(items) if item.nodeid.startswith(_TURNED)]
        files = [list(group) for _, group in groupby((items[place] for place in places), lambda item: item.path)]
        first = self._first_file % max(1, len(files))
        turned = [item for group in (*files[first:], *files[:first]) for item in group]
        for place, item in zip(places, turned, strict=True):
            items[place] = item

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_setup(self, item: pytest.Item) -> None:
        """Skip the test if its time is over, before anything is set up for it. Name its file."""
        if time.monotonic() > self._until_s:
            file = item.nodeid.partition("::")[0]
            pytest.skip(f"{file}: too late on a slow machine, no test begins after {self._minutes:g} min ({OPTION})")


__all__ = ["FIRST_FILE_OPTION", "OPTION", "LateTests"]
