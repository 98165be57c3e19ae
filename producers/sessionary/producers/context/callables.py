"""What a decorated callable is: its name, its function, and how it is called. Pure."""

import functools
from collections.abc import AsyncGenerator, Callable, Generator
from typing import Any, Literal

Kind = Literal["function", "coroutine", "generator", "async generator"]


def name_of(function: Callable[..., Any]) -> str:
    """Return the name of a function; of the inner one of a partial, else of the class."""
    while isinstance(function, functools.partial):
        function = function.func
    return f"{getattr(function, '__name__', type(function).__name__)}"


def kind_of(function: Callable[..., Any]) -> Kind:
    """Return how a callable is called: also a partial, and an object with `__call__`."""
    import inspect  # takes long to load

    while isinstance(function, functools.partial):
        function = function.func
    if not inspect.isroutine(function) and not isinstance(function, type):
        function = type(function).__call__
    if inspect.iscoroutinefunction(function):
        return "coroutine"
    if inspect.isasyncgenfunction(function):
        return "async generator"
    return "generator" if inspect.isgeneratorfunction(function) else "function"


def is_generator(value: object) -> bool:
    """Return whether a value is a generator, of either kind."""
    return isinstance(value, Generator | AsyncGenerator)


def decorate_inside(decorate: Callable[[Any], Any], function: Any) -> Any:
    """Return `function` decorated; of a static method or a class method what is in it."""
    if isinstance(function, staticmethod | classmethod):
        return type(function)(decorate(function.__func__))
    return decorate(function)
