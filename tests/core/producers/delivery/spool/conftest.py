"""Every test of the spool runs with and without what macOS and Windows lack."""

import os
import sys

import pytest


@pytest.fixture(autouse=True, params=["all modules", "neither fcntl nor posix_fallocate"])
def _offered_by_system(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    if request.param != "all modules":
        monkeypatch.setitem(sys.modules, "fcntl", None)
        monkeypatch.delattr(os, "posix_fallocate", raising=False)  # a platform may lack it by itself
