"""Text of agents that UTF-8 cannot hold: lone surrogates, and errors that cannot be printed. Pure.

A model's output that was cut inside a pair, or bytes read with `surrogateescape`, leave surrogates
in a `str`. Events hold UTF-8, so each lone one becomes U+FFFD, and two that make a pair become the
character that they stand for.
"""

import json
from collections.abc import Mapping
from typing import Any

from sessionary.producers.errors import Invalid
from sessionary.schemas.topics import VALUE_BYTES_MAX
from sessionary.schemas.types import RejectionReason


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


# Values of agents as JSON text. Pure.


JSON_BYTES_MAX = VALUE_BYTES_MAX - (16 << 10)  # Leaves room for the envelope around it
_DEPTH_MAX = 8  # of containers that are looked into for the value that JSON cannot hold
_CONTAINERS = (dict, list, tuple)
_ONLY_TEXT = frozenset({str})
_LEAVES = frozenset({str, int, float, bool, type(None)})


def to_json_text(value: Any, name: str, too_large: RejectionReason = "invalid_value") -> str:
    """Return `value` as JSON with sorted keys and without spaces; `name` is for errors.

    Raises `Invalid` if a key is not a text (JSON would change it), if JSON cannot hold the value,
    or, for the reason `too_large`, if it has more than `JSON_BYTES_MAX` bytes.
    """
    text = any_json_text(value, name)
    size = len(text.encode())
    if size > JSON_BYTES_MAX:
        raise Invalid(
            too_large,
            f"{name} has {size} bytes, more than {JSON_BYTES_MAX}: keep large content elsewhere and a reference here",
        )
    return text


def any_json_text(value: Any, name: str) -> str:
    """Return `value` as `to_json_text` does, whatever its size. Raises `Invalid`."""
    try:
        if isinstance(value, _CONTAINERS) and not _has_text_keys(value):  # `json.dumps` would make texts of them
            raise Invalid("invalid_value", _describe_foreign_key(value, name))
        text = json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False)
        try:
            text.encode()
        except UnicodeEncodeError:
            text = replace_surrogates(text)
    except (TypeError, ValueError, RecursionError) as error:
        raise Invalid("invalid_value", f"{name} cannot be written as JSON: {error}") from None
    return text


def _has_text_keys(value: Any) -> bool:
    """Return whether all keys of a dict or list, and of those in it, are texts.

    Looks at the types of many values at once: every update of a state passes it.
    """
    if isinstance(value, dict):
        if not _ONLY_TEXT.issuperset(map(type, value)) and not all(isinstance(key, str) for key in value):
            return False
        value = value.values()
    if _LEAVES.issuperset(map(type, value)):
        return True
    return all(_has_text_keys(item) for item in value if isinstance(item, _CONTAINERS))


def _describe_foreign_key(value: Any, path: str) -> str:
    """Return place and value of the first key that is not a text; '' if there is none."""
    if not isinstance(value, _CONTAINERS):
        return ""
    if isinstance(value, dict):
        for key in value:
            if not isinstance(key, str):
                return f"{path} has the key {key!r} of type {type(key).__name__}: keys must be texts"
    items = value.items() if isinstance(value, dict) else enumerate(value)
    form = "{}.{}" if isinstance(value, dict) else "{}[{}]"
    return next(filter(None, (_describe_foreign_key(item, form.format(path, key)) for key, item in items)), "")


def json_value(value: Any, outer: tuple[int, ...] = ()) -> Any:
    """Return a value with all that JSON cannot hold in it as text with its type.

    `outer`: the ids of the containers around it.
    """
    try:
        any_json_text(value, "value")
    except Invalid:
        pass
    else:
        return value
    if len(outer) < _DEPTH_MAX and id(value) not in outer:
        inside = (*outer, id(value))
        if isinstance(value, dict) and all(isinstance(key, str) for key in value):
            return {key: json_value(item, inside) for key, item in value.items()}
        if isinstance(value, list | tuple):
            return [json_value(item, inside) for item in value]
    return text_with_type(value)


def text_with_type(value: object) -> dict[str, str]:
    """Return a value that JSON cannot hold as its text and the name of its type."""
    try:
        text = replace_surrogates(f"{value}")
    except Exception as broken:  # noqa: BLE001 - the class is the user's
        text = f"(its text cannot be made: {type(broken).__name__})"
    return {"text": text, "type": type_name(value)}


def type_name(value: object) -> str:
    """Return the name of a value's type, with its module unless it is a builtin."""
    kind = type(value)
    module = "" if kind.__module__ == "builtins" else f"{kind.__module__}."
    return f"{module}{kind.__qualname__}"
