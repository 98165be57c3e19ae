"""What a decorated callable is: its name, its function, and how it is called. Pure."""

import functools
from collections.abc import AsyncGenerator, Callable, Collection, Generator, Mapping
from typing import Any, Literal

from sessionary.producers.errors import Invalid

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


class CallArguments:
    """The arguments of a callable's calls by name, without its receiver.

    What a partial has been given is a part of each call. Making one raises `ValueError` or
    `TypeError` for a callable without a signature.
    """

    def __init__(self, function: Callable[..., Any]) -> None:
        import inspect  # takes long to load

        self._given, self._given_by_name = tuple[Any, ...](), dict[str, Any]()
        while isinstance(function, functools.partial):
            self._given = (*function.args, *self._given)
            self._given_by_name = {**function.keywords, **self._given_by_name}
            function = function.func
        self._signature = inspect.signature(function)
        parameters = self._signature.parameters
        self._rest = next((name for name, one in parameters.items() if one.kind is one.VAR_KEYWORD), None)
        first = next(iter(parameters), None)
        self._receiver = first if first in ("self", "cls") else None
        self.names = tuple(name for name in parameters if name != self._receiver)

    def takes(self, name: str) -> bool:
        """Return whether a call may have an argument of this name."""
        return self._rest is not None or name in self.names

    def bind(self, args: tuple[Any, ...], kwargs: Mapping[str, Any], omit: Collection[str] = ()) -> dict[str, Any]:
        """Return the arguments of a call with their defaults, but for those named in `omit`.

        Raises `TypeError` for arguments that the callable does not take.
        """
        bound = self._signature.bind(*self._given, *args, **{**self._given_by_name, **kwargs})
        bound.apply_defaults()
        found = {name: value for name, value in bound.arguments.items() if name != self._receiver and name not in omit}
        if omit and self._rest in found:
            found[self._rest] = {name: value for name, value in found[self._rest].items() if name not in omit}
        return found


def is_generator(value: object) -> bool:
    """Return whether a value is a generator, of either kind."""
    return isinstance(value, Generator | AsyncGenerator)


def decorate_inside(decorate: Callable[[Any], Any], function: Any) -> Any:
    """Return `function` decorated; of a static method or a class method what is in it.

    Raises `Invalid` for what cannot be called.
    """
    if isinstance(function, staticmethod | classmethod):
        return type(function)(decorate(function.__func__))
    if not callable(function):
        above = "; put @property above the decorator" if isinstance(function, property) else ""
        raise Invalid("invalid_value", f"{function!r:.80} cannot be called: decorate a function{above}")
    return decorate(function)


def checked_word(decorator: str, word: Any, example: str) -> str:
    """Return the word that a decorator was given. Raises `Invalid` if it is none.

    As it is not if the decorator is used without brackets, and gets the function itself.
    """
    if isinstance(word, str) and word:
        return word
    raise Invalid(
        "invalid_value",
        f'@{decorator} was given {word!r:.80}, no text: write @{decorator}("{example}") above the function',
    )
