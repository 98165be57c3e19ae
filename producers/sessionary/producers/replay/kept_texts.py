"""Results of which the record has only the text, as JSON cannot hold them: objects of libraries.

The text is all that a replay can give back. Code that asks for more would work with another value
than it had, so it is stopped.
"""

import re
from collections.abc import Callable
from typing import Any, Final, NoReturn

# As `type_name` writes a class: a builtin one, or one with its module.
_OF_BUILTIN: Final = frozenset({"bytearray", "bytes", "complex", "dict", "frozenset", "list", "object", "set", "tuple"})
_OF_MODULE: Final = re.compile(r"[^\W\d]\w*(\.([^\W\d]\w*|<locals>|<lambda>))+")


class KeptText:
    """A value of which the record has the text alone. `str` and `repr` return it; all else raises.

    The subclass of each value has the name of the value's class, so that the record of a call with
    it, or with its text, is again the same.
    """

    def __init__(self, text: str, stop: Callable[[], BaseException]) -> None:
        """`stop`: returns the error of code that asks for more than the text."""
        self.__text, self.__stop = text, stop

    def __str__(self) -> str:
        return self.__text

    __repr__ = __str__

    def __getattr__(self, name: str) -> NoReturn:
        if name.startswith("__"):  # protocols of Python that the value may well lack
            raise AttributeError(name)
        raise self.__stop()

    def _refuse(self, *_: object) -> Any:
        raise self.__stop()

    __getitem__ = __iter__ = __len__ = __contains__ = __bool__ = __call__ = _refuse
    __add__ = __radd__ = __lt__ = __le__ = __gt__ = __ge__ = __enter__ = __aiter__ = __await__ = _refuse
    __eq__ = __ne__ = _refuse
    __hash__ = None  # type: ignore[assignment]  # what is no value equals none


def restore_value(value: Any, stop: Callable[[str], BaseException]) -> Any:
    """Return a result as the record has it, with a `KeptText` for each text with a type in it.

    `stop`: returns the error for a class of values, by its name. A number that is none is one.
    """
    if isinstance(value, list):
        return [restore_value(each, stop) for each in value]
    if not isinstance(value, dict):
        return value
    text, kind = value.get("text"), value.get("type")
    if len(value) == 2 and isinstance(text, str) and isinstance(kind, str):
        if kind == "float" and text in ("nan", "inf", "-inf"):
            return float(text)
        if kind in _OF_BUILTIN or _OF_MODULE.fullmatch(kind):
            module, _, name = kind.rpartition(".")
            names = {"__module__": module or "builtins", "__qualname__": name}
            made: Any = type(name, (KeptText,), names)
            return made(text, lambda: stop(kind))
    return {name: restore_value(each, stop) for name, each in value.items()}
