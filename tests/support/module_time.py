"""Replaces the clock of one module in a test; other modules and threads keep theirs."""

import time
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest


def set_module_time(monkeypatch: pytest.MonkeyPatch, module: str, **functions: Callable[..., Any]) -> None:
    """Replace functions of `time` as the module sees them, which imports `time` itself.

    Patched in `time`, they would also be those of threads that earlier tests left behind.
    """
    monkeypatch.setattr(f"{module}.time", SimpleNamespace(**{**vars(time), **functions}))
