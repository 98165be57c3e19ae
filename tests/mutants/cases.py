"""Calls a module's tests without pytest, whose start takes longer than most trials."""

from collections.abc import Iterable, Iterator
from functools import partial
from itertools import product
from types import FunctionType, ModuleType
from typing import Any

import pytest

Case = partial[None]


def cases(module: ModuleType) -> Iterator[Case]:
    """Yield each test function of a module with each set of its parameters, in order.

    Fixtures are not supported: a test that needs one fails when the suite runs without a mutant.
    """
    for name, function in vars(module).items():
        if name.startswith("test_") and isinstance(function, FunctionType):
            marks = [mark for mark in getattr(function, "pytestmark", ()) if mark.name == "parametrize"]
            for parts in product(*map(_parameters, marks)):
                yield partial(function, **{name: value for part in parts for name, value in part.items()})


def case_name(case: Case) -> str:
    """Return a case as text, for reports."""
    return f"{case.func.__name__}({', '.join(f'{value!r:.40}' for value in case.keywords.values())})"


def _parameters(mark: pytest.Mark) -> Iterable[dict[str, Any]]:
    names, values = mark.args
    if isinstance(names, str):
        return [{names: value} for value in values]
    return [dict(zip(names, value, strict=True)) for value in values]
