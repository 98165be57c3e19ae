"""Text of agents that UTF-8 cannot hold: lone surrogates, and errors that cannot be printed. Pure.

A model's output that was cut inside a pair, or bytes read with `surrogateescape`, leave surrogates
in a `str`. Events hold UTF-8, so each lone one becomes U+FFFD, and two that make a pair become the
character that they stand for.
"""

from collections.abc import Mapping
from typing import Any


def replace_surrogates(text: str) -> str:
    """Return `text` without lone surrogates."""
    return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")


def replace_in_value(value: Any) -> Any:
    """Return `value` with all texts in it as `replace_surrogates` does.

    Goes through tuples, named ones too, lists and mappings. Other values are returned as they are.
    """
    if isinstance(value, str):
        return replace_surrogates(value)
    if isinstance(value, tuple):
        items = [replace_in_value(item) for item in value]
        return type(value)(*items) if hasattr(value, "_fields") else tuple(items)
    if isinstance(value, list):
        return [replace_in_value(item) for item in value]
    if isinstance(value, Mapping):
        return {replace_in_value(key): replace_in_value(item) for key, item in value.items()}
    return value


def exception_text(error: BaseException) -> str:
    """Return the text of an exception, as UTF-8 can hold it, even if its `__str__` raises."""
    try:
        return replace_surrogates(str(error))
    except Exception as broken:  # noqa: BLE001 - the class is the user's
        return f"(its text cannot be made: {type(broken).__name__})"


def error_text(error: BaseException) -> str:
    """Return class and text of an exception, as UTF-8 can hold them."""
    return f"{replace_surrogates(type(error).__name__)}: {exception_text(error)}"
